"""Fast attention in two passes: the sum of context and past, and the map plus its attended values.

Shapes: B batch, N pixels, C channels, D key channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, tl, wait
from streamseg.models.attention import to_map, to_pixels


def gather_context(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    past: Tensor,
    scale: Tensor,
    context: Tensor,
    keys: int,
    shares: Tensor | None = None,
) -> Tensor:
    """Return the sum of a map's context and the past, times a scale, (B, D, C) in the precision of the map.

    The context of a map (B, C, h, w) is the product of its normalised keys and its values, averaged over the pixels.

    Args:
        weight: (C, 2D + C): query, key and value concatenated.
        bias: (2D + C).
        past: (B, D, C), fp32.
        scale: (B,), fp32.
        context: Receives the context of the map, (B, D, C), fp32.
        shares: The weight of each pixel in the context (B, h, w), fp32; None for 1.
    """
    batch, channels, height, width = x.shape
    pixels = height * width
    counts = None if shares is None else shares.sum(dim=(1, 2)).clamp(min=1e-9)  # (B,)
    if not (backend.use_triton(x) and backend.fits_tensor_cores(keys)):
        y = to_pixels(x) @ weight + bias
        key = F.normalize(y[..., keys : 2 * keys], dim=-1, eps=1e-6)
        key = key.float() if shares is None else key.float() * shares.flatten(1)[:, :, None]
        count = pixels if counts is None else counts.view(-1, 1, 1)
        context.copy_((key.transpose(1, 2) @ y[..., 2 * keys :].relu().float()) / count)
        return ((context + past) * scale.view(-1, 1, 1)).to(x.dtype)
    tile, columns = 64, min(64, channels)
    tiles = backend.cdiv(pixels, tile)
    each = backend.cdiv(tiles, min(tiles, 128))
    parts = backend.cdiv(tiles, each)
    # partial sums that are added in a fixed order, without atomics, so that results are reproducible
    partial = torch.empty(batch, parts, keys, channels, device=x.device)
    context_kernel[parts, channels // columns, batch](
        x,
        weight,
        bias,
        partial if shares is None else shares.contiguous(),
        partial,
        pixels,
        C=channels,
        D=keys,
        MASKED=shares is not None,
        TILES=each,
        TILE=tile,
        COLUMNS=columns,
        DEPTH=columns,
        **backend.early(x.device),
    )
    total = torch.empty(batch, keys, channels, dtype=x.dtype, device=x.device)
    total_kernel[keys, channels // columns, batch](
        partial,
        past,
        scale,
        scale if counts is None else counts,
        context,
        total,
        parts,
        pixels,
        *past.stride()[:2],
        *context.stride()[:2],
        C=channels,
        D=keys,
        MASKED=counts is not None,
        COLUMNS=columns,
        PARTS=backend.next_power_of_2(parts),
        **backend.early(x.device),
    )
    return total


@jit
def total_kernel(
    partial,
    past,
    scale,
    counts,
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
    MASKED: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    d, chunk, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = chunk * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, PARTS)[:, None]
    sums = tl.load(partial + ((image * parts + part) * D + d) * C + columns[None, :], part < parts, 0.0)
    count = pixels
    if MASKED:
        count = tl.load(counts + image)
    own = tl.sum(sums, axis=0) / count
    tl.store(context + image * context_b + d * context_d + columns, own)
    scaled = (own + tl.load(past + image * past_b + d * past_d + columns)) * tl.load(scale + image)
    tl.store(total + (image * D + d) * C + columns, scaled.to(total.dtype.element_ty))


@jit
def context_kernel(
    x,
    weight,
    bias,
    shares,
    partial,
    pixels,
    C: tl.constexpr,
    D: tl.constexpr,
    MASKED: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
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
            inputs = tl.load(x + (image * pixels + rows[:, None]) * C + c + depth[None, :], inside, 0.0)
            line = weight + (c + depth[:, None]) * wide
            key = tl.dot(inputs, tl.load(line + D + d[None, :]), key)
            value = tl.dot(inputs, tl.load(line + 2 * D + columns[None, :]), value)
        key = key / tl.maximum(tl.sqrt(tl.sum(key * key, axis=1)), 1e-6)[:, None]
        if MASKED:
            key *= tl.load(shares + image * pixels + rows, rows < pixels, 0.0)[:, None]
        key = tl.where(inside, key, 0.0).to(half)
        total = tl.dot(tl.trans(key), tl.maximum(value, 0.0).to(half), total)
    out = ((image * tl.num_programs(0) + part) * D + d[:, None]) * C + columns[None, :]
    tl.store(partial + out, total)


def attend(
    x: Tensor, total: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor, keys: int
) -> Tensor:
    """Return a map (B, C, h, w) plus its attended values.

    Args:
        total: The result of gather_context, (B, D, C).
        weight: (C, 2D + C): query, key and value concatenated.
        bias: (2D + C).
        out_weight: (C, C), after attention.
        out_bias: (C).
    """
    batch, channels, height, width = x.shape
    pixels = height * width
    if not (backend.use_triton(x) and backend.fits_tensor_cores(keys)):
        query = F.normalize(to_pixels(x) @ weight[:, :keys] + bias[:keys], dim=-1, eps=1e-6)
        attended = (query @ total @ out_weight + out_bias).relu()
        return x + to_map(attended, x)
    out = torch.empty_like(x)
    tile, columns = 64, min(64, channels)
    attend_kernel[backend.cdiv(pixels, tile), channels // columns, batch](
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
        **backend.early(x.device),
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
    EARLY: tl.constexpr,
):
    wait(EARLY)
    tile, chunk, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d, depth = tl.arange(0, D), tl.arange(0, DEPTH)
    columns = chunk * COLUMNS + tl.arange(0, COLUMNS)
    rows = tile * TILE + tl.arange(0, TILE)
    inside = (rows < pixels)[:, None]
    wide: tl.constexpr = 2 * D + C
    half = x.dtype.element_ty
    query = tl.zeros((TILE, D), tl.float32) + tl.load(bias + d).to(tl.float32)[None, :]
    for c in range(0, C, DEPTH):
        inputs = tl.load(x + (image * pixels + rows[:, None]) * C + c + depth[None, :], inside, 0.0)
        query = tl.dot(inputs, tl.load(weight + (c + depth[:, None]) * wide + d[None, :]), query)
    query = (query / tl.maximum(tl.sqrt(tl.sum(query * query, axis=1)), 1e-6)[:, None]).to(half)
    attended = tl.zeros((TILE, COLUMNS), tl.float32) + tl.load(out_bias + columns).to(tl.float32)[None, :]
    for c in range(0, C, DEPTH):
        context = tl.load(total + image * D * C + d[:, None] * C + c + depth[None, :])
        value = tl.dot(query, context).to(half)
        attended = tl.dot(value, tl.load(out_weight + (c + depth[:, None]) * C + columns[None, :]), attended)
    offset = (image * pixels + rows[:, None]) * C + columns[None, :]
    own = tl.load(x + offset, inside, 0.0).to(tl.float32)
    tl.store(out + offset, (own + tl.maximum(attended, 0.0)).to(half), inside)
