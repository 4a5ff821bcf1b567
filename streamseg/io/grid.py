"""A grid of the newest pictures of several sources, each with its name and its frames a second.

Sizes are (height, width).
"""

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.io.captions import render_caption

PROPORTIONS = (9, 16)
"""Height and width of a cell."""
BACKGROUND = 22
"""The grey of cells that a picture does not fill."""
RATE_SECONDS = 1.0
"""The time over which frames a second are counted."""
CAPTION_HEIGHTS = (12, 24)
"""The smallest and the largest height of a caption."""


class GridView:
    """A picture of all sources: as many columns as make the cells largest; each tile keeps its proportions."""

    def __init__(self, names: Sequence[str], room: tuple[int, int], clock: Callable[[], float] = time.monotonic):
        """
        Args:
            room: The largest size of the grid.
        """
        self.names, self.clock = names, clock
        self.columns, self.cell = choose_grid(len(names), room)
        rows = math.ceil(len(names) / self.columns)
        self.canvas = torch.full((3, rows * self.cell[0], self.columns * self.cell[1]), BACKGROUND, dtype=torch.uint8)
        self.shown: list[Tensor | None] = [None] * len(names)
        self.captions = [f"{name}  no frame yet" for name in names]
        self.counts, self.counted = [0] * len(names), clock()
        for number in range(len(names)):
            self.draw_tile(number)

    def draw(self, pictures: Sequence[Tensor | None], counts: Sequence[int]) -> bool:
        """Draw the pictures (3, H, W) that are new on the canvas; return whether anything changed.

        Args:
            counts: How many frames of each source there have been.
        """
        changed = [picture is not old for picture, old in zip(pictures, self.shown, strict=True)]
        elapsed = self.clock() - self.counted
        if elapsed >= RATE_SECONDS:
            for number, (count, before) in enumerate(zip(counts, self.counts, strict=True)):
                caption = f"{self.names[number]}  {(count - before) / elapsed:.1f} fps"
                if pictures[number] is not None and caption != self.captions[number]:
                    self.captions[number], changed[number] = caption, True
            self.counts, self.counted = list(counts), self.clock()
        for number, picture in enumerate(pictures):
            if changed[number]:
                if self.shown[number] is None:
                    self.captions[number] = self.names[number]
                self.shown[number] = picture
                self.draw_tile(number)
        return any(changed)

    def draw_tile(self, number: int) -> None:
        """Draw a picture in the middle of its cell, and its caption in the corner."""
        height, width = self.cell
        row, column = divmod(number, self.columns)
        cell = self.canvas[:, row * height : (row + 1) * height, column * width : (column + 1) * width]
        cell.fill_(BACKGROUND)
        picture = self.shown[number]
        if picture is not None:
            # a gap of one pixel between tiles
            tile = fit(picture, (height - 1, width - 1))
            top, left = ((room - side) // 2 for room, side in zip(self.cell, tile.shape[1:], strict=True))
            cell[:, top : top + tile.shape[1], left : left + tile.shape[2]] = tile
        tall = min(max(height // 14, CAPTION_HEIGHTS[0]), CAPTION_HEIGHTS[1])
        caption = render_caption(self.captions[number], round(tall / 1.4))[:, :height, :width]
        cell[:, : caption.shape[1], : caption.shape[2]] = caption


def choose_grid(count: int, room: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Return the number of columns that makes the cells largest, and the size of a cell."""

    def scale(columns: int) -> float:
        return min(room[0] / math.ceil(count / columns) / PROPORTIONS[0], room[1] / columns / PROPORTIONS[1])

    # side by side rather than one above the other, where it is the same
    columns = max(range(count, 0, -1), key=lambda columns: round(scale(columns), 6))
    tall, wide = PROPORTIONS
    return columns, (max(16, int(tall * scale(columns))), max(16, int(wide * scale(columns))))


def fit(picture: Tensor, room: tuple[int, int]) -> Tensor:
    """Return a picture (3, H, W) in the largest size of its proportions that fits."""
    _, height, width = picture.shape
    scale = min(room[0] / height, room[1] / width)
    # every second or third pixel first: averaging all of a large picture would take several milliseconds
    step = max(1, int(1 / (2 * scale)))
    size = (max(1, round(scale * height)), max(2, round(scale * width)))
    return F.interpolate(picture[None, :, ::step, ::step], size, mode="bilinear", antialias=True)[0]
