"""The Triton kernels of colour.py.

Shapes: H x W the picture as it is stored, h x w its chroma: half of each, rounded up.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, tl
from streamseg.io import yuv
from streamseg.io.yuv import ColourMatrix, Yuv420

BLOCK = 256
"""Pixels of a row, or of a row of chroma, that a program converts."""


def to_rgb(picture: Yuv420) -> Tensor:
    """Return a picture as an RGB frame (3, H, W), as it is stored."""
    pixels, (height, width) = picture.pixels, picture.size
    rgb = torch.empty(3, height, width, dtype=torch.uint8, device=pixels.device)
    rgb_kernel[backend.cdiv(width, BLOCK), height](
        pixels,
        scales_to_rgb(picture.matrix, picture.full_range, picture.bits, pixels.device),
        rgb,
        height,
        width,
        REPEAT=yuv.repeats_chroma(picture),
        BLOCK=BLOCK,
    )
    return rgb


def to_yuv(frame: Tensor, matrix: ColourMatrix) -> Yuv420:
    """Run the kernel."""
    _, height, width = frame.shape
    h, w = yuv.chroma_size((height, width))
    pixels = torch.empty(6 * h * w, dtype=torch.uint8, device=frame.device)
    yuv_kernel[backend.cdiv(w, BLOCK), h](
        frame, scales_to_yuv(matrix, frame.device), pixels, height, width, *frame.stride(), BLOCK=BLOCK
    )
    return Yuv420(pixels, (2 * h, 2 * w), matrix=matrix)


@lru_cache(maxsize=16)
def scales_to_rgb(matrix: ColourMatrix, full_range: bool, bits: int, device: torch.device) -> Tensor:
    """Return the numbers of yuv.scales on a device, (7,)."""
    with torch.inference_mode(False):  # it is kept for later calls, which may be outside of inference mode
        return torch.tensor(yuv.scales(matrix, full_range, bits), dtype=torch.float32).to(device)


@lru_cache(maxsize=16)
def scales_to_yuv(matrix: ColourMatrix, device: torch.device) -> Tensor:
    """Return the weights of red, green and blue, the step and black of luma, the steps and grey of chroma, (8,)."""
    black, luma, red, _, _, blue, grey = yuv.scales(matrix, full_range=False)
    numbers = (matrix.red, matrix.green, matrix.blue, 1 / luma, black, 1 / blue, 1 / red, grey)
    with torch.inference_mode(False):  # it is kept for later calls, which may be outside of inference mode
        return torch.tensor(numbers, dtype=torch.float32).to(device)


@jit
def rgb_kernel(pixels, scales, rgb, height, width, REPEAT: tl.constexpr, BLOCK: tl.constexpr):
    row, columns = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    h, w = (height + 1) // 2, (width + 1) // 2
    black, step, grey = tl.load(scales), tl.load(scales + 1), tl.load(scales + 6)
    red, green_blue = tl.load(scales + 2), tl.load(scales + 3)
    green_red, blue = tl.load(scales + 4), tl.load(scales + 5)
    luma = (tl.load(pixels + row * width + columns, inside, 0).to(tl.float32) - black) * step
    first = pixels + height * width
    second = first + h * w
    if REPEAT:
        place = (row // 2) * w + columns // 2
        u = tl.load(first + place, inside, 0).to(tl.float32) - grey
        v = tl.load(second + place, inside, 0).to(tl.float32) - grey
        r = tl.floor(luma) + tl.floor(red * v)
        g = tl.floor(luma) + tl.floor(-green_blue * u) + tl.floor(-green_red * v)
        b = tl.floor(luma) + tl.floor(blue * u)
    else:
        y = tl.maximum((row + 0.5) * h / height - 0.5, 0.0)
        x = tl.maximum((columns + 0.5) * w / width - 0.5, 0.0)
        top, left = y.to(tl.int32), x.to(tl.int32)
        down, across = y - top, x - left
        bottom, right = tl.minimum(top + 1, h - 1), tl.minimum(left + 1, w - 1)
        above, below = top * w, bottom * w
        upper = tl.load(first + above + left, inside, 0).to(tl.float32) * (1 - across)
        upper += tl.load(first + above + right, inside, 0).to(tl.float32) * across
        lower = tl.load(first + below + left, inside, 0).to(tl.float32) * (1 - across)
        lower += tl.load(first + below + right, inside, 0).to(tl.float32) * across
        u = upper + (lower - upper) * down - grey
        upper = tl.load(second + above + left, inside, 0).to(tl.float32) * (1 - across)
        upper += tl.load(second + above + right, inside, 0).to(tl.float32) * across
        lower = tl.load(second + below + left, inside, 0).to(tl.float32) * (1 - across)
        lower += tl.load(second + below + right, inside, 0).to(tl.float32) * across
        v = upper + (lower - upper) * down - grey
        r = luma + red * v
        g = luma - green_blue * u - green_red * v
        b = luma + blue * u
    out = rgb + row * width + columns
    tl.store(out, round_to_byte(r), inside)
    tl.store(out + height * width, round_to_byte(g), inside)
    tl.store(out + 2 * height * width, round_to_byte(b), inside)


@jit
def yuv_kernel(frame, scales, pixels, height, width, stride_channel, stride_row, stride_column, BLOCK: tl.constexpr):
    row, columns = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h, w = (height + 1) // 2, (width + 1) // 2
    inside = columns < w
    red, green, blue = tl.load(scales), tl.load(scales + 1), tl.load(scales + 2)
    step, black, grey = tl.load(scales + 3), tl.load(scales + 4), tl.load(scales + 7)
    u, v = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(8):  # four rows around the two of this row of chroma, two columns each
        y = tl.minimum(tl.maximum(2 * row - 1 + i // 2, 0), height - 1)
        x = tl.minimum(2 * columns + i % 2, width - 1)
        place = frame + y * stride_row + x * stride_column
        r = tl.load(place, inside, 0).to(tl.float32)
        g = tl.load(place + stride_channel, inside, 0).to(tl.float32)
        b = tl.load(place + 2 * stride_channel, inside, 0).to(tl.float32)
        luma = red * r + green * g + blue * b
        weight = 0.1875 if (i // 2 == 1 or i // 2 == 2) else 0.0625  # 3 and 1 of 16
        u += weight * (b - luma)
        v += weight * (r - luma)
        if i // 2 == 1 or i // 2 == 2:
            out = (2 * row + i // 2 - 1) * 2 * w + 2 * columns + i % 2
            tl.store(pixels + out, round_to_byte(luma * step + black), inside)
    first = pixels + 4 * h * w + row * w + columns
    tl.store(first, round_to_byte(u * tl.load(scales + 5) + grey), inside)
    tl.store(first + h * w, round_to_byte(v * tl.load(scales + 6) + grey), inside)


@jit
def round_to_byte(x):
    return tl.minimum(tl.maximum(x + 0.5, 0.0), 255.0).to(tl.uint8)
