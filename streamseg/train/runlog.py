"""Log of a training run: the files beside its weights, and progress on the terminal."""

import hashlib
import json
import math
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

import streamseg
from streamseg import machine
from streamseg.class_table import ClassTable
from streamseg.data.datasets import Dataset
from streamseg.evaluate import plot
from streamseg.evaluate.images import Score
from streamseg.io.files import UNFINISHED, written_whole
from streamseg.train.config import TrainConfig
from streamseg.train.unions import TrainingData

EVERY = 50
"""Iterations between log entries: reading the loss back more often would stall a GPU."""

MAX_SILENCE = 10.0
"""Seconds after which progress is shown even between entries: on a CPU, EVERY iterations can take many minutes."""


class RunLog:
    """Writes log.jsonl, run.json, a progress line on the terminal, TensorBoard files if asked, and curves.png."""

    def __init__(self, out: Path, first: int, tensorboard: bool, messages: TextIO | None = None):
        out.mkdir(parents=True, exist_ok=True)
        for unfinished in out.glob(f"{UNFINISHED}*"):  # left by a killed run
            unfinished.unlink()
        self.out, self.messages = out, messages or sys.stderr
        self.path = out / "log.jsonl"
        self.entries: list[dict[str, Any]] = []
        if first and self.path.exists():
            # drop what a killed run logged after its last saved state: it will be logged again
            self.entries = [entry for entry in read_entries(self.path) if entry.get("step", math.inf) <= first]
        with written_whole(self.path) as temporary:
            temporary.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries), encoding="utf-8")
        self.board = open_tensorboard(out, first) if tensorboard else None
        self.first = first
        self.last_shown = time.monotonic()
        """Time of the last progress line."""
        self.timer = (time.monotonic(), first)
        """Start time of the iterations that are timed, and the first of them; validation is not timed."""

    def describe_run(
        self,
        config: TrainConfig,
        data: TrainingData,
        device: torch.device,
        initial: str,
        processes: int,
    ) -> None:
        """Write run.json: settings, data, and the command and environment; a resumed run adds a session."""
        path = self.out / "run.json"
        earlier: list[Any] = []
        if self.first and path.exists():
            initial, earlier = read_run(path)
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
            **describe_data(data),
            "sessions": [*earlier, session],
        }
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
        if self.first >= config.iterations:
            self.say(f"The run is finished: {config.iterations} iterations are done.")
            return
        height, width = config.crop
        self.say(
            f"{config.network} from {initial}, {data.summary()}, "
            f"iterations {self.first + 1} to {config.iterations}, batches of {config.batch} x {height} x {width}, "
            f"on {session['device'] if device.type == 'cuda' else 'the CPU'}"
        )

    def has_validation(self, step: int) -> bool:
        """Return whether the log has the accuracy at a step."""
        return any(entry["step"] == step and "val_miou" in entry for entry in self.entries)

    def validated(self, step: int, scores: Sequence[Score]) -> None:
        """Log the accuracy on the validation split, and on that of a second data set."""
        entry: dict[str, Any] = {"step": step}
        for prefix, score in zip(("", "with_"), scores, strict=False):
            entry |= {f"{prefix}val_miou": score.miou, f"{prefix}val_iou": score.iou}
        self.write(entry)
        second = "".join(f", {score.miou:.2f} on that of the second data set" for score in scores[1:])
        self.say(f"iteration {step}: mIoU {scores[0].miou:.2f} on the validation split{second}")
        self.timer = (time.monotonic(), step)

    def write(self, entry: dict[str, Any]) -> None:
        """Add an entry to log.jsonl, and to TensorBoard."""
        self.entries.append(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.board:
            for name, value in entry.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, entry["step"])

    def step(self, config: TrainConfig, done: int, loss: float, rate: float, device: torch.device) -> None:
        """Log the training loss, and show progress."""
        start, first = self.timer
        speed = (done - first) * config.batch / (time.monotonic() - start)
        self.timer = (time.monotonic(), done)
        memory = peak_memory(device) / 1e9
        self.write({"step": done, "loss": loss, "rate": rate, "images_per_second": speed, "memory_gb": memory})
        left = int((config.iterations - done) * config.batch / speed)
        line = f"{done}/{config.iterations}  loss {loss:.3f}  rate {rate:.1e}  {speed:.1f} images/s  "
        line += f"{left // 60}:{left % 60:02d} left"
        self.show(f"{line}  {memory:.1f} GB" if memory else line, last=done == config.iterations)

    def is_due(self, done: int) -> bool:
        """Return whether to show progress now: after the first iteration, and after MAX_SILENCE without a line."""
        return done == self.first + 1 or time.monotonic() - self.last_shown >= MAX_SILENCE

    def live(self, config: TrainConfig, done: int, loss: float, rate: float) -> None:
        """Show progress between two entries."""
        self.show(f"{done}/{config.iterations}  loss {loss:.3f}  rate {rate:.1e}")

    def show(self, line: str, *, last: bool = False) -> None:
        """Show a progress line; on a terminal it replaces the last one."""
        self.last_shown = time.monotonic()
        if self.messages.isatty():
            print(f"\r\x1b[K{line}", end="\n" if last else "", file=self.messages, flush=True)
        else:
            print(line, file=self.messages, flush=True)

    def say(self, sentence: str) -> None:
        """Print a sentence on its own line."""
        print(("\r\x1b[K" if self.messages.isatty() else "") + sentence, file=self.messages, flush=True)

    def finish(self) -> None:
        """Draw the curves, if matplotlib is installed."""
        if self.board:
            self.board.close()
        titles = {
            "loss": "training loss",
            "val_miou": "validation mIoU (%)",
            "with_val_miou": "the same, second data set",
            "rate": "learning rate",
        }
        series = {
            title: [(entry["step"], entry[name]) for entry in self.entries if name in entry]
            for name, title in titles.items()
        }
        try:
            plot.curves_plot(self.out / "curves.png", {title: points for title, points in series.items() if points})
        except ValueError as error:  # without matplotlib: the weights are written anyway
            self.say(str(error))


