"""A picture of a video over time: one row of its frames and of their labels, frame below frame.

Shapes: T frames, H height, W width.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from streamseg.checks import check_suffix
from streamseg.classes import Classes
from streamseg.draw import paint_labels
from streamseg.io.captions import render_caption
from streamseg.io.files import check_writable
from streamseg.io.images import write_image
from streamseg.palette import bright_colours

SLICE_FRAMES = 600
"""Frames of a slice, at most."""
SLICE_HEIGHT = 200
"""Pixels that each part of a slice is high, at least: in short videos frames are drawn several pixels high."""


@dataclass(frozen=True, eq=False)
class Slice:
    """One row of the pictures and labels of a video, over time."""

    pictures: Tensor
    """(3, T, W)"""
    labels: Tensor
    """(T, W)"""
    alone: Tensor | None
    """(T, W): each frame labelled alone; None if they are that already."""


class SliceRecorder:
    """Keeps one row of the first SLICE_FRAMES frames.

    Args:
        row: The row's number, from 0 at the top; None for the middle.
    """

    def __init__(self, row: int | None = None):
        self.row = row
        self.pictures: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.alone: list[Tensor] = []

    def add(self, picture: Tensor, labels: Tensor, alone: Tensor | None) -> None:
        """Add a frame (3, H, W) with its labels (H, W)."""
        height = len(labels)
        row = height // 2 if self.row is None else self.row
        if not 0 <= row < height:
            raise ValueError(f"The row is {row}; expected 0 to {height - 1}, as the frames have {height} rows.")
        if len(self.labels) < SLICE_FRAMES:
            self.pictures.append(picture[:, row].cpu())
            self.labels.append(labels[row].cpu())
            if alone is not None:
                self.alone.append(alone[row].cpu())

    def result(self) -> Slice:
        """Return the slice of all frames that were added."""
        alone = torch.stack(self.alone) if self.alone else None
        return Slice(torch.stack(self.pictures, dim=1), torch.stack(self.labels), alone)


def check_slice(path: Path, inputs: Iterable[Path]) -> None:
    """Raise an error if a slice cannot be written, or would overwrite a picture that is read."""
    check_suffix(path)
    check_writable(path)
    if path.exists() and any(path.samefile(name) for name in inputs if name.exists()):
        raise ValueError(f"{path} is a frame of the video: give another name for the slice.")


def write_slice(path: Path, found: Slice, classes: Classes, title: str = "with these options") -> None:
    """Write a row of a video over time, downwards: its pixels, their labels frame by frame, and as measured.

    Args:
        title: The title of the last part, if there are labels frame by frame.
    """
    colours = bright_colours(classes)
    parts = {"one row over time": found.pictures}
    if found.alone is not None:
        parts["frame by frame"] = paint_labels(found.alone, colours)
    parts["labels" if found.alone is None else title] = paint_labels(found.labels, colours)
    frames, width = found.labels.shape
    times = max(1, -(-SLICE_HEIGHT // frames))
    rows = []
    for text, part in parts.items():
        caption = render_caption(text, 14)[:, :, :width]
        line = caption[:, :1, :1].repeat(1, caption.shape[1], width)
        line[:, :, : caption.shape[2]] = caption
        rows += [line, part.repeat_interleave(times, dim=1)]
    write_image(path, torch.cat(rows, dim=1))
