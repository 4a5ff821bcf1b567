"""Between the planes of a video, YUV 4:2:0, and RGB frames. The definitions in PyTorch are in io/yuv.py.

Shapes: H x W the picture as it is stored, h x w its chroma: half of each, rounded up.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from streamseg.engine.kernels import backend, compiling
from streamseg.io import yuv
from streamseg.io.yuv import ColourMatrix, Yuv420


def to_rgb(picture: Yuv420) -> Tensor:
    """Return a picture as an RGB frame (3, height, width), uint8, upright, on the picture's device."""
    if not backend.use_triton(picture.pixels):
        return yuv.to_rgb(picture)
    variant = "repeated" if yuv.repeats_chroma(picture) else "interpolated"
    if not compiling.is_compiled(f"rgb, {variant}", (picture.pixels,), picture.size, partial(launch_to_rgb, picture)):
        return yuv.to_rgb(picture)
    return picture.orientation.turn(launch_to_rgb(picture))


def to_yuv(frame: Tensor, matrix: ColourMatrix) -> Yuv420:
    """Return an RGB frame (3, H, W), uint8, as 8 bits of limited range; an odd size grows by its last row or column."""
    if not backend.use_triton(frame):
        return yuv.to_yuv(frame, matrix)
    numbers = (*frame.shape[1:], *frame.stride())
    if not compiling.is_compiled("yuv", (frame,), numbers, partial(launch_to_yuv, frame, matrix)):
        return yuv.to_yuv(frame, matrix)
    return launch_to_yuv(frame, matrix)


# Triton is imported when a kernel is first launched, in the background


def launch_to_rgb(picture: Yuv420) -> Tensor:
    """Return a picture as an RGB frame (3, H, W), as it is stored, by the kernel."""
    from streamseg.engine.kernels import colour_kernels

    return colour_kernels.to_rgb(picture)


def launch_to_yuv(frame: Tensor, matrix: ColourMatrix) -> Yuv420:
    """Return an RGB frame (3, H, W) as YUV by the kernel."""
    from streamseg.engine.kernels import colour_kernels

    return colour_kernels.to_yuv(frame, matrix)
