"""Colours of labels over a frame.

Shapes: H height, W width.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from streamseg.engine.kernels import backend, compiling

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
    """Run the kernel; Triton is imported when it is first launched, in the background."""
    from streamseg.engine.kernels import drawing_kernels

    return drawing_kernels.blend_labels(frame, labels, table, hidden, borders)
