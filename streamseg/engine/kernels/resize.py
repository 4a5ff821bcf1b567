"""Resizes of maps: bilinear, and to half the sides by averages.

Shapes: B batch, C channels, h x w a map.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, tl, wait


def add_resized(x: Tensor, small: Tensor) -> Tensor:
    """Return a map (B, C, h, w) plus a smaller one, resized bilinearly."""
    if not backend.use_triton(x):
        return x + F.interpolate(small, x.shape[-2:], mode="bilinear", align_corners=False)
    out = torch.empty_like(x)
    launch_resize(small, out, x)
    return out


def resize_into(out: Tensor, small: Tensor) -> None:
    """Fill the first channels of a map (B, C, h, w) with a smaller one, resized bilinearly."""
    if not backend.use_triton(out):
        out[:, : small.shape[1]] = F.interpolate(small, out.shape[-2:], mode="bilinear", align_corners=False)
        return
    launch_resize(small, out)


def launch_resize(small: Tensor, out: Tensor, add: Tensor | None = None) -> None:
    """Resize a map bilinearly into the first channels of another, and add a third map of that size if given."""
    batch, channels, h, w = small.shape
    _, total, height, width = out.shape
    block = max(1, 2048 // channels)  # four corners per pixel must fit into the registers
    resize_kernel[backend.cdiv(width, block), height, batch](
        small,
        out,
        out if add is None else add,
        h,
        w,
        height,
        width,
        total,
        C=channels,
        BLOCK=block,
        ADD=add is not None,
        **backend.early(small.device),
    )


@jit
def resize_kernel(
    small,
    out,
    add,
    h,
    w,
    height,
    width,
    total,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    block, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column, channel = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, C)
    y = tl.minimum(tl.maximum((row + 0.5) * h / height - 0.5, 0.0), h - 1.0)
    x = tl.minimum(tl.maximum((column + 0.5) * w / width - 0.5, 0.0), w - 1.0)
    top, left = y.to(tl.int32), x.to(tl.int32)
    bottom, right = tl.minimum(top + 1, h - 1), tl.minimum(left + 1, w - 1)
    down, across = y - top, (x - left)[:, None]
    inside = (column < width)[:, None]
    above, below = small + ((image * h + top) * w) * C, small + ((image * h + bottom) * w) * C
    near, far = left[:, None] * C + channel[None, :], right[:, None] * C + channel[None, :]
    a, b = tl.load(above + near, inside, 0.0).to(tl.float32), tl.load(above + far, inside, 0.0).to(tl.float32)
    c, d = tl.load(below + near, inside, 0.0).to(tl.float32), tl.load(below + far, inside, 0.0).to(tl.float32)
    upper, lower = a + (b - a) * across, c + (d - c) * across
    resized = upper + (lower - upper) * down
    pixel = ((image * height + row) * width + column)[:, None]
    if ADD:
        resized += tl.load(add + pixel * C + channel[None, :], inside, 0.0).to(tl.float32)
    tl.store(out + pixel * total + channel[None, :], resized.to(out.dtype.element_ty), inside)


def average_pairs(x: Tensor) -> Tensor:
    """Return a map (B, C, h/2, w/2) of the averages of squares of 2x2 pixels; sides are rounded up."""
    if not backend.use_triton(x):
        return F.avg_pool2d(x, 2, ceil_mode=True)
    batch, channels, h, w = x.shape
    height, width = (h + 1) // 2, (w + 1) // 2
    out = torch.empty(batch, height, width, channels, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)
    block = max(1, 1024 // channels)
    average_kernel[backend.cdiv(width, block), height, batch](
        x, out, h, w, width, C=channels, BLOCK=block, **backend.early(x.device)
    )
    return out


@jit
def average_kernel(x, out, h, w, width, C: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    block, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column, channel = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, C)
    total = tl.zeros((BLOCK, C), tl.float32)
    for part in tl.static_range(4):  # a square at an odd border has two pixels or one
        i, j = 2 * row + part // 2, 2 * column + part % 2
        valid = (i < h) & (j < w)
        total += tl.load(x + ((image * h + i) * w + j)[:, None] * C + channel[None, :], valid[:, None], 0.0).to(
            tl.float32
        )
    count = tl.minimum(h - 2 * row, 2) * tl.minimum(tl.maximum(w - 2 * column, 1), 2)
    target = ((image * tl.num_programs(1) + row) * width + column)[:, None] * C + channel[None, :]
    tl.store(out + target, (total / count[:, None]).to(out.dtype.element_ty), (column < width)[:, None])
