"""Annotated pictures as the tools' exports have them, and the labels that they become.

Coordinates are x to the right and y down, in pixels from the upper left corner of the picture. A pixel is inside a
polygon if its centre is.

Shapes: H height, W width, N points.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray

from streamseg.classes import IGNORE, Colour
from streamseg.regions.polygons import Points, rasterise

IGNORED = "__ignore__"
"""The class name of shapes whose pixels belong to no class, whatever the background is; Labelme's word."""


@dataclass(frozen=True, eq=False)
class Polygon:
    """An object of one class as polygons."""

    name: str
    """The name of its class."""
    parts: tuple[tuple[Points, ...], ...]
    """Its parts, each an outline and its holes as points (N, 2), x and y; what two rings cover is a hole."""

    def area(self) -> float:
        """Return its area in pixels, holes left out."""
        return sum(ring_area(outline) - sum(map(ring_area, holes)) for outline, *holes in self.parts)


@dataclass(frozen=True, eq=False)
class Mask:
    """An object of one class as pixels."""

    name: str
    """The name of its class."""
    pixels: NDArray[numpy.bool_]
    """Which pixels of a box belong to it, (H, W)."""
    left: int = 0
    """The column of the picture where the box begins."""
    top: int = 0
    """The row of the picture where the box begins."""

    def area(self) -> float:
        """Return how many pixels it has."""
        return float(numpy.count_nonzero(self.pixels))


Shape = Polygon | Mask


@dataclass(frozen=True, eq=False)
class AnnotatedPicture:
    """A picture with the objects that were drawn on it."""

    image: Path
    """The file of the picture."""
    name: str
    """What to call its files, without a suffix."""
    size: tuple[int, int]
    """Height and width."""
    shapes: tuple[Shape, ...]
    """Its objects; later ones are over earlier ones."""
    origin: Path
    """The file that has the objects."""
    subset: str = ""
    """The part of the export that it belongs to, such as train."""
    other_kinds: tuple[str, ...] = ()
    """The kind of each object without an area, such as box, which labels cannot hold."""


@dataclass(frozen=True)
class Export:
    """What a tool wrote."""

    classes: Mapping[str, Colour | None]
    """The names of its classes in order, with their colours where the export has some."""
    subsets: Sequence[str]
    """The names of its parts."""
    pictures: Callable[[], Iterator[AnnotatedPicture]]
    """Reads the annotated pictures one by one."""
    count: int
    """How many pictures there are."""


def ring_area(ring: Points) -> float:
    """Return the area of a ring."""
    x, y = ring.T
    return float(abs(x @ numpy.roll(y, -1) - y @ numpy.roll(x, -1)) / 2)


def to_points(values: object) -> Points:
    """Return points (N, 2) from a list of pairs or of numbers; a ValueError if they are none."""
    points = numpy.asarray(values, dtype=numpy.float64)
    points = points.reshape(-1, 2) if points.ndim <= 1 else points
    if points.ndim != 2 or points.shape[1] != 2 or not numpy.isfinite(points).all():
        raise ValueError("its points are no pairs of numbers")
    return points


def to_polygon(name: str, *parts: Sequence[object]) -> Polygon | None:
    """Return a polygon from its parts, each an outline and its holes; None if no outline has three points."""
    rings = []
    for outline, *holes in parts:
        points = to_points(outline)
        if len(points) > 2:
            rings.append((points, *(hole for hole in map(to_points, holes) if len(hole) > 2)))
    return Polygon(name, tuple(rings)) if rings else None


def larger_first(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """Return shapes without an order of their own so that smaller ones are over larger ones."""
    return tuple(sorted(shapes, key=lambda shape: -shape.area()))


def draw_labels(picture: AnnotatedPicture, number_of: Mapping[str, int], unlabelled: int) -> NDArray[numpy.uint8]:
    """Return the labels (H, W) of an annotated picture.

    Args:
        picture: The picture.
        number_of: The label of each class; shapes of other classes count as unlabelled.
        unlabelled: The label of pixels without a shape.
    """
    labels = numpy.full(picture.size, unlabelled, dtype=numpy.uint8)
    for shape in picture.shapes:
        label = IGNORE if shape.name == IGNORED else number_of.get(shape.name, unlabelled)
        if isinstance(shape, Mask):
            draw_mask(labels, shape.pixels, shape.left, shape.top, label)
        else:
            for rings in shape.parts:
                draw_rings(labels, rings, label)
    return labels


def draw_mask(labels: NDArray[numpy.uint8], pixels: NDArray[numpy.bool_], left: int, top: int, label: int) -> None:
    """Set the label of a mask's pixels that are inside of the picture."""
    x, y = max(left, 0), max(top, 0)
    inside = pixels[y - top :, x - left :]
    place = labels[y : y + inside.shape[0], x : x + inside.shape[1]]
    place[inside[: place.shape[0], : place.shape[1]]] = label


def draw_rings(labels: NDArray[numpy.uint8], rings: Sequence[Points], label: int) -> None:
    """Set the label of the pixels inside of rings; only the box around them is looked at."""
    height, width = labels.shape
    left, top = (int(edge) for edge in numpy.clip(numpy.floor(rings[0].min(axis=0)), 0, (width, height)))
    right, bottom = (int(edge) for edge in numpy.clip(numpy.ceil(rings[0].max(axis=0)), 0, (width, height)))
    if left < right and top < bottom:
        inside = rasterise([ring - (left, top) for ring in rings], bottom - top, right - left)
        labels[top:bottom, left:right][inside] = label
