"""Pyramid pooling in two passes: the values of the cells of all grids, and the map merged with them.

Shapes: B batch, C channels, h x w the map, L grids, N channels of a grid's values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, tl, wait
from streamseg.models.attention import to_map, to_pixels
from streamseg.models.fanet_plus import PyramidPooling, pyramid_columns


def pool_pyramid(
    x: Tensor, level_weight: Tensor, level_bias: Tensor, fuse_weight: Tensor, own_weight: Tensor, bias: Tensor
) -> Tensor:
    """Return a map (B, C, h, w) merged with its averages over the grids of PyramidPooling.

    The last convolution is linear, and so is the resize before it: they are swapped, so that the values of a cell are
    computed once and the resize is a matrix product.

    Args:
        level_weight: (L, C, N), of the convolution of each grid.
        level_bias: (L, N).
        fuse_weight: (L, N, C), of the last convolution: its part for each grid.
        own_weight: (C, C), of the last convolution: its part for the map itself.
        bias: (C).
    """
    grids = [(rows, pyramid_columns(rows, x)) for rows in PyramidPooling.rows]
    batch, channels, h, w = x.shape
    narrow = level_weight.shape[2]
    if not (backend.use_triton(x) and backend.fits_tensor_cores(narrow)):
        y = to_map(to_pixels(x) @ own_weight + bias, x)
        for grid, weight, add, fuse in zip(grids, level_weight, level_bias, fuse_weight, strict=True):
            cells = F.adaptive_avg_pool2d(x, grid)
            values = to_map((to_pixels(cells) @ weight + add).relu() @ fuse, cells)
            y = y + F.interpolate(values, (h, w), mode="bilinear", align_corners=False)
        return y.relu()
    tile, block = 16, 64
    # each grid begins with a new tile
    tiles = sum(backend.cdiv(rows * columns, tile) for rows, columns in grids)
    cells = torch.empty(batch, tiles * tile, channels, dtype=x.dtype, device=x.device)
    sizes = [number for grid in grids for number in grid]
    cells_kernel[tiles, batch](
        x,
        level_weight,
        level_bias,
        fuse_weight,
        cells,
        h,
        w,
        *sizes,
        C=channels,
        N=narrow,
        TILE=tile,
        BLOCK=block,
        BLOCKS=backend.cdiv(h * w, block),
        **backend.early(x.device),
    )
    out = torch.empty_like(x)
    merge_kernel[backend.cdiv(h * w, tile), batch](
        x,
        cells,
        own_weight,
        bias,
        out,
        tiles * tile,
        h,
        w,
        *sizes,
        C=channels,
        TILE=tile,
        BLOCK=block,
        BLOCKS=backend.cdiv(tiles * tile, block),
        **backend.early(x.device),
    )
    return out


@jit
def cells_kernel(
    x,
    level_weight,
    level_bias,
    fuse_weight,
    cells,
    h,
    w,
    rows0,
    columns0,
    rows1,
    columns1,
    rows2,
    columns2,
    C: tl.constexpr,
    N: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    tile, image = tl.program_id(0), tl.program_id(1)
    level, first, rows, columns = find_grid(tile * TILE, rows0, columns0, rows1, columns1, rows2, columns2, TILE)
    cell = tile * TILE - first + tl.arange(0, TILE)
    row, column = cell // columns, cell % columns
    # cells overlap where the sides of their grid do not divide the map's
    top, bottom = row * h // rows, ((row + 1) * h + rows - 1) // rows
    left, right = column * w // columns, ((column + 1) * w + columns - 1) // columns
    c, n = tl.arange(0, C), tl.arange(0, N)
    half = x.dtype.element_ty
    total = tl.zeros((TILE, C), tl.float32)
    for block in range(BLOCKS):
        pixel = block * BLOCK + tl.arange(0, BLOCK)
        i, j = (pixel // w)[None, :], (pixel % w)[None, :]
        covered = (i >= top[:, None]) & (i < bottom[:, None]) & (j >= left[:, None]) & (j < right[:, None])
        inputs = tl.load(x + (image * h * w + pixel[:, None]) * C + c[None, :], (pixel < h * w)[:, None], 0.0)
        total = tl.dot(tl.where(covered, 1.0, 0.0).to(half), inputs, total)
    mean = (total / ((bottom - top) * (right - left))[:, None]).to(half)
    value = tl.dot(mean, tl.load(level_weight + (level * C + c[:, None]) * N + n[None, :]))
    value = tl.maximum(value + tl.load(level_bias + level * N + n).to(tl.float32)[None, :], 0.0).to(half)
    value = tl.dot(value, tl.load(fuse_weight + (level * N + n[:, None]) * C + c[None, :]))
    target = (image * tl.num_programs(0) + tile) * TILE + tl.arange(0, TILE)
    tl.store(cells + target[:, None] * C + c[None, :], value.to(half))


@jit
def merge_kernel(
    x,
    cells,
    own_weight,
    bias,
    out,
    total_cells,
    h,
    w,
    rows0,
    columns0,
    rows1,
    columns1,
    rows2,
    columns2,
    C: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    tile, image = tl.program_id(0), tl.program_id(1)
    pixel, c = tile * TILE + tl.arange(0, TILE), tl.arange(0, C)
    inside = (pixel < h * w)[:, None]
    offset = (image * h * w + pixel[:, None]) * C + c[None, :]
    own = tl.load(x + offset, inside, 0.0)
    total = tl.dot(own, tl.load(own_weight + c[:, None] * C + c[None, :]))
    total += tl.load(bias + c).to(tl.float32)[None, :]
    high, wide = (pixel // w + 0.5)[:, None] / h, (pixel % w + 0.5)[:, None] / w
    for block in range(BLOCKS):
        index = block * BLOCK + tl.arange(0, BLOCK)
        _, first, rows, columns = find_grid(index, rows0, columns0, rows1, columns1, rows2, columns2, TILE)
        cell = index - first
        exists = cell < rows * columns
        down = bilinear_share(high, cell // columns, rows)
        across = bilinear_share(wide, cell % columns, columns)
        share = tl.where(exists[None, :], down * across, 0.0).to(own.dtype)
        values = tl.load(cells + (image * total_cells + index[:, None]) * C + c[None, :], exists[:, None], 0.0)
        total = tl.dot(share, values, total)
    tl.store(out + offset, tl.maximum(total, 0.0).to(own.dtype), inside)


@jit
def find_grid(index, rows0, columns0, rows1, columns1, rows2, columns2, TILE: tl.constexpr):
    """Return the number of the grid that a cell belongs to, the grid's first cell, and its rows and columns."""
    second = tl.cdiv(rows0 * columns0, TILE) * TILE
    third = second + tl.cdiv(rows1 * columns1, TILE) * TILE
    level = tl.where(index < second, 0, tl.where(index < third, 1, 2))
    first = tl.where(level == 0, 0, tl.where(level == 1, second, third))
    rows = tl.where(level == 0, rows0, tl.where(level == 1, rows1, rows2))
    columns = tl.where(level == 0, columns0, tl.where(level == 1, columns1, columns2))
    return level, first, rows, columns


@jit
def bilinear_share(place, cell, count):
    """Return the share of a cell, one of a row, in a value at a place between 0 and 1 of that row."""
    cell, count = cell[None, :], count[None, :]
    centre = tl.minimum(tl.maximum(place * count - 0.5, 0.0), count - 1.0)
    return tl.maximum(1.0 - tl.abs(centre - cell), 0.0)
