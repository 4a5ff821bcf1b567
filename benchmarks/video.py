"""Measure windows and policies for docs/video.md.

    python benchmarks/video.py measure CAMVID ROWS.json WEIGHTS...
    python benchmarks/video.py steady CAMVID WEIGHTS...
    python benchmarks/video.py cuts CAMVID WEIGHTS...
    python benchmarks/video.py motion CAMVID
    python benchmarks/video.py draw FOLDER ROWS.json...

measure  every checkpoint on CamVid's val, in order, with every window policy, and frames 1/15 s and 1 s apart
steady   every checkpoint with hysteresis (--steady), and frames 1/15 s and 1/5 s apart
cuts     accuracy in the four frames after a scene cut, with the past kept, dropped at the cut, and without any past
motion   how far the true labels of val follow the estimated motion: the most that a network can reach
draw     a table of all rows, and two plots; runs NAME-s0, NAME-s1, ... are seeds of the same training
"""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from math import isnan
from pathlib import Path
from statistics import mean, stdev
from time import process_time

import torch

import streamseg
from streamseg.classes import IGNORE
from streamseg.data.datasets import Dataset
from streamseg.evaluate import metrics, plot
from streamseg.evaluate.motion import block_flow, carry_labels, estimate_motion
from streamseg.evaluate.steadiness import SteadinessTally
from streamseg.evaluate.video import evaluate_video
from streamseg.models.fanet import FANet
from streamseg.models.video.dis import DISFlow
from streamseg.models.video.flownet import FlowEstimator
from streamseg.stream.label_frames import label_frame
from streamseg.stream.state import Fading, FadingInTime, LastFrames, Policy, State

WINDOWS = (1, 2, 4, 8, 16)
POLICIES: dict[str, Policy] = {
    **{f"last {frames}": LastFrames(frames) for frames in WINDOWS},
    "fading 0.5": Fading(0.5),
    "fading 0.8": Fading(0.8),
    "half-life 0.2 s": FadingInTime(0.2),
    "half-life 1 s": FadingInTime(1.0),
}
TITLES = {
    "base, summing": "image network, summing",
    "base, averaging": "image network, averaging",
    "sum2": "trained on pairs, summing (the paper)",
    "mean4": "trained on clips, averaging (ours)",
}
"""Names of the runs of docs/video.md in the plots."""
DRAWN = {
    "miou": ("mIoU, %", (74.0, 78.5)),
    "flip_rate_still": ("pixels that flip while the truth stays, %", (1.5, 4.5)),
}
"""Figures that are drawn, with a range that shows their differences; summing leaves it."""
FIGURES = ("miou", "flip_rate", "flip_rate_still", "mvc8", "mvc16", "strict_mvc8", "strict_mvc16")


def networks(path: Path) -> Iterator[tuple[str, FANet]]:
    """Yield the network of a checkpoint and its name; an image network once with sums and once with averages."""
    model, _ = streamseg.load(path)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last)
    run, _, seed = path.parent.name.rpartition("-s")
    if streamseg.describe(path).window > 1:
        yield f"{run}-s{seed}", model
        return
    for averages in (False, True):
        model.averages = averages
        yield f"{run}, {'averaging' if averages else 'summing'}-s{seed}", model


def spaced(dataset: Dataset, step: int) -> Dataset:
    """Return the same frames in sequences with every step-th frame."""
    sequences = [sequence[start::step] for sequence in dataset.sequences for start in range(step)]
    return replace(dataset, sequences=tuple(sequences))


def measure(data: Path, out: Path, *weights: Path) -> None:
    dataset = streamseg.camvid(data, "val")
    rows = []
    for path in weights:
        for name, model in networks(path):
            for gap, frames in (("1/15 s", dataset), ("1 s", spaced(dataset, 15))):
                for remembers, policy in POLICIES.items():
                    result = evaluate_video(model, frames, policy, threads=torch.get_num_threads())
                    figures = {figure: getattr(result, figure) for figure in FIGURES}
                    rows.append({"run": name, "gap": gap, "remembers": remembers, **figures, "iou": result.iou})
                    print(name, gap, remembers, *(f"{value:.3f}" for value in figures.values()), sep="\t", flush=True)
                    out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def steady(data: Path, *weights: Path) -> None:
    dataset = streamseg.camvid(data, "val")
    print("run, gap, margin: mIoU, flips while the truth stays, mVC8")
    for path in weights:
        for name, model in networks(path):
            engine = streamseg.accelerate(model)
            for gap, frames in (("1/15 s", dataset), ("1/5 s", spaced(dataset, 3))):
                for margin in (0.0, 0.25, 0.5, 1.0, 2.0):
                    policy = LastFrames(4, steady=margin)
                    found = evaluate_video(engine, frames, policy, threads=torch.get_num_threads())
                    figures = ", ".join(f"{x:.2f}" for x in (found.miou, found.flip_rate_still, found.mvc8))
                    print(f"{name}, {gap}, {margin}: {figures}", flush=True)


