"""The motion between frames by Lucas and Kanade's method, and what of the frames is found again.

A program computes a square of pixels, and all that it depends on around it. Sums over neighbours are products with
matrices of ones, on the tensor cores: these round to TF32, so a number is split into two, exact to 2 ** -22.

Shapes: B streams in a batch, l x m the largest map of brightness, h x w the map of scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamseg.engine import motion, steadying
from streamseg.engine.kernels import backend, brightness
from streamseg.engine.kernels.backend import jit, release, tl, wait

SIDE = 32
"""Side of the square of pixels that one program looks at, with those around the ones that it computes."""


def compare_frames(
    images: Tensor, pair: Tensor, size: tuple[int, int], steadiness: steadying.Steadiness
) -> steadying.Comparison:
    """Compare frames (B, 3, H, W) with those before, as steadying.compare does.

    Args:
        pair: Brightness (2, B, l, m), fp32, contiguous: the first half receives that of the frames, the second holds
            that of the frames before.
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
    small = torch.empty(batch, 2, h, w, device=device)
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
        max(steadiness.tolerance, steadying.MIN_TOLERANCE),
        max(steadiness.still, steadying.MIN_TOLERANCE),
        SIDE=SIDE,
        SCALE=tall // h,
        **backend.early(device),
    )
    return steadying.Comparison(small, alike, still, parts)


