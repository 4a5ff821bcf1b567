import numpy
import pytest

import streamseg
from streamseg.regions.regions import find_regions
from streamseg.regions.tracking import RegionTracker, overlaps

CLASSES = streamseg.Classes(("road", "car", "bus"), ((0, 0, 0), (1, 1, 1), (2, 2, 2)))


def frame(*boxes, size=(40, 60)):
    """Regions of rectangles: label, left, top, right, bottom."""
    labels = numpy.full(size, 255, dtype=numpy.uint8)
    for label, left, top, right, bottom in boxes:
        labels[top:bottom, left:right] = label
    return find_regions(labels, CLASSES, min_area=1)


def ids(tracker, *boxes):
    return {region.box: region.id for region in tracker.update(frame(*boxes))}


def test_a_region_that_moves_keeps_its_id():
    tracker = RegionTracker()
    for step in range(12):
        found = ids(tracker, (1, 2 * step, 10, 2 * step + 10, 20), (1, 40 - step, 30, 50 - step, 36))
        assert found == {(2 * step, 10, 2 * step + 10, 20): 1, (40 - step, 30, 50 - step, 36): 2}


def test_a_region_of_another_class_at_the_same_place_is_a_new_one():
    tracker = RegionTracker()
    assert ids(tracker, (1, 0, 0, 10, 10)) == {(0, 0, 10, 10): 1}
    assert ids(tracker, (2, 0, 0, 10, 10)) == {(0, 0, 10, 10): 2}


def test_the_largest_part_of_a_region_that_splits_keeps_the_id():
    tracker = RegionTracker()
    ids(tracker, (1, 0, 0, 20, 10))
    assert ids(tracker, (1, 0, 0, 5, 10), (1, 8, 0, 20, 10)) == {(0, 0, 5, 10): 2, (8, 0, 20, 10): 1}


def test_a_missing_region_keeps_its_id_for_as_many_frames_as_the_patience():
    for missing, same in ((3, True), (4, False)):
        tracker = RegionTracker(patience=3)
        ids(tracker, (1, 0, 0, 10, 10))
        for _ in range(missing):
            ids(tracker)
        assert (ids(tracker, (1, 2, 0, 12, 10)) == {(2, 0, 12, 10): 1}) == same


def test_an_id_is_never_given_again():
    tracker = RegionTracker(patience=1)
    seen = [ids(tracker, (1, 12 * (i % 5), 0, 12 * (i % 5) + 9, 10)) for i in range(20)]
    given = [id for found in seen for id in found.values()]
    assert len({*given}) == 20


def test_overlaps_are_those_of_the_masks():
    dice = numpy.random.default_rng(0)
    for _ in range(10):
        left, right = (
            find_regions(dice.integers(0, 3, (12, 15)).astype(numpy.uint8), CLASSES, min_area=2) for _ in range(2)
        )
        expected = [
            (i, j, common)
            for i, one in enumerate(left)
            for j, other in enumerate(right)
            if (common := (one.mask() & other.mask()).sum())
        ]
        assert overlaps(left, right) == expected


def test_frames_of_another_size_start_anew():
    tracker = RegionTracker()
    tracker.update(frame((1, 0, 0, 10, 10)))
    assert [region.id for region in tracker.update(frame((1, 0, 0, 10, 10), size=(40, 50)))] == [2]


@pytest.mark.parametrize("options", [{"min_iou": 0}, {"min_iou": 1.5}, {"patience": 0}])
def test_bad_limits_are_refused(options):
    with pytest.raises(ValueError, match="expected a"):
        RegionTracker(**options)
