"""Loss functions of training.

Shapes: B batch, K classes, H height, W width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE
from streamseg.models.layers import bilinear_matrix


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over pixels of the cross-entropy with class weights (K,), and the sum of the pixels' weights.

    They are returned separately, so that processes that share a batch can divide by the weight of the whole batch.
    """
    losses = F.cross_entropy(logits.float(), labels, weights, ignore_index=IGNORE, reduction="none")
    valid = labels != IGNORE
    return losses.sum(), (weights[labels.where(valid, 0)] * valid).sum()


def hard_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the same for hard pixels only (OHEM): those whose true class has a probability below the threshold.

    If fewer than a sixteenth of the pixels are hard, the hardest sixteenth counts, as in the authors' code.
    """
    losses = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="none")
    return sum_hard_pixels(losses, labels, weights, threshold)


def sum_hard_pixels(losses: Tensor, labels: Tensor, weights: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the losses (B, H, W) of hard pixels, and the sum of their weights."""
    losses = losses.flatten()
    sixteenth = losses.topk(max(1, losses.numel() // 16), sorted=False).values.min()
    valid = labels != IGNORE
    hard = (losses >= sixteenth.clamp(max=-math.log(threshold))) & valid.flatten()
    share = hard * weights[labels.where(valid, 0)].flatten()
    return (losses * share).sum(), share.sum()


def soft_iou_counts(logits: Tensor, labels: Tensor) -> Tensor:
    """Return soft intersection and union of prediction and truth, and true pixels, of each class: (3, K).

    The counts of the parts of a batch add up to those of the batch.
    """
    return count_overlap(logits.float().softmax(dim=1), labels, (labels != IGNORE)[:, None].float())


def count_overlap(probabilities: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Return the same from probabilities (B, K, H, W).

    Args:
        counted: 1 for the pixels that count, else 0, for all classes (B, 1, H, W) or for each (B, K, H, W).
    """
    # floats throughout: Triton 3.6 cannot compile a sum of truth values here
    truth = one_hot(labels, probabilities.shape[1]) * counted
    probabilities = probabilities * counted
    true_pixels = truth.sum(dim=(0, 2, 3))
    both = (probabilities * truth).sum(dim=(0, 2, 3))
    either = (probabilities + truth).sum(dim=(0, 2, 3)) - both
    return torch.stack([both, either, true_pixels])


def iou_loss(counts: Tensor) -> Tensor:
    """Return one minus the mean soft IoU over the classes that occur in the batch: a smooth form of the metric."""
    both, either, true_pixels = counts
    occurs = true_pixels > 0
    return 1 - (both / either.clamp(min=1) * occurs).sum() / occurs.sum().clamp(min=1)


def one_hot(labels: Tensor, count: int) -> Tensor:
    """Return 1 for the label of each pixel, else 0: floats (B, count, H, W); IGNORE gives zeros."""
    return (labels[:, None] == torch.arange(count, device=labels.device).view(1, -1, 1, 1)).float()


def take_grid(logits: Tensor, labels: Tensor, place: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Return logits and labels at every stride-th pixel of each row and column of the labels, which it must divide.

    Over all places the losses of the pixels add up to those of all pixels, so a place that is drawn at random gives an
    unbiased estimate of their sum, in a fraction of the time.

    Args:
        logits: (B, K, any height and width); resized bilinearly.
        place: Row and column (2,) of the first pixel, integers; taken modulo the stride.
    """
    rows, columns = (
        place[axis] % stride + torch.arange(0, length, stride, device=labels.device)
        for axis, length in enumerate(labels.shape[-2:])
    )
    # only the rows of the two matrices that the grid needs: see resize_to
    down = bilinear_matrix(logits.shape[-2], labels.shape[-2], logits)[rows]
    across = bilinear_matrix(logits.shape[-1], labels.shape[-1], logits)[columns]
    return down @ logits @ across.T, labels[:, rows][:, :, columns]


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Return the KL divergence of the probabilities of logits (B, K, H, W) from those of a target, mean over pixels."""
    log_target = target.float().log_softmax(dim=1)
    return (log_target.exp() * (log_target - logits.float().log_softmax(dim=1))).sum(dim=1).mean()


def distillation_loss(logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Return the KL divergence of the probabilities of logits from those of teachers, mean over pixels.

    Args:
        logits: (B, K, H, W).
        target: Probabilities (B, K, H, W).
        weights: Of classes (K,); a pixel has the mean weight of its classes, by the teachers' probabilities.
    """
    log_target = target.clamp(min=1e-8).log()
    divergence = (target * (log_target - logits.float().log_softmax(dim=1))).sum(dim=1)
    pixel_weights = (target * weights.view(1, -1, 1, 1)).sum(dim=1)
    return (divergence * pixel_weights).sum() / pixel_weights.sum()


def class_weights(pixels: Tensor, strength: float) -> Tensor:
    """Return class weights (K,) from pixel counts (K,): frequency^-strength, scaled to a mean of 1 over pixels."""
    frequency = (pixels / pixels.sum()).clamp(min=1e-4)
    weights = frequency**-strength
    return weights / (weights * frequency).sum()
