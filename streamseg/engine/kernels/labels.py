"""From scores to labels.

Shapes: B batch, K classes, H x W the frame, h x w the map of scores.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine import steadying
from streamseg.engine.kernels import backend
from streamseg.engine.kernels.averaging import mean_change_of_sums
from streamseg.engine.kernels.language import jit, tl, wait


def label(
    scores: Tensor,
    size: tuple[int, int],
    labels: Tensor,
    confidence: Tensor | None = None,
    steady: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> None:
    """Write the labels (B, H, W) of scores (B, K, h, w), resized bilinearly, and their probabilities (255 is 1).

    Both are uint8, those of each frame contiguous. The resized scores are never written to memory.

    Args:
        steady: Labels of the frame before (B, H, W), uint8, as far apart as `labels`, which are kept where the best
            class does not win by a margin (B, 1, h, w), resized bilinearly, in units of the mean change of the scores,
            whose sums (B, 2) average_scores gives. It is smaller between classes that are rare by their shares (B, K)
            of that frame. Margin and shares are fp32, contiguous.
    """
    height, width = size
    if not backend.use_triton(scores):
        full = F.interpolate(scores.float(), size, mode="bilinear", align_corners=False)
        score, best = full.max(dim=1, keepdim=True)
        if steady is not None:
            previous, margin, shares, changes = steady
            margin = margin * mean_change_of_sums(changes, full.shape[1]).view(-1, 1, 1, 1)
            previous = previous[:, None].long().clamp(max=full.shape[1] - 1)
            rest = full.gather(1, previous)
            needed = F.interpolate(margin, size, mode="bilinear", align_corners=False)
            of_both = (shares.gather(1, k.flatten(1)).view(best.shape) for k in (best, previous))
            keep = score - rest < needed * steadying.margin_share(*of_both)
            score, best = torch.where(keep, rest, score), torch.where(keep, previous, best)
        labels.copy_(best[:, 0])
        if confidence is not None:
            confidence.copy_((255 / (full - score).exp().sum(dim=1)).round())
        return
    batch, classes, h, w = scores.shape
    block = 64
    label_kernel[backend.cdiv(width, block), h + 1, batch](
        scores,
        labels,
        labels if confidence is None else confidence,
        *(steady or (labels, scores, scores, labels)),
        h,
        w,
        height,
        width,
        *scores.stride(),
        labels.stride(0),
        CLASSES=classes,
        ROWS=backend.next_power_of_2(backend.cdiv(height, h)),
        BLOCK=block,
        CONFIDENCE=confidence is not None,
        STEADY=steady is not None,
        RARE_NEW=steadying.RARE_NEW,
        RARE_OLD=steadying.RARE_OLD,
        num_warps=2,
        **backend.early(scores.device),
    )


@jit
def label_kernel(
    scores,
    labels,
    confidence,
    previous,
    margin,
    shares,
    changes,
    h,
    w,
    height,
    width,
    stride_b,
    stride_k,
    stride_y,
    stride_x,
    stride_labels,
    CLASSES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    STEADY: tl.constexpr,
    RARE_NEW: tl.constexpr,
    RARE_OLD: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    block, strip, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # the rows of the frame between the centres of two rows of the map
    first = tl.maximum(tl.ceil((strip - 0.5) * height / h - 0.5), 0.0).to(tl.int32)
    end = tl.minimum(tl.ceil((strip + 0.5) * height / h - 0.5), height).to(tl.int32)
    top, bottom = tl.maximum(strip - 1, 0), tl.minimum(strip, h - 1)
    rows, columns = first + tl.arange(0, ROWS), block * BLOCK + tl.arange(0, BLOCK)
    down = tl.minimum(tl.maximum((rows + 0.5) * h / height - 0.5, 0.0), h - 1.0) - top
    x = tl.minimum(tl.maximum((columns + 0.5) * w / width - 0.5, 0.0), w - 1.0)
    left = x.to(tl.int32)
    right, across = tl.minimum(left + 1, w - 1), x - left
    above, below = scores + image * stride_b + top * stride_y, scores + image * stride_b + bottom * stride_y
    best = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    best_class, total = tl.zeros((ROWS, BLOCK), tl.int32), tl.zeros((ROWS, BLOCK), tl.float32)
    inside = (rows < end)[:, None] & (columns < width)[None, :]
    offset = rows[:, None] * width + columns[None, :]
    if STEADY:
        known = tl.minimum(
            tl.load(previous + image * stride_labels + offset, inside, other=0).to(tl.int32), CLASSES - 1
        )
        rest = tl.zeros((ROWS, BLOCK), tl.float32)
    for k in range(CLASSES):
        near, far = k * stride_k + left * stride_x, k * stride_k + right * stride_x
        a, b = tl.load(above + near).to(tl.float32), tl.load(above + far).to(tl.float32)
        c, d = tl.load(below + near).to(tl.float32), tl.load(below + far).to(tl.float32)
        upper, lower = a + (b - a) * across, c + (d - c) * across
        score = upper[None, :] + (lower - upper)[None, :] * down[:, None]
        if CONFIDENCE:
            highest = tl.maximum(best, score)
            total = total * tl.exp(best - highest) + tl.exp(score - highest)
        if STEADY:
            rest = tl.where(known == k, score, rest)
        best_class = tl.where(score > best, k, best_class)
        best = tl.maximum(best, score)
    if STEADY:
        over, under = margin + (image * h + top) * w, margin + (image * h + bottom) * w
        a, b, c, d = tl.load(over + left), tl.load(over + right), tl.load(under + left), tl.load(under + right)
        upper, lower = a + (b - a) * across, c + (d - c) * across
        changed, counted = tl.load(changes + 2 * image), tl.maximum(tl.load(changes + 2 * image + 1), 1)
        unit = changed.to(tl.float32) / (counted.to(tl.float32) * CLASSES)
        needed = unit * (upper[None, :] + (lower - upper)[None, :] * down[:, None])
        of_new, of_old = tl.load(shares + image * CLASSES + best_class), tl.load(shares + image * CLASSES + known)
        rare = tl.sqrt(tl.minimum(of_new / RARE_NEW, 1.0) * tl.minimum(of_old / RARE_OLD, 1.0))
        keep = best - rest < needed * rare
        best_class = tl.where(keep, known, best_class)
        if CONFIDENCE:
            total = tl.where(keep, total * tl.exp(best - rest), total)
    tl.store(labels + image * stride_labels + offset, best_class.to(tl.uint8), inside)
    if CONFIDENCE:
        tl.store(confidence + image * height * width + offset, (255 / total + 0.5).to(tl.uint8), inside)


def write_class_shares(labels: Tensor, out: Tensor) -> None:
    """Write the share (B, K), fp32, of each class in labels, as steadying.class_shares does.

    Args:
        labels: (B, H, W), uint8, those of each frame contiguous.
    """
    batch, classes = out.shape
    if not backend.use_triton(labels):
        out.copy_(steadying.class_shares(labels, classes))
        return
    _, height, width = labels.shape
    down, across = steadying.counting_steps(labels)
    columns, block = backend.cdiv(width, across), 1024
    pixels = backend.cdiv(height, down) * columns
    # not launched early, like all kernels beside the network (motion.py)
    share_kernel[classes, batch](
        labels,
        out,
        pixels,
        columns,
        across,
        down * width,
        labels.stride(0),
        BLOCKS=backend.cdiv(pixels, block),
        BLOCK=block,
    )


@jit
def share_kernel(
    labels,
    out,
    pixels,
    columns,
    stride_x,
    stride_y,
    stride_b,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    k, image = tl.program_id(0), tl.program_id(1)
    found = tl.zeros((BLOCK,), tl.int32)
    for number in range(BLOCKS):
        pixel = number * BLOCK + tl.arange(0, BLOCK)
        place = pixel // columns * stride_y + pixel % columns * stride_x
        label = tl.load(labels + image * stride_b + place, pixel < pixels, other=0).to(tl.int32)
        found += ((label == k) & (pixel < pixels)).to(tl.int32)
    tl.store(out + image * tl.num_programs(0) + k, tl.sum(found, axis=0).to(tl.float32) / pixels)
