"""The motion between two pictures of a video, estimated on their brightness, and maps that are moved by it.

All functions have fixed shapes and never wait for the device.

Shapes: B pictures in a batch, C channels, h height, w width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

CORRECTIONS = (1, 2, 2, 2, 2)
"""Corrections of the motion at each size of the pictures, the largest first; each size is half the one before."""
SMALLEST_SIDE = 8
"""No size has a shorter side."""
NEAR = 1
"""A square of 2x2 pixels is assumed to move like those up to this far away, in each direction."""
NOISE = 7.0
"""Added to the squared gradients: where the picture is flat, the motion is that of its surroundings."""


def estimate_motion(luma: Tensor, before: Tensor) -> Tensor:
    """Return where each square of 2x2 pixels was in the frame before, (B, 2, h / 2, w / 2), rounded up.

    It is x and y, relative to the square's place, in squares: in pixels of a map of half the height and width.

    B. Lucas, T. Kanade, "An Iterative Image Registration Technique", 1981, at several sizes. A motion of up to about 2
    pixels at the smallest size is found.
    """
    sizes = [(luma, before)]
    for _ in level_sizes((luma.shape[2], luma.shape[3]))[1:]:
        now, earlier = sizes[-1]
        sizes.append((halve(now), halve(earlier)))
    smallest = halve(sizes[-1][0])
    motion = torch.zeros_like(smallest).expand(-1, 2, -1, -1)
    for (now, earlier), corrections in reversed([*zip(sizes, CORRECTIONS, strict=False)]):
        motion = enlarge_motion(motion, half_size(now.shape[2:]))
        motion = correct_motion(motion, now, earlier, corrections)
    return motion


def level_sizes(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the sizes at which the motion between pictures is estimated, height and width, the largest first."""
    sizes = [size]
    while len(sizes) < len(CORRECTIONS) and min(sizes[-1]) >= 2 * SMALLEST_SIDE:
        sizes.append(half_size(sizes[-1]))
    return sizes


def half_size(size: Sequence[int]) -> tuple[int, int]:
    """Return half a height and width, rounded up."""
    return (size[0] + 1) // 2, (size[1] + 1) // 2


def enlarge_motion(motion: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a motion (B, 2, …) in a size that is twice its own, or its own."""
    if motion.shape[2:] == size:
        return motion
    return 2 * F.interpolate(motion, size, mode="bilinear", align_corners=False)


def correct_motion(motion: Tensor, now: Tensor, before: Tensor, corrections: int) -> Tensor:
    """Return a better motion of squares: that of least squared differences in the neighbourhood of each."""
    height, width = now.shape[2:]
    padded = F.pad(now, (1, 1, 1, 1), mode="replicate")
    across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]).mul_(0.5)
    down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]).mul_(0.5)
    gradient = torch.cat([across, down], dim=1)
    squares = mean_near(torch.cat([gradient.square(), across.mul_(down)], dim=1))
    xx, yy, xy = squares[:, :1] + NOISE, squares[:, 1:2] + NOISE, squares[:, 2:]
    # halved: a pixel is half a square
    inverse = (xx * yy).sub_(xy.square()).reciprocal_().mul_(0.5)
    swapped, xy = torch.cat([yy, xx], dim=1).mul_(inverse), xy * inverse
    for _ in range(corrections):
        each = 2 * F.interpolate(motion, scale_factor=2.0, mode="nearest")[:, :, :height, :width]
        error = mean_near(gradient * (now - move(before, each)))
        motion = motion + (swapped * error).sub_(xy * error.flip(1)).clamp_(-0.5, 0.5)
    return blur(motion, 3)


def mean_near(values: Tensor) -> Tensor:
    """Return the means of values (B, C, h, w) over the pixels near each square of 2x2, of those inside the map."""
    sums, side = F.avg_pool2d(values, 2, ceil_mode=True, divisor_override=1), 2 * NEAR + 1
    down, across = (
        sum_along(F.pad((n - torch.arange(0, n, 2, device=values.device)).clamp(max=2), (NEAR, NEAR)), side, 0)
        for n in values.shape[2:]
    )
    sums = sum_along(sum_along(F.pad(sums, (NEAR, NEAR, NEAR, NEAR)), side, 3), side, 2)
    return sums.div_(down[:, None] * across)


def halve(values: Tensor) -> Tensor:
    """Return a map at half its height and width, rounded up."""
    return F.avg_pool2d(values, 2, ceil_mode=True, count_include_pad=False)


def blur(values: Tensor, side: int) -> Tensor:
    """Return the mean over a square around each pixel, of those inside the map."""
    half = side // 2
    if values.device.type != "cpu":
        rows = F.avg_pool2d(values, (1, side), 1, (0, half), count_include_pad=False)
        return F.avg_pool2d(rows, (side, 1), 1, (half, 0), count_include_pad=False)
    # on the CPU sums of shifted maps take a tenth of the time
    height, width = values.shape[2:]
    down, across = (sum_along(F.pad(values.new_ones(n), (half, half)), side, 0) for n in (height, width))
    sums = sum_along(sum_along(F.pad(values, (half, half, half, half)), side, 3), side, 2)
    return sums.div_(down[:, None] * across)


def sum_along(values: Tensor, count: int, dim: int) -> Tensor:
    """Return the sums of an odd number of neighbours along a dimension, which becomes shorter."""
    length = values.shape[dim] - count + 1
    pairs = values.narrow(dim, 0, length + count - 2) + values.narrow(dim, 1, length + count - 2)
    total = pairs.narrow(dim, 0, length) + values.narrow(dim, count - 1, length)
    for start in range(2, count - 1, 2):
        total += pairs.narrow(dim, start, length)
    return total


def move(values: Tensor, motion: Tensor, mode: str = "bilinear") -> Tensor:
    """Return the values (B, C, h, w) at the places that a motion (B, 2, h, w) points to; the nearest if outside."""
    height, width = motion.shape[2:]
    x, y = to_places(motion).unbind(dim=1)
    # numbers instead of a tensor of the sides, which would be copied to the device
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
    return F.grid_sample(values, grid, mode=mode, padding_mode="border", align_corners=False)


def to_places(motion: Tensor) -> Tensor:
    """Return the places (B, 2, h, w) that a motion points to, x and y in pixels."""
    height, width = motion.shape[2:]
    x = torch.arange(width, dtype=motion.dtype, device=motion.device).expand(height, width)
    y = torch.arange(height, dtype=motion.dtype, device=motion.device)[:, None].expand(height, width)
    return motion + torch.stack([x, y])


def stays_inside(motion: Tensor) -> Tensor:
    """Return 1 where (B, 1, h, w) a motion points into the frame, give or take half a pixel, and 0 elsewhere."""
    height, width = motion.shape[2:]
    x, y = to_places(motion).split(1, dim=1)
    return ((x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)).float()
