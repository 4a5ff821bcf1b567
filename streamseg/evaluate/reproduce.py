"""Reproduce the paper's tables: its numbers beside ours.

Parameters and multiply-accumulates are always counted. Speed is measured if asked: the network alone, as in the paper,
and from frame to labels, in the same way for every network. Accuracy is measured if there are trained runs and data.
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
from streamseg.engine.engine import Engine, VideoEngine
from streamseg.engine.fast import FastEngine
from streamseg.engine.pick import accelerate
from streamseg.evaluate import plot
from streamseg.evaluate.benchmark import (
    Call,
    allocated,
    as_graph,
    count_macs,
    label_eagerly,
    label_from_full_scores,
    time_call,
)
from streamseg.evaluate.engines import open_evaluation_engine
from streamseg.evaluate.images import validate
from streamseg.evaluate.method_cost import count_method_macs, mean_macs, time_positions
from streamseg.evaluate.paper import NAMES, Row, Table
from streamseg.evaluate.translate import check_same_classes
from streamseg.evaluate.video import evaluate_video
from streamseg.evaluate.video_methods import evaluate_distances
from streamseg.io.files import written_whole
from streamseg.models import checkpoint
from streamseg.models.attention import ATTENTIONS
from streamseg.models.video import VIDEO_METHODS, VideoMethod

ROUNDS = 100
"""Runs that are timed, as in the authors' script."""

WARM_UP = 2
"""Runs before those."""

SECONDS = 3.0
"""No run starts after this time, so that a slow network does not take much longer than a fast one."""


@dataclass(frozen=True)
class RowResult:
    """A row of a table, and our numbers for it."""

    row: Row
    found: dict[str, float]
    """By name: parameters; gflops (GMACs, by the paper's name) and per_mpx; fps, avg_ms, max_ms and memory_mb of the
    network alone; labels_fps, from uint8 frame to full-size labels, and fast_fps, the same with a FANet's fast form;
    miou in percent, and for several runs their mean, with spread, their standard deviation, and runs, their number."""


@dataclass(frozen=True)
class TrainedRun:
    """A trained network."""

    weights: Path
    description: checkpoint.Description
    summary: str
    """Data and iterations of its training; empty if unknown."""


class RunEvaluator:
    """Evaluates trained runs on a data set, each of them once."""

    def __init__(self, runs: Iterable[TrainedRun], dataset: Dataset, device: torch.device, threads: int):
        names = dataset.classes.names
        self.runs = [run for run in runs if run.description.classes.names == names]
        if not self.runs:
            raise ValueError(
                f"No run was trained for the classes of {dataset.name}: give their --dataset, or other --runs."
            )
        self.dataset = dataset
        self.found: dict[tuple[Path, int, bool], dict[str, float]] = {}
        self.device = device
        self.threads = threads

    def evaluate_row(self, row: Row) -> dict[str, float]:
        """Return the mean accuracy of the runs of a row's network, if there are any, and its spread over several."""
        found = [self.measure(run, row) for run in self.runs if matches_row(row, run.description)]
        if not found:
            return {}
        mious = [numbers["miou"] for numbers in found]
        spread = {"spread": stdev(mious), "runs": len(mious)} if len(mious) > 1 else {}
        return {**{name: fmean(numbers[name] for numbers in found) for name in found[0]}, **spread}

    def note(self) -> str:
        """Return a sentence about the data that the accuracy was measured on."""
        budgets = "; ".join(sorted({run.summary for run in self.runs if run.summary}))
        trained = f"; the networks were trained on {budgets}" if budgets else ""
        return f"mIoU, here: of {self.dataset.name} {self.dataset.split}, {len(self.dataset)} frames{trained}."

    def measure(self, run: TrainedRun, row: Row) -> dict[str, float]:
        """Return the mIoU of a run on single frames, or on frames in order, then with flips and consistency."""
        key = (run.weights, row.window, row.in_order)
        if key not in self.found:
            engine, classes = open_evaluation_engine(run.weights, self.device, self.dataset)
            check_same_classes(classes, self.dataset)
            method = row.network in VIDEO_METHODS
            if method or row.window > 1 or (row.in_order and self.dataset.sequences):
                self.found[key] = self.measure_in_order(engine, row)
            else:
                self.found[key] = {"miou": validate(engine, self.dataset, threads=self.threads).miou}
        return self.found[key]

    def measure_in_order(self, engine: Engine, row: Row) -> dict[str, float]:
        """Return the mIoU, the flip rate and the consistency on sequences; a method has the key interval of the row."""
        window = row.window
        if isinstance(engine, VideoEngine):
            window, engine.model.interval = 1, row.window or None
        score = evaluate_video(engine, self.dataset, window, threads=self.threads)
        found = {"miou": score.miou, "flip_rate": score.flip_rate, "mvc8": score.mvc8}
        if isinstance(engine, VideoEngine) and engine.model.interval is not None:
            scores = evaluate_distances(engine.model, self.dataset, engine.model.interval, threads=self.threads)
            found["miou"] = scores.mean if scores.mious else score.miou
        return found


