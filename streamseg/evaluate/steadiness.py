"""How steady predicted labels are from frame to frame, without true labels: along the motion of the pixels.

Shapes: K classes, H height, W width, N boundary pixels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE
from streamseg.evaluate import metrics
from streamseg.evaluate.motion import Motion, carry_labels

FARTHEST = 8
"""Pixels up to which the displacement of a boundary is measured; a boundary that appears or vanishes counts as this."""


@dataclass(frozen=True)
class Steadiness:
    """How steady the labels of a video are; NaN where there is nothing to compare."""

    consistency: float
    """Percentage of the visible pixels whose label is the one that they had in the frame before."""
    consistency_miou: float
    """Mean IoU, in percent, of the labels and those of the frame before, carried along the motion: the temporal
    consistency of Liu et al., "Efficient Semantic Video Segmentation with Per-frame Inference", 2020."""
    boundary_shift: float
    """Mean distance in pixels from a boundary of a class to the one in the frame before, carried along the motion."""
    flip_rate: float
    """Percentage of the pixels with a class whose label changes from frame to frame, whether the picture moves or
    not."""


class SteadinessTally:
    """Accumulates the counts of a video, pair by pair of neighbouring frames, on the device."""

    def __init__(self, classes: int, device: torch.device):
        self.classes = classes
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        # in fp64, where sums of whole numbers and of few roots do not drift
        self.distances = torch.zeros(2, dtype=torch.float64, device=device)
        self.flips = torch.zeros(2, dtype=torch.int64, device=device)

    def add(self, previous: Tensor, current: Tensor, motion: Motion) -> None:
        """Add the labels (H, W) of two neighbouring frames, and the motion between the frames.

        Pixels with IGNORE in either frame, which a mask hides, are left out.
        """
        carried = torch.where(current == IGNORE, IGNORE, carry_labels(previous, motion))
        self.confusion += metrics.confusion_matrix(carried, current, self.classes)
        self.distances += boundary_distances(carried, current)
        looked_at = (previous != IGNORE) & (current != IGNORE)
        self.flips += torch.stack([(looked_at & (previous != current)).sum(), looked_at.sum()])

    def compared(self) -> float:
        """Return the percentage of the pixels with a class that were compared along the motion."""
        pixels = self.flips[1].item()
        return 100 * self.confusion.sum().item() / pixels if pixels else torch.nan

    def result(self) -> Steadiness:
        """Return the figures of all pairs that were added."""
        distance, boundary = self.distances.tolist()
        flipped, pixels = self.flips.tolist()
        return Steadiness(
            consistency=100 * metrics.pixel_accuracy(self.confusion),
            consistency_miou=100 * metrics.miou(self.confusion),
            # the sum of distances may be 0, the number of boundary pixels too
            boundary_shift=distance / boundary if boundary else torch.nan,
            flip_rate=100 * flipped / pixels if pixels else torch.nan,
        )


def boundary_distances(carried: Tensor, current: Tensor) -> Tensor:
    """Return the sum of the distances between the boundaries of two label maps (H, W), and their number: (2,), fp64.

    From each boundary pixel of either map, see metrics.boundaries, to the nearest one of its class in the other, up to
    FARTHEST pixels. A pixel with IGNORE nearer than that is left out: what it belongs to may be there.

    Args:
        carried: The labels of the frame before, with IGNORE where they are not known.
    """
    current = torch.where(carried == IGNORE, IGNORE, current)
    unknown = F.pad(carried == IGNORE, (FARTHEST,) * 4)
    one, other = metrics.boundaries(carried), metrics.boundaries(current)
    found = torch.cat([nearest(one, other, unknown), nearest(other, one, unknown)])
    return torch.stack([found.sum(), torch.ones_like(found).sum()])


def nearest(boundary: Tensor, others: Tensor, unknown: Tensor) -> Tensor:
    """Return the distance (N,), fp64, of each boundary pixel of one map to the nearest of its class in another.

    Args:
        boundary: The class (H, W) of each boundary pixel, and IGNORE elsewhere.
        others: Likewise.
        unknown: Where the labels are not known, with FARTHEST more pixels at each side; see boundary_distances.
    """
    apart = (boundary != IGNORE) & (boundary != others)
    matched = ((boundary != IGNORE) & ~apart).sum()
    rows, columns = apart.nonzero(as_tuple=True)
    own = boundary[rows, columns]
    around = F.pad(others, (FARTHEST,) * 4, value=IGNORE)
    distance = torch.full(own.shape, float(FARTHEST), dtype=torch.float64, device=own.device)
    hidden = torch.full_like(distance, torch.inf)
    for length, y, x in disc():
        place = (rows + FARTHEST + y, columns + FARTHEST + x)
        distance = torch.where(around[place] == own, length, distance)
        hidden = torch.where(unknown[place], length, hidden)
    return torch.cat([distance.new_zeros(int(matched)), distance[distance <= hidden]])


def disc() -> list[tuple[float, int, int]]:
    """Return the length, the row and the column of all steps up to FARTHEST pixels, the longest first."""
    steps = range(-FARTHEST, FARTHEST + 1)
    all_steps = (((x * x + y * y) ** 0.5, y, x) for y in steps for x in steps)
    return sorted((step for step in all_steps if 0 < step[0] <= FARTHEST), reverse=True)
