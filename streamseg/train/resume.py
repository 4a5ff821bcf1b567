"""Save the state of a run, and restore it to resume the run."""

import json
import os
import shlex
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch

from streamseg.io.checksums import check_zip
from streamseg.io.files import written_whole
from streamseg.train.config import OPTION_NAMES, TrainConfig, rename_old_settings


def check_out(out: Path, resume: bool) -> None:
    """Raise an error if there is no run to resume, or one that would be overwritten."""
    if resume and not (out / "state.pt").exists():
        raise FileNotFoundError(f"No state at {out / 'state.pt'} to resume from: start the run without --resume.")
    if not resume and any((out / name).exists() for name in ("state.pt", "weights.safetensors")):
        raise ValueError(f"{out} already holds a run: continue with --resume, or give another --out.")


def is_restarted(out: Path) -> bool:
    """Return whether torchrun has restarted the run after losing a process, and there is a state to resume from."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 and (out / "state.pt").exists()


def save_training_state(out: Path, step: int, settings: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write everything that is needed to resume a run."""
    state = {"step": step, "settings": json.dumps(settings), **{name: x.state_dict() for name, x in parts.items()}}
    path = out / "state.pt"
    try:
        with written_whole(path) as temporary:
            torch.save(state, temporary)
    except RuntimeError as error:  # what torch raises when the disk is full
        raise OSError(f"Could not write {path}: make room on the disk, then continue with --resume.") from error


def restore_training_state(out: Path, settings: dict[str, Any], parts: dict[str, Any]) -> int:
    """Load the state of a stopped run into its parts; returns the step to resume from.

    Raises a ValueError if the run had other settings, or if the file is damaged.
    """
    path = out / "state.pt"
    damaged = f"{path} is not the state of a run, or is damaged: start again in another folder."
    try:
        check_zip(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        # a setting that was added after the run was started had its default value
        defaults = {field.name: field.default for field in fields(TrainConfig) if field.default is not MISSING}
        theirs = json.loads(json.dumps(defaults)) | rename_old_settings(json.loads(state["settings"]))
        changed = [name for name, ours in json.loads(json.dumps(settings)).items() if ours != theirs[name]]
        options = " ".join(format_option(name, theirs[name]) for name in changed if name != "data")
        if not options.isprintable():
            raise ValueError(options)
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise ValueError(damaged) from error
    if changed == ["data"]:
        alone = settings.get("with_dataset", "none") == "none" and not settings.get("classes")
        same = "--data" if alone else "--data, --with-data and class table"
        what = "frames, classes or teachers" if settings.get("teachers") else "frames or classes"
        raise ValueError(f"The run in {out} was started with other {what}: give the same {same} to resume.")
    if "iterations" in changed and state.get("step") == theirs["iterations"]:
        raise ValueError(
            f"The run in {out} is finished, after {theirs['iterations']} iterations: to train on, start another run "
            f"with --initial {out / 'weights.safetensors'}."
        )
    if changed:
        raise ValueError(f"The run in {out} was started with other settings: continue with {options} --resume.")
    try:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return int(state["step"])
    except Exception as error:  # as above
        raise ValueError(damaged) from error


def format_option(name: str, value: Any) -> str:
    """Return a setting as a command-line option, quoted for a shell."""
    name = OPTION_NAMES.get(name, name).replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if value == []:
        return f"--no-{name}"
    if str(value).startswith("-"):  # or it would be parsed as an option
        return shlex.quote(f"--{name}={value}")
    return shlex.join([f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])])


def sync_stop_signal(signal_number: int, done: int, device: torch.device) -> int:
    """Return the stop signal that any process got, so that all stop at the same iteration; checked every tenth one."""
    if not torch.distributed.is_initialized():
        return signal_number
    if done % 10:
        return 0
    value = torch.tensor(signal_number, device=device)
    torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
    return int(value.item())
