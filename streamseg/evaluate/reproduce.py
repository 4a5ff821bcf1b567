"""The paper's tables again: what it prints beside what is measured here.

Counted anywhere: parameters and multiply-accumulates. Timed if wanted: the network alone as the paper does it, and the
way from a frame to its labels, the same for every network. Measured if there are runs and data: the accuracy.
"""

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

import torch
from torch import nn

from streamseg.classes import Classes
from streamseg.data.datasets import Dataset
from streamseg.engine.fast import FastEngine, accelerate
from streamseg.evaluate import plot
from streamseg.evaluate.benchmark import Call, allocated, as_graph, count_macs, label, label_whole, time_call
from streamseg.evaluate.images import validate
from streamseg.evaluate.paper import NAMES, Row, Table
from streamseg.evaluate.video import evaluate_video
from streamseg.io.files import written_whole
from streamseg.models import checkpoint
from streamseg.models.attention import ATTENTIONS

ROUNDS = 100
"""How often the paper's authors run what they time."""

WARM_UP = 2
"""Rounds before those."""

SECONDS = 3.0
"""After so many no further round is begun, so that a slow network takes not much longer than a fast one."""


@dataclass(frozen=True)
class Result:
    """A row of a table, and what was found for it here."""

    row: Row
    found: dict[str, float]
    """By name: parameters; gflops (GMACs, by the paper's name) and per_mpx; fps, avg_ms, max_ms and memory_mb of the
    network alone; labels_fps, from bytes to full-size labels, and fast_fps, the same by a FANet's fast form; miou in
    percent, of several runs the mean, and then spread, their standard deviation, and runs, their number."""


@dataclass(frozen=True)
class Run:
    """A trained network."""

    weights: Path
    description: checkpoint.Description
    words: str
    """What its training was, as far as it is known."""


class RunEvaluator:
    """Measures runs on a data set, each of them once."""

    def __init__(self, runs: Iterable[Run], dataset: Dataset, device: torch.device, threads: int):
        names = dataset.classes.names
        self.runs = [run for run in runs if run.description.classes.names == names]
        if not self.runs:
            raise ValueError(
                f"None of the runs is trained for the classes of {dataset.name}: give their --dataset, or other --runs."
            )
        self.dataset = dataset
        self.known: dict[tuple[Path, int], float] = {}
        self.device = device
        self.threads = threads

    def judge(self, row: Row) -> dict[str, float]:
        """The mean accuracy of the runs that are of a row's network, if there are any, and its spread over several."""
        mious = [self.measure(run, row.window) for run in self.runs if matches_row(row, run.description)]
        if not mious:
            return {}
        spread = {"spread": stdev(mious), "runs": len(mious)} if len(mious) > 1 else {}
        return {"miou": fmean(mious), **spread}

    def describe(self) -> str:
        """What the accuracy is of, in words."""
        budgets = "; ".join(sorted({run.words for run in self.runs if run.words}))
        trained = f"; the networks were trained on {budgets}" if budgets else ""
        return f"mIoU, here: of {self.dataset.name} {self.dataset.split}, {len(self.dataset)} frames{trained}."

    def measure(self, run: Run, window: int) -> float:
        """The mIoU of a run: of single frames, or of sequences in order with a window."""
        if (run.weights, window) not in self.known:
            network, _ = checkpoint.load(run.weights)
            network = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
            if window == 1:
                score = validate(network, self.dataset, threads=self.threads)
            else:
                score = evaluate_video(network, self.dataset, window, threads=self.threads)
            self.known[run.weights, window] = score.miou
        return self.known[run.weights, window]


def find_runs(folder: Path) -> list[Run]:
    """The trained networks in a folder of runs, by the names of their folders."""
    runs = []
    for weights in sorted(folder.glob("*/weights.safetensors")):
        told = weights.with_name("run.json")
        runs.append(Run(weights, checkpoint.describe(weights), read_run_summary(told) if told.exists() else ""))
    if not runs:
        raise FileNotFoundError(
            f"No trained networks in {folder}: expected RUN/weights.safetensors there, as streamseg train writes it."
        )
    return runs


