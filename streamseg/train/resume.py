"""Going on with a run that was stopped: its state on disk."""

import json
import os
import shlex
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch

from streamseg.io.checksums import check_zip
from streamseg.io.files import written_whole
from streamseg.train.config import TrainConfig


def check_out(out: Path, resume: bool) -> None:
    """Raise an error if there is no run to go on with, or one that would be overwritten."""
    if resume and not (out / "state.pt").exists():
        raise FileNotFoundError(f"No state at {out / 'state.pt'} to resume from: start the run without --resume.")
    if not resume and any((out / name).exists() for name in ("state.pt", "weights.safetensors")):
        raise ValueError(f"{out} already holds a run: go on with --resume, or give another --out.")


def is_restarted(out: Path) -> bool:
    """Whether torchrun starts a run again, after a process of it was lost, and there is a state to go on from."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 and (out / "state.pt").exists()


def save_state(out: Path, step: int, settings: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write all that a run needs to go on."""
    state = {"step": step, "settings": json.dumps(settings), **{name: x.state_dict() for name, x in parts.items()}}
    path = out / "state.pt"
    try:
        with written_whole(path) as temporary:
            torch.save(state, temporary)
    except RuntimeError as error:  # torch's word for a full disk
        raise OSError(f"Could not write {path}: make room on the disk, then go on with --resume.") from error


def restore_state(out: Path, settings: dict[str, Any], parts: dict[str, Any]) -> int:
    """Put a stopped run's state back; returns the step to go on from."""
    path = out / "state.pt"
    damaged = f"{path} is not the state of a run, or is damaged: start again in another folder."
    try:
        check_zip(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        # a setting that is newer than the run had its default then
        usual = {field.name: field.default for field in fields(TrainConfig) if field.default is not MISSING}
        theirs = json.loads(json.dumps(usual)) | json.loads(state["settings"])
        changed = [name for name, ours in json.loads(json.dumps(settings)).items() if ours != theirs[name]]
        options = " ".join(format_option(name, theirs[name]) for name in changed if name != "data")
        if not options.isprintable():
            raise ValueError(options)
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise ValueError(damaged) from error
    if changed == ["data"]:
        raise ValueError(f"The run in {out} was started with other frames or classes: give the same --data to go on.")
    if changed:
        raise ValueError(f"The run in {out} was started with other settings: go on with {options} --resume.")
    try:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return int(state["step"])
    except Exception as error:  # likewise
        raise ValueError(damaged) from error


def format_option(name: str, value: Any) -> str:
    """A setting as it is given on the command line, for a shell."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if str(value).startswith("-"):  # or it would be taken for an option
        return shlex.quote(f"--{name}={value}")
    return shlex.join([f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])])


def sync_stop_signal(signal_number: int, done: int, device: torch.device) -> int:
    """A stop signal that any of the processes got, so that all stop at the same iteration; they ask every tenth."""
    if not torch.distributed.is_initialized():
        return signal_number
    if done % 10:
        return 0
    value = torch.tensor(signal_number, device=device)
    torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
    return int(value.item())
