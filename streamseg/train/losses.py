"""What training minimises.

Shapes: B batch, K classes, H height, W width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy with a weight for each class (K,): its sum over the pixels, and the weight of those pixels.

    The two are apart so that processes which share a batch can divide by the weight of all of it.
    """
    losses = F.cross_entropy(logits.float(), labels, weights, ignore_index=IGNORE, reduction="none")
    valid = labels != IGNORE
    return losses.sum(), (weights[labels.where(valid, 0)] * valid).sum()


def hard_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the hard pixels alone (OHEM): those whose class has less than `threshold` probability.

    If they are fewer than a sixteenth of the pixels here, the hardest sixteenth counts, as in the authors' code.
    """
    losses = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE, reduction="none").flatten()
    sixteenth = losses.topk(max(1, losses.numel() // 16), sorted=False).values.min()
    valid = labels != IGNORE
    hard = (losses >= sixteenth.clamp(max=-math.log(threshold))) & valid.flatten()
    share = hard * weights[labels.where(valid, 0)].flatten()
    return (losses * share).sum(), share.sum()


def soft_iou_counts(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each class (3, K): the soft intersection and union of prediction and truth, and the true pixels.

    They add up over the parts of a batch.
    """
    valid = (labels != IGNORE)[:, None].float()
    # floats throughout: Triton 3.6 cannot compile a sum of truth values here
    truth = (labels[:, None] == torch.arange(logits.shape[1], device=labels.device).view(1, -1, 1, 1)).float() * valid
    probabilities = logits.float().softmax(dim=1) * valid
    true_pixels = truth.sum(dim=(0, 2, 3))
    both = (probabilities * truth).sum(dim=(0, 2, 3))
    either = (probabilities + truth).sum(dim=(0, 2, 3)) - both
    return torch.stack([both, either, true_pixels])


def iou_loss(counts: Tensor) -> Tensor:
    """One minus the soft IoU, averaged over the classes that occur in the batch: the metric, made smooth."""
    both, either, true_pixels = counts
    occurs = true_pixels > 0
    return 1 - (both / either.clamp(min=1) * occurs).sum() / occurs.sum().clamp(min=1)


def kl_divergence(logits: Tensor, wanted: Tensor) -> Tensor:
    """How far the probabilities of logits (B, K, H, W) are from wanted ones: the KL divergence, a mean over pixels."""
    log_wanted = wanted.float().log_softmax(dim=1)
    return (log_wanted.exp() * (log_wanted - logits.float().log_softmax(dim=1))).sum(dim=1).mean()


def class_weights(pixels: Tensor, strength: float) -> Tensor:
    """A weight for each class by its number of pixels (K,): frequency to the power -strength; on average 1 a pixel."""
    frequency = (pixels / pixels.sum()).clamp(min=1e-4)
    weights = frequency**-strength
    return weights / (weights * frequency).sum()
