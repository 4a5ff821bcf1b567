"""The motion between two pictures of a video, estimated on their brightness, and maps that are moved by it.

All functions have fixed shapes and never wait for the device.

Shapes: B pictures in a batch, C channels, h height, w width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS, ITERATIONS = 5, 2
"""Sizes at which the motion is estimated, each half the next, and corrections at each of them."""
SMALLEST_SIDE = 8
"""No size has a shorter side."""
NEIGHBOURS = 7
"""Side of the square of pixels that are assumed to move alike."""
NOISE = 20.0
"""Added to the squared gradients: where the picture is flat, the motion is that of its surroundings."""


def estimate_motion(luma: Tensor, before: Tensor) -> Tensor:
    """Return where (B, 2, h, w) each pixel was in the frame before: x and y, relative to its place, in pixels.

    B. Lucas, T. Kanade, "An Iterative Image Registration Technique", 1981, at several sizes. A motion of up to about 2
    pixels at the smallest size is found.
    """
    sizes = [(luma, before)]
    for _ in level_sizes((luma.shape[2], luma.shape[3]))[1:]:
        now, earlier = sizes[-1]
        sizes.append((halve(now), halve(earlier)))
    motion = torch.zeros_like(sizes[-1][0]).expand(-1, 2, -1, -1)
    for now, earlier in reversed(sizes):
        if motion.shape[2:] != now.shape[2:]:
            motion = 2 * F.interpolate(motion, now.shape[2:], mode="bilinear", align_corners=False)
        motion = correct_motion(motion, now, earlier)
    return motion


def level_sizes(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the sizes at which the motion between pictures is estimated, height and width, the largest first."""
    sizes = [size]
    while len(sizes) < LEVELS and min(sizes[-1]) >= 2 * SMALLEST_SIDE:
        height, width = sizes[-1]
        sizes.append(((height + 1) // 2, (width + 1) // 2))
    return sizes


def correct_motion(motion: Tensor, now: Tensor, before: Tensor) -> Tensor:
    """Return a better motion (B, 2, h, w): that of least squared differences in the neighbourhood of each pixel."""
    padded = F.pad(now, (1, 1, 1, 1), mode="replicate")
    across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]).mul_(0.5)
    down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]).mul_(0.5)
    gradient = torch.cat([across, down], dim=1)
    squares = blur(torch.cat([gradient.square(), across.mul_(down)], dim=1), NEIGHBOURS)
    xx, yy, xy = squares[:, :1] + NOISE, squares[:, 1:2] + NOISE, squares[:, 2:]
    inverse = (xx * yy).sub_(xy.square()).reciprocal_()
    swapped, xy = torch.cat([yy, xx], dim=1).mul_(inverse), xy * inverse
    for _ in range(ITERATIONS):
        error = blur(gradient * (now - move(before, motion)), NEIGHBOURS)
        motion = motion + (swapped * error).sub_(xy * error.flip(1)).clamp_(-1, 1)
    return blur(motion, 3)


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
