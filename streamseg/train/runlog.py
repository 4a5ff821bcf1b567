"""What a training run tells: files beside its weights, and a line on the terminal."""

import hashlib
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch

import streamseg
from streamseg import machine
from streamseg.data.datasets import Dataset
from streamseg.evaluate import plot
from streamseg.io.files import UNFINISHED, written_whole
from streamseg.train.config import TrainConfig

EVERY = 50
"""Iterations between entries: reading a loss back more often would hold a GPU up."""

SILENCE = 10.0
"""Seconds after which a line is shown before the next entry: on a CPU, EVERY iterations can take many minutes."""


class RunLog:
    """What a run tells: log.jsonl, a live line on the terminal, TensorBoard if asked, curves at the end."""

    def __init__(self, out: Path, first: int, tensorboard: bool, words: TextIO | None = None):
        out.mkdir(parents=True, exist_ok=True)
        for unfinished in out.glob(f"{UNFINISHED}*"):  # what a killed run was writing
            unfinished.unlink()
        self.out, self.words = out, words or sys.stderr
        self.path = out / "log.jsonl"
        self.entries: list[dict[str, Any]] = []
        if first and self.path.exists():
            # what a killed run logged after its last whole state happens again
            self.entries = [entry for entry in read_entries(self.path) if entry.get("step", math.inf) <= first]
        with written_whole(self.path) as temporary:
            temporary.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries), encoding="utf-8")
        self.board = open_tensorboard(out, first) if tensorboard else None
        self.first = first
        self.shown = time.monotonic()
        """When a line was last shown."""
        self.clock = (time.monotonic(), first)
        """When the iterations since were begun, and the first of them: measuring is no training."""

    def describe_run(
        self,
        config: TrainConfig,
        dataset: Dataset,
        device: torch.device,
        data: Path,
        initial: str,
        processes: int,
    ) -> None:
        """Write run.json: what was run, with what, on what; a run that goes on adds to it."""
        path = self.out / "run.json"
        earlier = read_sessions(path) if self.first and path.exists() else []
        session = {
            "command": sys.argv,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "from_iteration": self.first,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "processes": processes,
            "streamseg": streamseg.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
        }
        run = {
            "config": asdict(config),
            "initial": initial,
            "data": str(data),
            "frames": len(dataset),
            "fingerprint": hash_files(dataset),
            "sessions": [*earlier, session],
        }
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
        height, width = config.crop
        self.say(
            f"{config.network} from {initial}, {len(dataset)} frames of {config.dataset} {config.split}, "
            f"iterations {self.first + 1} to {config.iterations}, batches of {config.batch} x {height} x {width}, "
            f"on {session['device']}"
        )

    def has_validation(self, step: int) -> bool:
        """Whether the accuracy at a step is in the log."""
        return any(entry["step"] == step and "val_miou" in entry for entry in self.entries)

    def validated(self, step: int, miou: float, iou: dict[str, float | None]) -> None:
        """Log the accuracy on the validation split."""
        self.write({"step": step, "val_miou": miou, "val_iou": iou})
        self.say(f"iteration {step}: mIoU {miou:.2f} on the validation split")
        self.clock = (time.monotonic(), step)

    def write(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.board:
            for name, value in entry.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, entry["step"])

    def step(self, config: TrainConfig, done: int, loss: float, rate: float, device: torch.device) -> None:
        """Log the training loss, and show where the run stands."""
        began, first = self.clock
        speed = (done - first) * config.batch / (time.monotonic() - began)
        self.clock = (time.monotonic(), done)
        memory = peak_memory(device) / 1e9
        self.write({"step": done, "loss": loss, "rate": rate, "images_per_second": speed, "memory_gb": memory})
        left = int((config.iterations - done) * config.batch / speed)
        line = f"{done}/{config.iterations}  loss {loss:.3f}  rate {rate:.1e}  {speed:.1f} images/s  "
        line += f"{left // 60}:{left % 60:02d} left"
        self.show(f"{line}  {memory:.1f} GB" if memory else line, last=done == config.iterations)

    def is_due(self, done: int) -> bool:
        """Whether whoever waits should see a line now: after the first iteration, and after every SILENCE."""
        return done == self.first + 1 or time.monotonic() - self.shown >= SILENCE

    def live(self, config: TrainConfig, done: int, loss: float, rate: float) -> None:
        """Show where the run stands between two entries."""
        self.show(f"{done}/{config.iterations}  loss {loss:.3f}  rate {rate:.1e}")

    def show(self, line: str, *, last: bool = False) -> None:
        """Show a line, which on a terminal the next one replaces."""
        self.shown = time.monotonic()
        if self.words.isatty():
            print(f"\r\x1b[K{line}", end="\n" if last else "", file=self.words, flush=True)
        else:
            print(line, file=self.words, flush=True)

    def say(self, sentence: str) -> None:
        print(("\r\x1b[K" if self.words.isatty() else "") + sentence, file=self.words, flush=True)

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


def read_sessions(path: Path) -> list[Any]:
    """What run.json says of the times that a run was started before."""
    try:
        sessions = json.loads(path.read_text(encoding="utf-8"))["sessions"]
        return [*sessions]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is damaged: move it away, and the run goes on with a new one.") from None


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a log, but for those that are damaged, such as a last one that was not written whole."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and type(entry.get("step")) is int:
                yield entry


def summarise(path: Path) -> dict[str, Any]:
    """Of a run's log what it came to: iterations, and the last loss and accuracy that there are."""
    told: dict[str, Any] = {"iterations": 0, "loss": None, "val_miou": None, "val_iou": None}
    for entry in read_entries(path):
        told |= {"iterations": entry["step"], **{name: entry[name] for name in told.keys() & entry.keys()}}
    return told


def peak_memory(device: torch.device) -> float:
    """The most bytes that this process has held: of the GPU's memory, or of the machine's; 0 if that is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return machine.peak_memory()


def hash_names(dataset: Dataset) -> str:
    """A hash of a data set's classes and of the names of its frames, wherever they lie."""
    names = [*dataset.classes.names, *(pair.image.name for pair in dataset.pairs)]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def hash_files(dataset: Dataset) -> str:
    """A hash of the names and sizes of a data set's files."""
    files = [f"{path.name} {dataset.size_of(path)}" for pair in dataset.pairs for path in (pair.image, pair.labels)]
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def open_tensorboard(out: Path, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("TensorBoard is not installed: pip install 'streamseg[train]'") from None
    return SummaryWriter(str(out), purge_step=first + 1)
