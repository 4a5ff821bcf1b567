"""Zones and lanes of a camera's picture, and the files that describe them.

Points are x and y: pixels of the frame, or fractions of its width and height.

Shapes: H height, W width.
"""

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy
from numpy.typing import NDArray

from streamseg.checks import check_choice
from streamseg.regions.polygons import Points, rasterise

Point = tuple[float, float]
EVENTS = ("enter", "leave", "cover", "uncover")
"""What can happen to a class in a zone."""


@dataclass(frozen=True)
class Zone:
    """A part of the picture in which classes are watched."""

    name: str
    points: tuple[Point, ...]
    classes: tuple[str, ...]
    """The classes to watch, each for itself."""
    present: float = 0.01
    """The share of the zone's pixels from which a class counts as present: it has entered."""
    share: float | None = None
    """The share of the zone's pixels from which a class counts as covering it; None if that does not matter."""
    events: tuple[str, ...] = EVENTS
    """The events to report."""
    debounce: float = 0.5
    """Seconds for which a change must last before it is an event."""
    units: str = ""
    """pixels or fractions; if not given, fractions where no number is above 1."""

    def __post_init__(self) -> None:
        check_names(f"Zone {self.name!r:.80}", classes=self.classes, events=self.events)
        check_shape(self.name, self.points, self.units, self.debounce)
        if not self.classes:
            raise ValueError(f"Zone {self.name!r:.80} watches no class: give classes, such as classes = ['Car'].")
        for name, number in (("present", self.present), ("share", self.share)):
            if number is not None and not 0 < number <= 1:
                raise ValueError(f"Zone {self.name!r:.80}: {name} is {number!r:.80}; expected above 0, up to 1.")
        for event in self.events:
            check_choice(f"Zone {self.name!r:.80}: an event", event, EVENTS)


@dataclass(frozen=True)
class Lane:
    """A part of the picture along which the free surface ahead is measured, from its lower end upwards."""

    name: str
    points: tuple[Point, ...]
    drivable: tuple[str, ...]
    """The classes on which one can drive."""
    row_share: float = 0.5
    """The share of drivable pixels from which a row of the lane counts as free."""
    min_distance: float | None = None
    """The free distance below which the lane counts as blocked, in metres if there are any, else in pixels."""
    image: tuple[Point, ...] = ()
    """Four points of the picture …"""
    ground: tuple[Point, ...] = ()
    """… and where they are on the ground, in metres: to the right and ahead."""
    debounce: float = 0.5
    """Seconds for which a change must last before it is an event."""
    units: str = ""
    """pixels or fractions; if not given, fractions where no number is above 1."""

    def __post_init__(self) -> None:
        check_names(f"Lane {self.name!r:.80}", drivable=self.drivable)
        check_shape(self.name, self.points, self.units, self.debounce)
        if not self.drivable:
            raise ValueError(f"Lane {self.name!r:.80} has no drivable class: give some, such as drivable = ['Road'].")
        if not 0 < self.row_share <= 1:
            raise ValueError(f"Lane {self.name!r:.80}: row_share is {self.row_share!r:.80}; expected above 0, up to 1.")
        if self.min_distance is not None and not self.min_distance > 0:
            raise ValueError(
                f"Lane {self.name!r:.80}: min_distance is {self.min_distance!r:.80}; expected a number above 0."
            )
        if (len(self.image), len(self.ground)) not in ((0, 0), (4, 4)):
            raise ValueError(
                f"Lane {self.name!r:.80} has {len(self.image)} points in image and {len(self.ground)} in ground; "
                "metres need four of each, or leave out both."
            )
        if self.image:
            ground_of_image(self.name, numpy.array(self.image), numpy.array(self.ground))


Area = TypeVar("Area", Zone, Lane)


def check_names(area: str, **entries: Sequence[str]) -> None:
    """Raise a ValueError if a list of names is one text, whose letters would be taken for names."""
    for entry, names in entries.items():
        if isinstance(names, str):
            raise ValueError(f"{area}: {entry} is {names!r:.80}; expected a list of texts, such as [{names!r:.80}].")


