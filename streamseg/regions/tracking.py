"""Follow regions over the frames of a video, by the overlap of their pixels."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy

from streamseg.checks import check_count
from streamseg.regions.regions import Region
from streamseg.regions.spans import Ints

MIN_IOU = 0.2
"""The least IoU at which a region is taken for one of an earlier frame, by default."""
PATIENCE = 10
"""How many frames a region may be missing before its id ends, by default."""


@dataclass(frozen=True, eq=False)
class Track:
    """A region as it was last seen."""

    region: Region
    frame: int


class RegionTracker:
    """Gives the regions of a video ids that last.

    A region keeps the id of the region of the same class with which it overlaps most. Pairs are taken in the order of
    their IoU, each region once. A region that is missing for some frames keeps its id if it comes back to its place.
    """

    def __init__(self, *, min_iou: float = MIN_IOU, patience: int = PATIENCE):
        """
        Args:
            min_iou: The least IoU of a region and its successor, above 0, up to 1.
            patience: How many frames a region may be missing before its id ends.
        """
        if not 0 < min_iou <= 1:
            raise ValueError(f"min_iou is {min_iou!r:.80}; expected a number above 0, up to 1.")
        check_count("patience", patience)
        self.min_iou, self.patience = min_iou, patience
        self.frame = 0
        self.tracks: dict[int, Track] = {}
        self.ids = count(1)

    def update(self, regions: Sequence[Region]) -> list[Region]:
        """Return the regions of the next frame with their ids."""
        self.frame += 1
        self.tracks = {id: track for id, track in self.tracks.items() if self.frame - track.frame <= self.patience + 1}
        found: dict[int, int] = {}
        taken: set[int] = set()
        for _, id, i in sorted(self.candidates(regions), reverse=True):
            if id not in taken and i not in found:
                found[i] = id
                taken.add(id)
        numbered = [replace(region, id=found.get(i) or next(self.ids)) for i, region in enumerate(regions)]
        self.tracks |= {region.id: Track(region, self.frame) for region in numbered if region.id is not None}
        return numbered

    def candidates(self, regions: Sequence[Region]) -> list[tuple[float, int, int]]:
        """Return the pairs that could be one: IoU, the id of a track and the index of a region."""
        # regions of one frame have no pixels in common; those of different frames are compared one frame after another
        by_frame: dict[int, list[Region]] = defaultdict(list)
        for track in self.tracks.values():
            by_frame[track.frame].append(track.region)
        pairs = []
        for former in by_frame.values():
            for i, j, common in overlaps(former, regions):
                before, now = former[i], regions[j]
                iou = common / (before.area + now.area - common)
                if before.label == now.label and iou >= self.min_iou and before.id is not None:
                    pairs.append((iou, before.id, j))
        return pairs


def overlaps(left: Sequence[Region], right: Sequence[Region]) -> list[tuple[int, int, int]]:
    """Return the pairs of regions of two frames that have pixels in common: index, index, number of pixels."""
    if not left or not right or left[0].size != right[0].size:
        return []
    (start, end, owner), (other_start, other_end, other_owner) = flat_spans(left), flat_spans(right)
    # two spans overlap from where the later one begins, which is in the other, or nowhere if that has ended before
    first = numpy.append(numpy.searchsorted(start, other_start, side="right") - 1, numpy.arange(len(start)))
    second = numpy.append(numpy.arange(len(other_start)), numpy.searchsorted(other_start, start, side="left") - 1)
    known = (first >= 0) & (second >= 0)
    first, second = first[known], second[known]
    common = numpy.minimum(end[first], other_end[second]) - numpy.maximum(start[first], other_start[second])
    pair = owner[first] * len(right) + other_owner[second]
    totals = numpy.bincount(pair[common > 0], common[common > 0])
    pairs = numpy.flatnonzero(totals)
    return list(zip((pairs // len(right)).tolist(), (pairs % len(right)).tolist(), totals[pairs].tolist(), strict=True))


def flat_spans(regions: Sequence[Region]) -> tuple[Ints, Ints, Ints]:
    """Return the start, the end and the region of all spans of a frame, counted by pixels and sorted."""
    width = regions[0].size[1]
    row, left, right = numpy.concatenate([region.spans for region in regions]).T
    owner = numpy.repeat(numpy.arange(len(regions)), [len(region.spans) for region in regions])
    order = numpy.argsort(row * width + left)
    return (row * width + left)[order], (row * width + right)[order], owner[order]
