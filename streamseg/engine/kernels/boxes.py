"""A 3x3 convolution of 128 or 256 channels on a Hopper GPU whose map is copied to shared memory in boxes.

For each tap of the kernel and each 64 channels, the hardware copies a box of the map, with zeros outside of it, and a
block of weights; the tensor cores read both in place. A step's product runs while the next two are copied.
It is written in Gluon, the lower level of Triton: Triton itself moves a box through registers, and up to 3.6 it
overwrites them while the previous product still reads them ("RAW hazard with pipelined wgmma and LHS in register").

Shapes: B batch, C channels of input and output, h x w the map.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from streamseg.engine.kernels import backend, language, patches
from streamseg.engine.kernels.language import gl, gluon_jit, hopper, meet, release, wait

DEPTH, STAGES = 64, 3
"""Input channels of a step, and number of steps in shared memory."""


class Plan(NamedTuple):
    """How a convolution is divided among programs, of 64 pixels each, and the maps for which that is fast."""

    rows: int
    columns: int
    warps: int
    min_pixels: int
    """Least number of pixels of a map."""
    programs: int
    """Programs that a multiprocessor runs at once. A map that needs more is faster without boxes."""


PLANS = {128: Plan(2, 32, 4, min_pixels=16384, programs=3), 256: Plan(4, 16, 8, min_pixels=4033, programs=1)}
"""Plans by number of channels, as measured on an H200. A program computes all channels."""


def has_boxes(x: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """Return whether `convolve_boxes` computes a convolution."""
    channels = len(weight)
    return (
        channels in PLANS
        and weight.shape == (channels, channels, 3, 3)
        and (stride, padding) == (1, 1)
        and x.element_size() == 2
        and x[:, 0].numel() >= PLANS[channels].min_pixels
        and patches.can_copy(x)
        and patches.is_supported(x.device)
        and count_programs(x) <= PLANS[channels].programs * backend.processors(x.device)
    )


def count_programs(x: Tensor) -> int:
    """Return the number of programs that a map (B, C, h, w) takes."""
    batch, channels, height, width = x.shape
    return batch * math.ceil(height / PLANS[channels].rows) * math.ceil(width / PLANS[channels].columns)


def convolve_boxes(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, shortcut: Tensor | None = None, relu: bool = True
) -> None:
    """Compute a convolution of padding 1, an optional shortcut and ReLU into a map; all maps are (B, C, h, w).

    Args:
        weight: (C, C, 3, 3), channels_last.
        bias: (C,).
        out: Receives the map; may be some channels of a wider one.
    """
    _, channels, height, width = x.shape
    plan = PLANS[channels]
    down, across = backend.cdiv(height, plan.rows), backend.cdiv(width, plan.columns)
    # a descriptor holds its tensor's address: a CUDA graph replays it, as all addresses, for the same buffers
    box, block = [1, plan.rows, plan.columns, DEPTH], [channels, DEPTH]
    matrix = weight.permute(0, 2, 3, 1).flatten(1)
    boxes_kernel[(count_programs(x),)](
        language.GluonDescriptor.from_tensor(patches.to_rows(x), box, patches.layout_of(4)),
        language.GluonDescriptor.from_tensor(matrix, block, patches.layout_of(2)),
        bias,
        x if shortcut is None else shortcut,
        out,
        height,
        width,
        down,
        across,
        out.stride(3),
        C=channels,
        ROWS=plan.rows,
        COLUMNS=plan.columns,
        DEPTH=DEPTH,
        STAGES=STAGES,
        SHORTCUT=shortcut is not None,
        RELU=relu,
        num_warps=plan.warps,
        **backend.early(x.device),
    )


@gluon_jit
def boxes_kernel(
    x,
    weight,
    bias,
    shortcut,
    out,
    height,
    width,
    down,
    across,
    out_stride,
    C: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr,
    STAGES: gl.constexpr,
    SHORTCUT: gl.constexpr,
    RELU: gl.constexpr,
    EARLY: gl.constexpr,
):
    warps: gl.constexpr = gl.num_warps()
    pixels: gl.constexpr = ROWS * COLUMNS
    steps: gl.constexpr = 9 * C // DEPTH
    size: gl.constexpr = (pixels + C) * DEPTH * 2  # bytes of a step
    flat: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, warps // 4], instr_shape=[16, C // (warps // 4), 16]
    )
    memory: gl.constexpr = gl.BlockedLayout([1, 8], [256 // C, C // 8], [warps, 1], [1, 0])
    boxes = gl.allocate_shared_memory(x.dtype, [STAGES, pixels, DEPTH], flat)
    weights = gl.allocate_shared_memory(x.dtype, [STAGES, C, DEPTH], flat)
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        hopper.mbarrier.init(barriers.index(i), count=1)
    hopper.fence_async_shared()
    tile = gl.program_id(0)
    image, top, left = tile // (across * down), tile // across % down * ROWS, tile % across * COLUMNS
    for i in gl.static_range(STAGES - 1):  # the first weights are copied while the previous kernel ends
        hopper.mbarrier.expect(barriers.index(i), size)
        hopper.tma.async_copy_global_to_shared(weight, [0, i * DEPTH], barriers.index(i), weights.index(i))
    wait(EARLY)
    release(EARLY)
    for i in gl.static_range(STAGES - 1):
        copy_box(x, boxes.index(i), barriers.index(i), i, image, top, left, True, C, ROWS, COLUMNS, DEPTH)
    y = gl.zeros([pixels, C], gl.float32, sums)
    for step in range(steps):
        stage = step % STAGES
        hopper.mbarrier.wait(barriers.index(stage), step // STAGES & 1)
        y = hopper.warpgroup_mma(boxes.index(stage), weights.index(stage).permute((1, 0)), y, is_async=True)
        y = hopper.warpgroup_mma_wait(1, deps=[y])
        meet()  # all warps have read the previous step, whose place is free now
        later = step + STAGES - 1
        free, exists = later % STAGES, later < steps
        barrier = barriers.index(free)
        hopper.mbarrier.expect(barrier, size, pred=exists)
        hopper.tma.async_copy_global_to_shared(weight, [0, later * DEPTH], barrier, weights.index(free), pred=exists)
        copy_box(x, boxes.index(free), barrier, later, image, top, left, exists, C, ROWS, COLUMNS, DEPTH)
    y = hopper.warpgroup_mma_wait(0, deps=[y])
    meet()  # shared memory is used again below
    y += gl.load(bias + gl.arange(0, C, gl.SliceLayout(0, sums))).to(gl.float32)[None, :]
    n, place = gl.arange(0, C, gl.SliceLayout(0, memory)), gl.arange(0, pixels, gl.SliceLayout(1, memory))
    row, column = top + place // COLUMNS, left + place % COLUMNS
    pixel, inside = (image * height + row) * width + column, (row < height) & (column < width)
    y = gl.convert_layout(y, memory)
    if SHORTCUT:
        y += gl.load(shortcut + pixel[:, None] * C + n[None, :], inside[:, None], 0.0).to(gl.float32)
    if RELU:
        y = gl.maximum(y, 0.0)
    gl.store(out + pixel[:, None] * out_stride + n[None, :], y.to(x.dtype), inside[:, None])


@gluon_jit
def copy_box(
    x,
    box,
    barrier,
    step,
    image,
    top,
    left,
    exists,
    C: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr,
):
    """Start to copy the box of a step to shared memory: a tap's pixels in some channels."""
    each: gl.constexpr = C // DEPTH
    tap = step // each
    place = [image, top + tap // 3 - 1, left + tap % 3 - 1, step % each * DEPTH]
    target = box._reinterpret(x.dtype, [1, ROWS, COLUMNS, DEPTH], x.layout)
    hopper.tma.async_copy_global_to_shared(x, place, barrier, target, pred=exists)
