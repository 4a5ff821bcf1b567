from pathlib import Path

import numpy
import pytest

import streamseg
from streamseg.regions.spans import connect_spans, find_spans

ndimage = pytest.importorskip("scipy.ndimage", reason="scipy is not installed: pip install 'streamseg[train]'")

SAMPLES = Path(__file__).parents[2] / "samples"


def components(labels, connectivity):
    """The number of the component of each pixel, and how many there are."""
    spans = find_spans(labels)
    component, count = connect_spans(spans, connectivity)
    return numpy.repeat(component, spans.end - spans.start).reshape(labels.shape), count


def scipy_components(labels, connectivity):
    """The same by scipy, class by class."""
    numbers, count = numpy.zeros(labels.shape, dtype=int), 0
    for label in numpy.unique(labels):
        found, more = ndimage.label(labels == label, numpy.ones((3, 3)) if connectivity == 8 else None)
        numbers[found > 0] = found[found > 0] + count
        count += more
    return numbers, count


def blobs(seed, size=(120, 160), classes=6):
    """Labels like those of a network: smooth areas with ragged edges and specks."""
    dice = numpy.random.default_rng(seed)
    scores = ndimage.gaussian_filter(dice.normal(size=(classes, *size)), (0, 4, 4)) + 0.02 * dice.normal(size=size)
    labels = scores.argmax(axis=0).astype(numpy.uint8)
    labels[dice.random(size) < 0.01] = 255
    return labels


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("seed", range(20))
def test_the_components_are_those_of_scipy(connectivity, seed):
    dice = numpy.random.default_rng(seed)
    noise = dice.integers(0, dice.integers(1, 5), dice.integers(1, 24, 2)).astype(numpy.uint8)
    for labels in (noise, noise[:1], noise[:, :1], blobs(seed)):
        ours, count = components(labels, connectivity)
        theirs, expected = scipy_components(labels, connectivity)
        assert count == expected
        assert len(numpy.unique(numpy.stack([ours, theirs]).reshape(2, -1), axis=1).T) == count


@pytest.mark.parametrize("connectivity", [4, 8])
def test_the_components_of_real_labels_are_those_of_scipy(connectivity):
    frame = streamseg.read_image(SAMPLES / "suburb-1.jpg")[:, ::6, ::6].contiguous()
    labels = streamseg.segment(frame).numpy()
    _, count = components(labels, connectivity)
    assert count == scipy_components(labels, connectivity)[1] > 10


def test_components_are_numbered_by_their_first_pixels():
    labels = numpy.array([[1, 1, 0], [0, 1, 0], [0, 1, 1]], dtype=numpy.uint8)
    assert components(labels, 4)[0].tolist() == [[0, 0, 1], [2, 0, 1], [2, 0, 0]]


def test_a_spiral_is_one_component():
    text = ["1111111", "0000001", "1111101", "1000101", "1011101", "1000001", "1111111"]
    labels = numpy.array([[int(letter) for letter in line] for line in text], dtype=numpy.uint8)
    found, count = components(labels, 4)
    assert count == 2
    assert numpy.array_equal(found == 0, labels == 1)
