"""A 3x3 convolution of 64 channels on a Hopper GPU that reads its map three times instead of nine.

A program keeps all weights in shared memory and computes one tile of the output after the other. A tile's patch of the
input lies in shared memory three times, shifted by a column each: a tap of the kernel is then a part of it that begins
some rows later, which the tensor cores read in place. That needs Gluon, the lower level of Triton.

Shapes: B batch, K classes, h x w the map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamseg.engine.kernels import backend, language
from streamseg.engine.kernels.language import gl, gluon_jit, hopper, meet, release, wait

CHANNELS, ROWS, COLUMNS, STAGES, WARPS = 64, 8, 16, 2, 4
"""Channels of input and output, sides of a tile, number of patches in shared memory (60 KiB each), warps."""

MAX_CLASSES = 32
"""Number of classes whose scores fit into shared memory beside the patches."""

MIN_PIXELS = 16384
"""Size of a map from which all programs have tiles enough."""


def has_patches(x: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """Return whether `convolve_patches` computes a convolution."""
    return (
        weight.shape == (CHANNELS, CHANNELS, 3, 3)
        and (stride, padding) == (1, 1)
        and x.element_size() == 2
        and x[:, 0].numel() >= MIN_PIXELS
        and can_copy(x)
        and is_supported(x.device)
    )


def is_supported(device: torch.device) -> bool:
    """Return whether a device can run the kernel: later GPUs have other tensor cores."""
    return gl is not None and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def can_copy(x: Tensor) -> bool:
    """Return whether the hardware can copy parts of a map: it has no gaps and begins at a multiple of 16 bytes."""
    return x.is_contiguous(memory_format=torch.channels_last) and x.data_ptr() % 16 == 0


def convolve_patches(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, shortcut: Tensor | None = None, relu: bool = True
) -> None:
    """Compute a convolution of padding 1, an optional shortcut and ReLU into a map; all maps are (B, 64, h, w).

    Args:
        weight: (64, 64, 3, 3), channels_last.
        bias: (64,).
        out: Receives the map; may be some channels of a wider one.
    """
    launch_kernel(x, weight, bias, x if shortcut is None else shortcut, out, out.stride(3), shortcut is not None, relu)


def classify_patches(x: Tensor, weight: Tensor, bias: Tensor, class_weight: Tensor, class_bias: Tensor) -> Tensor:
    """Return the scores (B, K, h, w), planes, of a convolution of padding 1 with ReLU and a 1x1 classifier after it.

    Args:
        class_weight: (K, 64, 1, 1); K is at most MAX_CLASSES.
        class_bias: (K,).
    """
    batch, _, height, width = x.shape
    scores = torch.empty(batch, len(class_weight), height, width, dtype=x.dtype, device=x.device)
    launch_kernel(x, weight, bias, x, scores, 0, False, True, class_weight, class_bias)
    return scores


def launch_kernel(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor,
    out: Tensor,
    out_stride: int,
    has_shortcut: bool,
    relu: bool,
    class_weight: Tensor | None = None,
    class_bias: Tensor | None = None,
) -> None:
    """Compute a map, or with a classifier its scores, into `out`.

    Args:
        out_stride: Distance between pixels of the map.
    """
    batch, _, height, width = x.shape
    across, down = backend.cdiv(width, COLUMNS), backend.cdiv(height, ROWS)
    tiles, classes = batch * down * across, 0 if class_weight is None else len(class_weight)
    padded, square = max(16, backend.next_power_of_2(classes)), [CHANNELS, CHANNELS]
    matrix = weight.permute(0, 2, 3, 1).flatten(1)
    class_matrix = matrix if class_weight is None else class_weight.flatten(1)
    patches_kernel[(min(tiles, backend.processors(x.device)),)](
        describe(x, ROWS),
        describe(x, 2),
        language.GluonDescriptor.from_tensor(matrix, square, layout_of(2)),
        language.GluonDescriptor.from_tensor(class_matrix, [padded, CHANNELS], layout_of(2)),
        bias,
        bias if class_bias is None else class_bias,
        shortcut,
        out,
        height,
        width,
        down,
        across,
        tiles,
        out_stride,
        C=CHANNELS,
        K=classes,
        CLASSES=padded if classes else 0,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        STAGES=STAGES,
        SHORTCUT=has_shortcut,
        RELU=relu,
        num_warps=WARPS,
        **backend.early(x.device),
    )


def describe(x: Tensor, rows: int):
    """Return a descriptor of a map from which some rows of a patch are copied; pixels outside of the map are zeros."""
    return language.GluonDescriptor.from_tensor(to_rows(x), [1, rows, COLUMNS, CHANNELS], layout_of(4))


def to_rows(x: Tensor) -> Tensor:
    """Return a channels_last map as (B, h, w, C), with the strides of its shape: those of a side of 1 may be others."""
    rows = x.permute(0, 2, 3, 1)
    return rows.flatten().view(rows.shape)


def layout_of(rank: int):
    """Return the layout in shared memory that tensor cores read: lines of 128 bytes."""
    return gl.NVMMASharedLayout(128, 16, rank)


@gluon_jit
def patches_kernel(
    x,
    edge,
    weight,
    class_weight,
    bias,
    class_bias,
    shortcut,
    out,
    height,
    width,
    down,
    across,
    tiles,
    out_stride,
    C: gl.constexpr,
    K: gl.constexpr,
    CLASSES: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    SHORTCUT: gl.constexpr,
    RELU: gl.constexpr,
    EARLY: gl.constexpr,
):
    warps: gl.constexpr = gl.num_warps()
    pixels: gl.constexpr = ROWS * COLUMNS
    lines: gl.constexpr = 3 * (ROWS + 2)  # of a patch
    flat: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    sums: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[warps, 1], instr_shape=[16, C, 16])
    memory: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    weights = gl.allocate_shared_memory(x.dtype, [9, C, C], flat)
    patches = gl.allocate_shared_memory(x.dtype, [STAGES * lines, COLUMNS, C], flat)
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES + 1):
        hopper.mbarrier.init(barriers.index(i), count=1)
    hopper.fence_async_shared()
    hopper.mbarrier.expect(barriers.index(STAGES), (9 * C + CLASSES) * C * 2)
    if CLASSES > 0:
        class_weights = gl.allocate_shared_memory(x.dtype, [CLASSES, C], flat)
        hopper.tma.async_copy_global_to_shared(class_weight, [0, 0], barriers.index(STAGES), class_weights)
    for tap in gl.static_range(9):
        hopper.tma.async_copy_global_to_shared(weight, [0, tap * C], barriers.index(STAGES), weights.index(tap))
    n, place = gl.arange(0, C, gl.SliceLayout(0, memory)), gl.arange(0, pixels, gl.SliceLayout(1, memory))
    offset = gl.load(bias + gl.arange(0, C, gl.SliceLayout(0, sums))).to(gl.float32)[None, :]
    wait(EARLY)  # the weights are copied while the previous kernel ends
    release(EARLY)
    first, programs = gl.program_id(0), gl.num_programs(0)
    for i in gl.static_range(STAGES):
        tile = first + i * programs
        copy_patch(x, edge, patches, i * lines, barriers.index(i), tile, tiles, down, across, ROWS, COLUMNS, C)
    hopper.mbarrier.wait(barriers.index(STAGES), 0)
    for number in range((tiles - first + programs - 1) // programs):
        tile, stage = first + number * programs, number % STAGES
        row, column = tile // across % down * ROWS + place // COLUMNS, tile % across * COLUMNS + place % COLUMNS
        pixel, inside = (tile // (across * down) * height + row) * width + column, (row < height) & (column < width)
        if SHORTCUT:
            added = gl.load(shortcut + pixel[:, None] * C + n[None, :], inside[:, None], 0.0)
        hopper.mbarrier.wait(barriers.index(stage), number // STAGES & 1)
        y = gl.zeros([pixels, C], gl.float32, sums)
        for tap in gl.static_range(9):
            begin = patches.index(stage * lines + tap % 3 * (ROWS + 2) + tap // 3)
            inputs = begin._reinterpret(x.dtype, [pixels, C], flat)
            y = hopper.warpgroup_mma(inputs, weights.index(tap).permute((1, 0)), y, is_async=True)
        y = hopper.warpgroup_mma_wait(0, deps=[y])
        meet()  # all warps have read the patch
        later = tile + STAGES * programs
        copy_patch(x, edge, patches, stage * lines, barriers.index(stage), later, tiles, down, across, ROWS, COLUMNS, C)
        y += offset
        if SHORTCUT:
            y += gl.convert_layout(added, sums).to(gl.float32)
        if RELU:
            y = gl.maximum(y, 0.0)
        y = y.to(x.dtype)
        if CLASSES > 0:
            store_scores(y, class_weights, class_bias, out, tile, height, width, down, across, K, ROWS, COLUMNS)
        else:
            y = gl.convert_layout(y, memory)
            gl.store(out + pixel[:, None] * out_stride + n[None, :], y, inside[:, None])


@gluon_jit
def store_scores(
    y,
    class_weights,
    class_bias,
    scores,
    tile,
    height,
    width,
    down,
    across,
    K: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Store the scores of a tile's values, as planes."""
    warps: gl.constexpr = gl.num_warps()
    padded: gl.constexpr = class_weights.shape[0]
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[warps, 1], instr_shape=[16, padded, 16]
    )
    planes: gl.constexpr = gl.BlockedLayout([8, 1], [16, 2], [1, warps], [0, 1])
    values = gl.convert_layout(y, gl.DotOperandLayout(0, sums, 2))
    nothing = gl.zeros([ROWS * COLUMNS, padded], gl.float32, sums)
    found = hopper.warpgroup_mma(values, class_weights.permute((1, 0)), nothing, use_acc=False, is_async=True)
    found = hopper.warpgroup_mma_wait(0, deps=[found])
    k, place = gl.arange(0, padded, gl.SliceLayout(0, planes)), gl.arange(0, ROWS * COLUMNS, gl.SliceLayout(1, planes))
    found = gl.convert_layout(found, planes) + gl.load(class_bias + k, k < K, 0.0).to(gl.float32)[None, :]
    row, column = tile // across % down * ROWS + place // COLUMNS, tile % across * COLUMNS + place % COLUMNS
    line = ((tile // (across * down) * K + k) * height)[None, :] + row[:, None]
    inside = ((row < height) & (column < width))[:, None] & (k < K)[None, :]
    gl.store(scores + line * width + column[:, None], found.to(scores.dtype.element_ty), inside)


@gluon_jit
def copy_patch(
    x,
    edge,
    patches,
    begin,
    barrier,
    tile,
    tiles,
    down,
    across,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    C: gl.constexpr,
):
    """Start to copy a tile's patch to shared memory: 3 times, shifted by a column each; nothing after the last tile."""
    exists = tile < tiles
    image, row, column = tile // (across * down), tile // across % down * ROWS - 1, tile % across * COLUMNS - 1
    hopper.mbarrier.expect(barrier, 3 * (ROWS + 2) * COLUMNS * C * 2, pred=exists)
    for shift in gl.static_range(3):
        line = begin + shift * (ROWS + 2)
        place = [image, row, column + shift, 0]
        target = patches.index(line)._reinterpret(x.dtype, [1, ROWS, COLUMNS, C], x.layout)
        hopper.tma.async_copy_global_to_shared(x, place, barrier, target, pred=exists)
        place = [image, row + ROWS, column + shift, 0]
        target = patches.index(line + ROWS)._reinterpret(x.dtype, [1, 2, COLUMNS, C], edge.layout)
        hopper.tma.async_copy_global_to_shared(edge, place, barrier, target, pred=exists)
