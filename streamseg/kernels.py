"""The steps of the fast path that PyTorch has no single kernel for: each a plain definition, and the same in Triton.

A GPU runs the Triton kernel, where Triton is installed; everything else runs the plain definition.

Shapes: B batch, K classes, H x W the frame, h x w a map, N its pixels, C its channels, D key channels. Maps are
channels_last, in half precision on a GPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl

    jit, VERSION = triton.jit, triton.__version__
except ImportError:  # no Triton: a machine without a GPU
    VERSION = "none"

    def jit(kernel):
        return kernel


# 1. frame to the stem's input


def unfold_frame(frame: Tensor, mean: Tensor, out: Tensor) -> None:
    """Frames (B, 3, H, W), bytes, less the mean (3,), as the first convolution takes them, into `out`.

    The 7x7 convolution of stride 2 is one of 4x4 and stride 1 over squares of 2x2 pixels, whose 12 numbers, in the
    order row, column, channel, are the channels; four more stay zero, for the tensor cores. Around the image are two
    squares of zeros at the top and left, one at the bottom and right: what the 7x7 convolution pads with.

    Args:
        out: (B, 16, H/2 + 3, W/2 + 3), zeros; sides are rounded up.
    """
    if not use_triton(frame):
        out[:, :12, 2:-1, 2:-1] = squares(frame.float() - mean.float().view(1, 3, 1, 1))
        return
    batch, _, height, width = frame.shape
    _, _, rows, columns = out.shape
    block = 128
    grid = (rows - 3, triton.cdiv(columns - 3, block), batch)
    unfold_kernel[grid](frame, mean, out, height, width, rows, columns, *frame.stride(), BLOCK=block, num_warps=4)


def squares(x: Tensor) -> Tensor:
    """Every square of 2x2 pixels (B, 3, H, W) as one of 12 channels (B, 12, H/2, W/2); zeros fill up the last."""
    height, width = x.shape[-2:]
    x = F.pad(x, (0, width % 2, 0, height % 2)).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return x.permute(0, 3, 5, 1, 2, 4).flatten(1, 3)


@jit
def unfold_kernel(
    frame, mean, out, height, width, rows, columns, stride_b, stride_c, stride_y, stride_x, BLOCK: tl.constexpr
):
    row, block, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = block * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, 16)
    y = 2 * row + part // 6
    x = 2 * column[:, None] + (part % 6 // 3)[None, :]
    channel = part % 3
    inside = (part < 12)[None, :] & (y < height)[None, :] & (x < width)
    place = image * stride_b + (channel * stride_c + y * stride_y)[None, :] + x * stride_x
    found = tl.load(frame + place, inside, 0).to(tl.float32) - tl.load(mean + channel).to(tl.float32)[None, :]
    found = tl.where(inside, found, 0.0)
    target = ((image * rows + row + 2) * columns + column + 2)[:, None] * 16 + part[None, :]
    tl.store(out + target, found.to(out.dtype.element_ty), (column < columns - 3)[:, None])


# 2. fast attention


def gather_context(
    x: Tensor, weight: Tensor, bias: Tensor, past: Tensor, scale: Tensor, context: Tensor, keys: int
) -> Tensor:
    """What a map (B, C, h, w) attends to, (B, D, C) in its precision: its own context plus the past, times a scale.

    The context is that of its keys, normalised, and its values, averaged over the pixels.

    Args:
        weight: (C, 2D + C): query, key and value side by side.
        bias: (2D + C).
        past: (B, D, C), fp32.
        scale: (B,), fp32.
        context: (B, D, C), fp32: where the map's own context is written.
    """
    batch, channels, height, width = x.shape
    pixels = height * width
    if not (use_triton(x) and fits_tensor_cores(keys)):
        y = to_pixels(x) @ weight + bias
        key = F.normalize(y[..., keys : 2 * keys], dim=-1, eps=1e-6)
        context.copy_((key.float().transpose(1, 2) @ y[..., 2 * keys :].relu().float()) / pixels)
        return ((context + past) * scale.view(-1, 1, 1)).to(x.dtype)
    tile, columns = 64, min(64, channels)
    tiles = triton.cdiv(pixels, tile)
    each = triton.cdiv(tiles, min(tiles, 128))
    parts = triton.cdiv(tiles, each)
    # parts that are summed in order, and no atomics: the same frame has the same context every time
    partial = torch.empty(batch, parts, keys, channels, device=x.device)
    context_kernel[parts, channels // columns, batch](
        x, weight, bias, partial, pixels, C=channels, D=keys, TILES=each, TILE=tile, COLUMNS=columns, DEPTH=columns
    )
    total = torch.empty(batch, keys, channels, dtype=x.dtype, device=x.device)
    total_kernel[keys, channels // columns, batch](
        partial,
        past,
        scale,
        context,
        total,
        parts,
        pixels,
        *past.stride()[:2],
        *context.stride()[:2],
        C=channels,
        D=keys,
        COLUMNS=columns,
        PARTS=triton.next_power_of_2(parts),
    )
    return total


@jit
def total_kernel(
    partial,
    past,
    scale,
    context,
    total,
    parts,
    pixels,
    past_b,
    past_d,
    context_b,
    context_d,
    C: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    d, chunk, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = chunk * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, PARTS)[:, None]
    seen = tl.load(partial + ((image * parts + part) * D + d) * C + columns[None, :], part < parts, 0.0)
    own = tl.sum(seen, axis=0) / pixels
    tl.store(context + image * context_b + d * context_d + columns, own)
    found = (own + tl.load(past + image * past_b + d * past_d + columns)) * tl.load(scale + image)
    tl.store(total + (image * D + d) * C + columns, found.to(total.dtype.element_ty))


@jit
def context_kernel(
    x,
    weight,
    bias,
    partial,
    pixels,
    C: tl.constexpr,
    D: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    part, chunk, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d, depth = tl.arange(0, D), tl.arange(0, DEPTH)
    columns = chunk * COLUMNS + tl.arange(0, COLUMNS)
    wide: tl.constexpr = 2 * D + C
    half = x.dtype.element_ty
    total = tl.zeros((D, COLUMNS), tl.float32)
    for number in range(TILES):
        rows = (part * TILES + number) * TILE + tl.arange(0, TILE)
        inside = (rows < pixels)[:, None]
        key = tl.zeros((TILE, D), tl.float32) + tl.load(bias + D + d).to(tl.float32)[None, :]
        value = tl.zeros((TILE, COLUMNS), tl.float32) + tl.load(bias + 2 * D + columns).to(tl.float32)[None, :]
        for c in range(0, C, DEPTH):
            seen = tl.load(x + (image * pixels + rows[:, None]) * C + c + depth[None, :], inside, 0.0)
            line = weight + (c + depth[:, None]) * wide
            key = tl.dot(seen, tl.load(line + D + d[None, :]), key)
            value = tl.dot(seen, tl.load(line + 2 * D + columns[None, :]), value)
        key = key / tl.maximum(tl.sqrt(tl.sum(key * key, axis=1)), 1e-6)[:, None]
        key = tl.where(inside, key, 0.0).to(half)
        total = tl.dot(tl.trans(key), tl.maximum(value, 0.0).to(half), total)
    out = ((image * tl.num_programs(0) + part) * D + d[:, None]) * C + columns[None, :]
    tl.store(partial + out, total)


def attend(
    x: Tensor, total: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor, keys: int
) -> Tensor:
    """A map (B, C, h, w) plus what it finds in the contexts of the window.

    Args:
        total: What it attends to, (B, D, C).
        weight: (C, 2D + C): query, key and value side by side.
        bias: (2D + C).
        out_weight: (C, C), after attention.
        out_bias: (C).
    """
    batch, channels, height, width = x.shape
    pixels = height * width
    if not (use_triton(x) and fits_tensor_cores(keys)):
        query = F.normalize(to_pixels(x) @ weight[:, :keys] + bias[:keys], dim=-1, eps=1e-6)
        found = (query @ total @ out_weight + out_bias).relu()
        return x + found.transpose(1, 2).unflatten(2, (height, width))
    out = torch.empty_like(x)
    tile, columns = 64, min(64, channels)
    attend_kernel[triton.cdiv(pixels, tile), channels // columns, batch](
        x,
        weight,
        bias,
        total,
        out_weight,
        out_bias,
        out,
        pixels,
        C=channels,
        D=keys,
        TILE=tile,
        COLUMNS=columns,
        DEPTH=columns,
    )
    return out


@jit
def attend_kernel(
    x,
    weight,
    bias,
    total,
    out_weight,
    out_bias,
    out,
    pixels,
    C: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    tile, chunk, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d, depth = tl.arange(0, D), tl.arange(0, DEPTH)
    columns = chunk * COLUMNS + tl.arange(0, COLUMNS)
    rows = tile * TILE + tl.arange(0, TILE)
    inside = (rows < pixels)[:, None]
    wide: tl.constexpr = 2 * D + C
    half = x.dtype.element_ty
    query = tl.zeros((TILE, D), tl.float32) + tl.load(bias + d).to(tl.float32)[None, :]
    for c in range(0, C, DEPTH):
        seen = tl.load(x + (image * pixels + rows[:, None]) * C + c + depth[None, :], inside, 0.0)
        query = tl.dot(seen, tl.load(weight + (c + depth[:, None]) * wide + d[None, :]), query)
    query = (query / tl.maximum(tl.sqrt(tl.sum(query * query, axis=1)), 1e-6)[:, None]).to(half)
    found = tl.zeros((TILE, COLUMNS), tl.float32) + tl.load(out_bias + columns).to(tl.float32)[None, :]
    for c in range(0, C, DEPTH):
        context = tl.load(total + image * D * C + d[:, None] * C + c + depth[None, :])
        value = tl.dot(query, context).to(half)
        found = tl.dot(value, tl.load(out_weight + (c + depth[:, None]) * C + columns[None, :]), found)
    place = (image * pixels + rows[:, None]) * C + columns[None, :]
    own = tl.load(x + place, inside, 0.0).to(tl.float32)
    tl.store(out + place, (own + tl.maximum(found, 0.0)).to(half), inside)


def fits_tensor_cores(side: int) -> bool:
    """Whether Triton multiplies matrices of such a side: powers of two from 16 up."""
    return side >= 16 and side & (side - 1) == 0


def to_pixels(x: Tensor) -> Tensor:
    """A map (B, C, h, w) as pixels (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


# 3. poolings and resizes


def pool(x: Tensor) -> Tensor:
    """The largest of 3x3 values, every second pixel, of a map that is nowhere below zero."""
    if not use_triton(x):
        return F.max_pool2d(x, 3, stride=2, padding=1)
    batch, channels, height, width = x.shape
    tall, wide = (height + 1) // 2, (width + 1) // 2
    out = torch.empty(batch, channels, tall, wide, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    block = 32
    pool_kernel[triton.cdiv(wide, block), tall, batch](x, out, height, width, tall, wide, C=channels, BLOCK=block)
    return out


@jit
def pool_kernel(x, out, height, width, tall, wide, C: tl.constexpr, BLOCK: tl.constexpr):
    block, row, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column, channel = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, C)
    best = tl.zeros((BLOCK, C), x.dtype.element_ty)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            y, at = 2 * row + i - 1, 2 * column + j - 1
            inside = (y >= 0) & (y < height) & (at >= 0) & (at < width)
            place = ((image * height + y) * width + at)[:, None] * C + channel[None, :]
            best = tl.maximum(best, tl.load(x + place, inside[:, None], 0.0))
    place = ((image * tall + row) * wide + column)[:, None] * C + channel[None, :]
    tl.store(out + place, best, (column < wide)[:, None])


def add_resized(x: Tensor, small: Tensor) -> Tensor:
    """A map (B, C, h, w) plus a smaller one, resized bilinearly."""
    if not use_triton(x):
        return x + F.interpolate(small, x.shape[-2:], mode="bilinear", align_corners=False)
    out = torch.empty_like(x)
    resize(small, out, 0, x)
    return out


def join_resized(small: Tensor, x: Tensor) -> Tensor:
    """A map, resized bilinearly to the size of another one, and that one, channel after channel."""
    if not use_triton(x):
        return torch.cat([F.interpolate(small, x.shape[-2:], mode="bilinear", align_corners=False), x], dim=1)
    batch, channels, height, width = x.shape
    out = torch.empty(
        batch,
        small.shape[1] + channels,
        height,
        width,
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
    resize(small, out, 0)
    out[:, small.shape[1] :] = x
    return out


def resize(small: Tensor, out: Tensor, first: int, add: Tensor | None = None) -> None:
    """Resize a map bilinearly into the channels of another from the first on, plus a third of that size, if given."""
    batch, channels, h, w = small.shape
    _, total, height, width = out.shape
    block = max(1, 2048 // channels)  # of four corners each, which must fit into the registers
    resize_kernel[triton.cdiv(width, block), height, batch](
        small,
        out,
        out if add is None else add,
        h,
        w,
        height,
        width,
        first,
        total,
        C=channels,
        BLOCK=block,
        ADD=add is not None,
    )


@jit
def resize_kernel(
    small, out, add, h, w, height, width, first, total, C: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):
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
    found = upper + (lower - upper) * down
    pixel = ((image * height + row) * width + column)[:, None]
    if ADD:
        found += tl.load(add + pixel * C + channel[None, :], inside, 0.0).to(tl.float32)
    tl.store(out + pixel * total + first + channel[None, :], found.to(out.dtype.element_ty), inside)


# 4. scores to labels


def label(scores: Tensor, size: tuple[int, int], labels: Tensor, confidence: Tensor | None = None) -> None:
    """Labels (B, H, W), uint8, of scores (B, K, h, w) resized bilinearly, and their probabilities, 255 for 1, into
    `labels` and `confidence`; the resized scores are never written.
    """
    height, width = size
    if not use_triton(scores):
        full = F.interpolate(scores.float(), size, mode="bilinear", align_corners=False)
        highest, best = full.max(dim=1)
        labels.copy_(best)
        if confidence is not None:
            confidence.copy_((255 / (full - highest[:, None]).exp().sum(dim=1)).round())
        return
    batch, classes, h, w = scores.shape
    block = 128
    # so many columns of the map are under a block, and two of them beyond its ends
    span = max(16, triton.next_power_of_2(int(block * w / width) + 3))
    label_kernel[height, triton.cdiv(width, block), batch](
        scores,
        labels,
        labels if confidence is None else confidence,
        classes,
        h,
        w,
        height,
        width,
        *scores.stride(),
        K=max(16, triton.next_power_of_2(classes)),
        SPAN=span,
        BLOCK=block,
        CONFIDENCE=confidence is not None,
    )


@jit
def label_kernel(
    scores,
    labels,
    confidence,
    classes,
    h,
    w,
    height,
    width,
    stride_b,
    stride_k,
    stride_y,
    stride_x,
    K: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    CONFIDENCE: tl.constexpr,
):
    row, block, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    y = tl.minimum(tl.maximum((row + 0.5) * h / height - 0.5, 0.0), h - 1.0)
    top = y.to(tl.int32)
    bottom = tl.minimum(top + 1, h - 1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.minimum(tl.maximum((columns + 0.5) * w / width - 0.5, 0.0), w - 1.0)
    first = tl.minimum(tl.maximum((block * BLOCK + 0.5) * w / width - 0.5, 0.0), w - 1.0).to(tl.int32)
    span, k = first + tl.arange(0, SPAN), tl.arange(0, K)
    place = scores + image * stride_b + k[:, None] * stride_k + span[None, :] * stride_x
    known = (k < classes)[:, None] & (span < w)[None, :]
    above = tl.load(place + top * stride_y, known, 0.0).to(tl.float32)
    below = tl.load(place + bottom * stride_y, known, 0.0).to(tl.float32)
    line = above + (below - above) * (y - top)
    # across, the resize is a product with the matrix of bilinear weights: work for the tensor cores
    weights = tl.maximum(1.0 - tl.abs(span[:, None] - x[None, :]), 0.0)
    found = tl.dot(line.to(tl.float16), weights.to(tl.float16))
    found = tl.where((k < classes)[:, None], found, float("-inf"))
    place = (image * height + row) * width + columns
    tl.store(labels + place, tl.argmax(found, axis=0).to(tl.uint8), columns < width)
    if CONFIDENCE:
        total = tl.sum(tl.exp(found - tl.max(found, axis=0)[None, :]), axis=0)
        tl.store(confidence + place, (255 / total + 0.5).to(tl.uint8), columns < width)


def use_triton(x: Tensor) -> bool:
    """Whether Triton's kernels run where a tensor is."""
    return x.is_cuda and VERSION != "none" and is_recent(x.device)


@cache
def is_recent(device: torch.device) -> bool:
    """Whether a GPU is one that Triton is made for: of 2020 or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)
