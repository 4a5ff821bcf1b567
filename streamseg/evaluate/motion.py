"""The motion between two frames of a video, estimated from their pixels, and labels carried along it.

The estimate needs no other package, so that every machine prints the same figures: blocks are matched from coarse to
fine, in whole pixels, which is all that labels need.

A flow is from the current to the previous frame, x then y in pixels: previous(p + flow(p)) looks like current(p).

Shapes: B batch, H height, W width; of one level of a pyramid h x w blocks, s x s pixels of a block that are compared.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE
from streamseg.models.video.flownet import FlowEstimator
from streamseg.models.video.scheme import resize_flow, take

STEP = 4
"""Pixels between the centres of neighbouring blocks, on every level."""
BLOCK = 12
"""Side of the square of pixels that is compared for a block; blocks overlap."""
COARSEST = 24
"""Pixels that the short side of the coarsest level has, at least."""
REACH = 3
"""Pixels of the coarsest level that are searched in each direction."""
SEARCH_COST, SMOOTH_COST, FAR = 1.0, 2.0, 3
"""Grey levels by which a match must be better for each pixel that it differs from the coarser level, and from the
median around it; and the number of pixels that count at most. So the sky does not follow noise, and things may move
otherwise than their ground."""
RETURN, RETURN_SHARE = 1.0, 0.05
"""How far, along each axis, a way there and back may end from its start: in pixels, and as a part of the motion."""
LIKENESS, LIKENESS_SIDE = 32.0, 9
"""Grey levels by which a place may differ from where it was, on average over a square of so many pixels a side."""


class Motion(NamedTuple):
    """Where the pixels of a frame were in the frame before."""

    flow: Tensor
    """(2, H, W), from the current to the previous frame."""
    visible: Tensor
    """(H, W), bool: whether both frames show the pixel; False where it appeared, or where the flow is not certain."""


def estimate_motion(current: Tensor, previous: Tensor, flow: FlowEstimator | None = None) -> Motion:
    """Return the motion from a frame (3, H, W) to the frame before.

    The flow is estimated in both directions. A pixel is visible in both frames if the way to the previous frame and
    back ends where it began, and its surroundings look alike in both: after a cut they do not.

    Args:
        flow: What estimates a flow, such as DISFlow(); block_flow by default.
    """
    flow, now, before = flow or block_flow, current[None], previous[None]
    there = resize_flow(flow(now, before), now)
    back = resize_flow(flow(before, now), now)
    rows, columns, inside = targets(there[0])
    returned = there + take(back, rows[None], columns[None])
    allowed = RETURN + RETURN_SHARE * there.abs().amax(dim=1)
    returns = (returned.abs().amax(dim=1) <= allowed)[0]
    difference = (to_grey(current) - to_grey(previous)[rows, columns]).abs()[None]
    alike = F.avg_pool2d(difference, LIKENESS_SIDE, 1, LIKENESS_SIDE // 2, count_include_pad=False)[0] <= LIKENESS
    return Motion(there[0], inside & returns & alike)


def targets(flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row and the column (H, W) that a flow (2, H, W) points to, and whether they are in the frame."""
    height, width = flow.shape[1:]
    rows = torch.arange(height, device=flow.device)[:, None] + flow[1].round().long()
    columns = torch.arange(width, device=flow.device) + flow[0].round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return rows.clamp(0, height - 1), columns.clamp(0, width - 1), inside


def carry_labels(labels: Tensor, motion: Motion) -> Tensor:
    """Return the labels (H, W) of the previous frame where its pixels are now; IGNORE where they are not visible."""
    rows, columns, _ = targets(motion.flow)
    return torch.where(motion.visible, labels[rows, columns], IGNORE)


@torch.no_grad()
def block_flow(current: Tensor, previous: Tensor) -> Tensor:
    """Return the flow (B, 2, H, W) from current to previous frames (B, 3, H, W), in whole pixels."""
    return torch.stack([match_blocks(*pair) for pair in zip(current, previous, strict=True)])


