import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from waiting import PATIENCE

import streamseg
from streamseg.regions import writing
from streamseg.regions.coco import decode_rle
from streamseg.regions.polygons import rasterise
from streamseg.regions.regions import find_regions
from streamseg.regions.tracking import RegionTracker
from streamseg.regions.writing import FrameRegions, holds_regions, pick_format, region_writer

CLASSES = streamseg.Classes(("road", "car"), ((0, 0, 0), (1, 1, 1)))


def frames():
    """Two frames of a car on a road, which has a hole where the car is."""
    tracker = RegionTracker()
    for i in range(2):
        labels = numpy.zeros((20, 30), dtype=numpy.uint8)
        labels[5:12, 8 + i : 18 + i] = 1
        regions = tracker.update(find_regions(labels, CLASSES))
        yield FrameRegions("drive", "drive", i, i / 25, (20, 30), regions)


def written(form):
    file = io.StringIO()
    with region_writer(file, form, CLASSES) as write:
        for frame in frames():
            write(frame)
    return file.getvalue()


def masks(rings_of_regions, size=(20, 30)):
    return [rasterise([numpy.array(ring) for ring in rings], *size).tolist() for rings in rings_of_regions]


EXPECTED = [region.mask().tolist() for frame in frames() for region in frame.regions]


def test_lines_have_a_frame_each_with_its_regions():
    lines = [json.loads(line) for line in written("lines").splitlines()]
    assert [(line["source"], line["frame"], line["seconds"], line["size"]) for line in lines] == [
        ("drive", 0, 0.0, [20, 30]),
        ("drive", 1, 0.04, [20, 30]),
    ]
    regions = [region for line in lines for region in line["regions"]]
    assert [(region["id"], region["class"], region["area"]) for region in regions] == 2 * [
        (1, "road", 530),
        (2, "car", 70),
    ]
    assert [region["box"] for region in regions] == [[0, 0, 30, 20], [8, 5, 18, 12], [0, 0, 30, 20], [9, 5, 19, 12]]
    assert regions[1]["centroid"] == [13.0, 8.5]
    assert [len(region["polygon"]) for region in regions] == [2, 1, 2, 1]
    assert masks(region["polygon"] for region in regions) == EXPECTED


def test_coco_has_the_exact_masks_and_what_its_tools_ask_for():
    content = json.loads(written("coco"))
    assert content["categories"] == [{"id": 1, "name": "road"}, {"id": 2, "name": "car"}]
    assert [(image["id"], image["file_name"], image["height"], image["width"]) for image in content["images"]] == [
        (1, "drive", 20, 30),
        (2, "drive", 20, 30),
    ]
    found = content["annotations"]
    assert [decode_rle(annotation["segmentation"]).tolist() for annotation in found] == EXPECTED
    assert masks(annotation["polygon"] for annotation in found) == EXPECTED
    assert [annotation["id"] for annotation in found] == [1, 2, 3, 4]
    assert [annotation["image_id"] for annotation in found] == [1, 1, 2, 2]
    assert [annotation["category_id"] for annotation in found] == [1, 2, 1, 2]
    assert [annotation["track_id"] for annotation in found] == [1, 2, 1, 2]
    assert found[1]["bbox"] == [8, 5, 10, 7]
    assert (found[1]["area"], found[1]["iscrowd"]) == (70, 0)


def test_geojson_has_closed_rings_and_properties():
    content = json.loads(written("geojson"))
    assert content["type"] == "FeatureCollection"
    rings = [feature["geometry"]["coordinates"] for feature in content["features"]]
    assert all(ring[0] == ring[-1] for polygon in rings for ring in polygon)
    assert masks([ring[:-1] for ring in polygon] for polygon in rings) == EXPECTED
    properties = content["features"][3]["properties"]
    assert (properties["id"], properties["class"], properties["frame"], properties["source"]) == (2, "car", 1, "drive")


@pytest.mark.parametrize("form", ["lines", "coco", "geojson"])
def test_a_file_of_regions_is_recognised(form, tmp_path):
    path = tmp_path / "regions"
    path.write_text(written(form))
    assert holds_regions(path)
    path.write_text('{"type": "FeatureCollection", "features": []}')
    assert not holds_regions(path)


@pytest.mark.parametrize("form", ["coco", "geojson"])
def test_a_file_without_frames_is_valid(form):
    file = io.StringIO()
    with region_writer(file, form, CLASSES):
        pass
    assert json.loads(file.getvalue())["annotations" if form == "coco" else "features"] == []


def test_the_format_is_that_of_the_name_or_the_option():
    names = {"a.jsonl": "lines", "a.json": "lines", "a.COCO.json": "coco", "a.geojson": "geojson", "-": "lines"}
    assert {name: pick_format(Path(name)) for name in names} == names
    assert pick_format(Path("a.json"), "coco") == "coco"
    with pytest.raises(ValueError, match="--regions-format is 'xml'; choose one of: 'coco', 'geojson', 'lines'."):
        pick_format(Path("a.json"), "xml")


@pytest.mark.parametrize("form", ["lines", "coco", "geojson"])
def test_frames_of_several_threads_are_computed_at_the_same_time(form, monkeypatch):
    together = threading.Barrier(2)
    compute = writing.region_polygons

    def wait_and_compute(*given):
        together.wait(PATIENCE)  # breaks if one of the threads keeps the other away
        return compute(*given)

    monkeypatch.setattr(writing, "region_polygons", wait_and_compute)
    file = io.StringIO()
    with region_writer(file, form, CLASSES) as write, ThreadPoolExecutor(2) as pool:
        list(pool.map(write, frames()))
    if form == "lines":
        assert sorted(json.loads(line)["frame"] for line in file.getvalue().splitlines()) == [0, 1]
    elif form == "geojson":
        assert len(json.loads(file.getvalue())["features"]) == 4
    else:
        found = json.loads(file.getvalue())["annotations"]
        assert [(entry["id"], entry["image_id"]) for entry in found] == [(1, 1), (2, 1), (3, 2), (4, 2)]


@pytest.mark.parametrize("form", ["lines", "coco", "geojson"])
def test_no_two_threads_write_at_once(form):
    class File(io.StringIO):
        def write(self, text):
            assert started == [] or write.__self__.lock.locked()
            return super().write(text)

    started = []
    with region_writer(File(), form, CLASSES) as write:
        started.append(True)
        for frame in frames():
            write(frame)
        started.clear()