def cuts(data: Path, *weights: Path) -> None:
    before, after = streamseg.camvid(data, "train"), streamseg.camvid(data, "val")
    other = [streamseg.read_image(pair.image) for pair in before.pairs if pair.image.name.startswith("0006R0")][:15]
    starts = range(0, len(after) - 4, 8)
    print("run, remembers: mIoU in the four frames after a cut, past kept / dropped at the cut / no past")
    for path in weights:
        for name, model in networks(path):
            device = model.mean.device
            for remembers in ("last 4", "last 16", "half-life 1 s"):
                policy = POLICIES[remembers]
                old: State | None = None
                for number, frame in enumerate(other):
                    _, old = label_frame(model, frame.to(device), old, policy, seconds=number / 15)
                found = []
                for state, cut in ((old, None), (old, 0.1), (None, None)):
                    confusion = torch.zeros(model.classes, model.classes, dtype=torch.int64, device=device)
                    for start in starts:
                        past = state
                        for frame, labels in (after[start + i] for i in range(4)):
                            seconds = past.seconds + 1 / 15 if past else 0.0
                            predicted, past = label_frame(
                                model, frame.to(device), past, policy, seconds=seconds, cut=cut
                            )
                            confusion += metrics.confusion_matrix(labels.to(device), predicted, model.classes)
                    found.append(100 * metrics.iou(confusion).nanmean().item())
                print(f"{name}, {remembers}: " + " / ".join(f"{miou:.2f}" for miou in found), flush=True)


def motion(data: Path) -> None:
    dataset = streamseg.camvid(data, "val")
    flows: dict[str, FlowEstimator] = {"none": lambda now, _: torch.zeros(len(now), 2, *now.shape[2:])}
    flows["block matching"] = block_flow
    with suppress(ImportError):  # an optional extra
        flows["DIS"] = DISFlow()
    print("flow: consistency of the true labels, boundary shift in pixels, pixels compared, processor seconds a pair")
    for name, flow in flows.items():
        tally, visible, start = SteadinessTally(len(dataset.classes), torch.device("cpu")), 0.0, process_time()
        pairs = list(pairwise(dataset.labelled_sequences(0)[0]))
        for before, now in pairs:
            (past, old), (frame, labels) = map(dataset.read_sequence_frame, (before, now))
            found = estimate_motion(frame, past, flow)
            known = (carry_labels(old, found) != IGNORE) & (labels != IGNORE)
            tally.add(old, labels.where(known, 0), found._replace(visible=known))
            visible += known.float().mean().item()
        result = tally.result()
        print(
            f"{name}: {result.consistency:.2f}, {result.boundary_shift:.2f}, {100 * visible / len(pairs):.1f} %, "
            f"{(process_time() - start) / len(pairs):.2f}",
            flush=True,
        )


def draw(folder: Path, *files: Path) -> None:
    rows = list(chain.from_iterable(json.loads(file.read_text(encoding="utf-8")) for file in files))
    groups: dict[tuple[str, str, str], list[dict]] = {}
    for row in rows:
        run, _, _ = row["run"].rpartition("-s")
        groups.setdefault((run, row["gap"], row["remembers"]), []).append(row)
    print("| trained | gap | remembers | seeds | " + " | ".join(FIGURES) + " |\n|" + "---|" * (4 + len(FIGURES)))
    for (run, gap, remembers), seeds in groups.items():
        cells = [spread([row[figure] for row in seeds]) for figure in FIGURES]
        print(f"| {run} | {gap} | {remembers} | {len(seeds)} | " + " | ".join(cells) + " |")
    for figure, (title, limits) in DRAWN.items():
        sheet = plot.new_figure(9, 3.6)
        sheet.set_layout_engine("constrained")
        for place, gap in enumerate(("1/15 s", "1 s"), start=1):
            axes = sheet.add_subplot(1, 2, place)
            for run in dict.fromkeys(run for run, _, _ in groups):
                windows = [window for window in WINDOWS if (run, gap, f"last {window}") in groups]
                seeds = [[row[figure] for row in groups[run, gap, f"last {window}"]] for window in windows]
                label = TITLES.get(run, run)
                (line,) = axes.plot(windows, [*map(mean, seeds)], marker="o", markersize=4, label=label)
                lows, highs = [*map(min, seeds)], [*map(max, seeds)]
                axes.fill_between(windows, lows, highs, alpha=0.15, color=line.get_color(), linewidth=0)
            axes.set_xscale("log", base=2)
            axes.set_xticks(WINDOWS, [str(window) for window in WINDOWS])
            axes.set_title(f"frames {gap} apart", fontsize=10)
            axes.set_xlabel("frames in the window")
            axes.set_ylabel(title)
            axes.set_ylim(limits)
            axes.grid(alpha=0.3)
        sheet.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
        plot.save_figure(sheet, folder / f"video-{figure.replace('_', '-')}.png")


def spread(values: list[float]) -> str:
    """Format the mean of the seeds, and their standard deviation if there are several; a dash if not measured."""
    if any(map(isnan, values)):
        return "–"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    part, *paths = sys.argv[1:] or [""]
    parts = {"measure": measure, "steady": steady, "cuts": cuts, "motion": motion, "draw": draw}
    if part not in parts:
        sys.exit(__doc__)
    parts[part](*map(Path, paths))
