"""Pictures as video codecs store them, YUV 4:2:0, and their conversion from and to RGB frames on any device.

They have half the bytes of RGB. The conversions follow FFmpeg's as it is used here, to one step of 8 bits: to RGB,
chroma of 8 bits is repeated, and that of 10 bits interpolated; from RGB, chroma is the mean of two columns, and of four
rows with the weights 1, 3, 3, 1.

Shapes: H x W the picture as it is stored, h x w its chroma: half of each, rounded up.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.io.decoded_frame import DecodedFrame
from streamseg.io.planes import (
    BT601 as BT601,
    BT709 as BT709,
    BT2020 as BT2020,
    UPRIGHT,
    ColourMatrix as ColourMatrix,
    Orientation as Orientation,
    PlaneFormat,
    chroma_size as chroma_size,
    default_matrix as default_matrix,
)


@dataclass(frozen=True, eq=False)
class Yuv420:
    """A picture of one luma and two chroma planes, in one piece of memory, so that it is copied to a device at once."""

    pixels: Tensor
    """Luma row by row, then the two chroma planes, (H W + 2 h w,): uint8, or int16 for more than 8 bits."""
    size: tuple[int, int]
    """H and W."""
    bits: int = 8
    matrix: ColourMatrix = BT601
    full_range: bool = False
    """Whether luma fills its range; otherwise black is 16 and white 235, of 8 bits."""
    orientation: Orientation = UPRIGHT

    @property
    def shape(self) -> torch.Size:
        """The shape (3, height, width) of the RGB frame, upright."""
        return torch.Size((3, *(self.size[::-1] if self.orientation.transposed else self.size)))

    @property
    def luma(self) -> Tensor:
        """(H, W), in the memory of pixels."""
        height, width = self.size
        return self.pixels[: height * width].view(height, width)

    @property
    def chroma(self) -> Tensor:
        """(2, h, w), in the memory of pixels."""
        return self.pixels[math.prod(self.size) :].view(2, *chroma_size(self.size))

    def with_pixels(self, pixels: Tensor) -> "Yuv420":
        """Return a picture of the same kind, such as a copy on another device."""
        return replace(self, pixels=pixels)


def with_format(pixels: Tensor, planes: PlaneFormat) -> Yuv420:
    """Return pixels as a picture of a format."""
    return Yuv420(pixels, planes.size, planes.bits, planes.matrix, planes.full_range, planes.orientation)


def empty_yuv(size: tuple[int, int], bits: int = 8, *, pinned: bool = False) -> Tensor:
    """Return memory for the pixels of a picture; pinned memory is copied to a GPU faster, and PyTorch reuses it."""
    count = math.prod(size) + 2 * math.prod(chroma_size(size))
    return torch.empty(count, dtype=torch.uint8 if bits == 8 else torch.int16, pin_memory=pinned)


class Scales(NamedTuple):
    """Numbers of the conversion between planes and RGB of 0 to 255."""

    black: float
    """The luma of black."""
    luma: float
    """What a step of luma adds to red, green and blue."""
    red: float
    """What a step of the second chroma plane adds to red."""
    green_blue: float
    green_red: float
    """What a step of the first and second chroma plane takes from green."""
    blue: float
    """What a step of the first chroma plane adds to blue."""
    grey: float
    """The chroma of grey."""


def scales(matrix: ColourMatrix, full_range: bool, bits: int = 8) -> Scales:
    """Return the numbers that convert planes of a colour space to RGB."""
    step = 2 ** (bits - 8)
    if full_range:
        black, white, chroma = 0.0, 2.0**bits - 1, 2.0**bits - 1
    else:
        black, white, chroma = 16.0 * step, 235.0 * step, 224.0 * step
    red, blue = 2 * (1 - matrix.red) * 255 / chroma, 2 * (1 - matrix.blue) * 255 / chroma
    return Scales(
        black,
        255 / (white - black),
        red,
        blue * matrix.blue / matrix.green,
        red * matrix.red / matrix.green,
        blue,
        128.0 * step,
    )


def to_rgb(picture: Yuv420) -> Tensor:
    """Return a picture as an RGB frame (3, height, width), uint8, upright, on the picture's device."""
    black, luma_scale, red, green_blue, green_red, blue, grey = scales(picture.matrix, picture.full_range, picture.bits)
    repeated = repeats_chroma(picture)
    # FFmpeg's fast conversion rounds each product down
    cut = torch.floor if repeated else torch.Tensor.clone
    chroma = picture.chroma.float() - grey
    if repeated:
        first, second = repeat(chroma, picture.size)
    else:
        first, second = F.interpolate(chroma[None], picture.size, mode="bilinear", align_corners=False)[0]
    luma = cut((picture.luma.float() - black) * luma_scale)
    rgb = torch.stack(
        [
            luma + cut(red * second),
            luma + cut(-green_blue * first) + cut(-green_red * second),
            luma + cut(blue * first),
        ]
    )
    return picture.orientation.turn(rgb.add_(0.5).clamp_(0, 255).to(torch.uint8))


def as_rgb(pixels: Tensor | Yuv420 | DecodedFrame) -> Tensor:
    """Return a picture as an RGB frame (3, height, width); one that is RGB already is returned unchanged."""
    if isinstance(pixels, DecodedFrame):
        return pixels.to_rgb()
    return to_rgb(pixels) if isinstance(pixels, Yuv420) else pixels


def repeats_chroma(picture: Yuv420) -> bool:
    """Return whether FFmpeg would repeat a picture's chroma instead of interpolating it."""
    return picture.bits == 8 and picture.size[0] % 2 == 0


def repeat(chroma: Tensor, size: tuple[int, int]) -> Tensor:
    """Return chroma (2, h, w) at the size of luma, each value four times."""
    return chroma.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)[:, : size[0], : size[1]]


def to_yuv(frame: Tensor, matrix: ColourMatrix) -> Yuv420:
    """Return an RGB frame (3, H, W), uint8, as 8 bits of limited range; an odd size grows by its last row or column."""
    _, height, width = frame.shape
    black, luma_scale, red_scale, _, _, blue_scale, grey = scales(matrix, full_range=False)
    rgb = frame.float()
    if height % 2 or width % 2:
        rgb = F.pad(rgb[None], (0, width % 2, 0, height % 2), mode="replicate")[0]
    red, green, blue = rgb
    luma = matrix.red * red + matrix.green * green + matrix.blue * blue
    size = (luma.shape[0], luma.shape[1])
    # the mean of colours is the colour of the mean
    chroma = downsample(torch.stack([(blue - luma) / blue_scale, (red - luma) / red_scale]))
    pixels = torch.cat([(luma / luma_scale + black).flatten(), (chroma + grey).flatten()])
    return Yuv420(pixels.add_(0.5).clamp_(0, 255).to(torch.uint8), size, matrix=matrix)


def downsample(chroma: Tensor) -> Tensor:
    """Return chroma (2, H, W) of even height and width at half its size."""
    pairs = (chroma[:, :, 0::2] + chroma[:, :, 1::2]) / 2
    padded = F.pad(pairs[None], (0, 0, 1, 1), mode="replicate")[0]
    rows = padded.shape[1]
    first, second, third, fourth = (padded[:, start : rows - 3 + start : 2] for start in range(4))
    return (first + fourth + 3 * (second + third)) / 8
