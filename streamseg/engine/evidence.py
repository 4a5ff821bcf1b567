"""What a frame leaves to the next one of its stream, so that labels stay steady.

On a GPU it lies in one piece of memory, of which the parts are views that are made when they are asked for: a frame
needs none of them, and each would cost the host some microseconds.

Shapes: K classes, h x w the map of scores, H x W the labels, l x m the brightness, n the numbers of a stream's
evidence.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from streamseg.classes import IGNORE

ALIGNMENT = 32
"""Each part of packed evidence begins at a multiple of this many numbers of four bytes."""
NOT_MIRRORED = torch.zeros((), dtype=torch.float32, device="cpu")
"""A frame is not mirrored."""


class Evidence(NamedTuple):
    """What a frame leaves to the next one of its stream, so that labels stay steady. Its tensors are never modified."""

    luma: Tensor
    """Brightness at twice the size of the scores, (l, m), fp32, 0 to 255; see luma_size."""
    scores: Tensor
    """Averaged scores, as they are carried to the next frame, (K, h, w), fp32."""
    labels: Tensor
    """(H, W), uint8."""
    mirror_next: Tensor = NOT_MIRRORED
    """1 if the next frame is labelled mirrored, or else 0: (), fp32."""


class Layout:
    """Where the parts of a stream's evidence lie in one piece of memory (n,), fp32, in their order.

    Args:
        luma: Height and width of the brightness.
        scores: Number of classes, height and width of the scores.
        labels: Height and width of the labels.
    """

    def __init__(self, luma: tuple[int, int], scores: tuple[int, int, int], labels: tuple[int, int]):
        self.luma, self.scores, self.labels = luma, scores, labels
        self.sizes = (luma, scores, labels)
        # in numbers of four bytes
        self.scores_start = align(math.prod(luma))
        self.labels_start = self.scores_start + align(math.prod(scores))
        self.mirror_next_start = self.labels_start + align((math.prod(labels) + 3) // 4)
        self.length = self.mirror_next_start + align(1)
        self.strides = [strides_of(shape) for shape in self.sizes]

    def split(self, packed: Tensor) -> Evidence:
        """Return views of packed evidence (…, n), a whole tensor: (…, l, m), (…, K, h, w), (…, H, W) and (…)."""
        lead, apart = packed.shape[:-1], packed.stride()[:-1]
        luma, scores, labels = self.strides
        return Evidence(
            packed.as_strided((*lead, *self.luma), (*apart, *luma), 0),
            packed.as_strided((*lead, *self.scores), (*apart, *scores), self.scores_start),
            packed.view(torch.uint8).as_strided(
                (*lead, *self.labels), (*(4 * stride for stride in apart), *labels), 4 * self.labels_start
            ),
            packed.as_strided(lead, apart, self.mirror_next_start),
        )


class PackedEvidence:
    """Evidence in one piece of memory: its parts have the names and the order of those of an Evidence."""

    def __init__(self, packed: Tensor, layout: Layout):
        self.packed, self.layout = packed, layout

    def __reduce__(self) -> tuple[type["PackedEvidence"], tuple[Tensor, Layout]]:
        return PackedEvidence, (self.packed, self.layout)  # without the views

    @cached_property
    def parts(self) -> Evidence:
        """Views of the parts."""
        return self.layout.split(self.packed)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.parts)

    @property
    def luma(self) -> Tensor:
        return self.parts.luma

    @property
    def scores(self) -> Tensor:
        return self.parts.scores

    @property
    def labels(self) -> Tensor:
        return self.parts.labels

    @property
    def mirror_next(self) -> Tensor:
        return self.parts.mirror_next


AnyEvidence = Evidence | PackedEvidence
"""Evidence of any engine."""


def hide_labels(evidence: AnyEvidence, hidden: Tensor) -> AnyEvidence:
    """Return evidence whose labels have no class at hidden pixels (H, W): these are no part of a frame."""
    if isinstance(evidence, Evidence):
        return evidence._replace(labels=evidence.labels.masked_fill(hidden, IGNORE))
    copy = PackedEvidence(evidence.packed.clone(), evidence.layout)
    copy.labels.masked_fill_(hidden, IGNORE)
    return copy


def align(count: int) -> int:
    """Return the next multiple of the alignment."""
    return (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
