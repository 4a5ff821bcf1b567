"""The scores of frames, averaged with those of earlier frames, moved along.

Shapes: B streams in a batch, K classes, h x w the map of scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamseg.engine import steadying
from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, release, tl, wait
from streamseg.engine.mirroring import mirror
from streamseg.engine.motion import move

UNIT = 2**16
"""Changes are added as integers, in this part of 1: then their order does not matter."""


def move_scores(
    earlier: Tensor,
    comparison: steadying.Comparison,
    weight: Tensor,
    steadiness: steadying.Steadiness,
    out: Tensor,
    changes: Tensor,
) -> steadying.Trust:
    """Write the averaged scores of the frames before, moved along, and return how far they count.

    Args:
        earlier: Averaged scores of the frames before, (B, K, h, w), fp32, those of each frame contiguous.
        weight: How far these count, 0 to 1, (B,).
        out: Receives the moved scores, in the same layout.
        changes: (B, 2), int64, for average_scores; set to 0.
    """
    if not backend.use_triton(earlier):
        out.copy_(move(earlier, comparison.motion, "bicubic"))
        changes.zero_()
        return steadying.weigh(comparison, weight, steadiness)
    batch, classes, h, w = earlier.shape
    block, chunk = 128, 5
    likeness, margin = torch.empty(2, batch, 1, h, w, device=earlier.device)
    # not launched early, like all kernels beside the network (motion.py)
    move_kernel[backend.cdiv(h * w, block), backend.cdiv(classes, chunk), batch](
        earlier,
        comparison.motion,
        comparison.alike,
        comparison.still,
        comparison.found,
        weight,
        out,
        likeness,
        margin,
        changes,
        classes,
        h,
        w,
        comparison.found.shape[1],
        earlier.stride(0),
        out.stride(0),
        steadiness.margin,
        CUT=steadying.CUT,
        SAME_SCENE=steadying.SAME_SCENE,
        PARTS=backend.next_power_of_2(comparison.found.shape[1]),
        CHUNK=chunk,
        BLOCK=block,
    )
    return steadying.Trust(likeness, margin)


def average_scores(
    scores: Tensor,
    likeness: Tensor,
    share: float,
    moved: Tensor,
    out: Tensor,
    changes: Tensor,
    flags: Tensor | None = None,
) -> None:
    """Average the scores of frames (B, K, h, w) with moved ones.

    Args:
        scores: Those of the frames, in any layout and precision.
        likeness: How far each pixel of the moved ones counts, (B, 1, h, w).
        share: That of the moved ones in the scores that decide the labels, where they count in full.
        moved: fp32, those of each frame contiguous; replaced by the scores that are carried to the next frames.
        out: Receives the scores that decide the labels, fp32, contiguous.
        changes: (B, 2), int64, zeros; receives the sum of the differences between scores and moved ones, and that of
            the likeness, in units of 1 / UNIT.
        flags: (2, B), fp32; the second row is 1 for frames whose scores are mirrored, or else 0, and the first one
            receives 1 minus that, for the next frames. None if no scores are mirrored.
    """
    if not backend.use_triton(scores):
        if flags is not None:
            scores = mirror(scores, flags[1])
            flags[0] = 1 - flags[1]
        scores, shares = scores.float(), share * likeness
        sums = ((scores - moved).abs() * likeness).sum(dim=(1, 2, 3)), likeness.sum(dim=(1, 2, 3))
        changes.copy_((torch.stack(sums, dim=1) * UNIT).round())
        out.copy_(torch.lerp(scores, moved, shares))
        moved.copy_(torch.lerp(scores, moved, steadying.carried_share(shares)))
        return
    batch, classes, h, w = scores.shape
    block, chunk = 128, 5
    average_kernel[backend.cdiv(h * w, block), backend.cdiv(classes, chunk), batch](
        scores,
        likeness,
        moved,
        out,
        changes,
        likeness if flags is None else flags[1],
        likeness if flags is None else flags[0],
        classes,
        h,
        w,
        *scores.stride(),
        moved.stride(0),
        1 if flags is None else flags.stride(1),
        share,
        UNIT=UNIT,
        CHUNK=chunk,
        BLOCK=block,
        MIRROR=flags is not None,
        **backend.early(scores.device),
    )


def mean_change_of_sums(changes: Tensor, classes: int) -> Tensor:
    """Return how much scores differ from the moved ones on average, (B,), from the sums of average_scores."""
    return changes[:, 0] / (classes * changes[:, 1].clamp(min=1))


@jit
def move_kernel(
    earlier,
    motion,
    alike,
    still,
    found,
    weight,
    out,
    likeness,
    margin,
    changes,
    classes,
    h,
    w,
    parts,
    stride_earlier,
    stride_out,
    max_margin,
    CUT: tl.constexpr,
    SAME_SCENE: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk, image = tl.program_id(1), tl.program_id(2)
    pixel, part = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PARTS)
    inside = pixel < h * w
    row, column = pixel // w, pixel % w
    flow = motion + image * 2 * h * w + pixel
    x, y = column + tl.load(flow, inside, 0.0), row + tl.load(flow + h * w, inside, 0.0)
    left, top = tl.floor(x), tl.floor(y)
    across0, across1, across2, across3 = cubic_shares(x - left)
    down0, down1, down2, down3 = cubic_shares(y - top)
    # a motion out of the frame, however far, reads its border
    left = tl.minimum(tl.maximum(left, -4.0), w + 4.0).to(tl.int32)
    top = tl.minimum(tl.maximum(top, -4.0), h + 4.0).to(tl.int32)
    for number in range(CHUNK):
        k = chunk * CHUNK + number
        known = inside & (k < classes)
        plane = earlier + image * stride_earlier + k * h * w
        moved = tl.zeros((BLOCK,), tl.float32)
        for i in tl.static_range(4):
            line = plane + tl.minimum(tl.maximum(top + (i - 1), 0), h - 1) * w
            a = tl.load(line + tl.minimum(tl.maximum(left - 1, 0), w - 1), known, 0.0)
            b = tl.load(line + tl.minimum(tl.maximum(left, 0), w - 1), known, 0.0)
            c = tl.load(line + tl.minimum(tl.maximum(left + 1, 0), w - 1), known, 0.0)
            d = tl.load(line + tl.minimum(tl.maximum(left + 2, 0), w - 1), known, 0.0)
            down = down0 if i == 0 else (down1 if i == 1 else (down2 if i == 2 else down3))
            moved += down * (across0 * a + across1 * b + across2 * c + across3 * d)
        tl.store(out + image * stride_out + k * h * w + pixel, moved, known)
    if chunk == 0:
        # each program adds all parts, in the same order
        again = tl.sum(tl.load(found + image * parts + part, part < parts, 0.0), axis=0)
        again = tl.minimum(tl.maximum((again - CUT) / (SAME_SCENE - CUT), 0.0), 1.0) * tl.load(weight + image)
        place = image * h * w + pixel
        tl.store(likeness + place, tl.load(alike + place, inside, 0.0) * again, inside)
        tl.store(margin + place, max_margin * tl.load(still + place, inside, 0.0) * again, inside)
        if tl.program_id(0) == 0:
            tl.store(changes + 2 * image + tl.arange(0, 2), tl.zeros((2,), tl.int64))


@jit
def average_kernel(
    scores,
    likeness,
    moved,
    out,
    changes,
    mirrored,
    next_mirrored,
    classes,
    h,
    w,
    stride_b,
    stride_k,
    stride_y,
    stride_x,
    stride_moved,
    stride_mirrored,
    share,
    UNIT: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    MIRROR: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    chunk, image = tl.program_id(1), tl.program_id(2)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < h * w
    row, column = pixel // w, pixel % w
    if MIRROR:
        flag = tl.load(mirrored + image * stride_mirrored)
        column = tl.where(flag > 0, w - 1 - column, column)
        if (tl.program_id(0) == 0) & (chunk == 0):
            tl.store(next_mirrored + image * stride_mirrored, 1.0 - flag)
    alike = tl.load(likeness + image * h * w + pixel, inside, 0.0)
    of_moved = share * alike
    of_carried = tl.maximum(2.0 * of_moved - 1.0, 0.0)
    changed = tl.zeros((BLOCK,), tl.float32)
    for number in tl.static_range(CHUNK):
        k = chunk * CHUNK + number
        known = inside & (k < classes)
        place = scores + image * stride_b + k * stride_k + row * stride_y + column * stride_x
        score = tl.load(place, known, 0.0).to(tl.float32)
        target = moved + image * stride_moved + k * h * w + pixel
        # where nothing is known of a frame before, not even a nan of it counts
        change = tl.where(alike > 0, tl.load(target, known, 0.0) - score, 0.0)
        changed += tl.abs(change)
        tl.store(out + (image * classes + k) * h * w + pixel, score + of_moved * change, known)
        tl.store(target, score + of_carried * change, known)
    tl.atomic_add(changes + 2 * image, (tl.sum(changed * alike, axis=0) * UNIT).to(tl.int64))
    if chunk == 0:
        tl.atomic_add(changes + 2 * image + 1, (tl.sum(alike, axis=0) * UNIT).to(tl.int64))
    release(EARLY)


@jit
def cubic_shares(place):
    """Return the weights of four pixels in a row for a place, 0 to 1, between the middle two, as torch's bicubic."""
    a: tl.constexpr = -0.75
    far, near, rest, other = place + 1.0, place, 1.0 - place, 2.0 - place
    return (
        ((a * far - 5.0 * a) * far + 8.0 * a) * far - 4.0 * a,
        ((a + 2.0) * near - (a + 3.0)) * near * near + 1.0,
        ((a + 2.0) * rest - (a + 3.0)) * rest * rest + 1.0,
        ((a * other - 5.0 * a) * other + 8.0 * a) * other - 4.0 * a,
    )
