"""What a training run tells: files beside its weights, and a line on the terminal."""

import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import streamseg
from streamseg import plot
from streamseg.config import TrainConfig
from streamseg.datasets import Dataset
from streamseg.files import written_whole

EVERY = 50
"""Iterations between entries: reading a loss back more often would hold a GPU up."""


class Log:
    """What a run tells: log.jsonl, a live line on the terminal, TensorBoard if asked, curves at the end."""

    def __init__(self, out: Path, first: int, tensorboard: bool):
        out.mkdir(parents=True, exist_ok=True)
        for unfinished in out.glob(".*.pt"):  # a state that a killed run was writing
            unfinished.unlink()
        self.out = out
        self.path = out / "log.jsonl"
        self.entries: list[dict[str, Any]] = []
        if first and self.path.exists():
            # what a killed run logged after its last whole state happens again
            self.entries = [entry for entry in read_entries(self.path) if entry["step"] <= first]
        with written_whole(self.path) as temporary:
            temporary.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries))
        self.board = open_tensorboard(out, first) if tensorboard else None
        self.began = (time.monotonic(), first)

    def describe_run(self, config: TrainConfig, dataset: Dataset, device: torch.device, data: Path) -> None:
        """Write run.json: what was run, with what, on what."""
        path = self.out / "run.json"
        _, first = self.began
        earlier = json.loads(path.read_text())["commands"] if first and path.exists() else []
        now = {"command": sys.argv, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        run = {
            "config": asdict(config),
            "commands": [*earlier, now],
            "streamseg": streamseg.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
            "data": str(data),
            "frames": len(dataset),
            "fingerprint": fingerprint(dataset),
        }
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(run, indent=2) + "\n")

    def write(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.board:
            for name, value in entry.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, entry["step"])
        if "val_miou" in entry:
            self.say(f"iteration {entry['step']}: mIoU {entry['val_miou']:.2f} on the validation split")

    def step(self, config: TrainConfig, done: int, loss: float, rate: float, device: torch.device) -> None:
        """Log the training loss, and show where the run stands."""
        clock, first = self.began
        speed = (done - first) * config.batch / (time.monotonic() - clock)
        memory = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else 0.0
        self.write({"step": done, "loss": loss, "rate": rate, "images_per_second": speed, "memory_gb": memory})
        left = int((config.iterations - done) * config.batch / speed)
        line = f"{done}/{config.iterations}  loss {loss:.3f}  rate {rate:.1e}  {speed:.0f} images/s  "
        line += f"{left // 60}:{left % 60:02d} left" + (f"  {memory:.1f} GB" if memory else "")
        if sys.stderr.isatty():
            end = "\n" if done == config.iterations else ""
            print(f"\r\x1b[K{line}", end=end, file=sys.stderr, flush=True)
        elif done % (EVERY * 10) == 0 or done == config.iterations:
            print(line, file=sys.stderr, flush=True)

    def say(self, sentence: str) -> None:
        print(("\r\x1b[K" if sys.stderr.isatty() else "") + sentence, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Draw the curves, where the plotting library is there."""
        if self.board:
            self.board.close()
        titles = {"loss": "training loss", "val_miou": "validation mIoU (%)", "rate": "learning rate"}
        series = {
            title: [(entry["step"], entry[name]) for entry in self.entries if name in entry]
            for name, title in titles.items()
        }
        try:
            plot.curves_plot(self.out / "curves.png", {title: points for title, points in series.items() if points})
        except ValueError as error:  # no matplotlib: the weights are there all the same
            self.say(str(error))


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a log, but for a last one that was not written whole."""
    for line in path.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def fingerprint(dataset: Dataset) -> str:
    """A hash of a data set by the names and sizes of its files, wherever they lie."""
    files = [f"{path.name} {path.stat().st_size}" for pair in dataset.pairs for path in (pair.image, pair.labels)]
    return hashlib.sha256("\n".join([*dataset.classes.names, *files]).encode()).hexdigest()


def open_tensorboard(out: Path, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("TensorBoard is not installed: pip install 'streamseg[train]'") from None
    return SummaryWriter(str(out), purge_step=first + 1)