def read_run_summary(path: Path) -> str:
    """What a run.json tells of a training, in short."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))["config"]
        words = f"{config['dataset']} {config['split']}, {config['iterations']:,} iterations"
        return words + (f", without {config['leave_out']}" if config.get("leave_out") else "")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not what streamseg train writes, or is damaged: remove it, or its run.") from None


def matches_row(row: Row, description: checkpoint.Description) -> bool:
    """Whether a trained network is the one that a row is of; a window of any length is one for video."""
    variant = description.variant
    if row.network != description.network or (row.window > 1) != (description.window > 1):
        return False
    return variant is None or replace(variant, averages=False) == variant_of(row)


def variant_of(row: Row) -> checkpoint.Variant:
    """The options of a row's FANet."""
    return checkpoint.Variant(row.attention, row.key_channels, row.reduction, row.reduce_by)  # type: ignore[arg-type] # strings in a table of facts


def reproduce(
    table: Table,
    device: torch.device,
    *,
    timed: bool = False,
    compiled: bool = False,
    judge: RunEvaluator | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """Every row of a table with what can be measured for it here.

    Args:
        device: Where to time and to measure.
        timed: Whether to measure speed.
        compiled: Whether to compile networks for the way from frame to labels.
        judge: Measures the accuracy.
        progress: Called after each row with the number of rows done and of all.
    """
    if table.dataset and judge and judge.dataset.name != table.dataset:
        judge = None
    rows = [*table.rows, *more_rows(table, judge)]
    results = []
    for number, row in enumerate(rows, start=1):
        results.append(measure_row(row, table.classes, device, timed, compiled, judge))
        if progress is not None:
            progress(number, len(rows))
    return results


def more_rows(table: Table, judge: RunEvaluator | None) -> list[Row]:
    """Rows for rivals that the paper does not have in a comparison, but that are trained here."""
    if judge is None or not table.dataset:
        return []
    there = {row.network for row in table.rows}
    trained = dict.fromkeys(run.description.network for run in judge.runs if run.description.network not in there)
    return [Row(NAMES.get(network, network), {}, network, size=table.rows[-1].size) for network in trained]


def measure_row(
    row: Row, classes: int, device: torch.device, timed: bool, compiled: bool, judge: RunEvaluator | None
) -> Result:
    """What can be found out about a row."""
    if not (row.network or row.channels):
        return Result(row, {})
    with torch.device("meta"):
        network = build_row(row, classes)
    gmacs = count_macs(network, (1, row.channels or 3, *row.size)) / 1e9
    found = {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "gflops": gmacs,
        "per_mpx": gmacs / (row.size[0] * row.size[1] / 2**20),
    }
    if timed:
        found |= time_row(row, classes, device, compiled)
    if judge:
        found |= judge.judge(row)
    return Result(row, found)


def build_row(row: Row, classes: int) -> nn.Module:
    """What a row is of, untrained."""
    if row.channels:
        return ATTENTIONS[row.attention](row.channels, row.key_channels).eval()
    names = Classes(tuple(map(str, range(classes))), ((0, 0, 0),) * classes)
    variant = variant_of(row) if row.network in checkpoint.FANETS else None
    return checkpoint.build_network(checkpoint.Description(row.network, variant, names, row.window, "")).eval()


def time_row(row: Row, classes: int, device: torch.device, compiled: bool) -> dict[str, float]:
    """How fast a row's network is, one image at a time; nothing where it does not fit into the memory of a GPU."""
    before = allocated(device)
    network = build_row(row, classes).to(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found: dict[str, float] = {}
    try:
        with torch.no_grad():
            times = time_calls(alone_call(network, row, device), device)
            found |= {"fps": 1000 / fmean(times), "avg_ms": fmean(times), "max_ms": max(times)}
            if device.type == "cuda":
                found["memory_mb"] = (torch.cuda.max_memory_allocated(device) - before) / 1e6
            if row.network and row.window == 1:
                found["labels_fps"] = 1000 / fmean(time_calls(labels_call(network, row, device, compiled), device))
                fast = fast_call(network, row, device)
                if fast:
                    found["fast_fps"] = 1000 / fmean(time_calls(fast, device))
    except torch.OutOfMemoryError:
        pass
    return found


def alone_call(network: Any, row: Row, device: torch.device) -> Call:
    """A run of a network on random numbers, up to its last resize; of a window, with the past that a frame left."""
    image = 255 * torch.rand(1, row.channels or 3, *row.size, device=device)
    if row.channels:
        return partial(network, image)
    if row.window == 1:
        return partial(network.outputs, image)
    _, past = network.step(image)
    return partial(network.outputs, image, past)


def labels_call(network: Any, row: Row, device: torch.device, compiled: bool) -> Call:
    """The way from a frame of bytes to its labels, both on the device, the same for every network."""
    frame = torch.randint(0, 256, (1, 3, *row.size), dtype=torch.uint8, device=device)
    half = torch.float16 if device.type == "cuda" else torch.float32
    network = copy.deepcopy(network).to(half, memory_format=torch.channels_last)
    call = partial(torch.compile(label_whole) if compiled else label, network, frame)
    if compiled:
        call()  # compiles, which is no part of its speed
    return as_graph(call, device)


def fast_call(network: Any, row: Row, device: torch.device) -> Call | None:
    """The same way in the fast form, for the two networks themselves: variants would be compiled anew."""
    own = checkpoint.Variant("FastAttention", 32, "Res-1", "stride")
    quick = accelerate(network) if row.network in checkpoint.FANETS and variant_of(row) == own else None
    if not isinstance(quick, FastEngine):
        return None
    frame = torch.randint(0, 256, (3, *row.size), dtype=torch.uint8, device=device)
    quick(frame)  # compiles its kernels, where they were not yet: no part of its speed
    return partial(quick, frame)


def time_calls(call: Call, device: torch.device) -> list[float]:
    """Milliseconds of calls, one after the other; the first two do not count."""
    times: list[float] = []
    end = perf_counter() + SECONDS
    while not times or (len(times) < WARM_UP + ROUNDS and perf_counter() < end):
        times.append(time_call(call, device))
    return times[min(WARM_UP, len(times) - 1) :]  # of few, the last counts


COLUMNS = (
    ("parameters", "here", "parameters"),
    ("GFLOPs, paper", "paper", "gflops"),
    ("GMACs, here", "here", "gflops"),
    ("GFLOPs@1Mpx, paper", "paper", "per_mpx"),
    ("GMACs@1Mpx, here", "here", "per_mpx"),
    ("fps, paper", "paper", "fps"),
    ("fps, here: network alone", "here", "fps"),
    ("fps, here: frame → labels", "here", "labels_fps"),
    ("fps, here: the same, fast form", "here", "fast_fps"),
    ("Avg RT, paper, ms", "paper", "avg_ms"),
    ("Avg RT, here, ms", "here", "avg_ms"),
    ("MaxLatency, paper, ms", "paper", "max_ms"),
    ("MaxLatency, here, ms", "here", "max_ms"),
    ("memory, here, MB", "here", "memory_mb"),
    ("mIoU val, paper", "paper", "miou_val"),
    ("mIoU test, paper", "paper", "miou_test"),
    ("mIoU, here", "here", "miou"),
    ("±", "here", "spread"),
    ("runs", "here", "runs"),
)
"""Titles, and where their numbers are: the paper's beside ours."""

ONLY_AS_PRINTED = ("per_mpx", "avg_ms", "max_ms")
"""What is of interest only where the paper prints it."""


def format_table(table: Table, results: Sequence[Result], words: Sequence[str]) -> str:
    """A table as Markdown, with its notes below.

    Args:
        words: What is to be said of the numbers that were measured here.
    """
    printed = {name for result in results for name in result.row.printed}
    found = {name for result in results for name in result.found if name in printed or name not in ONLY_AS_PRINTED}
    names = {"paper": printed, "here": found}
    columns = [column for column in COLUMNS if column[2] in names[column[1]]]
    notes: dict[str, int] = {}
    lines = [["", "input", *(title for title, _, _ in columns)]]
    for result in results:
        line = [result.row.name, "x".join(map(str, result.row.size)) if result.found else "–"]
        for _, source, name in columns:
            numbers = result.row.printed if source == "paper" else result.found
            text = format_number(numbers[name]) if name in numbers else "–"
            if source == "paper" and name in result.row.notes:
                text += f" [{notes.setdefault(result.row.notes[name], len(notes) + 1)}]"
            line.append(text)
        lines.append(line)
    text = f"# {table.title}\n\n{to_markdown(lines)}\n\n"
    text += "".join(f"[{number}] {note}\n\n" for note, number in notes.items())
    return text + "".join(f"- {sentence}\n" for sentence in (*words, *table.notes))


def format_number(number: float) -> str:
    """A number with as many digits as it deserves."""
    if isinstance(number, int) or number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.3g}"


def to_markdown(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as a table, which is one in a terminal too; the first line has the titles."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rest = (
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in lines
    )
    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([head, rule, *rest])


def to_json(table: Table, results: Sequence[Result], words: Sequence[str]) -> dict[str, Any]:
    """A table as JSON can hold it."""
    rows = [
        {"name": result.row.name, "paper": result.row.printed, "here": result.found, "notes": result.row.notes}
        for result in results
    ]
    return {"table": table.name, "title": table.title, "rows": rows, "notes": [*words, *table.notes]}


def write_table(folder: Path, table: Table, results: Sequence[Result], words: Sequence[str]) -> list[Path]:
    """Write a table into a folder, as Markdown, as JSON and as a plot; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        folder / f"{table.name}.md": format_table(table, results, words),
        folder / f"{table.name}.json": json.dumps(to_json(table, results, words), indent=2) + "\n",
    }
    for path, text in texts.items():
        with written_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    picture = folder / f"{table.name}.png"
    plot_table(picture, table, results)
    return [*texts, picture]


def plot_table(path: Path, table: Table, results: Sequence[Result]) -> None:
    """Draw a table as the paper would: by channels, speed against accuracy, or row by row."""
    if table.name == "I":
        series: dict[str, list[tuple[float, float]]] = {}
        for result in results:
            kind, channels = result.row.name.split(",")[0], result.row.channels
            series.setdefault(f"{kind}, here", []).append((channels, result.found["gflops"]))
            series.setdefault(f"{kind}, paper", []).append((channels, result.row.printed["gflops"]))
        plot.lines_plot(path, series, "channels C", "GMACs")
    elif table.dataset or table.name == "VI":
        papers = [(result.row.name, with_miou(result.row.printed)) for result in results]
        ours = [(result.row.name, result.found) for result in results]
        panels = {
            "frames a second, paper (Titan X)": points(papers, "fps"),
            "frames a second here, network alone": points(ours, "fps"),
            "frames a second here, frame → labels": points(ours, "labels_fps"),
            "GMACs, here": points(ours, "gflops"),
        }
        plot.scatter_plot(path, panels, "mIoU (%)")
    else:
        titles = {
            "gflops": "GMACs",
            "fps": "frames a second, network alone",
            "labels_fps": "frames a second, frame → labels",
            "miou": "mIoU (%); the paper's: Cityscapes",
        }
        dots = {
            title: [
                (result.row.name, result.found.get(name), with_miou(result.row.printed).get(name)) for result in results
            ]
            for name, title in titles.items()
        }
        plot.dots_plot(path, dots)


def points(rows: Sequence[tuple[str, dict[str, float]]], name: str) -> list[tuple[str, float, float]]:
    """The rows with a number of a name against their accuracy, where both are known."""
    return [(title, numbers[name], numbers["miou"]) for title, numbers in rows if {name, "miou"} <= {*numbers}]


def with_miou(printed: dict[str, float]) -> dict[str, float]:
    """The paper's numbers with the accuracy to compare with: that on val, or else that on test."""
    mious = [printed[name] for name in ("miou_val", "miou_test") if name in printed]
    return {**printed, **({"miou": mious[0]} if mious else {})}
