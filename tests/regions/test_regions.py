import re

import numpy
import pytest
import torch

import streamseg
from streamseg.regions.regions import find_regions

CLASSES = streamseg.Classes(("road", "car", "sky"), ((0, 0, 0), (1, 1, 1), (2, 2, 2)))


def noise(seed, size=(20, 30)):
    return torch.from_numpy(numpy.random.default_rng(seed).integers(0, 3, size).astype(numpy.uint8))


def test_a_region_has_class_area_box_centroid_and_pixels():
    labels = torch.full((6, 9), 255, dtype=torch.uint8)
    labels[2:4, 3:8] = 1
    labels[4, 3] = 1
    (region,) = find_regions(labels, CLASSES, min_area=1)
    assert (region.label, region.name, region.area, region.box, region.size) == (1, "car", 11, (3, 2, 8, 5), (6, 9))
    assert region.centroid == pytest.approx(((2 * 27.5 + 3.5) / 11, (5 * 2.5 + 5 * 3.5 + 4.5) / 11))
    assert region.spans.tolist() == [[2, 3, 8], [3, 3, 8], [4, 3, 4]]
    assert numpy.array_equal(region.mask(), labels == 1)
    assert region.id is None


@pytest.mark.parametrize("connectivity", [4, 8])
def test_the_regions_of_all_sizes_are_a_partition_of_the_pixels_with_a_class(connectivity):
    labels = noise(0)
    labels[:3, :7] = 255
    covered = numpy.zeros(labels.shape, dtype=int)
    for region in find_regions(labels, CLASSES, min_area=1, connectivity=connectivity):
        mask = region.mask()
        rows, columns = numpy.nonzero(mask)
        covered += mask
        assert (labels.numpy()[mask] == region.label).all()
        assert region.area == mask.sum()
        assert region.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert region.centroid == pytest.approx((columns.mean() + 0.5, rows.mean() + 0.5))
    assert numpy.array_equal(covered, (labels != 255).numpy().astype(int))


def test_corners_connect_pixels_if_asked():
    labels = torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8)
    assert [region.area for region in find_regions(labels, CLASSES, min_area=1)] == [1, 1, 1, 1]
    assert [region.area for region in find_regions(labels, CLASSES, min_area=1, connectivity=8)] == [2, 2]


def test_small_regions_and_other_classes_are_left_out():
    labels = noise(1)
    every = find_regions(labels, CLASSES, min_area=1)
    large = find_regions(labels, CLASSES, min_area=5)
    assert [region.box for region in large] == [region.box for region in every if region.area >= 5]
    cars = find_regions(labels, CLASSES, min_area=5, only=["Car"])
    assert [region.box for region in cars] == [region.box for region in large if region.name == "car"]


def test_labels_may_be_arrays_and_wider_integers():
    labels = noise(2)
    boxes = [region.box for region in find_regions(labels, CLASSES, min_area=1)]
    for same in (labels.numpy(), labels.long(), labels.t().contiguous().t()):
        assert [region.box for region in find_regions(same, CLASSES, min_area=1)] == boxes


@pytest.mark.parametrize("labels", [torch.zeros(0, 4, dtype=torch.uint8), torch.full((4, 4), 255, dtype=torch.uint8)])
def test_labels_without_a_class_have_no_regions(labels):
    assert find_regions(labels, CLASSES) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"labels": torch.zeros(3, 4)}, "The labels are float32 of shape (3, 4); expected integers (H, W)"),
        ({"labels": torch.zeros(2, 3, 4).byte()}, "expected integers (H, W)"),
        ({"labels": [[0]]}, "The labels are list; expected integers"),
        ({"labels": torch.full((2, 2), 300)}, "The labels are 300 to 300; expected 0 to 255."),
        ({"labels": torch.zeros(3, 4, requires_grad=True)}, "The labels are float32 of shape (3, 4); expected"),
        ({"only": "car"}, "only is 'car'; expected a list of classes, such as ['car']."),
        ({"min_area": 0}, "min_area is 0; expected a whole number, 1 or more."),
        ({"connectivity": 6}, "connectivity is 6; choose one of: 4, 8."),
        ({"only": ["cat"]}, "No class is called 'cat'; there are road, car, sky."),
    ],
)
def test_bad_input_is_refused(given, sentence):
    given = {"labels": noise(0)} | given
    with pytest.raises(ValueError, match=re.escape(sentence)):
        find_regions(given.pop("labels"), CLASSES, **given)
