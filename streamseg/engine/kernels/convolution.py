"""A convolution with its bias, a shortcut and ReLU in one step.

Shapes: B batch, C channels of the input, N of the output, h x w the output's map.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.kernels import backend, boxes, patches
from streamseg.engine.kernels.language import jit, release, tl, wait

MAX_TILES = 1024
"""Maximum number of output tiles whose sums are split among programs."""


class Plan(NamedTuple):
    """How a convolution is divided among programs."""

    pixels: int
    channels: int
    depth: int
    """Number of input channels that are read at a time."""
    splits: int
    """Number of programs that share the sum of one output."""
    warps: int = 4
    stages: int = 3
    """Number of steps that are read ahead, plus one."""


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    counters: Tensor,
    out: Tensor,
    *,
    stride: int,
    padding: int,
    shortcut: Tensor | None = None,
    relu: bool = True,
) -> None:
    """Compute a convolution with a square kernel, an optional shortcut (B, N, h, w) and ReLU into a map (B, N, h, w).

    Args:
        weight: (N, C, side, side), channels_last.
        bias: (N,).
        counters: Zeros, int32, used by this convolution only: its programs count those that have finished.
        out: Receives the map; may be some channels of a wider one.
    """
    if not backend.use_triton(x):
        y = F.conv2d(x, weight, bias, stride, padding)
        y = y if shortcut is None else y + shortcut
        out.copy_(y.relu() if relu else y)
        return
    if patches.has_patches(x, weight, stride, padding):
        patches.convolve_patches(x, weight, bias, out, shortcut, relu)
        return
    if boxes.has_boxes(x, weight, stride, padding):
        boxes.convolve_boxes(x, weight, bias, out, shortcut, relu)
        return
    batch, channels, height, width = x.shape
    outputs, _, side, _ = weight.shape
    tall, wide = out.shape[2:]
    total = batch * tall * wide
    plan = plan_blocks(total, channels, outputs, side * side, backend.is_hopper(x.device))
    tiles, across = backend.cdiv(total, plan.pixels), outputs // plan.channels
    sums = tiles * across * plan.splits * plan.pixels * plan.channels if plan.splits > 1 else 0
    convolve_kernel[tiles, across, plan.splits](
        x,
        weight,
        bias,
        x if shortcut is None else shortcut,
        out,
        torch.empty(sums, device=x.device),
        counters,
        height,
        width,
        tall,
        wide,
        total,
        out.stride(3),
        C=channels,
        N=outputs,
        SIDE=side,
        STRIDE=stride,
        PADDING=padding,
        PIXELS=plan.pixels,
        CHANNELS=plan.channels,
        DEPTH=plan.depth,
        SPLITS=plan.splits,
        SHORTCUT=shortcut is not None,
        RELU=relu,
        num_warps=plan.warps,
        num_stages=plan.stages,
        **backend.early(x.device),
    )


@jit
def convolve_kernel(
    x,
    weight,
    bias,
    shortcut,
    out,
    sums,
    counters,
    height,
    width,
    tall,
    wide,
    total,
    out_stride,
    C: tl.constexpr,
    N: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    tile, chunk, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    pixel, n = tile * PIXELS + tl.arange(0, PIXELS), chunk * CHANNELS + tl.arange(0, CHANNELS)
    inside = pixel < total
    total_sum = sum_products(
        x, weight, pixel, n, inside, split, height, width, tall, wide, C, SIDE, STRIDE, PADDING, DEPTH, SPLITS
    )
    release(EARLY)
    last = True
    if SPLITS > 1:  # the last program to finish adds the sums of all, always in the same order
        part = tile * tl.num_programs(1) + chunk
        shares = sums + part * SPLITS * PIXELS * CHANNELS
        shares += tl.arange(0, PIXELS)[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        tl.store(shares + split * PIXELS * CHANNELS, total_sum)
        tl.debug_barrier()
        last = tl.atomic_add(counters + part, 1, sem="acq_rel") == SPLITS - 1
        if last:
            total_sum = tl.zeros((PIXELS, CHANNELS), tl.float32)
            for other in tl.static_range(SPLITS):
                total_sum += tl.load(shares + other * PIXELS * CHANNELS)
            tl.store(counters + part, 0)
    if last:
        total_sum += tl.load(bias + n).to(tl.float32)[None, :]
        if SHORTCUT:
            total_sum += tl.load(shortcut + pixel[:, None] * N + n[None, :], inside[:, None], 0.0).to(tl.float32)
        if RELU:
            total_sum = tl.maximum(total_sum, 0.0)
        tl.store(out + pixel[:, None] * out_stride + n[None, :], total_sum.to(out.dtype.element_ty), inside[:, None])


def convolve_and_classify(
    x: Tensor, weight: Tensor, bias: Tensor, class_weight: Tensor, class_bias: Tensor, padding: int
) -> Tensor:
    """Return the scores (B, K, h, w) of a convolution with ReLU and a 1x1 classifier after it, a plane for each class.

    The map between them is never written to memory, and planes are what the labels are read from fastest.

    Args:
        weight: (N, C, side, side), channels_last; N a power of two.
        bias: (N,).
        class_weight: (K, N, 1, 1).
        class_bias: (K,).
    """
    if not backend.use_triton(x):
        return F.conv2d(F.conv2d(x, weight, bias, padding=padding).relu(), class_weight, class_bias)
    if len(class_weight) <= patches.MAX_CLASSES and patches.has_patches(x, weight, 1, padding):
        return patches.classify_patches(x, weight, bias, class_weight, class_bias)
    batch, channels, height, width = x.shape
    outputs, _, side, _ = weight.shape
    tall, wide = height + 2 * padding - side + 1, width + 2 * padding - side + 1
    total, classes, pixels = batch * tall * wide, len(class_weight), 128
    scores = torch.empty(batch, classes, tall, wide, dtype=x.dtype, device=x.device)
    classify_kernel[(backend.cdiv(total, pixels),)](
        x,
        weight,
        bias,
        class_weight,
        class_bias,
        scores,
        height,
        width,
        tall,
        wide,
        total,
        C=channels,
        N=outputs,
        K=classes,
        CLASSES=max(16, backend.next_power_of_2(classes)),
        SIDE=side,
        PADDING=padding,
        PIXELS=pixels,
        DEPTH=min(64, channels),
        num_warps=4,
        num_stages=3,
        **backend.early(x.device),
    )
    return scores


@jit
def classify_kernel(
    x,
    weight,
    bias,
    class_weight,
    class_bias,
    scores,
    height,
    width,
    tall,
    wide,
    total,
    C: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    CLASSES: tl.constexpr,
    SIDE: tl.constexpr,
    PADDING: tl.constexpr,
    PIXELS: tl.constexpr,
    DEPTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    pixel, n, k = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS), tl.arange(0, N), tl.arange(0, CLASSES)
    inside, known = pixel < total, k < K
    y = sum_products(x, weight, pixel, n, inside, 0, height, width, tall, wide, C, SIDE, 1, PADDING, DEPTH, 1)
    release(EARLY)
    y = tl.maximum(y + tl.load(bias + n).to(tl.float32)[None, :], 0.0).to(x.dtype.element_ty)
    classes = tl.dot(y, tl.load(class_weight + k[None, :] * N + n[:, None], known[None, :], 0.0))
    classes += tl.load(class_bias + k, known, 0.0).to(tl.float32)[None, :]
    plane = tall * wide
    place = (pixel // plane * K * plane + pixel % plane)[:, None] + k[None, :] * plane
    tl.store(scores + place, classes.to(scores.dtype.element_ty), inside[:, None] & known[None, :])


@jit
def sum_products(
    x,
    weight,
    pixel,
    n,
    inside,
    split,
    height,
    width,
    tall,
    wide,
    C: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Return the convolution of some pixels in some channels, or the share of one of several programs in it."""
    depth = tl.arange(0, DEPTH)
    column, row, image = pixel % wide, pixel // wide % tall, pixel // (wide * tall)
    across: tl.constexpr = C // DEPTH
    steps: tl.constexpr = SIDE * SIDE * across
    each: tl.constexpr = (steps + SPLITS - 1) // SPLITS
    total_sum = tl.zeros((pixel.shape[0], n.shape[0]), tl.float32)
    for number in range(each):
        step = split * each + number
        tap, c = step // across, step % across * DEPTH + depth
        i, j = row * STRIDE + tap // SIDE - PADDING, column * STRIDE + tap % SIDE - PADDING
        valid = inside & (i >= 0) & (i < height) & (j >= 0) & (j < width) & (step < steps)
        inputs = tl.load(x + ((image * height + i) * width + j)[:, None] * C + c[None, :], valid[:, None], 0.0)
        offset = (n * SIDE * SIDE + tap)[None, :] * C + c[:, None]
        total_sum = tl.dot(inputs, tl.load(weight + offset, step < steps, 0.0), total_sum)
    return total_sum


def plan_blocks(pixels: int, inputs: int, outputs: int, taps: int, hopper: bool) -> Plan:
    """Return a plan with enough programs for a large GPU; the limits were measured on an H200.

    Args:
        pixels: Pixels of the output.
        inputs: Channels of the input.
        outputs: Channels of the output.
        taps: Pixels of the kernel.
        hopper: Whether a program has the shared memory of a Hopper GPU or a later one.
    """
    depth = min(128, inputs)
    if pixels >= 16384:
        wide = outputs % 128 == 0
        return Plan(64 if wide else 128, 128 if wide else 64, min(64, depth), 1)
    if hopper and outputs % 256 == 0 and backend.cdiv(pixels, 64) * (outputs // 256) >= 64:
        return Plan(64, 256, min(64, depth), 1, warps=8)
    tiles, steps = backend.cdiv(pixels, 64) * (outputs // 64), taps * inputs // depth
    if tiles >= 80 or steps < 9:
        return Plan(64, 64, depth, 1)
    return Plan(64, 64, depth, 4 if steps % 4 == 0 else 3)