def check_shape(name: str, points: Sequence[Point], units: str, debounce: float) -> None:
    """Raise a ValueError if points are not the corners of a polygon."""
    if not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise ValueError(f"{name!r:.80} is not the name of a zone; expected printable text.")
    if len(points) < 3:
        raise ValueError(f"Zone {name!r:.80} has {len(points)} points; expected three or more, as [x, y].")
    check_choice(f"Zone {name!r:.80}: units", units, ("", "pixels", "fractions"))
    if not (debounce >= 0 and math.isfinite(debounce)):
        raise ValueError(f"Zone {name!r:.80}: debounce is {debounce!r:.80}; expected seconds, 0 or more.")
    check_fractions(name, points, units)
    edges = [(points[i], points[(i + 1) % len(points)]) for i in range(len(points))]
    if any(begin == end for begin, end in edges):
        raise ValueError(f"Zone {name!r:.80} has the same point twice in a row: leave out one.")
    for (i, one), (j, other) in combinations(enumerate(edges), 2):
        neighbours = j - i == 1 or j - i == len(edges) - 1
        if not neighbours and cross(*one, *other):
            raise ValueError(
                f"Zone {name!r:.80} crosses itself, between its points {i + 1} and {j + 1}: give the corners in order."
            )
    x, y = numpy.array(points).T
    if abs(x @ numpy.roll(y, -1) - y @ numpy.roll(x, -1)) < 1e-9:
        raise ValueError(f"Zone {name!r:.80} has no area: its points lie on a line.")


def check_fractions(name: str, points: Sequence[Point], units: str) -> None:
    """Raise a ValueError if points that must be fractions of the frame lie outside of it."""
    numbers = [number for point in points for number in point]
    # pixels are whole numbers, or reach further than two of them
    meant = not units and max(numbers) <= 2 and any(number % 1 for number in numbers)
    if not (units == "fractions" or meant):
        return
    for point in points:
        if not all(0 <= number <= 1 for number in point):
            hint = " For pixels give units = 'pixels'." if not units else ""
            raise ValueError(
                f"Zone {name!r:.80} has the point {list(point)}, outside of the frame: fractions of the width and "
                f"height are 0 to 1.{hint}"
            )


def cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Return whether the line from a to b meets the one from c to d."""

    def side(one: Point, two: Point, three: Point) -> float:
        return (two[0] - one[0]) * (three[1] - one[1]) - (two[1] - one[1]) * (three[0] - one[0])

    def between(one: Point, two: Point, three: Point) -> bool:
        return all(min(p, q) <= r <= max(p, q) for p, q, r in zip(one, two, three, strict=True))

    sides = side(a, b, c), side(a, b, d), side(c, d, a), side(c, d, b)
    if sides[0] * sides[1] < 0 and sides[2] * sides[3] < 0:
        return True
    touching = zip(sides, ((a, b, c), (a, b, d), (c, d, a), (c, d, b)), strict=True)
    return any(turn == 0 and between(*three) for turn, three in touching)


def ground_of_image(name: str, image: Points, ground: Points) -> NDArray[numpy.float64]:
    """Return the homography (3, 3) from four points of the picture to four on the ground, in front of the camera."""
    rows = []
    for (x, y), (right, ahead) in zip(image, ground, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -right * x, -right * y], [0, 0, 0, x, y, 1, -ahead * x, -ahead * y]]
    try:
        entries = numpy.linalg.solve(numpy.array(rows, dtype=numpy.float64), ground.reshape(-1))
    except numpy.linalg.LinAlgError:
        entries = numpy.full(8, numpy.nan)
    matrix = numpy.append(entries, 1.0).reshape(3, 3)
    # a point beyond the horizon has the other sign
    depth = (matrix @ numpy.stack([*image.T, numpy.ones(4)]))[2]
    if not (numpy.isfinite(matrix).all() and (numpy.sign(depth) == numpy.sign(depth[0])).all() and depth[0]):
        raise ValueError(
            f"Lane {name!r:.80}: no plane fits its image and ground points; give four corners of a rectangle on the "
            "ground in the same order, no three of them on a line."
        )
    return matrix * numpy.sign(depth[0])


def read_zones(path: str | Path) -> list[Zone | Lane]:
    """Read the zones and lanes of a TOML or JSON file, which has them under "zone" and "lane"."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No file of zones at {path}: check the path.")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is neither TOML nor JSON that can be read ({error}): correct it.") from None
    return parse_zones(content, str(path))


def parse_zones(content: object, origin: str) -> list[Zone | Lane]:
    """Return the zones and lanes of a file's content: a dictionary with lists of tables under "zone" and "lane".

    Args:
        origin: What errors call the file.
    """
    if not isinstance(content, dict) or not content or not content.keys() <= {"zone", "lane"}:
        raise ValueError(f"{origin} holds no zones: expected tables called [[zone]] or [[lane]], and nothing else.")
    for key, tables in content.items():
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ValueError(f"{origin}: {key} is no list of tables; write each as [[{key}]].")
    try:
        zones = [make_area(Zone, table) for table in content.get("zone", [])]
        lanes = [make_area(Lane, table) for table in content.get("lane", [])]
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    areas: list[Zone | Lane] = [*zones, *lanes]
    names = [area.name for area in areas]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{origin}: two zones are called {name!r:.80}; names must differ.")
    return areas


