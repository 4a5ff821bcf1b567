"""Losses of labels that mean sets of classes, for data sets with different labels.

The labels of all data sets are numbered in one sequence: those of the first data set from 0, then those of the second.
A pixel holds one such number, and its label means one or several classes of the network (see streamseg.class_table).
The probability of a label is the sum of the probabilities of its classes.

Shapes: B batch, L labels of all data sets, K classes, H height, W width.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from streamseg.classes import IGNORE
from streamseg.train.losses import count_overlap, one_hot, sum_hard_pixels

LEAST = 1e-12
"""Added to a probability before its logarithm, which would be infinite for 0."""


class LabelSets(NamedTuple):
    """The classes that each label means, and the data set that each label is from."""

    members: Tensor
    """(L, K): 1 for the classes of a label, else 0."""
    owners: Tensor
    """(L,): number of the data set."""


def make_label_sets(columns: Sequence[Sequence[int]]) -> LabelSets:
    """Return the classes that each label means.

    Args:
        columns: For each data set, the number of its label for each class; IGNORE for none.
    """
    counts = [1 + max(label for label in column if label != IGNORE) for column in columns]
    members = torch.zeros(sum(counts), len(columns[0]))
    for first, column in zip(accumulate(counts, initial=0), columns, strict=False):
        for number, label in enumerate(column):
            if label != IGNORE:
                members[first + label, number] = 1
    return LabelSets(members, torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)))


def label_probabilities(logits: Tensor, members: Tensor) -> Tensor:
    """Return the probability of each label (B, L, H, W), the sum of those of its classes, from logits (B, K, H, W)."""
    # in bf16 the sums would be off by up to 0.4 %
    with torch.autocast(logits.device.type, enabled=False):
        probabilities = logits.float().softmax(dim=1)
        return (members.to(probabilities.dtype) @ probabilities.flatten(2)).unflatten(2, logits.shape[-2:])


def set_cross_entropy(
    probabilities: Tensor, labels: Tensor, weights: Tensor, ohem_threshold: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the sum over pixels of the cross-entropy, and the sum of the pixels' weights; see losses.cross_entropy.

    Args:
        probabilities: Of labels, (B, L, H, W).
        weights: (L,).
        ohem_threshold: Count only hard pixels, see losses.hard_cross_entropy; 0 counts all.
    """
    valid = labels != IGNORE
    of_label = (probabilities * one_hot(labels, probabilities.shape[1])).sum(dim=1)
    losses = -(of_label + LEAST).log() * valid
    if ohem_threshold:
        return sum_hard_pixels(losses, labels, weights, ohem_threshold)
    weight = weights[labels.where(valid, 0)] * valid
    return (losses * weight).sum(), weight.sum()


def overlap_in_own_pixels(probabilities: Tensor, labels: Tensor, owners: Tensor) -> Tensor:
    """Return the counts of losses.soft_iou_counts for labels: (3, L).

    A label is counted in the pixels of its own data set only: a pixel of CamVid does not say whether comma10k would
    call it undrivable.
    """
    valid = labels != IGNORE
    own = owners[labels.where(valid, 0)][:, None] == owners.view(1, -1, 1, 1)
    return count_overlap(probabilities, labels, (own & valid[:, None]).float())
