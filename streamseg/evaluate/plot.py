"""Plots: confusion matrix, training curves, worst frames, the paper's tables. The only module that uses matplotlib.

Shapes: K classes, H height, W width.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streamseg.classes import IGNORE, Classes
from streamseg.draw import blended_classes, overlay
from streamseg.io.files import written_whole
from streamseg.palette import bright_colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_ALPHA = 0.65
"""Opacity of the classes in plots, where frames are small."""


def confusion_plot(path: Path, confusion: Tensor, names: Sequence[str]) -> None:
    """Plot a confusion matrix, each row in percent of its true class; with numbers for up to 20 classes.

    Args:
        confusion: (K, K), or (K, K + 1) with the predictions that have no label in the last column.
    """
    confusion = confusion.cpu().double()
    percent = 100 * confusion / confusion.sum(dim=1, keepdim=True)  # NaN, drawn grey, for a class that does not occur
    readable = len(names) <= 20
    # inches; a large matrix has no numbers in its cells
    cell = 0.46 if readable else 0.14
    columns = [*names, "no label"][: confusion.shape[1]]
    figure = new_figure(len(columns) * cell + 2.6, len(names) * cell + 2.3)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("0.9")
    heat = axes.imshow(percent.tolist(), cmap="Blues", vmin=0, vmax=100)
    size = 9 if readable else 6
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(range(len(names)), names, fontsize=size, parse_math=False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title("Share of each true class, in %", fontsize=11)
    figure.colorbar(heat, shrink=0.6, pad=0.02)
    if readable:
        for row, column in (percent >= 0.5).nonzero().tolist():
            share = percent[row, column].item()
            colour = "white" if share > 60 else "black"
            axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=colour, fontsize=8)
    save_figure(figure, path)


def curves_plot(path: Path, series: dict[str, list[tuple[int, float]]]) -> None:
    """Plot the curves of a training run, one panel per name: (iteration, value) points."""
    if not any(series.values()):
        raise ValueError(f"There are no curves to plot in {path}: the log is empty.")
    drawn = {name: points for name, points in series.items() if points}
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = new_figure(4.2 * columns, 2.9 * rows)
    figure.set_layout_engine("constrained")
    for place, (name, points) in enumerate(drawn.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        iterations, values = zip(*points, strict=True)
        # markers, if there are few points
        axes.plot(iterations, values, linewidth=1.2, marker="o" if len(points) <= 40 else "", markersize=3)
        axes.set_title(name, fontsize=11, parse_math=False)
        axes.set_xlabel("iteration", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def lines_plot(path: Path, series: dict[str, list[tuple[float, float]]], x_label: str, y_label: str) -> None:
    """Plot lines through (x, y) points on logarithmic axes; the paper's points are crosses without a line."""
    figure = new_figure(6.4, 4.4)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    for name, points in series.items():
        x, y = zip(*points, strict=True)
        if name.endswith("paper"):
            axes.plot(x, y, "x", color="black", markersize=8, label=name)
        else:
            axes.plot(x, y, "o-", markersize=5, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted({x for points in series.values() for x, _ in points}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def scatter_plot(path: Path, panels: dict[str, list[tuple[str, float, float]]], y_label: str) -> None:
    """Plot named points (name, x, y), one panel per x axis that has any; FANets are red."""
    drawn = {x_label: points for x_label, points in panels.items() if points}
    if not drawn:
        raise ValueError(f"There are no points to plot in {path}.")
    figure = new_figure(5.2 * len(drawn), 4.4)
    figure.set_layout_engine("constrained")
    for place, (x_label, points) in enumerate(drawn.items(), start=1):
        axes = figure.add_subplot(1, len(drawn), place)
        for name, x, y in points:
            axes.plot(x, y, "o", color=colour_of(name), markersize=7)
        axes.margins(x=0.3, y=0.12)
        # the room for names may reach below 0, which no speed or cost is
        low, high = axes.get_xlim()
        axes.set_xticks([tick for tick in axes.get_xticks() if max(low, 0) <= tick <= high])
        axes.set_xlabel(x_label, parse_math=False)
        axes.set_ylabel(y_label, parse_math=False)
        axes.grid(alpha=0.3)
    figure.draw_without_rendering()  # fixes the position of each point
    for axes, points in zip(figure.axes, drawn.values(), strict=True):
        points = sorted(points, key=lambda point: -point[2])  # of two neighbours, the higher one gets its name above
        positions = axes.transData.transform([(x, y) for _, x, y in points]) * 72 / figure.dpi
        sides = place_names([name for name, _, _ in points], positions.tolist(), axes.bbox.x1 * 72 / figure.dpi)
        for (name, x, y), (right, below) in zip(points, sides, strict=True):
            axes.annotate(
                name,
                (x, y),
                xytext=(6 if right else -6, -13 if below else 5),
                textcoords="offset points",
                ha="left" if right else "right",
                fontsize=9,
                color=colour_of(name),
                parse_math=False,
            )
    save_figure(figure, path)


def colour_of(name: str) -> str:
    """Return red for FANets, and blue for other networks."""
    return "tab:red" if name.lower().startswith("fanet") else "tab:blue"


def place_names(names: Sequence[str], points: Sequence[Sequence[float]], end: float) -> list[tuple[bool, bool]]:
    """Return for each name whether it goes to the right of its point, and below it: the first free place."""
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in points] + [(end, -math.inf, math.inf, math.inf)]
    chosen = []
    for name, (x, y) in zip(names, points, strict=True):
        width = 5 * len(name)  # approximately, for a font size of 9 points
        below_other = any(
            abs(x - other) < 20 and 0 < high - y < 20 for other, high in points
        )  # another point, just above
        places = {
            (right, below): (x + 5 if right else x - 5 - width, y - 14 if below else y + 4)
            for below in (below_other, not below_other)
            for right in (True, False)
        }
        boxes = {place: (left, low, left + width, low + 10) for place, (left, low) in places.items()}
        free = [place for place, box in boxes.items() if not any(boxes_overlap(box, other) for other in taken)]
        chosen.append((free or [*boxes])[0])
        taken.append(boxes[chosen[-1]])
    return chosen


def boxes_overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two boxes (left, low, right, high) overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def dots_plot(path: Path, panels: dict[str, list[tuple[str, float | None, float | None]]]) -> None:
    """Plot dots in a row per name, one panel per title that has numbers: (name, ours, the paper's)."""
    drawn = {title: rows for title, rows in panels.items() if any(row[1:] != (None, None) for row in rows)}
    if not drawn:
        raise ValueError(f"There are no numbers to plot in {path}.")
    figure = new_figure(4.6 * len(drawn), 4.2)
    figure.set_layout_engine("constrained")
    for place, (title, rows) in enumerate(drawn.items(), start=1):
        axes = figure.add_subplot(1, len(drawn), place)
        names, ours, papers = zip(*rows, strict=True)
        for numbers, mark, colour, label in ((ours, "o", "tab:blue", "here"), (papers, "x", "tab:red", "paper")):
            known = [math.nan if number is None else number for number in numbers]
            axes.plot(known, range(len(names)), mark, color=colour, markersize=8, label=label)
        axes.set_yticks(range(len(names)), names, fontsize=9, parse_math=False)
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_title(title, fontsize=11, parse_math=False)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save_figure(figure, path)


def write_worst(path: Path, frames: Sequence[tuple[Tensor, Tensor, Tensor, str]], classes: Classes) -> None:
    """Plot the worst frames, one per row: the frame, and overlays of its true and of its predicted labels.

    Args:
        frames: The frame (3, H, W), its labels (H, W), the predicted labels (H, W), and a title.
    """
    if not frames:
        raise ValueError(f"There are no frames to plot in {path}.")
    maps = [labels.flatten().long().cpu() for _, true, predicted, _ in frames for labels in (true, predicted)]
    present = [label for label in torch.cat(maps).unique().tolist() if label != IGNORE]
    drawn = bright_colours(classes)
    # inches: pictures below their captions, and a legend at the bottom
    panel, gap, caption = 4.2, 0.1, 0.3
    heights = [panel * frame.shape[1] / frame.shape[2] for frame, *_ in frames]
    columns = 7
    legend = 0.25 * -(-len(present) // columns) + 0.2
    width, top = 3 * panel + 4 * gap, sum(heights) + caption * len(frames) + legend
    figure = new_figure(width, top)
    height = top
    for (frame, labels, predicted, title), picture_height in zip(frames, heights, strict=True):
        top -= caption + picture_height
        pictures = [
            (title if len(title) <= 50 else f"…{title[-49:]}", frame),
            ("true", overlay(frame, labels, drawn, PLOT_ALPHA, borders=True)),
            ("predicted", overlay(frame, predicted, drawn, PLOT_ALPHA, borders=True)),
        ]
        for column, (name, picture) in enumerate(pictures):
            left = gap + column * (panel + gap)
            axes = figure.add_axes((left / width, top / height, panel / width, picture_height / height))
            axes.imshow(picture.permute(1, 2, 0).cpu().numpy())
            axes.set_title(name, fontsize=10, loc="left", pad=4, parse_math=False)
            axes.axis("off")
    axes = figure.add_axes((0, 0, 1, legend / height))
    axes.axis("off")
    swatches = blended_classes(drawn, PLOT_ALPHA).colours
    for label in present:
        red, green, blue = swatches[label]
        colour = (red / 255, green / 255, blue / 255)
        axes.plot([], [], "s", markersize=9, color=colour, label=classes.names[label])
    key = axes.legend(loc="center", ncols=columns, frameon=False, fontsize=10)
    for text in key.get_texts():
        text.set_parse_math(False)
    save_figure(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches, which belongs to no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("Plots need matplotlib: pip install 'streamseg[train]'") from None
    return Figure(figsize=(width, height))


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure; an error leaves no half-written file."""
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=120)