def find_runs(folder: Path) -> list[TrainedRun]:
    """Return the trained networks in a folder of runs, sorted by folder name."""
    runs = []
    for weights in sorted(folder.glob("*/weights.safetensors")):
        record = weights.with_name("run.json")
        runs.append(
            TrainedRun(weights, checkpoint.describe(weights), read_run_summary(record) if record.exists() else "")
        )
    if not runs:
        raise FileNotFoundError(
            f"No trained networks in {folder}: expected RUN/weights.safetensors, as streamseg train writes it."
        )
    return runs


def read_run_summary(path: Path) -> str:
    """Return the data and iterations of a training from its run.json."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))["config"]
        summary = f"{config['dataset']} {config['split']}, {config['iterations']:,} iterations"
        return summary + (f", without {config['leave_out']}" if config.get("leave_out") else "")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} was not written by streamseg train, or is damaged: remove it, or its run.") from None


def matches_row(row: Row, description: checkpoint.Description) -> bool:
    """Return whether a trained network is that of a row; all windows above 1 count as video."""
    variant = description.variant
    if row.network in VIDEO_METHODS:
        return row.network == description.network
    if row.network != description.network or (row.window > 1) != (description.window > 1):
        return False
    return variant is None or replace(variant, averages=False) == row_variant(row)


def row_variant(row: Row) -> checkpoint.Variant:
    """Return the options of a row's FANet; the reduction of a FANet+ is fixed."""
    fixed = row.network in checkpoint.PLUS_FANETS
    reduction, reduce_by = ("Res-4", "average") if fixed else (row.reduction, row.reduce_by)
    return checkpoint.Variant(row.attention, row.key_channels, reduction, reduce_by)  # type: ignore[arg-type] # strings in a table of facts


