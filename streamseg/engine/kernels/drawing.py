"""Colours of labels over a frame.

Shapes: H height, W width.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from streamseg.engine.kernels import backend, compiling
from streamseg.engine.kernels.backend import jit, tl

GREY_WEIGHTS = (0.17, 0.33, 0.06)
"""Weights of red, green and blue for pixels that are not highlighted: a grey of 0.56 times the brightness."""

BORDER_LEVEL = 216
"""Least red, green and blue of a border between classes: nearly white."""


def blend_labels(frame: Tensor, labels: Tensor, table: Tensor, hidden: Tensor | None, borders: bool) -> Tensor:
    """Return a frame (3, H, W), uint8, with the colours of its labels (H, W), in the memory layout of the frame.

    Args:
        table: Each value of red, green and blue under the colour of each label, (3, 256 labels, 256 values).
        hidden: 255 for each label that is shown in dark grey, else 0, (256,); None if all are coloured.
        borders: Whether to draw a line of one pixel between the classes; hidden classes count as one.
    """
    if backend.use_triton(frame) and labels.dtype == torch.uint8:
        run = partial(launch, frame, labels.contiguous(), table, hidden, borders)
        variant = f"blend, hidden {hidden is not None}, borders {borders}"
        if compiling.is_compiled(variant, (frame,), (*frame.shape[1:], *frame.stride()), run):
            return run()
    if hidden is not None:
        table = table & ~hidden[:, None]
        rest = dark_grey(frame) & lookup(hidden, labels)
    row = labels.to(torch.int32) << 8
    drawn = torch.empty_like(frame)
    for blended, plane, values in zip(table.flatten(1), frame, drawn, strict=True):
        values.copy_(blended.index_select(0, (row + plane).flatten()).view_as(plane))
        if hidden is not None:
            values |= rest
    if borders:
        line = border_mask(labels if hidden is None else labels.to(torch.uint8) | lookup(hidden, labels))
        torch.maximum(drawn, line & BORDER_LEVEL, out=drawn)
    return drawn


def border_mask(labels: Tensor) -> Tensor:
    """Return 255 for each pixel whose label differs from that of its right or lower neighbour, else 0: (H, W)."""
    labels = labels.to(torch.uint8)
    differs = torch.zeros_like(labels)
    differs[:, :-1] = labels[:, :-1] ^ labels[:, 1:]
    differs[:-1] |= labels[:-1] ^ labels[1:]
    return (differs != 0).to(torch.uint8).neg_()


def dark_grey(frame: Tensor) -> Tensor:
    """Return a frame (3, H, W) in dark grey, (H, W)."""
    # 16 bits hold 127 · 255
    red, green, blue = (
        plane.to(torch.int16).mul_(round(127 * part)) for part, plane in zip(GREY_WEIGHTS, frame, strict=True)
    )
    return (red.add_(green).add_(blue) >> 7).to(torch.uint8)


def lookup(table: Tensor, labels: Tensor) -> Tensor:
    """Return the entry of a table (256,) for each label (H, W)."""
    # several times as fast as table[labels.long()]
    return table.index_select(0, labels.to(torch.int32).flatten()).view_as(labels)


def launch(frame: Tensor, labels: Tensor, table: Tensor, hidden: Tensor | None, borders: bool) -> Tensor:
    """Run the kernel."""
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
