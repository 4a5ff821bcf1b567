"""How well predicted labels agree with true ones, as counts that add up over images, and how steady they are in videos.

Shapes: K classes, H height, W width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE


def confusion_matrix(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Pixels counted by true class (row) and predicted class (column): (K, K) integers; ignored pixels are left out."""
    pairs = 1 + labels.long() * classes + predicted.long()
    # bin 0 takes the ignored pixels: to select the others would cost a device a second wait
    counts = torch.where(labels == IGNORE, 0, pairs).flatten().bincount(minlength=1 + classes**2)
    if len(counts) > 1 + classes**2:
        foreign = labels[(labels >= classes) & (labels != IGNORE)].unique().tolist()
        raise ValueError(
            f"The labels hold {', '.join(map(str, foreign))}; with {classes} classes, "
            f"expected 0–{classes - 1}, or {IGNORE} for no class."
        )
    return counts[1:].view(classes, classes)


def iou(confusion: Tensor) -> Tensor:
    """Intersection over union of each class (K,), from 0 to 1; NaN where a class is neither there nor predicted."""
    right = confusion.diagonal()
    return right.double() / (confusion.sum(dim=0) + confusion.sum(dim=1) - right)


def miou(confusion: Tensor) -> float:
    """The mean IoU, from 0 to 1, of the classes that are there or predicted."""
    return iou(confusion).nanmean().item()


def pixel_accuracy(confusion: Tensor) -> float:
    """The share of pixels, from 0 to 1, whose class is right."""
    return (confusion.diagonal().sum().double() / confusion.sum()).item()


