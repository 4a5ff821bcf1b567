"""The brightness of frames in several sizes, for the motion between them.

Shapes: B streams in a batch, H x W the frame, l x m the largest map of brightness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from streamseg.engine import motion, steadying
from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, tl

SIDE = 16
"""Side of the part of the largest map that one program shrinks: a power of two, so large that it has a pixel of the
smallest."""


def make_pyramids(images: Tensor, pair: Tensor) -> list[Tensor]:
    """Write the brightness of frames (B, 3, H, W), and return it and that of the frames before in all sizes of motion.

    Args:
        pair: Brightness (2, B, l, m), fp32; its 2 * B maps are contiguous and equally far apart. The first half
            receives that of the frames, resized with anti-aliasing; the second holds that of the frames before.

    Returns:
        Maps (2, B, …), the largest first, which is the given one; each next one has half the height and width.
    """
    sizes = motion.level_sizes((pair.shape[2], pair.shape[3]))
    if not backend.use_triton(images):
        pair[0] = steadying.shrink_to_luma(images, sizes[0])[:, 0]
        levels = [pair]
        while len(levels) < len(sizes):
            levels.append(motion.halve(levels[-1]))
        return levels
    _, batch, tall, wide = pair.shape
    height, width = images.shape[2:]
    device = images.device
    rows = torch.empty(batch, tall, width, device=device)
    levels = [pair, *(torch.empty(2, batch, *size, device=device) for size in sizes[1:])]
    block = 512
    rows_kernel[backend.cdiv(width, block), tall, batch](
        images,
        rows,
        height,
        width,
        tall,
        *images.stride(),
        *steadying.LUMA,
        TAPS=count_taps(height, tall),
        BLOCK=block,
    )
    pyramid_kernel[backend.cdiv(wide, SIDE), backend.cdiv(tall, SIDE), 2 * batch](
        rows,
        *levels,
        *[pair] * (len(motion.CORRECTIONS) - len(levels)),
        batch,
        width,
        tall,
        wide,
        pair.stride(1),
        TAPS=count_taps(width, wide),
        SIDE=SIDE,
        LEVELS=len(levels),
        num_warps=2,
    )
    return levels


def count_taps(length: int, target: int) -> int:
    """Return the maximum number of pixels that are averaged to one, along one side."""
    return 2 * math.ceil(max(1.0, length / target)) + 1


@jit
def rows_kernel(
    images,
    rows,
    height,
    width,
    tall,
    stride_b,
    stride_c,
    stride_y,
    stride_x,
    red,
    green,
    blue,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Shrink the height of frames, and write their brightness."""
    block, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    first, end, centre, support = find_window(row, height, tall)
    pixels = images + image * stride_b + column * stride_x
    value, total = tl.zeros((BLOCK,), tl.float32), 0.0
    for tap in tl.static_range(TAPS):
        y = first + tap
        share = tl.where(y < end, tap_share(y, centre, support), 0.0)
        known = inside & (y < end)
        place = pixels + y * stride_y
        value += share * (
            red * tl.load(place, known, 0).to(tl.float32)
            + green * tl.load(place + stride_c, known, 0).to(tl.float32)
            + blue * tl.load(place + 2 * stride_c, known, 0).to(tl.float32)
        )
        total += share
    tl.store(rows + (image * tall + row) * width + column, value / total, inside)


@jit
def pyramid_kernel(
    rows,
    level0,
    level1,
    level2,
    level3,
    level4,
    batch,
    width,
    tall,
    wide,
    stride,
    TAPS: tl.constexpr,
    SIDE: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Shrink the width of the frames' brightness, and write it in all sizes, and that of the frames before."""
    image = tl.program_id(2)
    y, x = tl.program_id(1) * SIDE + tl.arange(0, SIDE), tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    inside = (y < tall)[:, None] & (x < wide)[None, :]
    target = level0 + image * stride + y[:, None] * wide + x[None, :]
    value = tl.zeros((SIDE, SIDE), tl.float32)
    if image < batch:
        first, end, centre, support = find_window(x, width, wide)
        total = tl.zeros((SIDE,), tl.float32)
        for tap in tl.static_range(TAPS):
            column = first + tap
            share = tl.where(column < end, tap_share(column, centre, support), 0.0)
            place = rows + (image * tall + y)[:, None] * width + column[None, :]
            value += share[None, :] * tl.load(place, inside & (column < end)[None, :], 0.0)
            total += share
        value = value / tl.where(total > 0, total, 1.0)[None, :]
        tl.store(target, value, inside)
    else:
        value = tl.load(target, inside, 0.0)
    if LEVELS > 1:
        half, tall1, wide1 = halve_part(value, level1, image, tall, wide, SIDE)
        if LEVELS > 2:
            quarter, tall2, wide2 = halve_part(half, level2, image, tall1, wide1, SIDE // 2)
            if LEVELS > 3:
                eighth, tall3, wide3 = halve_part(quarter, level3, image, tall2, wide2, SIDE // 4)
                if LEVELS > 4:
                    halve_part(eighth, level4, image, tall3, wide3, SIDE // 8)


@jit
def halve_part(value, target, image, tall, wide, SIDE: tl.constexpr):
    """Write the means of squares of 2x2 pixels, of those inside a map; return them and the size of their map."""
    half_side: tl.constexpr = SIDE // 2
    index = tl.arange(0, half_side)
    y, x = tl.program_id(1) * half_side + index, tl.program_id(0) * half_side + index
    down, across = tl.minimum(tl.maximum(tall - 2 * y, 1), 2), tl.minimum(tl.maximum(wide - 2 * x, 1), 2)
    inside = (2 * y < tall)[:, None] & (2 * x < wide)[None, :]
    squares = tl.sum(tl.sum(tl.reshape(value, (half_side, 2, half_side, 2)), axis=3), axis=1)
    half = tl.where(inside, squares / (down[:, None] * across[None, :]), 0.0)
    tall, wide = (tall + 1) // 2, (wide + 1) // 2
    tl.store(target + (image * tall + y)[:, None] * wide + x[None, :], half, inside)
    return half, tall, wide


@jit
def find_window(index, length, target):
    """Return the first and the end of the pixels that are averaged to one, its centre and half its width."""
    scale = length / target
    support = tl.maximum(scale, 1.0)
    centre = scale * (index + 0.5)
    first = tl.maximum((centre - support + 0.5).to(tl.int32), 0)
    end = tl.minimum((centre + support + 0.5).to(tl.int32), length)
    return first, end, centre, support


@jit
def tap_share(index, centre, support):
    """Return the weight of a pixel in an average around a centre."""
    return tl.maximum(1.0 - tl.abs((index - centre + 0.5) / support), 0.0)
