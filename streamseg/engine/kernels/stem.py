"""From a frame's bytes to the first map: Conv-0, ReLU and the pooling after it.

The 7x7 convolution of stride 2 is computed as one of 4x4 and stride 1 over squares of 2x2 pixels, whose 12 numbers, in
the order row, column, channel, are the channels; four more channels stay zero, for the tensor cores. The image is
padded with two squares of zeros at the top and left, and one at the bottom and right: the padding of the 7x7
convolution.

Shapes: B batch, H x W the frame, N channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, release, tl, wait
from streamseg.engine.mirroring import mirror


def unfold_frame(
    frame: Tensor, mean: Tensor, out: Tensor, size: tuple[int, int], mirrored: Tensor | None = None
) -> None:
    """Resize frames (B, 3, …), bytes, to H x W, subtract the mean (3,), and write squares, the input of Conv-0.

    Args:
        out: (B, 16, H/2 + 3, W/2 + 3), zeros; sides are rounded up.
        size: Height and width.
        mirrored: 1 for frames that are mirrored first, or else 0, (B,), fp32; None if none is.
    """
    if not backend.use_triton(frame):
        pixels = resize_frame(mirror(frame, mirrored).float(), size)
        out[:, :12, 2:-1, 2:-1] = squares(pixels - mean.float().view(1, 3, 1, 1))
        return
    batch, _, h, w = frame.shape
    _, _, rows, columns = out.shape
    block = 128
    grid = (rows - 3, backend.cdiv(columns - 3, block), batch)
    unfold_kernel[grid](
        frame,
        mean,
        out,
        mean if mirrored is None else mirrored,
        h,
        w,
        *size,
        rows,
        columns,
        *frame.stride(),
        1 if mirrored is None else mirrored.stride(0),
        BLOCK=block,
        RESIZE=(h, w) != size,
        MIRROR=mirrored is not None,
        num_warps=4,
        **backend.early(frame.device),
    )


def resize_frame(frame: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize frames (B, 3, H, W), bytes or floats, bilinearly and without anti-aliasing; bytes are rounded."""
    if frame.shape[2:] == size:
        return frame
    return F.interpolate(frame, size, mode="bilinear", align_corners=False)


def squares(x: Tensor) -> Tensor:
    """Rearrange squares of 2x2 pixels (B, 3, H, W) to 12 channels (B, 12, H/2, W/2), padding odd sides with 0."""
    height, width = x.shape[-2:]
    x = F.pad(x, (0, width % 2, 0, height % 2)).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return x.permute(0, 3, 5, 1, 2, 4).flatten(1, 3)


