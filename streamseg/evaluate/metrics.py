"""Agreement of predicted with true labels, as counts that add up over images, and consistency in videos.

Shapes: K classes, H height, W width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE


def confusion_matrix(labels: Tensor, predicted: Tensor, classes: int, columns: int = 0) -> Tensor:
    """Count pixels by true class (row) and predicted class (column): (K, K) integers; ignored pixels are left out.

    Args:
        columns: Number of columns, if there are more than classes: K + 1 where a prediction may be none of them, K.
    """
    columns = columns or classes
    pairs = 1 + labels.long() * columns + predicted.long()
    # bin 0 takes the ignored pixels: selecting the others would make the host wait for the device
    counts = torch.where(labels == IGNORE, 0, pairs).flatten().bincount(minlength=1 + classes * columns)
    if len(counts) > 1 + classes * columns:
        unknown = labels[(labels >= classes) & (labels != IGNORE)].unique().tolist()
        raise ValueError(
            f"The labels hold {', '.join(map(str, unknown))}; with {classes} classes, "
            f"expected 0–{classes - 1}, or {IGNORE} for no class."
        )
    return counts[1:].view(classes, columns)


def iou(confusion: Tensor) -> Tensor:
    """Return the intersection over union of each class (K,), from 0 to 1; NaN if it neither occurs nor is predicted.

    Args:
        confusion: (K, K), or (K, K + 1) with the predictions that are none of the classes in the last column: they are
            in the union of the true class.
    """
    right = confusion.diagonal()
    return right.double() / (confusion.sum(dim=0)[: len(confusion)] + confusion.sum(dim=1) - right)


def miou(confusion: Tensor) -> float:
    """Return the mean IoU, from 0 to 1, of the classes that occur or are predicted."""
    return iou(confusion).nanmean().item()


def pixel_accuracy(confusion: Tensor) -> float:
    """Return the share of correct pixels, from 0 to 1."""
    return (confusion.diagonal().sum().double() / confusion.sum()).item()


def boundary_counts(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count boundary pixels of each class for boundary_f1: (4, K).

    The four rows are: predicted and near a true one; predicted; true and near a predicted one; true.

    A boundary pixel of a class belongs to it and touches another class above, below, left or right. It is near another
    if their rows and their columns differ by at most 0.75 % of the image's diagonal, rounded up: the true boundary,
    dilated by a square. Ignored pixels are ignored in the prediction too, so that they neither are boundary nor make
    their neighbours boundary.

    Args:
        labels: (H, W), with IGNORE.
        predicted: (H, W).
    """
    labels = labels.to(torch.uint8)
    tolerance = math.ceil(0.0075 * math.hypot(*labels.shape))
    true = boundaries(labels)
    ours = boundaries(torch.where(labels == IGNORE, IGNORE, predicted.to(torch.uint8)))
    rows = torch.stack([match_nearby(ours, true, tolerance), ours, match_nearby(true, ours, tolerance), true])
    # one bincount for all four rows, 256 bins each
    bins = rows.long() + 256 * torch.arange(4, device=rows.device).view(4, 1, 1)
    return bins.flatten().bincount(minlength=4 * 256).view(4, 256)[:, :classes]


def boundary_f1(counts: Tensor) -> Tensor:
    """Return the F1 of each class's boundary (K,), from 0 to 1, from the sum of boundary_counts over all images.

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
    """Return the labels (H, W) of the pixels that touch another class, and IGNORE elsewhere."""
    touches = torch.zeros_like(labels, dtype=torch.bool)
    for dim, length in enumerate(labels.shape):
        before, after = labels.narrow(dim, 0, length - 1), labels.narrow(dim, 1, length - 1)
        differ = (before != after) & (before != IGNORE) & (after != IGNORE)
        touches.narrow(dim, 0, length - 1).logical_or_(differ)
        touches.narrow(dim, 1, length - 1).logical_or_(differ)
    return torch.where(touches, labels, IGNORE)


def match_nearby(labels: Tensor, others: Tensor, tolerance: int) -> Tensor:
    """Return the labels (H, W) that `others` has too within `tolerance` rows and columns, and IGNORE elsewhere."""
    height, width = labels.shape
    # comparing shifted maps handles all classes at once: ten times as fast as max-pooling each of eleven classes
    padded = F.pad(others, (tolerance,) * 4, value=IGNORE)
    found = torch.zeros_like(labels, dtype=torch.bool)
    for y in range(2 * tolerance + 1):
        for x in range(2 * tolerance + 1):
            found |= labels == padded[y : y + height, x : x + width]
    return torch.where(found, labels, IGNORE)


@dataclass(frozen=True, eq=False)
class PixelRuns:
    """For how many frames each pixel of a video has kept its value: maps (H, W), counting the last frame.

    This is enough for a window of any length, so that no earlier frames have to be kept.
    """

    labels: Tensor
    predicted: Tensor
    true: Tensor
    """Frames since the true label changed; 0 if it is IGNORE."""
    ours: Tensor
    """Frames since the predicted label changed."""
    right: Tensor
    """Frames since the predicted label was wrong."""
    frames: int
    """Number of frames so far."""


def extend_runs(runs: PixelRuns | None, labels: Tensor, predicted: Tensor) -> PixelRuns:
    """Update the runs with the next frame of a video; they are None before the first.

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
    """Return consistency and strict consistency (2,), from 0 to 1, in the last `window` frames; NaN if undefined.

    They are the shares of the pixels with a constant true label whose predicted label is constant, and correct
    throughout. The first is a term of VC_n, the video consistency of VSPW (Miao et al., CVPR 2021); see mvc.
    """
    still = runs.true >= window
    kept = torch.stack([still & (runs.ours >= window), still & (runs.right >= window)])
    return kept.sum(dim=(1, 2)).double() / still.sum()


def mvc(videos: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return mVC_n (2,), plain and strict, from the consistency of each window of n frames of each video; NaN if none.

    As the VSPW paper defines it: a video of C frames has C - n + 1 windows, its VC_n is the mean over them, and
    mVC_n is the mean over the videos. Windows in which no pixel keeps its label do not count. VSPW's own script
    differs in three points: it leaves out the last window of each video, averages over the windows of all videos at
    once, and counts pixels without a class as a class. The strict form is ours.
    """
    means = [torch.stack([*windows]).nanmean(dim=0) for windows in videos if windows]
    return torch.stack(means).nanmean(dim=0) if means else torch.full((2,), torch.nan)


def flip_counts(runs: PixelRuns) -> Tensor:
    """Count pixels for flip_rates (4,): those whose predicted label differs from the frame before, and all pixels.

    The last two are the same for the pixels whose true label is that of the frame before. All are 0 in a first frame.
    """
    if runs.frames == 1:
        return torch.zeros(4, dtype=torch.int64, device=runs.ours.device)
    flipped, still = runs.ours == 1, runs.true > 1
    looked_at = runs.predicted != IGNORE  # a mask hides the others
    return torch.stack([flipped & looked_at, looked_at, flipped & still, still]).sum(dim=(1, 2))


def flip_rates(counts: Tensor) -> Tensor:
    """Return the shares (2,) of pixels whose prediction changes: of all pixels, and of those whose true label stays.

    The counts are the sum of flip_counts over all frames; the shares are from 0 to 1, and NaN if there are no pixels.
    """
    flipped, pixels, flipped_still, still = counts.double()
    return torch.stack([flipped / pixels, flipped_still / still])
