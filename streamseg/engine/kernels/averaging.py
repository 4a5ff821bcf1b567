"""The scores of frames, averaged with those of earlier frames, moved along.

Shapes: B streams in a batch, K classes, h x w the map of scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamseg.engine import steadying
from streamseg.engine.kernels import backend
from streamseg.engine.kernels.language import jit, release, tl, wait


def average_scores(
    scores: Tensor,
    earlier: Tensor,
    comparison: steadying.Comparison,
    weight: Tensor,
    steadiness: steadying.Steadiness,
    out: Tensor,
) -> Tensor:
    """Write averaged scores (B, K, h, w), and return the margin (B, 1, h, w), as steadying.combine does.

    Args:
        scores: Those of the frames (B, K, h, w), in any layout and precision.
        earlier: Averaged scores of the frames before, (B, K, h, w), fp32, those of each frame contiguous.
        weight: How far these count, 0 to 1, (B,).
        out: Receives the averaged scores, fp32, those of each frame contiguous.
    """
    if not backend.use_triton(scores):
        fused, margin = steadying.combine(scores.float(), earlier, comparison, weight, steadiness)
        out.copy_(fused)
        return margin
    batch, classes, h, w = scores.shape
    block, chunk = 128, 5
    margin = torch.empty(batch, 1, h, w, device=scores.device)
    average_kernel[backend.cdiv(h * w, block), backend.cdiv(classes, chunk), batch](
        scores,
        earlier,
        comparison.motion,
        comparison.alike,
        comparison.still,
        comparison.found,
        weight,
        out,
        margin,
        classes,
        h,
        w,
        comparison.found.shape[1],
        *scores.stride(),
        earlier.stride(0),
        out.stride(0),
        steadiness.share,
        steadiness.margin,
        CUT=steadying.CUT,
        SAME_SCENE=steadying.SAME_SCENE,
        PARTS=backend.next_power_of_2(comparison.found.shape[1]),
        CHUNK=chunk,
        BLOCK=block,
        **backend.early(scores.device),
    )
    return margin


@jit
def average_kernel(
    scores,
    earlier,
    motion,
    alike,
    still,
    found,
    weight,
    out,
    margin,
    classes,
    h,
    w,
    parts,
    stride_b,
    stride_k,
    stride_y,
    stride_x,
    stride_earlier,
    stride_out,
    share,
    most,
    CUT: tl.constexpr,
    SAME_SCENE: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    chunk, image = tl.program_id(1), tl.program_id(2)
    pixel, part = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PARTS)
    inside = pixel < h * w
    row, column = pixel // w, pixel % w
    # each program adds all parts, in the same order
    again = tl.sum(tl.load(found + image * parts + part, part < parts, 0.0), axis=0)
    again = tl.minimum(tl.maximum((again - CUT) / (SAME_SCENE - CUT), 0.0), 1.0) * tl.load(weight + image)
    trust = share * tl.load(alike + image * h * w + pixel, inside, 0.0) * again
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
        place = scores + image * stride_b + k * stride_k + row * stride_y + column * stride_x
        score = tl.load(place, known, 0.0).to(tl.float32)
        # where nothing is known of a frame before, not even a nan of it counts
        fused = tl.where(trust > 0, score + trust * (moved - score), score)
        tl.store(out + image * stride_out + k * h * w + pixel, fused, known)
    release(EARLY)
    if chunk == 0:
        kept = most * tl.load(still + image * h * w + pixel, inside, 0.0) * again
        tl.store(margin + image * h * w + pixel, kept, inside)


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