@jit
def unfold_kernel(
    frame,
    mean,
    out,
    mirrored,
    h,
    w,
    height,
    width,
    rows,
    columns,
    stride_b,
    stride_c,
    stride_y,
    stride_x,
    stride_mirrored,
    BLOCK: tl.constexpr,
    RESIZE: tl.constexpr,
    MIRROR: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    row, block, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = block * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, 16)
    y = 2 * row + part // 6
    x = 2 * column[:, None] + (part % 6 // 3)[None, :]
    channel = part % 3
    inside = (part < 12)[None, :] & (y < height)[None, :] & (x < width)
    if MIRROR:
        x = tl.where(tl.load(mirrored + image * stride_mirrored) > 0, width - 1 - x, x)
    frame += image * stride_b
    planes = (channel * stride_c)[None, :]
    if RESIZE:
        down = tl.minimum(tl.maximum((y + 0.5) * h / height - 0.5, 0.0), h - 1.0)
        across = tl.minimum(tl.maximum((x + 0.5) * w / width - 0.5, 0.0), w - 1.0)
        top, left = down.to(tl.int32), across.to(tl.int32)
        above = planes + (top * stride_y)[None, :]
        below = planes + (tl.minimum(top + 1, h - 1) * stride_y)[None, :]
        near, far = left * stride_x, tl.minimum(left + 1, w - 1) * stride_x
        down, across = (down - top)[None, :], across - left
        a, b = read_bytes(frame + above + near, inside), read_bytes(frame + above + far, inside)
        c, d = read_bytes(frame + below + near, inside), read_bytes(frame + below + far, inside)
        upper, lower = a + (b - a) * across, c + (d - c) * across
        pixels = upper + (lower - upper) * down
    else:
        pixels = read_bytes(frame + planes + (y * stride_y)[None, :] + x * stride_x, inside)
    pixels = tl.where(inside, pixels - tl.load(mean + channel).to(tl.float32)[None, :], 0.0)
    target = ((image * rows + row + 2) * columns + column + 2)[:, None] * 16 + part[None, :]
    tl.store(out + target, pixels.to(out.dtype.element_ty), (column < columns - 3)[:, None])


@jit
def read_bytes(pointers, inside):
    """Load bytes as floats."""
    return tl.load(pointers, inside, 0).to(tl.float32)


def stem_convolution(unfolded: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the first map (B, N, H/4, W/4) of unfolded frames: convolution, ReLU and max pooling (3x3, stride 2).

    The map before the pooling, the largest of the network, is never written to memory.

    Args:
        weight: (N, 16, 4, 4), channels_last.
        bias: (N,).
    """
    if not backend.use_triton(unfolded):
        return F.max_pool2d(F.conv2d(unfolded, weight, bias).relu_(), 3, stride=2, padding=1)
    batch, _, rows, columns = unfolded.shape
    channels, tall, wide = len(weight), (rows - 2) // 2, (columns - 2) // 2
    out = torch.empty(batch, tall, wide, channels, dtype=unfolded.dtype, device=unfolded.device).permute(0, 3, 1, 2)
    block = 128
    strip = make_strip(backend.cdiv(wide, block // 2 - 1) * batch, tall, backend.processors(unfolded.device))
    stem_kernel[backend.cdiv(wide, block // 2 - 1), backend.cdiv(tall, strip), batch](
        unfolded,
        weight,
        bias,
        out,
        rows,
        columns,
        tall,
        wide,
        C=channels,
        BLOCK=block,
        STRIP=strip,
        num_warps=8,
        **backend.early(unfolded.device),
    )
    return out


def make_strip(blocks: int, tall: int, processors: int) -> int:
    """Return the number of rows per program that minimises the total time on all multiprocessors."""

    def time(strip: int) -> float:
        return backend.cdiv(blocks * backend.cdiv(tall, strip), processors) * (strip + 0.7)

    return min(range(4, 25), key=time)


@jit
def stem_kernel(
    unfolded,
    weight,
    bias,
    out,
    rows,
    columns,
    tall,
    wide,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIP: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    block, strip, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    unfolded += image * rows * columns * 16
    half: tl.constexpr = BLOCK // 2
    channel, part = tl.arange(0, C), tl.arange(0, 64)
    first_row = weight + channel[None, :] * 256 + part[:, None]
    w0, w1, w2, w3 = tl.load(first_row), tl.load(first_row + 64), tl.load(first_row + 128), tl.load(first_row + 192)
    add = tl.load(bias + channel).to(tl.float32)[None, :]
    # columns of the convolution, one to the left of the pair below each pooled pixel; the last pair has no neighbour
    first = 2 * block * (half - 1) - 1
    column = first + tl.arange(0, BLOCK)
    valid = ((column >= 0) & (column < columns - 3))[:, None]
    lines = unfolded + column[:, None] * 16 + part[None, :]
    y = strip * STRIP
    top = read_line(lines, 2 * y - 1, rows, columns, valid)
    l0 = read_line(lines, 2 * y, rows, columns, valid)
    l1 = read_line(lines, 2 * y + 1, rows, columns, valid)
    l2 = read_line(lines, 2 * y + 2, rows, columns, valid)
    above = tl.dot(l2, w3, tl.dot(l1, w2, tl.dot(l0, w1, tl.dot(top, w0)))) + add
    above = tl.where(valid & (y > 0), above, 0.0)
    next_one = tl.minimum(tl.arange(0, half) + 1, half - 1)
    next_one = tl.broadcast_to(next_one[:, None], (half, C))
    x = block * (half - 1) + tl.arange(0, half)
    inside = x < tl.minimum(wide, (block + 1) * (half - 1))
    release(EARLY)
    for _ in range(STRIP):
        l3 = read_line(lines, 2 * y + 3, rows, columns, valid)
        l4 = read_line(lines, 2 * y + 4, rows, columns, valid)
        even = tl.dot(l3, w3, tl.dot(l2, w2, tl.dot(l1, w1, tl.dot(l0, w0)))) + add
        odd = tl.dot(l4, w3, tl.dot(l3, w2, tl.dot(l2, w1, tl.dot(l1, w0)))) + add
        odd = tl.where(valid & (2 * y + 1 < rows - 3), odd, 0.0)
        best = tl.maximum(tl.maximum(above, odd), tl.where(valid, even, 0.0))
        best = tl.maximum(best, 0.0).to(out.dtype.element_ty)
        left, middle = tl.split(tl.trans(tl.reshape(best, (half, 2, C)), (0, 2, 1)))
        right = tl.gather(left, next_one, 0)
        target = out + ((image * tall + y) * wide + x)[:, None] * C + channel[None, :]
        tl.store(target, tl.maximum(tl.maximum(left, middle), right), (inside & (y < tall))[:, None])
        above, l0, l1, l2 = odd, l2, l3, l4
        y += 1


@jit
def read_line(lines, row, rows, columns, valid):
    """Load four adjacent squares for each column of the convolution."""
    return tl.load(lines + row * columns * 16, valid & (row >= 0) & (row < rows), 0.0)