def reproduce(
    table: Table,
    device: torch.device,
    *,
    timed: bool = False,
    compiled: bool = False,
    evaluator: RunEvaluator | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[RowResult]:
    """Measure every row of a table.

    Args:
        timed: Measure speed.
        compiled: Compile the networks for the speed from frame to labels.
        evaluator: Measures the accuracy.
        progress: Called after each row with the number of rows done and the total.
    """
    if table.dataset and evaluator and evaluator.dataset.name != table.dataset:
        evaluator = None
    rows = [*table.rows, *extra_rows(table, evaluator)]
    results = []
    for number, row in enumerate(rows, start=1):
        results.append(measure_row(row, table.classes, device, timed, compiled, evaluator))
        if progress is not None:
            progress(number, len(rows))
    return results


def extra_rows(table: Table, evaluator: RunEvaluator | None) -> list[Row]:
    """Return rows for trained baselines that the paper does not have in a comparison."""
    if evaluator is None or not table.dataset:
        return []
    present = {row.network for row in table.rows}
    networks = [run.description.network for run in evaluator.runs]
    trained = dict.fromkeys(network for network in networks if network not in present)
    return [Row(NAMES.get(network, network), {}, network, size=table.rows[-1].size) for network in trained]


def measure_row(
    row: Row, classes: int, device: torch.device, timed: bool, compiled: bool, evaluator: RunEvaluator | None
) -> RowResult:
    """Measure a row: cost, and speed and accuracy if asked."""
    if not (row.network or row.channels):
        return RowResult(row, {})
    with torch.device("meta"):
        network = build_row(row, classes)
    if isinstance(network, VideoMethod):
        gmacs = mean_macs(count_method_macs(network, row.size), key_share=0.0) / 1e9
    else:
        gmacs = count_macs(network, (1, row.channels or 3, *row.size)) / 1e9
    found = {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "gflops": gmacs,
        "per_mpx": gmacs / (row.size[0] * row.size[1] / 2**20),
    }
    if timed:
        found |= time_row(row, classes, device, compiled)
    if evaluator:
        found |= evaluator.evaluate_row(row)
    return RowResult(row, found)


def build_row(row: Row, classes: int) -> nn.Module:
    """Return the network or the attention module of a row, untrained."""
    if row.channels:
        return ATTENTIONS[row.attention](row.channels, row.key_channels).eval()
    names = Classes(tuple(map(str, range(classes))), ((0, 0, 0),) * classes)
    variant = row_variant(row) if row.network in checkpoint.FANETS else None
    return checkpoint.build_network(checkpoint.Description(row.network, variant, names, row.window, "")).eval()


def time_row(row: Row, classes: int, device: torch.device, compiled: bool) -> dict[str, float]:
    """Time a row's network, one image at a time; returns nothing if it does not fit into the GPU's memory."""
    before = allocated(device)
    network = build_row(row, classes).to(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found: dict[str, float] = {}
    try:
        with torch.no_grad():
            if isinstance(network, VideoMethod):
                found |= time_positions(network, row.size, device, partial(time_calls, device=device))
            else:
                times = time_calls(alone_call(network, row, device), device)
                found |= {"fps": 1000 / fmean(times), "avg_ms": fmean(times), "max_ms": max(times)}
            if device.type == "cuda":
                found["memory_mb"] = (torch.cuda.max_memory_allocated(device) - before) / 1e6
            if row.network and row.window == 1 and not isinstance(network, VideoMethod):
                found["labels_fps"] = 1000 / fmean(time_calls(labels_call(network, row, device, compiled), device))
                fast = fast_call(network, row, device)
                if fast:
                    found["fast_fps"] = 1000 / fmean(time_calls(fast, device))
    except torch.OutOfMemoryError:
        pass
    return found


def alone_call(network: Any, row: Row, device: torch.device) -> Call:
    """Return a call of the network alone, up to its last resize; with a window, on a frame with a past."""
    image = 255 * torch.rand(1, row.channels or 3, *row.size, device=device)
    if row.channels:
        return partial(network, image)
    if row.window == 1:
        return partial(network.outputs, image)
    _, past = network.step(image)
    return partial(network.outputs, image, past)


def labels_call(network: Any, row: Row, device: torch.device, compiled: bool) -> Call:
    """Return a call from a uint8 frame to its labels, both on the device, the same for every network."""
    frame = torch.randint(0, 256, (1, 3, *row.size), dtype=torch.uint8, device=device)
    half = torch.float16 if device.type == "cuda" else torch.float32
    network = copy.deepcopy(network).to(half, memory_format=torch.channels_last)
    call = partial(torch.compile(label_from_full_scores) if compiled else label_eagerly, network, frame)
    if compiled:
        call()  # compiles: not timed
    return as_graph(call, device)


def fast_call(network: Any, row: Row, device: torch.device) -> Call | None:
    """Return the same call in the fast form, for FANets without options only: each variant would compile again."""
    default = row_variant(row) == row_variant(Row(row.name, network=row.network))
    fast = accelerate(network) if row.network in checkpoint.FANETS and default else None
    if not isinstance(fast, FastEngine):
        return None
    frame = torch.randint(0, 256, (3, *row.size), dtype=torch.uint8, device=device)
    fast(frame)  # may compile its kernels: not timed
    return partial(fast, frame)


def time_calls(call: Call, device: torch.device) -> list[float]:
    """Return the milliseconds of repeated calls, without the first two."""
    times: list[float] = []
    end = perf_counter() + SECONDS
    while not times or (len(times) < WARM_UP + ROUNDS and perf_counter() < end):
        times.append(time_call(call, device))
    return times[min(WARM_UP, len(times) - 1) :]  # if there are no more, the last counts


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
    ("flips, here, %", "here", "flip_rate"),
    ("mVC8, here", "here", "mvc8"),
    ("±", "here", "spread"),
    ("runs", "here", "runs"),
)
"""Title, source and name of the numbers of each column."""

ONLY_AS_PRINTED = ("per_mpx", "avg_ms", "max_ms")
"""Numbers that are shown only if the paper has them."""


def format_table(table: Table, results: Sequence[RowResult], notes: Sequence[str]) -> str:
    """Format a table as Markdown, with footnotes, and notes on our numbers, below."""
    printed = {name for result in results for name in result.row.printed}
    found = {name for result in results for name in result.found if name in printed or name not in ONLY_AS_PRINTED}
    names = {"paper": printed, "here": found}
    columns = [column for column in COLUMNS if column[2] in names[column[1]]]
    footnotes: dict[str, int] = {}
    lines = [["", "input", *(title for title, _, _ in columns)]]
    for result in results:
        line = [result.row.name, "x".join(map(str, result.row.size)) if result.found else "–"]
        for _, source, name in columns:
            numbers = result.row.printed if source == "paper" else result.found
            text = format_number(numbers[name]) if name in numbers else "–"
            if source == "paper" and name in result.row.notes:
                text += f" [{footnotes.setdefault(result.row.notes[name], len(footnotes) + 1)}]"
            line.append(text)
        lines.append(line)
    text = f"# {table.title}\n\n{to_markdown(lines)}\n\n"
    text += "".join(f"[{number}] {note}\n\n" for note, number in footnotes.items())
    return text + "".join(f"- {sentence}\n" for sentence in (*notes, *table.notes))


def format_number(number: float) -> str:
    """Format a number with two or three significant digits, and large ones with commas."""
    if isinstance(number, int) or number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.3g}"


