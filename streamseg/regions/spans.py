"""Labels as horizontal spans of one class, and the spans that are connected.

A frame of 1024 x 2048 has two million pixels and about twenty thousand spans, so that numpy is fast enough for what is
computed from spans. The spans of a frame cover it without gaps, in the order of its pixels.

Shapes: H height, W width, S spans.
"""

from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

Ints = NDArray[numpy.int64]


@dataclass(frozen=True, eq=False)
class Spans:
    """The spans of a frame: pixels start to end - 1, counted from the upper left corner, row by row."""

    start: Ints
    end: Ints
    label: NDArray[numpy.uint8]
    width: int
    """The width of the frame."""


def find_spans(labels: NDArray[numpy.uint8]) -> Spans:
    """Return the spans of labels (H, W)."""
    width = labels.shape[1]
    flat = labels.reshape(-1)
    begins = numpy.empty(-(-flat.size // 8) * 8, dtype=bool)
    numpy.not_equal(flat[1:], flat[:-1], out=begins[1 : flat.size])
    begins[: flat.size : width] = True
    begins[flat.size :] = False
    # few pixels begin a span: eight at a time are skipped, which takes half of the time of flatnonzero(begins)
    eights = numpy.flatnonzero(begins.view(numpy.uint64) != 0)
    found = numpy.flatnonzero(begins.reshape(-1, 8).take(eights, axis=0))
    start = 8 * eights.take(found // 8) + found % 8
    end = numpy.append(start[1:], flat.size)
    return Spans(start, end, flat.take(start), width)


def connect_spans(spans: Spans, connectivity: int) -> tuple[Ints, int]:
    """Return the number of the component of each span (S,), and how many components there are.

    Spans are connected if they have the same label and pixels that share an edge; with a connectivity of 8, a corner.
    Components are numbered by their first pixel, from 0.
    """
    upper, lower = touching_spans(spans, connectivity)
    # nearly all spans touch one above: a forest, whose trees are found first
    parent = numpy.arange(len(spans.start))
    parent[lower] = upper
    tree, count = number_trees(parent)
    # what remains are some hundreds of places where two trees meet
    upper, lower = tree.take(upper), tree.take(lower)
    parent = numpy.arange(count)
    while (apart := upper != lower).any():
        upper, lower = upper.compress(apart), lower.compress(apart)
        numpy.minimum.at(parent, numpy.maximum(upper, lower), numpy.minimum(upper, lower))
        parent = find_roots(parent)
        upper, lower = parent.take(upper), parent.take(lower)
    component, count = number_trees(parent)
    return component.take(tree), count


def touching_spans(spans: Spans, connectivity: int) -> tuple[Ints, Ints]:
    """Return the pairs of spans of one label in neighbouring rows that touch, the upper ones and the lower ones."""
    start, width = spans.start, spans.width
    second_row = int(numpy.searchsorted(start, width))
    begin = start[second_row:]
    if not len(begin):
        return begin, begin
    # those above the first pixel of each span, and, since the spans of a row have no gaps, above its last pixel
    first = numpy.searchsorted(start, begin - width, side="right") - 1
    begins_alike = start.take(first) == begin - width
    last = numpy.append((first - begins_alike)[1:], int(numpy.searchsorted(start, begin[-1] // width * width)) - 1)
    if connectivity == 8:
        at_left = begin % width == 0
        at_right = numpy.append(at_left[1:], True)
        first, last = first - (begins_alike & ~at_left), numpy.where(at_right, last, numpy.append(first[1:], 0))
    count = last - first + 1
    lower = numpy.repeat(numpy.arange(second_row, len(start)), count)
    # first, first + 1, …, last of each lower span
    upper = numpy.arange(len(lower)) + numpy.repeat(first - (numpy.cumsum(count) - count), count)
    alike = spans.label.take(upper) == spans.label.take(lower)
    return upper.compress(alike), lower.compress(alike)


def number_trees(parent: Ints) -> tuple[Ints, int]:
    """Return the number of the tree of each node of a forest, by the order of the roots, and how many there are."""
    root = find_roots(parent)
    number = numpy.cumsum(root == numpy.arange(len(root)))
    return number.take(root) - 1, int(number[-1])


def find_roots(parent: Ints) -> Ints:
    """Return the root of each node of a forest, in which a parent comes before its children."""
    while True:
        grandparent = parent.take(parent)
        if numpy.array_equal(grandparent, parent):
            return parent
        parent = grandparent
