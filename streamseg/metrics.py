"""How well predicted labels agree with true ones, as counts that add up over images.

Shapes: K classes, H height, W width.
"""

import math

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
    rows = torch.stack([near(ours, true, tolerance), ours, near(true, ours, tolerance), true])
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


def near(labels: Tensor, others: Tensor, tolerance: int) -> Tensor:
    """Those labels (H, W) that another map has too at most so many rows and columns away; all others become IGNORE."""
    height, width = labels.shape
    # shifted maps are compared for all classes at once: ten times as fast as a max-pooling for each of eleven classes
    padded = F.pad(others, (tolerance,) * 4, value=IGNORE)
    found = torch.zeros_like(labels, dtype=torch.bool)
    for y in range(2 * tolerance + 1):
        for x in range(2 * tolerance + 1):
            found |= labels == padded[y : y + height, x : x + width]
    return torch.where(found, labels, IGNORE)
