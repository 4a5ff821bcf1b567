from dataclasses import replace

import numpy
import pytest

import streamseg
from streamseg.regions import detections as module

CLASSES = streamseg.Classes(("ground", "box", "disc"), ((0, 0, 0), (255, 0, 0), (0, 255, 0)))


@pytest.fixture
def labels():
    labels = numpy.zeros((20, 30), dtype=numpy.uint8)
    labels[2:8, 3:10] = 1
    labels[12:18, 20:29] = 2
    return labels


@pytest.fixture
def supervision():
    return pytest.importorskip(
        "supervision", reason="supervision is not installed: pip install 'streamseg[supervision]'"
    )


def test_detections_are_the_regions(supervision, labels):
    regions = streamseg.find_regions(labels, CLASSES, min_area=1)
    found = streamseg.to_detections(regions)
    assert isinstance(found, supervision.Detections)
    assert found.class_id.tolist() == [0, 1, 2]
    assert found.data["class_name"].tolist() == ["ground", "box", "disc"]
    assert found.xyxy.tolist() == [[0, 0, 30, 20], [3, 2, 10, 8], [20, 12, 29, 18]]
    for number, mask in enumerate(found.mask):
        assert numpy.array_equal(mask, labels == number)
    assert found.area.tolist() == [region.area for region in regions]
    assert found.tracker_id is None


def test_detections_of_tracked_regions_have_their_ids(supervision, labels):
    tracker = streamseg.RegionTracker()
    first = tracker.update(streamseg.find_regions(labels, CLASSES, min_area=1))
    second = tracker.update(streamseg.find_regions(numpy.roll(labels, 1, 1), CLASSES, min_area=1))
    found = streamseg.to_detections(second)
    assert found.tracker_id.tolist() == [region.id for region in second]
    assert {*found.tracker_id.tolist()} == {region.id for region in first}


def test_annotators_draw_detections(supervision, labels):
    found = streamseg.to_detections(streamseg.find_regions(labels, CLASSES, min_area=1, only=["disc"]))
    scene = numpy.zeros((20, 30, 3), dtype=numpy.uint8)
    drawn = supervision.MaskAnnotator(opacity=1.0).annotate(scene.copy(), found)
    assert numpy.array_equal(drawn.any(axis=2), labels == 2)


def test_no_regions_are_no_detections(supervision):
    assert len(streamseg.to_detections([])) == 0


def test_regions_of_several_frames_are_refused(supervision, labels):
    regions = streamseg.find_regions(labels, CLASSES, min_area=1)
    others = streamseg.find_regions(labels[:10], CLASSES, min_area=1)
    with pytest.raises(ValueError, match=r"^The regions are of frames of 2 sizes; expected those of one frame\.$"):
        streamseg.to_detections([*regions, *others])
    with pytest.raises(ValueError, match=r"^Some of the regions have an id, and some have none; "):
        streamseg.to_detections([replace(regions[0], id=4), *regions[1:]])


def test_without_the_package_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^to_detections needs supervision: pip install 'streamseg\[supervision\]'$"):
        streamseg.to_detections([])
