"""Draw zones and lanes over a picture.

Shapes: H height, W width.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy
import torch
from torch import Tensor

from streamseg.io.captions import render_caption
from streamseg.regions.events import Reading
from streamseg.regions.zones import FittedArea, Lane, Zone, fit_area

IDLE, ACTIVE = (255, 255, 255), (255, 64, 32)
"""The colours of a zone in which nothing is, and of one with a class that is watched, or a blocked lane."""


def draw_zones(picture: Tensor, areas: Sequence[Zone | Lane], readings: Sequence[Reading]) -> Tensor:
    """Draw the outline, the name and the state of each zone and lane into a picture (3, H, W), and return it."""
    _, height, width = picture.shape
    thickness = max(1, round(min(height, width) / 250))
    for area, reading in zip(areas, readings, strict=True):
        colour = torch.tensor(ACTIVE if reading.active else IDLE, dtype=torch.uint8, device=picture.device)
        rows, columns = outline_pixels(area, height, width, thickness)
        picture[:, rows.to(picture.device), columns.to(picture.device)] = colour[:, None]
        paste(picture, render_caption(caption(reading), max(11, round(height / 45))), fit_area(area, height, width))
    return picture


def caption(reading: Reading) -> str:
    """Return the name of a zone and what is in it."""
    if reading.pixels is not None:
        distance = f"{reading.pixels} px" if reading.metres is None else f"{reading.metres:.1f} m"
        return " ".join([f"{reading.zone}: {distance}", *reading.active])
    present = [f"{name} {reading.shares[name]:.0%}" for name in reading.active]
    return f"{reading.zone}: {', '.join(present)}" if present else reading.zone


def paste(picture: Tensor, panel: Tensor, fitted: FittedArea) -> None:
    """Put a panel (3, h, w) above the upper end of a zone, within the picture."""
    _, height, width = picture.shape
    panel = panel[:, :height, :width].to(picture.device)
    _, tall, wide = panel.shape
    x, y = fitted.outline[fitted.outline[:, 1].argmin()]
    left = int(min(max(0, x - wide / 2), width - wide))
    top = int(min(max(0, y - tall - 2), height - tall))
    picture[:, top : top + tall, left : left + wide] = panel


@lru_cache(maxsize=256)
def outline_pixels(area: Zone | Lane, height: int, width: int, thickness: int) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of the pixels of an outline."""
    outline = fit_area(area, height, width).outline
    marked = numpy.zeros((height, width), dtype=bool)
    for begin, end in zip(outline, numpy.roll(outline, -1, axis=0), strict=True):
        steps = int(numpy.ceil(2 * numpy.abs(end - begin).max())) + 1
        x, y = (begin + numpy.linspace(0, 1, steps)[:, None] * (end - begin)).T
        for across in range(thickness):
            for down in range(thickness):
                columns = numpy.clip(x + across - thickness / 2, 0, width - 1).astype(int)
                marked[numpy.clip(y + down - thickness / 2, 0, height - 1).astype(int), columns] = True
    rows, columns = numpy.nonzero(marked)
    return torch.from_numpy(rows), torch.from_numpy(columns)
