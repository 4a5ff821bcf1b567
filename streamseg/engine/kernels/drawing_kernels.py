"""The Triton kernel of drawing.py.

Shapes: H height, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamseg.engine.kernels import backend
from streamseg.engine.kernels.drawing import BORDER_LEVEL, GREY_WEIGHTS
from streamseg.engine.kernels.language import jit, tl


def blend_labels(frame: Tensor, labels: Tensor, table: Tensor, hidden: Tensor | None, borders: bool) -> Tensor:
    """Return a frame (3, H, W) with the colours of its labels; the arguments are those of drawing.blend_labels."""
    _, height, width = frame.shape
    drawn, block = torch.empty_like(frame), 256
    red, green, blue = (round(127 * part) for part in GREY_WEIGHTS)
    blend_kernel[backend.cdiv(width, block), height](
        frame,
        labels,
        table,
        table if hidden is None else hidden,
        drawn,
        height,
        width,
        *frame.stride(),
        *drawn.stride(),
        HIDES=hidden is not None,
        BORDERS=borders,
        LEVEL=BORDER_LEVEL,
        RED=red,
        GREEN=green,
        BLUE=blue,
        BLOCK=block,
    )
    return drawn


@jit
def blend_kernel(
    frame,
    labels,
    table,
    hidden,
    drawn,
    height,
    width,
    frame_channel,
    frame_row,
    frame_column,
    drawn_channel,
    drawn_row,
    drawn_column,
    HIDES: tl.constexpr,
    BORDERS: tl.constexpr,
    LEVEL: tl.constexpr,
    RED: tl.constexpr,
    GREEN: tl.constexpr,
    BLUE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, columns = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = labels + row * width + columns
    label = tl.load(place, inside, 0).to(tl.int32)
    source = frame + row * frame_row + columns * frame_column
    r = tl.load(source, inside, 0).to(tl.int32)
    g = tl.load(source + frame_channel, inside, 0).to(tl.int32)
    b = tl.load(source + 2 * frame_channel, inside, 0).to(tl.int32)
    entry = table + label * 256
    new_r = tl.load(entry + r, inside, 0).to(tl.int32)
    new_g = tl.load(entry + 65536 + g, inside, 0).to(tl.int32)
    new_b = tl.load(entry + 131072 + b, inside, 0).to(tl.int32)
    if HIDES:
        grey = (RED * r + GREEN * g + BLUE * b) >> 7
        hides = tl.load(hidden + label, inside, 0).to(tl.int32)
        new_r = tl.where(hides != 0, grey, new_r)
        new_g = tl.where(hides != 0, grey, new_g)
        new_b = tl.where(hides != 0, grey, new_b)
        label = label | hides
    if BORDERS:
        # beyond the last column and row there is the pixel itself
        right = tl.load(labels + row * width + tl.minimum(columns + 1, width - 1), inside, 0).to(tl.int32)
        lower = tl.load(labels + tl.minimum(row + 1, height - 1) * width + columns, inside, 0).to(tl.int32)
        if HIDES:
            right = right | tl.load(hidden + right, inside, 0).to(tl.int32)
            lower = lower | tl.load(hidden + lower, inside, 0).to(tl.int32)
        line = tl.where((right != label) | (lower != label), LEVEL, 0)
        new_r, new_g, new_b = tl.maximum(new_r, line), tl.maximum(new_g, line), tl.maximum(new_b, line)
    target = drawn + row * drawn_row + columns * drawn_column
    tl.store(target, new_r.to(tl.uint8), inside)
    tl.store(target + drawn_channel, new_g.to(tl.uint8), inside)
    tl.store(target + 2 * drawn_channel, new_b.to(tl.uint8), inside)