def boundary_counts(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """What boundary_f1 is made of: boundary pixels (4, K), predicted and near a true one, predicted, true and near
    a predicted one, true.

    A boundary pixel of a class belongs to it and touches another class above, below, left or right. It is near another
    when neither their rows nor their columns are further apart than 0.75 % of the image's diagonal, rounded up: the
    true boundary, widened by a square. Ignored pixels have no class in the prediction either, so that they neither are
    boundary nor make their neighbours boundary.

    Args:
        labels: (H, W), with IGNORE.
        predicted: (H, W).
    """
    labels = labels.to(torch.uint8)
    tolerance = math.ceil(0.0075 * math.hypot(*labels.shape))
    true = boundaries(labels)
    ours = boundaries(torch.where(labels == IGNORE, IGNORE, predicted.to(torch.uint8)))
    rows = torch.stack([match_nearby(ours, true, tolerance), ours, match_nearby(true, ours, tolerance), true])
    # one count for all four, 256 bins each
    bins = rows.long() + 256 * torch.arange(4, device=rows.device).view(4, 1, 1)
    return bins.flatten().bincount(minlength=4 * 256).view(4, 256)[:, :classes]


def boundary_f1(counts: Tensor) -> Tensor:
    """F1 of each class's boundary (K,), from 0 to 1, from the sum of boundary_counts over all images.

    Precision is the share of predicted boundary pixels near a true one of their class, recall the share of true ones
    near a predicted one, F1 their harmonic mean; NaN where a class has no boundary, neither true nor predicted.
    """
    ours_near, ours, true_near, true = counts.double()
    precision = ours_near / ours.clamp(min=1)
    recall = true_near / true.clamp(min=1)
    # without any match both are 0, and so is F1
    f1 = 2 * precision * recall / torch.where(ours_near + true_near == 0, 1, precision + recall)
    return torch.where(ours + true == 0, torch.nan, f1)


def boundaries(labels: Tensor) -> Tensor:
    """The labels (H, W) of the pixels that touch another class; all others become IGNORE."""
    touches = torch.zeros_like(labels, dtype=torch.bool)
    for dim, length in enumerate(labels.shape):
        before, after = labels.narrow(dim, 0, length - 1), labels.narrow(dim, 1, length - 1)
        differ = (before != after) & (before != IGNORE) & (after != IGNORE)
        touches.narrow(dim, 0, length - 1).logical_or_(differ)
        touches.narrow(dim, 1, length - 1).logical_or_(differ)
    return torch.where(touches, labels, IGNORE)


def match_nearby(labels: Tensor, others: Tensor, tolerance: int) -> Tensor:
    """Those labels (H, W) that another map has too at most so many rows and columns away; all others become IGNORE."""
    height, width = labels.shape
    # shifted maps are compared for all classes at once: ten times as fast as a max-pooling for each of eleven classes
    padded = F.pad(others, (tolerance,) * 4, value=IGNORE)
    found = torch.zeros_like(labels, dtype=torch.bool)
    for y in range(2 * tolerance + 1):
        for x in range(2 * tolerance + 1):
            found |= labels == padded[y : y + height, x : x + width]
    return torch.where(found, labels, IGNORE)


@dataclass(frozen=True, eq=False)
class PixelRuns:
    """How long each pixel of a video has stayed as it is in the last frame: maps (H, W) of frames, the last among them.

    They are all that a window of any length needs, so that no frame before the last has to be kept.
    """

    labels: Tensor
    predicted: Tensor
    true: Tensor
    """Frames since the true label changed; 0 where it is IGNORE."""
    ours: Tensor
    """Frames since the predicted label changed."""
    right: Tensor
    """Frames since the predicted label was wrong."""
    frames: int
    """How many the video has had so far."""


def extend_runs(runs: PixelRuns | None, labels: Tensor, predicted: Tensor) -> PixelRuns:
    """What a video's next frame makes of its runs; None before the first.

    Args:
        labels: (H, W), with IGNORE.
        predicted: (H, W).
    """
    has_class, right = labels != IGNORE, labels == predicted
    if runs is None:
        return PixelRuns(labels, predicted, has_class.int(), torch.ones_like(labels, dtype=torch.int32), right.int(), 1)
    return PixelRuns(
        labels,
        predicted,
        true=torch.where(labels == runs.labels, runs.true + 1, 1) * has_class,
        ours=torch.where(predicted == runs.predicted, runs.ours + 1, 1),
        right=(runs.right + 1) * right,
        frames=runs.frames + 1,
    )


def consistency(runs: PixelRuns, window: int) -> Tensor:
    """Of the pixels whose true label is the same in all of a video's last frames, the share (2,), from 0 to 1, whose
    predicted label is the same in all of them, and the share where it is right in all of them; NaN if there are none.

    The first is a term of VC_n, the video consistency of VSPW (Miao et al., CVPR 2021); see mvc.
    """
    still = runs.true >= window
    kept = torch.stack([still & (runs.ours >= window), still & (runs.right >= window)])
    return kept.sum(dim=(1, 2)).double() / still.sum()


def mvc(videos: Sequence[Sequence[Tensor]]) -> Tensor:
    """mVC_n (2,), plain and strict, from the consistency in a window of n at each frame of each video; NaN without any.

    As the paper of VSPW defines it: a video of C frames has C - n + 1 windows, its VC_n is the mean over them, and
    mVC_n is the mean over the videos. Windows in which no pixel keeps its label do not count. The script that comes
    with VSPW differs in three points: it leaves out the last window of each video, takes the mean over the windows of
    all videos at once, and counts pixels of no class as if that were one. Strict is ours.
    """
    means = [torch.stack([*windows]).nanmean(dim=0) for windows in videos if windows]
    return torch.stack(means).nanmean(dim=0) if means else torch.full((2,), torch.nan)


def flip_counts(runs: PixelRuns) -> Tensor:
    """What flip rates are made of (4,): pixels whose predicted label is another than in the frame before, and all
    pixels; the same of the pixels whose true label is that of the frame before. All 0 in a video's first frame.
    """
    if runs.frames == 1:
        return torch.zeros(4, dtype=torch.int64, device=runs.ours.device)
    flipped, still = runs.ours == 1, runs.true > 1
    return torch.stack([flipped, torch.ones_like(still), flipped & still, still]).sum(dim=(1, 2))


def flip_rates(counts: Tensor) -> Tensor:
    """The share of pixels (2,), from 0 to 1, that change their predicted label from a frame to the next, and of those
    alone whose true label stays, from the sum of flip_counts over all frames; NaN where there are none.
    """
    flipped, pixels, flipped_still, still = counts.double()
    return torch.stack([flipped / pixels, flipped_still / still])