def estimate_motion(levels: list[Tensor]) -> Tensor:
    """Return the motion (B, 2, l, m) of frames since those before, as motion.estimate_motion does.

    Args:
        levels: The brightness (2, B, …) of the frames and those before in all sizes, the largest first.
    """
    if not backend.use_triton(levels[0]):
        return motion.estimate_motion(levels[0][0][:, None], levels[0][1][:, None])
    found: Tensor | None = None
    for level in reversed(levels):
        _, batch, h, w = level.shape
        coarse = level if found is None else found
        out = torch.empty(batch, 2, h, w, device=level.device)
        step = SIDE - 2 * (motion.ITERATIONS * (motion.NEIGHBOURS // 2) + 1)
        correct_kernel[backend.cdiv(w, step), backend.cdiv(h, step), batch](
            level,
            coarse,
            out,
            batch,
            h,
            w,
            coarse.shape[2],
            coarse.shape[3],
            SIDE=SIDE,
            STEP=step,
            NEAR=motion.NEIGHBOURS // 2,
            ITERATIONS=motion.ITERATIONS,
            NOISE=motion.NOISE,
            FIRST=found is None,
            **backend.early(level.device),
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
    SIDE: tl.constexpr,
    STEP: tl.constexpr,
    NEAR: tl.constexpr,
    ITERATIONS: tl.constexpr,
    NOISE: tl.constexpr,
    FIRST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Estimate the motion in one size, from that in the next smaller one."""
    wait(EARLY)
    halo: tl.constexpr = (SIDE - STEP) // 2
    image, index = tl.program_id(2), tl.arange(0, SIDE)
    y, x = tl.program_id(1) * STEP - halo + index, tl.program_id(0) * STEP - halo + index
    inside = ((y >= 0) & (y < h))[:, None] & ((x >= 0) & (x < w))[None, :]
    row, column = tl.minimum(tl.maximum(y, 0), h - 1), tl.minimum(tl.maximum(x, 0), w - 1)
    now, before = pair + image * h * w, pair + (batch + image) * h * w
    here = now + row[:, None] * w
    value = tl.load(here + column[None, :])
    right, left = tl.minimum(column + 1, w - 1), tl.maximum(column - 1, 0)
    across = (tl.load(here + right[None, :]) - tl.load(here + left[None, :])) * 0.5
    below, above = tl.minimum(row + 1, h - 1), tl.maximum(row - 1, 0)
    down = tl.load(now + below[:, None] * w + column[None, :]) - tl.load(now + above[:, None] * w + column[None, :])
    across, down = tl.where(inside, across, 0.0), tl.where(inside, down * 0.5, 0.0)
    if FIRST:
        u, v = tl.zeros((SIDE, SIDE), tl.float32), tl.zeros((SIDE, SIDE), tl.float32)
    else:
        flow = coarse + image * 2 * coarse_h * coarse_w
        high = (row + 0.5) * (coarse_h / h) - 0.5
        wide = (column + 0.5) * (coarse_w / w) - 0.5
        u = 2.0 * sample(flow, high[:, None], wide[None, :], coarse_h, coarse_w)
        v = 2.0 * sample(flow + coarse_h * coarse_w, high[:, None], wide[None, :], coarse_h, coarse_w)
    share = 1.0 / (count_near(y, h, NEAR)[:, None] * count_near(x, w, NEAR)[None, :])
    xx = sum_near(across * across, NEAR, SIDE) * share + NOISE
    yy = sum_near(down * down, NEAR, SIDE) * share + NOISE
    xy = sum_near(across * down, NEAR, SIDE) * share
    inverse = 1.0 / (xx * yy - xy * xy)
    xx, yy, xy = xx * inverse, yy * inverse, xy * inverse
    for _ in tl.static_range(ITERATIONS):
        error = value - sample(before, y[:, None] + v, x[None, :] + u, h, w)
        error_x = sum_near(across * error, NEAR, SIDE) * share
        error_y = sum_near(down * error, NEAR, SIDE) * share
        u += tl.minimum(tl.maximum(yy * error_x - xy * error_y, -1.0), 1.0)
        v += tl.minimum(tl.maximum(xx * error_y - xy * error_x, -1.0), 1.0)
    release(EARLY)
    share = 1.0 / (count_near(y, h, 1)[:, None] * count_near(x, w, 1)[None, :])
    own = (index >= halo) & (index < SIDE - halo)
    stored = inside & own[:, None] & own[None, :]
    target = out + image * 2 * h * w + row[:, None] * w + column[None, :]
    tl.store(target, sum_near(tl.where(inside, u, 0.0), 1, SIDE) * share, stored)
    tl.store(target + h * w, sum_near(tl.where(inside, v, 0.0), 1, SIDE) * share, stored)


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
    tolerance,
    stillness,
    SIDE: tl.constexpr,
    SCALE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Compare frames with the moved ones before, and write the motion and the likeness in the size of the scores."""
    wait(EARLY)
    image, index = tl.program_id(2), tl.arange(0, SIDE)
    y, x = tl.program_id(1) * (SIDE - 4) - 2 + index, tl.program_id(0) * (SIDE - 4) - 2 + index
    inside = ((y >= 0) & (y < tall))[:, None] & ((x >= 0) & (x < wide))[None, :]
    place = y[:, None] * wide + x[None, :]
    pixels: tl.constexpr = SIDE // SCALE
    now, before = pair + image * tall * wide, pair + (batch + image) * tall * wide
    flow = found + image * 2 * tall * wide + place
    u, v = tl.load(flow, inside, 0.0), tl.load(flow + tall * wide, inside, 0.0)
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
    release(EARLY)
    h, w = tall // SCALE, wide // SCALE
    if SCALE == 2:
        value, earlier, same = halve(value, pixels), halve(earlier, pixels), halve(same, pixels)
        u, v = halve(u, pixels) * 0.5, halve(v, pixels) * 0.5
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
def sum_near(values, NEAR: tl.constexpr, SIDE: tl.constexpr):
    """Return the sums over the square of pixels around each one."""
    index = tl.arange(0, SIDE)
    ones = tl.where(tl.abs(index[:, None] - index[None, :]) <= NEAR, 1.0, 0.0)
    high, low = split(values)
    rows = tl.dot(high, ones, input_precision="tf32") + tl.dot(low, ones, input_precision="tf32")
    high, low = split(rows)
    return tl.dot(ones, high, input_precision="tf32") + tl.dot(ones, low, input_precision="tf32")


@jit
def split(values):
    """Return numbers that TF32 holds exactly, and what is left of the values."""
    high = (values.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return high, values - high
