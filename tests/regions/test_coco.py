import numpy
import pytest

import streamseg
from streamseg.regions.coco import counts_to_string, decode_rle, encode_rle, region_rle, string_to_counts
from streamseg.regions.regions import find_regions

CLASSES = streamseg.Classes(("road", "car"), ((0, 0, 0), (1, 1, 1)))


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        # 6 is below 16: one character, 48 + 6
        ([6], "6"),
        # 16 needs a second character, since bit 4 is the sign: 48 + 32 + 16, 48
        ([16], "`0"),
        # 1024 = 1 · 32² + 0 · 32 + 0, the lowest five bits first: 48 + 32, 48 + 32, 48 + 1
        ([0, 1024], "0PP1"),
        # the fourth is the difference 3 - 6 = -3, whose lowest five bits are 29: 48 + 29 is M
        ([0, 6, 1, 3], "061M"),
        # differences 2 - 1, 1 - 1, 3 - 2, 1 - 1
        ([0, 1, 1, 2, 1, 3, 1], "0111010"),
        # the fourth is 5 - 100 = -95 = 1 - 3 · 32: 48 + 32 + 1, and -3 as 29
        ([7, 100, 9, 5], "7T39QM"),
    ],
)
def test_counts_become_the_strings_worked_out_by_hand(counts, text):
    assert counts_to_string(counts) == text
    assert string_to_counts(text) == counts


def test_pixels_are_counted_by_columns_beginning_outside():
    mask = numpy.array([[0, 1, 1], [0, 0, 1]], dtype=bool)
    assert encode_rle(mask) == {"size": [2, 3], "counts": counts_to_string([2, 1, 1, 2])}
    assert encode_rle(~mask) == {"size": [2, 3], "counts": counts_to_string([0, 2, 1, 1, 2])}
    assert encode_rle(numpy.zeros((2, 3), dtype=bool))["counts"] == "6"


@pytest.mark.parametrize("seed", range(30))
def test_a_mask_comes_back_bit_for_bit(seed):
    dice = numpy.random.default_rng(seed)
    height, width = dice.integers(1, 60, 2)
    mask = dice.random((height, width)) < dice.random()
    mask[:, : width // 3] = mask[0, 0]  # a long run
    rle = encode_rle(mask)
    assert numpy.array_equal(decode_rle(rle), mask)
    assert numpy.array_equal(decode_rle({**rle, "counts": rle["counts"].encode()}), mask)
    assert numpy.array_equal(decode_rle({**rle, "counts": string_to_counts(rle["counts"])}), mask)


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("seed", range(30))
def test_the_encoding_of_a_region_is_that_of_its_mask(seed, connectivity):
    dice = numpy.random.default_rng(seed)
    height, width = dice.integers(1, 60, 2)
    labels = (dice.random((height, width)) < dice.random()).astype(numpy.uint8)
    labels[:, : width // 3] = labels[0, 0]  # whole columns
    regions = find_regions(labels, CLASSES, min_area=1, connectivity=connectivity)
    assert regions
    for region in regions:
        assert region_rle(region) == encode_rle(region.mask())


def test_the_encoding_of_a_region_needs_no_mask(monkeypatch):
    (region,) = find_regions(numpy.zeros((1024, 2048), dtype=numpy.uint8), CLASSES)
    monkeypatch.delattr(type(region), "mask")
    assert region_rle(region) == {"size": [1024, 2048], "counts": counts_to_string([0, 1024 * 2048])}


@pytest.mark.parametrize(
    "rle",
    [
        {},
        {"size": [2, 2]},
        {"size": [2, 2], "counts": "9"},
        {"size": [2, 2], "counts": [-1, 5]},
        {"size": [2, 2], "counts": "P"},
        {"size": [2, 2], "counts": "\x00"},
        {"size": [2], "counts": "4"},
        {"size": [2, 2], "counts": [[4]]},
    ],
)
def test_what_is_no_encoding_is_refused(rle):
    with pytest.raises(ValueError, match="is no run-length encoding of COCO; expected size"):
        decode_rle(rle)


def test_a_mask_needs_height_and_width():
    with pytest.raises(ValueError, match=r"The mask has the shape \(4,\); expected \(H, W\)."):
        encode_rle(numpy.zeros(4, dtype=bool))
