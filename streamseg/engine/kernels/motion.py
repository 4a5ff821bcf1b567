"""The motion between frames by Lucas and Kanade's method, and what of the frames is found again.

A program computes a square of pixels, and all that it depends on around it.

These kernels run beside those of the network, and are launched one after the other: launched early (backend.early),
their waiting programs would take the place of the network's.

Shapes: B streams in a batch, l x m the largest map of brightness, h x w the map of scores.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from streamseg.engine import motion, steadying
from streamseg.engine.kernels import backend, brightness
from streamseg.engine.kernels.language import jit, tl

SIDE, SQUARES = 32, 16
"""Side of the square of pixels that one program looks at to compare, and of that of squares of 2x2 pixels to correct
their motion, with those around the ones that it computes."""


def compare_frames(
    images: Tensor, pair: Tensor, size: tuple[int, int], steadiness: steadying.Steadiness
) -> steadying.Comparison:
    """Compare frames (B, 3, H, W) with those before, as steadying.compare does.

    Args:
        pair: Brightness (2, B, l, m), fp32; its 2 * B maps are contiguous and equally far apart. The first half
            receives that of the frames, the second holds that of the frames before.
        size: Height and width of the scores: as large as the brightness, or half of it.
    """
    levels = brightness.make_pyramids(images, pair)
    if not backend.use_triton(images):
        return steadying.compare(pair[0][:, None], pair[1][:, None], size, steadiness)
    found = estimate_motion(levels)
    _, batch, tall, wide = pair.shape
    h, w = size
    device = pair.device
    step = SIDE - 4
    columns, rows = backend.cdiv(wide, step), backend.cdiv(tall, step)
    small = found if tall != h else torch.empty(batch, 2, h, w, device=device)
    alike, still = torch.empty(2, batch, 1, h, w, device=device)
    parts = torch.empty(batch, rows * columns, device=device)
    compare_kernel[columns, rows, batch](
        pair,
        found,
        small,
        alike,
        still,
        parts,
        batch,
        tall,
        wide,
        found.shape[2],
        found.shape[3],
        pair.stride(1),
        max(steadiness.tolerance, steadying.MIN_TOLERANCE),
        max(steadiness.still, steadying.MIN_TOLERANCE),
        SIDE=SIDE,
        SCALE=tall // h,
    )
    return steadying.Comparison(small, alike, still, parts)


def estimate_motion(levels: list[Tensor]) -> Tensor:
    """Return the motion (B, 2, l / 2, m / 2), rounded up, of frames since those before, as motion.estimate_motion does.

    Args:
        levels: The brightness (2, B, …) of the frames and those before in all sizes, the largest first.
    """
    if not backend.use_triton(levels[0]):
        return motion.estimate_motion(levels[0][0][:, None], levels[0][1][:, None])
    found: Tensor | None = None
    for number, level in reversed([*enumerate(levels)]):
        _, batch, h, w = level.shape
        coarse = level if found is None else found
        rows, columns = motion.half_size((h, w))
        out = torch.empty(batch, 2, rows, columns, device=level.device)
        step = SQUARES - 2 * (motion.CORRECTIONS[number] * motion.NEAR + 1)
        programs = (backend.cdiv(columns, step), backend.cdiv(rows, step), batch)
        correct_kernel[programs](
            level,
            coarse,
            out,
            batch,
            h,
            w,
            coarse.shape[2],
            coarse.shape[3],
            level.stride(1),
            SIDE=SQUARES,
            STEP=step,
            NEAR=motion.NEAR,
            CORRECTIONS=motion.CORRECTIONS[number],
            NOISE=motion.NOISE,
            FIRST=found is None,
            # with two warps programs take longer, and leave more of the GPU to the network: few had better end soon
            num_warps=2 if math.prod(programs) > backend.processors(level.device) else 4,
        )
        found = out
    assert found is not None
    return found


@jit
def correct_kernel(
    pair,
    coarse,
    out,
    batch,
    h,
    w,
    coarse_h,
    coarse_w,
    stride,
    SIDE: tl.constexpr,
    STEP: tl.constexpr,
    NEAR: tl.constexpr,
    CORRECTIONS: tl.constexpr,
    NOISE: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Estimate the motion of squares of 2x2 pixels in one size, from that in the next smaller one."""
    halo: tl.constexpr = (SIDE - STEP) // 2
    image, index = tl.program_id(2), tl.arange(0, SIDE)
    y, x = tl.program_id(1) * STEP - halo + index, tl.program_id(0) * STEP - halo + index
    rows, columns = (h + 1) // 2, (w + 1) // 2
    inside = ((y >= 0) & (y < rows))[:, None] & ((x >= 0) & (x < columns))[None, :]
    now, before = pair + image * stride, pair + (batch + image) * stride
    row, column = tl.minimum(tl.maximum(y, 0), rows - 1), tl.minimum(tl.maximum(x, 0), columns - 1)
    if FIRST:
        u, v = tl.zeros((SIDE, SIDE), tl.float32), tl.zeros((SIDE, SIDE), tl.float32)
    else:
        flow = coarse + image * 2 * coarse_h * coarse_w
        high = (row + 0.5) * (coarse_h / rows) - 0.5
        wide = (column + 0.5) * (coarse_w / columns) - 0.5
        u = 2.0 * sample(flow, high[:, None], wide[None, :], coarse_h, coarse_w)
        v = 2.0 * sample(flow + coarse_h * coarse_w, high[:, None], wide[None, :], coarse_h, coarse_w)
    zeros = tl.zeros((SIDE, SIDE), tl.float32)
    xx, yy, xy, error_x, error_y = zeros, zeros, zeros, zeros, zeros
    # one pixel of each square after the other; loops that are not unrolled, or the registers do not suffice
    for part in range(4):
        across, down, error = differences(now, before, 2 * y + part // 2, 2 * x + part % 2, u, v, h, w)
        xx += across * across
        yy += down * down
        xy += across * down
        error_x += across * error
        error_y += down * error
    share = 1.0 / (count_pixels(y, h, NEAR)[:, None] * count_pixels(x, w, NEAR)[None, :])
    xx = sum_near(xx, NEAR, SIDE) * share + NOISE
    yy = sum_near(yy, NEAR, SIDE) * share + NOISE
    xy = sum_near(xy, NEAR, SIDE) * share
    scale = 0.5 * share / (xx * yy - xy * xy)  # a pixel is half a square
    xx, yy, xy = xx * scale, yy * scale, xy * scale
    u, v = correct(u, v, xx, yy, xy, error_x, error_y, NEAR, SIDE)
    for _ in range(CORRECTIONS - 1):
        error_x, error_y = zeros, zeros
        for part in range(4):
            # gradients again from the cache: to keep them takes more registers than there are
            across, down, error = differences(now, before, 2 * y + part // 2, 2 * x + part % 2, u, v, h, w)
            error_x += across * error
            error_y += down * error
        u, v = correct(u, v, xx, yy, xy, error_x, error_y, NEAR, SIDE)
    share = 1.0 / (count_near(y, rows, 1)[:, None] * count_near(x, columns, 1)[None, :])
    own = (index >= halo) & (index < SIDE - halo)
    stored = inside & own[:, None] & own[None, :]
    target = out + image * 2 * rows * columns + row[:, None] * columns + column[None, :]
    tl.store(target, sum_near(tl.where(inside, u, 0.0), 1, SIDE) * share, stored)
    tl.store(target + rows * columns, sum_near(tl.where(inside, v, 0.0), 1, SIDE) * share, stored)


@jit
def differences(now, before, y, x, u, v, h, w):
    """Return the change across and down a map at each pixel of rows and columns, and by how much it is brighter.

    The changes are 0 outside. It is brighter than the frame before, moved.
    """
    inside = ((y >= 0) & (y < h))[:, None] & ((x >= 0) & (x < w))[None, :]
    row, column = clamp(y, h)[:, None] * w, clamp(x, w)[None, :]
    across = tl.load(now + row + clamp(x + 1, w)[None, :]) - tl.load(now + row + clamp(x - 1, w)[None, :])
    down = tl.load(now + clamp(y + 1, h)[:, None] * w + column) - tl.load(now + clamp(y - 1, h)[:, None] * w + column)
    error = tl.load(now + row + column) - sample(before, y[:, None] + 2.0 * v, x[None, :] + 2.0 * u, h, w)
    return tl.where(inside, across * 0.5, 0.0), tl.where(inside, down * 0.5, 0.0), error


@jit
def correct(u, v, xx, yy, xy, error_x, error_y, NEAR: tl.constexpr, SIDE: tl.constexpr):
    """Return a better motion of squares, each corrected by half a square at most.

    Args:
        xx: With yy and xy the matrix [[yy, -xy], [-xy, xx]], which makes a correction in squares of the summed errors.
        error_x: Sum over the pixels of each square: the change across times the difference of brightness.
        error_y: The same with the change down.
    """
    error_x, error_y = sum_near(error_x, NEAR, SIDE), sum_near(error_y, NEAR, SIDE)
    u += tl.minimum(tl.maximum(yy * error_x - xy * error_y, -0.5), 0.5)
    v += tl.minimum(tl.maximum(xx * error_y - xy * error_x, -0.5), 0.5)
    return u, v


@jit
def clamp(index, length):
    """Return the nearest index inside a map."""
    return tl.minimum(tl.maximum(index, 0), length - 1)


@jit
def compare_kernel(
    pair,
    found,
    small,
    alike,
    still,
    parts,
    batch,
    tall,
    wide,
    rows,
    columns,
    stride,
    tolerance,
    stillness,
    SIDE: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Compare frames with the moved ones before, and write the likeness, and the motion, in the size of the scores."""
    image, index = tl.program_id(2), tl.arange(0, SIDE)
    y, x = tl.program_id(1) * (SIDE - 4) - 2 + index, tl.program_id(0) * (SIDE - 4) - 2 + index
    inside = ((y >= 0) & (y < tall))[:, None] & ((x >= 0) & (x < wide))[None, :]
    place = y[:, None] * wide + x[None, :]
    pixels: tl.constexpr = SIDE // SCALE
    now, before = pair + image * stride, pair + (batch + image) * stride
    flow = found + image * 2 * rows * columns
    down, across = (y[:, None] + 0.5) * (rows / tall) - 0.5, (x[None, :] + 0.5) * (columns / wide) - 0.5
    u = 2.0 * sample(flow, down, across, rows, columns)
    v = 2.0 * sample(flow + rows * columns, down, across, rows, columns)
    value, earlier = tl.load(now + place, inside, 0.0), tl.load(before + place, inside, 0.0)
    high, along = y[:, None] + v, x[None, :] + u
    change = tl.where(inside, tl.abs(value - sample(before, high, along, tall, wide)), 0.0)
    same = likeness(change, y, x, tall, wide, tolerance, SIDE)
    stays = (along >= -0.5) & (along <= wide - 0.5) & (high >= -0.5) & (high <= tall - 0.5)
    same = tl.where(stays & inside, same, 0.0)
    own = (index >= 2) & (index < SIDE - 2)
    total = tl.sum(tl.sum(tl.where(own[:, None] & own[None, :], same, 0.0), axis=1), axis=0)
    tile = (image * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts + tile, total / (tall * wide))
    h, w = tall // SCALE, wide // SCALE
    if SCALE == 2:
        value, earlier, same = halve(value, pixels), halve(earlier, pixels), halve(same, pixels)
    halo: tl.constexpr = 2 // SCALE
    index = tl.arange(0, pixels)
    y = tl.program_id(1) * (pixels - 2 * halo) - halo + index
    x = tl.program_id(0) * (pixels - 2 * halo) - halo + index
    inside = ((y >= 0) & (y < h))[:, None] & ((x >= 0) & (x < w))[None, :]
    change = tl.where(inside, tl.abs(value - earlier), 0.0)
    own = (index >= halo) & (index < pixels - halo)
    inside = inside & own[:, None] & own[None, :]
    place = y[:, None] * w + x[None, :]
    tl.store(still + image * h * w + place, likeness(change, y, x, h, w, stillness, pixels), inside)
    tl.store(alike + image * h * w + place, same, inside)
    if SCALE == 1:  # otherwise the motion has that size
        tl.store(small + image * 2 * h * w + place, u, inside)
        tl.store(small + (image * 2 + 1) * h * w + place, v, inside)


@jit
def likeness(change, y, x, h, w, tolerance, SIDE: tl.constexpr):
    """Return how alike two pictures are around each pixel, from their differences, which are 0 outside."""
    mean = sum_near(change, 1, SIDE) / (count_near(y, h, 1)[:, None] * count_near(x, w, 1)[None, :])
    part = mean / tolerance
    return tl.exp(-part * part)


@jit
def halve(values, HALF: tl.constexpr):
    """Return the means of squares of 2x2 values."""
    return tl.sum(tl.sum(tl.reshape(values, (HALF, 2, HALF, 2)), axis=3), axis=1) * 0.25


@jit
def sample(plane, y, x, h, w):
    """Return the values of a map at places between its pixels; the nearest if outside."""
    y, x = tl.minimum(tl.maximum(y, 0.0), h - 1.0), tl.minimum(tl.maximum(x, 0.0), w - 1.0)
    top, left = y.to(tl.int32), x.to(tl.int32)
    down, across = y - top, x - left
    above, below = plane + top * w, plane + tl.minimum(top + 1, h - 1) * w
    right = tl.minimum(left + 1, w - 1)
    a, b = tl.load(above + left), tl.load(above + right)
    c, d = tl.load(below + left), tl.load(below + right)
    upper, lower = a + (b - a) * across, c + (d - c) * across
    return upper + (lower - upper) * down


@jit
def count_near(index, length, NEAR: tl.constexpr):
    """Return how many of a pixel's neighbours along one side are inside a map, with itself; 1 or more."""
    last, first = tl.minimum(index + NEAR, length - 1), tl.maximum(index - NEAR, 0)
    return tl.maximum(last - first + 1, 1).to(tl.float32)


@jit
def count_pixels(index, length, NEAR: tl.constexpr):
    """Return how many pixels of a pair and its neighbours along one side are inside a map; 1 or more."""
    last, first = tl.minimum(2 * (index + NEAR) + 1, length - 1), tl.maximum(2 * (index - NEAR), 0)
    return tl.maximum(last - first + 1, 1).to(tl.float32)


@jit
def sum_near(values, NEAR: tl.constexpr, SIDE: tl.constexpr):
    """Return the sums over the square of pixels around each one; they are wrong at the border of a program's square."""
    index, zeros = tl.arange(0, SIDE), tl.zeros((SIDE, SIDE), tl.int32)
    rows = values
    for distance in tl.static_range(1, NEAR + 1):
        before, after = tl.maximum(index - distance, 0), tl.minimum(index + distance, SIDE - 1)
        rows += tl.gather(values, zeros + before[None, :], 1) + tl.gather(values, zeros + after[None, :], 1)
    sums = rows
    for distance in tl.static_range(1, NEAR + 1):
        before, after = tl.maximum(index - distance, 0), tl.minimum(index + distance, SIDE - 1)
        sums += tl.gather(rows, zeros + before[:, None], 0) + tl.gather(rows, zeros + after[:, None], 0)
    return sums