def zones_to_json(areas: Sequence[Zone | Lane]) -> dict[str, list[dict[str, Any]]]:
    """Return zones and lanes as the content of a JSON file that read_zones reads, without what is as by default."""
    tables: dict[str, list[dict[str, Any]]] = {"zone": [], "lane": []}
    for area in areas:
        values = {field.name: getattr(area, field.name) for field in fields(area) if changed(area, field)}
        tables["zone" if isinstance(area, Zone) else "lane"].append(values)
    return {kind: found for kind, found in tables.items() if found}


def changed(area: Zone | Lane, field: Field[Any]) -> bool:
    """Return whether an entry of a zone or lane is not as by default."""
    return field.default is MISSING or getattr(area, field.name) != field.default


def make_area(kind: type[Area], table: Mapping[str, Any]) -> Area:
    """Return the zone or lane of a table of a file."""
    name = f"{kind.__name__} {table.get('name', '')!r:.80}"
    known = {field.name: field for field in fields(kind)}
    required = [key for key, field in known.items() if field.default is MISSING]
    for key in table:
        if key not in known:
            raise ValueError(f"{name} has the unknown entry {key!r:.80}; known are {', '.join(known)}.")
    for key in required:
        if key not in table:
            raise ValueError(f"{name} has no entry {key!r}; needed are {', '.join(required)}.")
    values = {}
    for key, value in table.items():
        convert, expected = ENTRIES[key]
        try:
            values[key] = convert(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name}: {key} is {value!r:.80}; expected {expected}.") from None
    return kind(**values)


def to_text(value: Any) -> str:
    """Return a text of a file; a TypeError if it is none, as by the functions below."""
    if not isinstance(value, str):
        raise TypeError
    return value


def to_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError
    return float(value)


def to_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(to_text, value))


def to_points(value: Any) -> tuple[Point, ...]:
    return tuple((to_number(x), to_number(y)) for x, y in value)


ENTRIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    **dict.fromkeys(("name", "units"), (to_text, "text")),
    **dict.fromkeys(("classes", "drivable", "events"), (to_texts, "a list of texts")),
    **dict.fromkeys(("points", "image", "ground"), (to_points, "a list of points [x, y]")),
    **dict.fromkeys(("present", "share", "row_share", "min_distance", "debounce"), (to_number, "a number")),
}
"""How the entries of a file are read, and what is expected of them."""


@dataclass(frozen=True, eq=False)
class FittedArea:
    """A zone or lane in frames of one size."""

    outline: Points
    """In pixels."""
    top: int
    left: int
    mask: NDArray[numpy.bool_]
    """Which pixels belong to it, from top and left on."""
    pixels: int
    homography: NDArray[numpy.float64] | None
    """From pixels to metres on the ground."""

    def crop(self, labels: NDArray[numpy.uint8]) -> NDArray[numpy.uint8]:
        """Return the part of labels (H, W) that the mask is for."""
        height, width = self.mask.shape
        return labels[self.top : self.top + height, self.left : self.left + width]


@lru_cache(maxsize=256)
def fit_area(area: Zone | Lane, height: int, width: int) -> FittedArea:
    """Return a zone or lane in frames of a size; a ValueError if it reaches beyond them."""
    scale = numpy.array([width, height] if in_fractions(area) else [1, 1], dtype=numpy.float64)
    outline = numpy.array(area.points) * scale
    for (x, y), given in zip(outline, area.points, strict=True):
        if not (0 <= x <= width and 0 <= y <= height):
            raise ValueError(
                f"Zone {area.name!r:.80} has the point {list(given)}, outside of a frame that is {width} wide and "
                f"{height} high: correct it, or give fractions of the width and height."
            )
    inside = rasterise([outline], height, width)
    rows, columns = (numpy.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        raise ValueError(f"Zone {area.name!r:.80} covers no pixel of a frame of {height} x {width}: make it larger.")
    mask = inside[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()
    homography = None
    if isinstance(area, Lane) and area.image:
        homography = ground_of_image(area.name, numpy.array(area.image) * scale, numpy.array(area.ground))
        if (homography @ numpy.stack([*outline.T, numpy.ones(len(outline))]))[2].min() <= 0:
            raise ValueError(f"Lane {area.name!r:.80} reaches the horizon of its ground points: end it below.")
    return FittedArea(outline, int(rows[0]), int(columns[0]), mask, int(mask.sum()), homography)


def in_fractions(area: Zone | Lane) -> bool:
    """Return whether the points of a zone or lane are fractions of the frame."""
    if area.units:
        return area.units == "fractions"
    points = area.points + (area.image if isinstance(area, Lane) else ())
    return all(0 <= number <= 1 for point in points for number in point)
