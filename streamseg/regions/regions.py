"""Find the connected regions of each class in labels.

Coordinates are x to the right and y down, in pixels from the upper left corner of the frame; the pixel in column 3 and
row 5 covers x from 3 to 4 and y from 5 to 6.

Shapes: H height, W width, S spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from streamseg.checks import check_choice, check_count
from streamseg.classes import IGNORE, Classes
from streamseg.regions.defaults import MIN_AREA
from streamseg.regions.spans import Ints, Spans, connect_spans, find_spans

if TYPE_CHECKING:
    from torch import Tensor

Box = tuple[int, int, int, int]
Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Region:
    """A connected region of one class."""

    label: int
    """The number of its class."""
    name: str
    """The name of its class."""
    area: int
    """How many pixels it has."""
    box: Box
    """Left, top, right and bottom; right and bottom are outside."""
    centroid: Point
    """The mean x and y of its pixels."""
    size: tuple[int, int]
    """Height and width of the frame."""
    spans: NDArray[numpy.int64] = field(repr=False)
    """Its pixels (S, 3): row, first column and column after the last of each horizontal span, from top to bottom."""
    connectivity: int = 4
    id: int | None = None
    """The number by which a RegionTracker knows it in every frame; None before."""

    def mask(self) -> NDArray[numpy.bool_]:
        """Return which pixels of the frame belong to it, (H, W)."""
        height, width = self.size
        rows, left, right = self.spans.T
        steps = numpy.zeros(height * width + 1, dtype=numpy.int8)
        steps[rows * width + left] = 1
        # two spans of a region in one row never touch, but one can end where the next row's begins
        numpy.add.at(steps, rows * width + right, numpy.int8(-1))
        return numpy.cumsum(steps[:-1], dtype=numpy.int8).astype(bool).reshape(height, width)


def find_regions(
    labels: "Tensor | NDArray[numpy.uint8]",
    classes: Classes,
    *,
    min_area: int = MIN_AREA,
    only: Sequence[str] = (),
    connectivity: int = 4,
) -> list[Region]:
    """Return the connected regions of labels (H, W), in the order of their first pixels from the upper left corner.

    Pixels without a class belong to no region.

    Args:
        labels: Labels, such as segment returns.
        classes: The classes of the labels.
        min_area: Smaller regions are left out; 1 for all.
        only: The names of the classes whose regions are wanted; all if empty.
        connectivity: 4 if pixels of a region must share an edge, 8 if a corner is sufficient.
    """
    check_count("min_area", min_area)
    check_choice("connectivity", connectivity, (4, 8))
    wanted = wanted_labels(classes, only)
    array = to_label_array(labels)
    if not array.size:
        return []
    spans = find_spans(array)
    component, count = connect_spans(spans, connectivity)
    area = numpy.bincount(component, spans.end - spans.start, minlength=count).astype(numpy.int64)
    label = numpy.empty(count, dtype=numpy.uint8)
    label[component] = spans.label
    kept = (area >= min_area) & wanted[label]
    pixels, first, after = sort_spans(spans, component, kept)
    if not len(pixels):
        return []
    size = array.shape[0], array.shape[1]
    columns: tuple[NDArray, ...] = (label[kept], area[kept], *measure(pixels, first, after, area[kept]), first, after)
    return [
        Region(kind, classes.names[kind], pixel_count, tuple(box), (x, y), size, pixels[begin:end], connectivity)
        for kind, pixel_count, x, y, *box, begin, end in zip(*(column.tolist() for column in columns), strict=True)
    ]


def sort_spans(spans: Spans, component: Ints, kept: NDArray[numpy.bool_]) -> tuple[Ints, Ints, Ints]:
    """Return the spans (S, 3) of the kept components, one component after the other, and where each begins and ends."""
    chosen = numpy.flatnonzero(kept.take(component))
    number = (numpy.cumsum(kept) - 1).take(component.take(chosen))
    # stable: the spans of a region stay in the order of its pixels; numbers of 16 bits are sorted five times as fast
    order = numpy.argsort(number.astype(numpy.uint16 if kept.sum() <= 2**16 else numpy.int64), kind="stable")
    chosen = chosen.take(order)
    row, left = numpy.divmod(spans.start.take(chosen), spans.width)
    right = spans.end.take(chosen) - row * spans.width
    after = numpy.cumsum(numpy.bincount(number, minlength=kept.sum()))
    return numpy.stack([row, left, right], axis=1), numpy.append(0, after[:-1]), after


def measure(pixels: Ints, first: Ints, after: Ints, area: Ints) -> tuple[NDArray, ...]:
    """Return the centroids (x, y) and the boxes (left, top, right, bottom) of regions, whose spans are sorted."""
    row, left, right = numpy.ascontiguousarray(pixels.T)
    length = right - left
    return (
        numpy.add.reduceat((left + right) * length, first) / (2 * area),
        numpy.add.reduceat(row * length, first) / area + 0.5,
        numpy.minimum.reduceat(left, first),
        row[first],
        numpy.maximum.reduceat(right, first),
        row[after - 1] + 1,
    )


def wanted_labels(classes: Classes, only: Sequence[str]) -> NDArray[numpy.bool_]:
    """Return whether regions of each label are wanted, (256,)."""
    if isinstance(only, str):  # whose letters would be taken for names
        raise ValueError(f"only is {only!r:.80}; expected a list of classes, such as [{only!r:.80}].")
    wanted = numpy.zeros(IGNORE + 1, dtype=bool)
    wanted[[classes.find(name) for name in only] if only else slice(len(classes))] = True
    return wanted


def to_label_array(labels: "Tensor | NDArray") -> NDArray[numpy.uint8]:
    """Return labels (H, W) as an array of bytes."""
    # not by its type, for which torch would have to be imported
    array = labels if isinstance(labels, numpy.ndarray) or not hasattr(labels, "cpu") else labels.detach().cpu().numpy()
    if not isinstance(array, numpy.ndarray) or array.ndim != 2 or array.dtype.kind not in "iu":
        kind = f"{array.dtype} of shape {array.shape}" if isinstance(array, numpy.ndarray) else type(array).__name__
        raise ValueError(f"The labels are {kind}; expected integers (H, W), as streamseg.segment returns.")
    if array.dtype != numpy.uint8 and array.size and not 0 <= array.min() <= array.max() <= IGNORE:
        raise ValueError(f"The labels are {array.min()} to {array.max()}; expected 0 to {IGNORE}.")
    return numpy.ascontiguousarray(array, dtype=numpy.uint8)