def to_markdown(lines: Sequence[Sequence[str]]) -> str:
    """Format lines of cells as a Markdown table that is aligned in a terminal too; the first line has the titles."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rest = (
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in lines
    )
    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([head, rule, *rest])


def table_to_json(table: Table, results: Sequence[RowResult], notes: Sequence[str]) -> dict[str, Any]:
    """Return a table as JSON values."""
    rows = [
        {"name": result.row.name, "paper": result.row.printed, "here": result.found, "notes": result.row.notes}
        for result in results
    ]
    return {"table": table.name, "title": table.title, "rows": rows, "notes": [*notes, *table.notes]}


def write_table(folder: Path, table: Table, results: Sequence[RowResult], notes: Sequence[str]) -> list[Path]:
    """Write a table into a folder, as Markdown, JSON and a plot; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        folder / f"{table.name}.md": format_table(table, results, notes),
        folder / f"{table.name}.json": json.dumps(table_to_json(table, results, notes), indent=2) + "\n",
    }
    for path, text in texts.items():
        with written_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    picture = folder / f"{table.name}.png"
    plot_table(picture, table, results)
    return [*texts, picture]


def plot_table(path: Path, table: Table, results: Sequence[RowResult]) -> None:
    """Plot a table: cost by channels, speed against accuracy, or row by row."""
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
    """Return (title, number, mIoU) of the rows that have both."""
    return [(title, numbers[name], numbers["miou"]) for title, numbers in rows if {name, "miou"} <= {*numbers}]


def with_miou(printed: dict[str, float]) -> dict[str, float]:
    """Return the paper's numbers with miou, the accuracy on val, or else on test."""
    mious = [printed[name] for name in ("miou_val", "miou_test") if name in printed]
    return {**printed, **({"miou": mious[0]} if mious else {})}
