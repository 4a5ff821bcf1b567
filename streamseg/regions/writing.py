"""Write the regions of frames to a file: JSON lines, COCO or GeoJSON."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamseg.checks import check_choice
from streamseg.classes import Classes
from streamseg.io.line_thread import LineWriter
from streamseg.regions.coco import region_rle
from streamseg.regions.defaults import SUFFIXES
from streamseg.regions.polygons import TOLERANCE, Points, region_polygons
from streamseg.regions.regions import Region

LINES_START = '{"source": "'
GEOJSON_START = '{"type": "FeatureCollection", "generator": "streamseg"'
COCO_START = '{"info": {"description": "streamseg"}'
"""How the files of each format begin."""


@dataclass(frozen=True)
class FrameRegions:
    """A frame with its regions."""

    source: str
    name: str
    index: int
    seconds: float
    size: tuple[int, int]
    """Height and width."""
    regions: Sequence[Region]


def pick_format(path: Path, given: str = "") -> str:
    """Return the format of a file: the given one, or that of its name."""
    if given:
        check_choice("--regions-format", given, tuple(SUFFIXES))
        return given
    return next(name for name, suffix in SUFFIXES.items() if path.name.lower().endswith(suffix))


def holds_regions(path: Path) -> bool:
    """Return whether a file is empty or was written here."""
    with path.open("rb") as file:
        start = file.read(100)
    return not start or start.startswith(tuple(text.encode() for text in (LINES_START, GEOJSON_START, COCO_START)))


@contextmanager
def region_writer(
    file: LineWriter, form: str, classes: Classes, tolerance: float = TOLERANCE
) -> Iterator[Callable[[FrameRegions], None]]:
    """Give a function that writes the regions of a frame to a file, whose end is written at the end.

    Several threads may call it at once: they compute at the same time, and wait for each other only to write.
    """
    writers: dict[str, type[LinesFile | GeoJsonFile | CocoFile]] = {
        "coco": CocoFile,
        "geojson": GeoJsonFile,
        "lines": LinesFile,
    }
    writer = writers[form](file, classes, tolerance)
    yield writer.write
    writer.finish()


class LinesFile:
    """A line of JSON for each frame."""

    def __init__(self, file: LineWriter, classes: Classes, tolerance: float):
        self.file, self.tolerance, self.lock = file, tolerance, threading.Lock()

    def write(self, frame: FrameRegions) -> None:
        polygons = region_polygons(frame.regions, self.tolerance)
        regions = [
            {**describe(region), "polygon": [ring_to_list(ring) for ring in rings]}
            for region, rings in zip(frame.regions, polygons, strict=True)
        ]
        line = {
            "source": frame.source,
            "name": frame.name,
            "frame": frame.index,
            "seconds": frame.seconds,
            "size": frame.size,
            "regions": regions,
        }
        text = json.dumps(line) + "\n"
        with self.lock:
            self.file.write(text)

    def finish(self) -> None:
        """Write nothing more."""


class GeoJsonFile:
    """A feature for each region of each frame. Coordinates are pixels, x to the right and y down."""

    def __init__(self, file: LineWriter, classes: Classes, tolerance: float):
        self.file, self.tolerance, self.lock = file, tolerance, threading.Lock()
        self.features = JsonList(file)
        file.write(f'{GEOJSON_START}, "features": [')

    def write(self, frame: FrameRegions) -> None:
        features = []
        for region, rings in zip(frame.regions, region_polygons(frame.regions, self.tolerance), strict=True):
            coordinates = [[*points, points[0]] for points in map(ring_to_list, rings)]
            properties = {"source": frame.source, "name": frame.name, "frame": frame.index, "seconds": frame.seconds}
            feature = {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": coordinates},
                "properties": properties | describe(region),
            }
            features.append(json.dumps(feature))
        with self.lock:
            self.features.extend(features)

    def finish(self) -> None:
        self.file.write("\n]}\n")


class CocoFile:
    """An annotation for each region: its exact mask as run-length encoding, and its simplified polygon beside it.

    COCO's own polygons have no holes, so that the polygon, the outline first, is an entry of its own.
    """

    def __init__(self, file: LineWriter, classes: Classes, tolerance: float):
        self.file, self.tolerance, self.lock = file, tolerance, threading.Lock()
        self.images: list[dict[str, Any]] = []
        self.annotations = JsonList(file)
        categories = [{"id": i + 1, "name": name} for i, name in enumerate(classes.names)]
        file.write(f'{COCO_START}, "categories": {json.dumps(categories)}, "annotations": [')

    def write(self, frame: FrameRegions) -> None:
        height, width = frame.size
        image = {"file_name": frame.name, "height": height, "width": width}
        image |= {"source": frame.source, "frame": frame.index, "seconds": frame.seconds}
        annotations = []
        for region, rings in zip(frame.regions, region_polygons(frame.regions, self.tolerance), strict=True):
            left, top, right, bottom = region.box
            annotation = {
                "category_id": region.label + 1,
                "segmentation": region_rle(region),
                "area": region.area,
                "bbox": [left, top, right - left, bottom - top],
                "iscrowd": 0,
                "polygon": [ring_to_list(ring) for ring in rings],
                "track_id": region.id,
            }
            annotations.append(json.dumps(annotation).removeprefix("{"))
        with self.lock:  # only here the ids are known, which come first
            number, first = len(self.images) + 1, self.annotations.count + 1
            self.images.append({"id": number} | image)
            self.annotations.extend(
                [f'{{"id": {i}, "image_id": {number}, {text}' for i, text in enumerate(annotations, first)]
            )

    def finish(self) -> None:
        self.file.write(f'\n], "images": {json.dumps(self.images)}}}\n')


class JsonList:
    """The entries of a list in a JSON file, one a line; the caller writes its brackets."""

    def __init__(self, file: LineWriter):
        self.file = file
        self.count = 0

    def extend(self, entries: Sequence[str]) -> None:
        """Add entries, which are JSON already."""
        for entry in entries:
            self.file.write((",\n" if self.count else "\n") + entry)
            self.count += 1


def describe(region: Region) -> dict[str, Any]:
    """Return what is written about a region, apart from its outline."""
    return {
        "id": region.id,
        "class": region.name,
        "area": region.area,
        "box": region.box,
        "centroid": [round(number, 2) for number in region.centroid],
    }


def ring_to_list(ring: Points) -> list[list[int]]:
    """Return the points of a ring, which are corners of pixels."""
    return ring.astype(int).tolist()