def read_run(path: Path) -> tuple[str, list[Any]]:
    """Return from run.json what the weights of a run started from, and its earlier sessions."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        initial, sessions = run["initial"], run["sessions"]
        if isinstance(initial, str) and initial.isprintable() and isinstance(sessions, list):
            return initial, sessions
        raise ValueError(initial)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is damaged: move it away, and resume the run without it.") from None


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log; damaged ones, such as a last one that was cut short, are skipped."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and type(entry.get("step")) is int:
                yield entry


def summarise(path: Path) -> dict[str, Any]:
    """Return the iterations that a log has reached, and the last loss and accuracy."""
    summary: dict[str, Any] = {"iterations": 0, "loss": None, "val_miou": None, "val_iou": None}
    for entry in read_entries(path):
        summary |= {"iterations": entry["step"], **{name: entry[name] for name in summary.keys() & entry.keys()}}
    return summary


def peak_memory(device: torch.device) -> float:
    """Return the peak memory of this process in bytes, on the GPU or on the machine; 0 if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return machine.peak_memory()


def describe_data(data: TrainingData) -> dict[str, Any]:
    """Return the data of a run as JSON values: the first data set, the one with it, and the class table."""
    first, *more = (
        {"data": str(folder), "frames": len(dataset), "fingerprint": hash_files(dataset)}
        for folder, dataset in zip(data.folders, data.datasets, strict=True)
    )
    described: dict[str, Any] = dict(first)
    if more:
        described["with"] = more[0]
    if data.table:
        described["class_table"] = {"class": data.table.classes.names, **data.table.columns}
    return described


def hash_names(datasets: Sequence[Dataset], table: ClassTable | None = None, teachers: Sequence[nn.Module] = ()) -> str:
    """Return a hash of the classes and the file names of data sets, whose folders do not matter, and of teachers."""
    names = [
        name for dataset in datasets for name in (*dataset.classes.names, *(pair.image.name for pair in dataset.pairs))
    ]
    if table:
        names += [*table.classes.names, *(name for column in table.columns.items() for name in (column[0], *column[1]))]
    names += [hash_weights(teacher) for teacher in teachers]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def hash_weights(network: nn.Module) -> str:
    """Return a hash of the weights of a network."""
    found = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        found.update(name.encode())
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def hash_files(dataset: Dataset) -> str:
    """Return a hash of the names and sizes of a data set's files."""
    files = [f"{path.name} {dataset.size_of(path)}" for pair in dataset.pairs for path in (pair.image, pair.labels)]
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def open_tensorboard(out: Path, first: int) -> Any:
    """Return a TensorBoard writer that drops what a killed run wrote after its last saved state."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("TensorBoard is not installed: pip install 'streamseg[train]'") from None
    return SummaryWriter(str(out), purge_step=first + 1)