def match_blocks(current: Tensor, previous: Tensor) -> Tensor:
    """Return the flow (2, H, W) between two frames (3, H, W).

    On the coarsest level of a pyramid each block searches all displacements within REACH, on the others those within
    one pixel of the coarser level; then it may take over the displacement of a neighbour, or the median around it.
    """
    flow: Tensor | None = None
    for now, before in [*zip(grey_pyramid(current), grey_pyramid(previous), strict=True)][::-1]:
        h, w = (-(-side // STEP) for side in now.shape)
        # every second pixel of a block is enough on the finest level, and takes a quarter of the time
        matcher = BlockMatcher(now, before, 2 if now.shape == current.shape[1:] else 1)
        if flow is None:
            start = torch.zeros(2, h, w, dtype=torch.long, device=now.device)
            flow = matcher.best(displaced(start, REACH), start, SEARCH_COST)
        else:
            start = 2 * repeat(flow, 2)[:, :h, :w]
            flow = matcher.best(displaced(start, 1), start, SEARCH_COST)
        around = median(flow)
        flow = matcher.best([flow, around, *neighbours(flow)], around, SMOOTH_COST)
    assert flow is not None
    return repeat(median(flow), STEP)[:, : current.shape[1], : current.shape[2]].float()


def grey_pyramid(frame: Tensor) -> list[Tensor]:
    """Return the grey values (H, W) of a frame (3, H, W), then those of half its size, and so on."""
    levels = [to_grey(frame)]
    while min(levels[-1].shape) >= 2 * COARSEST:
        levels.append(F.avg_pool2d(levels[-1][None], 2, ceil_mode=True)[0])
    return levels


def to_grey(frame: Tensor) -> Tensor:
    """Return the grey values (H, W), 0 to 255, of a frame (3, H, W)."""
    red, green, blue = frame.float()
    return 0.299 * red + 0.587 * green + 0.114 * blue


class BlockMatcher:
    """Compares the blocks of a grey picture (H, W) with displaced ones of another, by every skip-th row and column."""

    def __init__(self, now: Tensor, before: Tensor, skip: int):
        self.height, self.width = now.shape
        self.rows, self.columns = (
            torch.arange(STEP // 2, side + STEP // 2, STEP, device=now.device).clamp(max=side - 1) for side in now.shape
        )
        self.wanted = block_views(now, skip)[self.rows[:, None], self.columns]  # (h, w, s, s)
        self.others = block_views(before, skip)

    def best(self, candidates: Iterable[Tensor], expected: Tensor, cost: float) -> Tensor:
        """Return the best of several displacements (2, h, w) for each block; the first of equally good ones.

        Args:
            expected: What a displacement is expected to be near to.
            cost: Grey levels for each pixel of difference from that.
        """
        best, least = expected, torch.full(expected.shape[1:], torch.inf, device=expected.device)
        for candidate in candidates:
            rows = (self.rows[:, None] + candidate[1]).clamp(0, self.height - 1)
            columns = (self.columns + candidate[0]).clamp(0, self.width - 1)
            difference = (self.wanted - self.others[rows, columns]).abs().mean(dim=(2, 3))
            difference = difference + cost * (candidate - expected).abs().sum(dim=0).clamp(max=FAR)
            best = torch.where(difference < least, candidate, best)
            least = torch.minimum(difference, least)
        return best


def block_views(grey: Tensor, skip: int) -> Tensor:
    """Return every skip-th row and column of the block around each pixel: (H, W, s, s), without a copy."""
    before, after = BLOCK // 2, BLOCK - 1 - BLOCK // 2
    padded = F.pad(grey[None, None], (before, after, before, after), mode="replicate")[0, 0]
    return padded.unfold(0, BLOCK, 1).unfold(1, BLOCK, 1)[:, :, ::skip, ::skip]


def displaced(flow: Tensor, reach: int) -> list[Tensor]:
    """Return flows (2, h, w) that differ from one by up to `reach` pixels in each direction, the nearest first."""
    steps = range(-reach, reach + 1)
    shifts = sorted(((x, y) for y in steps for x in steps), key=lambda shift: abs(shift[0]) + abs(shift[1]))
    return [flow + torch.tensor(shift, device=flow.device).view(2, 1, 1) for shift in shifts]


def neighbours(flow: Tensor) -> list[Tensor]:
    """Return the flow (2, h, w) of the block above each block, below it, to its left and to its right."""
    return [view for number, view in enumerate(surrounding(flow)) if number in (1, 7, 3, 5)]


def median(flow: Tensor) -> Tensor:
    """Return the median of each component of a flow (2, h, w) among a block and its eight neighbours."""
    return torch.stack(surrounding(flow)).median(dim=0).values


def surrounding(flow: Tensor) -> list[Tensor]:
    """Return the flow (2, h, w) of the nine blocks around each block, row by row; at the border blocks are repeated."""
    h, w = flow.shape[1:]
    padded = F.pad(flow[None].float(), (1, 1, 1, 1), mode="replicate")[0].long()
    return [padded[:, y : y + h, x : x + w] for y in range(3) for x in range(3)]


def repeat(flow: Tensor, times: int) -> Tensor:
    """Return a flow (2, h, w) with each of its values `times` times in rows and in columns."""
    return flow.repeat_interleave(times, dim=1).repeat_interleave(times, dim=2)
