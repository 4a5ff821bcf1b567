"""Plots: the confusion matrix, the curves of a training run, the worst frames. The only place that knows matplotlib.

Shapes: K classes, H height, W width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streamseg.classes import IGNORE, Classes
from streamseg.draw import overlay
from streamseg.files import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def confusion_plot(path: Path, confusion: Tensor, names: Sequence[str]) -> None:
    """Draw a confusion matrix (K, K), each row in percent of its true class; up to 20 classes with the numbers."""
    confusion = confusion.cpu().double()
    percent = 100 * confusion / confusion.sum(dim=1, keepdim=True)  # NaN, drawn grey: a class that does not occur
    readable = len(names) <= 20
    # inches; a large matrix has no numbers in its cells
    cell = 0.46 if readable else 0.14
    side = len(names) * cell
    figure = new_figure(side + 2.6, side + 2.3)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("0.9")
    heat = axes.imshow(percent.tolist(), cmap="Blues", vmin=0, vmax=100)
    size = 9 if readable else 6
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size, parse_math=False)
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
    save(figure, path)


def curves_plot(path: Path, series: dict[str, list[tuple[int, float]]]) -> None:
    """Draw the curves of a training run, a panel for each name: (iteration, value) points."""
    if not any(series.values()):
        raise ValueError(f"There are no curves to draw into {path}: the run has logged nothing yet.")
    drawn = {name: points for name, points in series.items() if points}
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = new_figure(4.2 * columns, 2.9 * rows)
    figure.set_layout_engine("constrained")
    for place, (name, points) in enumerate(drawn.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        iterations, values = zip(*points, strict=True)
        # few points are seen as points
        axes.plot(iterations, values, linewidth=1.2, marker="o" if len(points) <= 40 else "", markersize=3)
        axes.set_title(name, fontsize=11, parse_math=False)
        axes.set_xlabel("iteration", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    save(figure, path)


def write_worst(path: Path, frames: Sequence[tuple[Tensor, Tensor, Tensor, str]], classes: Classes) -> None:
    """Draw frames that went wrong, a row for each: the frame, its true labels over it, and the predicted ones.

    Args:
        frames: The frame (3, H, W), its labels (H, W), the predicted labels (H, W), and a title.
    """
    if not frames:
        raise ValueError(f"There are no frames to draw into {path}.")
    maps = [labels.flatten().long().cpu() for _, true, predicted, _ in frames for labels in (true, predicted)]
    present = [label for label in torch.cat(maps).unique().tolist() if label != IGNORE]
    # inches: pictures under their captions, colours at the bottom
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
            ("true", overlay(frame, labels, classes, alpha=0.65)),
            ("predicted", overlay(frame, predicted, classes, alpha=0.65)),
        ]
        for column, (name, picture) in enumerate(pictures):
            left = gap + column * (panel + gap)
            axes = figure.add_axes((left / width, top / height, panel / width, picture_height / height))
            axes.imshow(picture.permute(1, 2, 0).cpu().numpy())
            axes.set_title(name, fontsize=10, loc="left", pad=4, parse_math=False)
            axes.axis("off")
    axes = figure.add_axes((0, 0, 1, legend / height))
    axes.axis("off")
    for label in present:
        red, green, blue = classes.colours[label]
        colour = (red / 255, green / 255, blue / 255)
        axes.plot([], [], "s", markersize=9, color=colour, label=classes.names[label])
    key = axes.legend(loc="center", ncols=columns, frameon=False, fontsize=10)
    for text in key.get_texts():
        text.set_parse_math(False)
    save(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches; it belongs to no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("Plots need matplotlib: pip install 'streamseg[train]'") from None
    return Figure(figsize=(width, height))


def save(figure: "Figure", path: Path) -> None:
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=120)
