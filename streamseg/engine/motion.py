"""The motion between two pictures of a video, estimated on their brightness, and maps that are moved by it.

All functions have fixed shapes and never wait for the device.

Shapes: B pictures in a batch, C channels, h height, w width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.tables import kept_on_cpu

CORRECTIONS = (1, 2, 2, 2, 2)
"""Corrections of the motion at each size of the pictures, the largest first; each size is half the one before."""
SMALLEST_SIDE = 8
"""No size has a shorter side."""
NEAR = 1
"""A square of 2x2 pixels is assumed to move like those up to this far away, in each direction."""
NOISE = 7.0
"""Added to the squared gradients: where the picture is flat, the motion is that of its surroundings."""
MIN_BAND_VALUES = 2**15
"""Fewer values are not worth a thread of their own."""


def estimate_motion(luma: Tensor, before: Tensor) -> Tensor:
    """Return where each square of 2x2 pixels was in the frame before, (B, 2, h / 2, w / 2), rounded up.

    It is x and y, relative to the square's place, in squares: in pixels of a map of half the height and width.

    B. Lucas, T. Kanade, "An Iterative Image Registration Technique", 1981, at several sizes. A motion of up to about 2
    pixels at the smallest size is found.
    """
    sizes = level_sizes((luma.shape[2], luma.shape[3]))
    pairs = [torch.cat([luma, before], dim=1)]
    for _ in sizes[1:]:
        pairs.append(halve(pairs[-1]))
    motion = luma.new_zeros(len(luma), 2, *half_size(sizes[-1]))
    for pair, size, corrections in reversed([*zip(pairs, sizes, CORRECTIONS, strict=False)]):
        motion = enlarge_motion(motion, half_size(size))
        motion = correct_motion(motion, pair[:, :1], pair[:, 1:], corrections)
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
    return F.interpolate(2 * motion, size, mode="bilinear", align_corners=False)


def correct_motion(motion: Tensor, now: Tensor, before: Tensor, corrections: int) -> Tensor:
    """Return a better motion of squares: that of least squared differences in the neighbourhood of each."""
    height, width = now.shape[2:]
    padded = F.pad(now, (1, 1, 1, 1), mode="replicate")
    # twice the gradients: the equations then give the motion in pixels halved, which is in squares
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    gradient = torch.cat([across, down], dim=1)
    # sums on both sides of the equations, so that no mean is needed; NOISE counts once for each pixel
    pixels = count_inside(-2 * NEAR, 2, 4 * NEAR + 2, height, width, now.device)
    # products: on a GPU the first square() of a process takes 40 ms
    products = sum_near(torch.cat([gradient * gradient, across.mul_(down)], dim=1))
    same, mixed = products[:, :2].add_(pixels, alpha=4 * NOISE), products[:, 2:]
    inverse = (same[:, :1] * same[:, 1:]).sub_(mixed * mixed).reciprocal_()
    same, mixed = same.flip(1).mul_(inverse), mixed * inverse
    for _ in range(corrections):
        each = F.interpolate(2 * motion, scale_factor=2.0, mode="nearest")[:, :, :height, :width]
        error = sum_near(gradient * (now - move(before, each)))
        motion = motion + (same * error).sub_(mixed * error.flip(1)).clamp_(-0.5, 0.5)
    return blur(motion, 3)


def sum_near(values: Tensor) -> Tensor:
    """Return the sums of values (B, C, h, w) over the pixels near each square of 2x2."""
    height, width = values.shape[2:]
    if height % 2 or width % 2:
        values = F.pad(values, (0, width % 2, 0, height % 2))
    sums, side = F.pad(add_squares(values), (NEAR, NEAR, NEAR, NEAR)), 2 * NEAR + 1
    return sum_along(sum_along(sums, side, 2), side, 3)


@kept_on_cpu
def count_inside(first: int, step: int, length: int, height: int, width: int, device: torch.device) -> Tensor:
    """Return how many pixels of each square window (h, w) lie inside a map of a height and width.

    Args:
        first: Where the first window starts, in both directions; negative.
        step: Pixels from one window to the next.
        length: Pixels of a side of a window.
    """
    sides = []
    for side in (height, width):
        start = torch.arange(first, side + first, step, device=device)
        sides.append((start + length).clamp_(max=side).sub_(start.clamp(min=0)))
    rows, columns = sides
    return (rows[:, None] * columns).float()


def halve(values: Tensor) -> Tensor:
    """Return a map at half its height and width, rounded up."""
    if values.device.type != "cpu":
        return F.avg_pool2d(values, 2, ceil_mode=True, count_include_pad=False)
    # on the CPU sums of slices take a tenth of the time
    height, width = values.shape[2:]
    if height % 2 or width % 2:
        values = F.pad(values, (0, width % 2, 0, height % 2), mode="replicate")
    return add_squares(values).mul_(0.25)


def add_squares(values: Tensor) -> Tensor:
    """Return the sums over squares of 2x2 pixels of a map, whose sides are even."""
    rows = values[:, :, ::2] + values[:, :, 1::2]
    return rows[..., ::2] + rows[..., 1::2]


def blur(values: Tensor, side: int) -> Tensor:
    """Return the mean over a square around each pixel, of those inside the map."""
    half = side // 2
    if values.device.type != "cpu":
        rows = F.avg_pool2d(values, (1, side), 1, (0, half), count_include_pad=False)
        return F.avg_pool2d(rows, (side, 1), 1, (half, 0), count_include_pad=False)
    # on the CPU sums of shifted maps take a tenth of the time
    sums = sum_along(sum_along(F.pad(values, (half, half, half, half)), side, 2), side, 3)
    return sums.div_(count_inside(-half, 1, side, values.shape[2], values.shape[3], values.device))


def sum_along(values: Tensor, count: int, dim: int) -> Tensor:
    """Return the sums of an odd number of neighbours along a dimension, which becomes shorter."""
    length = values.shape[dim] - count + 1
    total = values.narrow(dim, 0, length) + values.narrow(dim, 1, length)
    for start in range(2, count):
        total += values.narrow(dim, start, length)
    return total


def move(values: Tensor, motion: Tensor, mode: str = "bilinear") -> Tensor:
    """Return the values (B, C, h, w) at the places that a motion (B, 2, h, w) points to; the nearest if outside."""
    return sample(values, to_grid(motion), mode)


def sample(values: Tensor, grid: Tensor, mode: str = "bilinear") -> Tensor:
    """Return the values (B, C, h, w) at the places of a grid (B, 2, h, w); the nearest if outside."""
    bands = count_bands(values)
    if bands == 1:
        return sample_at_once(values, grid, mode)
    # torch samples each map of a batch in one thread, so the bands of a map are sampled as a batch
    maps = zip(values.split(1), grid.split(1), strict=True)
    found = [sample_in_bands(one, places, mode, bands) for one, places in maps]
    return found[0] if len(found) == 1 else torch.cat(found)


def count_bands(values: Tensor) -> int:
    """Return in how many bands each map of values (B, C, h, w) is sampled: on the CPU one for each thread."""
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return 1
    return max(1, min(torch.get_num_threads(), values[0].numel() // MIN_BAND_VALUES))


def sample_in_bands(values: Tensor, grid: Tensor, mode: str, bands: int) -> Tensor:
    """Return what sample_at_once() does for one map (1, C, h, w), which is not copied, in some bands of rows."""
    height = grid.shape[2]
    rows = -(-height // bands)
    grid = F.pad(grid, (0, 0, 0, rows * bands - height)).unflatten(2, (bands, rows))[0].transpose(0, 1)
    found = sample_at_once(values.expand(bands, -1, -1, -1), grid, mode)
    return found.transpose(0, 1).flatten(1, 2)[None, :, :height]


def sample_at_once(values: Tensor, grid: Tensor, mode: str) -> Tensor:
    """Return what sample() does, without bands."""
    return F.grid_sample(values, grid.permute(0, 2, 3, 1), mode=mode, padding_mode="border", align_corners=False)


def to_grid(motion: Tensor) -> Tensor:
    """Return the places (B, 2, h, w) that a motion points to, x and y, from -1 to 1 inside the frame."""
    (height, width), (x, y) = motion.shape[2:], motion.split(1, dim=1)
    columns, rows = (find_centres(side, motion.dtype, motion.device) for side in (width, height))
    return torch.cat([torch.add(columns, x, alpha=2 / width), torch.add(rows[:, None], y, alpha=2 / height)], dim=1)


@kept_on_cpu
def find_centres(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the places of the pixels along a side, from -1 to 1."""
    return torch.linspace(1 / size - 1, 1 - 1 / size, size, dtype=dtype, device=device)


def is_inside(grid: Tensor) -> Tensor:
    """Return 1 where (B, 1, h, w) a grid points into the frame, give or take half a pixel, and 0 elsewhere."""
    return (grid.abs().amax(dim=1, keepdim=True) <= 1).float()
