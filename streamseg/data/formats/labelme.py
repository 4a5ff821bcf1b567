"""Exports of Labelme: a JSON file for each picture, beside it or in another folder.

Later shapes are over earlier ones, as Labelme draws them. Polygons, rectangles, circles and masks have an area; lines
and points do not. A mask is a PNG for the box between its two points, which are inside. If there is a labels.txt, the
file that Labelme takes as --labels, its lines are the classes in order.
"""

import base64
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from streamseg.data.formats.files import PictureFiles, decode_mask, file_name, json_files, read_json, reading
from streamseg.data.formats.shapes import IGNORED, AnnotatedPicture, Export, Mask, Shape, to_points, to_polygon
from streamseg.data.layouts import read_lines

TOOL = "Labelme"
BACKGROUND = "_background_"
"""A line of labels.txt that Labelme's own converters need; it is a class only if something was drawn as it."""


def is_labelme(content: Any) -> bool:
    """Return whether JSON is a file of Labelme."""
    return isinstance(content, dict) and "shapes" in content and "imagePath" in content


def read_labelme(source: Path, pictures: PictureFiles) -> Export:
    """Read an export of Labelme."""
    files, names = [], set()
    for path in json_files(source):
        content = read_json(path)
        if is_labelme(content):
            files.append(path)
            with reading(path, TOOL):
                names |= {str(shape["label"]).strip() for shape in content["shapes"]}
    listed = source / "labels.txt"
    order = [name for name in read_lines(listed) if name] if listed.is_file() else sorted(names)
    classes = dict.fromkeys(name for name in order if name != IGNORED and (name != BACKGROUND or name in names))
    return Export(classes, (), partial(read_pictures, source, files, pictures), len(files))


def read_pictures(source: Path, files: list[Path], pictures: PictureFiles) -> Iterator[AnnotatedPicture]:
    """Yield the annotated pictures of JSON files."""
    for path in files:
        content = read_json(path)
        with reading(path, TOOL):
            height, width = content.get("imageHeight"), content.get("imageWidth")
            size = (int(height), int(width)) if height and width else None
            image, found_size = pictures.open(str(content["imagePath"]), path, size, (path.parent,))
            shapes = [(shape.get("shape_type") or "polygon", read_shape(shape, path)) for shape in content["shapes"]]
            name = file_name(str((path.relative_to(source) if source.is_dir() else Path(path.name)).with_suffix("")))
        drawn = tuple(shape for _, shape in shapes if shape)
        others = tuple(str(kind) for kind, shape in shapes if not shape)
        yield AnnotatedPicture(image, name, found_size, drawn, path, other_kinds=others)


def read_shape(shape: dict[str, Any], path: Path) -> Shape | None:
    """Return a shape, or None if it has no area."""
    name, kind = str(shape["label"]).strip(), shape.get("shape_type") or "polygon"
    points = to_points(shape["points"])
    if kind == "mask":
        left, top = (math.floor(edge) for edge in points.min(axis=0))
        return Mask(name, decode_mask(base64.b64decode(shape["mask"]), f"A mask in {path}"), left, top)
    if kind == "rectangle" and len(points) == 2:
        (left, top), (right, bottom) = points.tolist()
        return to_polygon(name, [[(left, top), (right, top), (right, bottom), (left, bottom)]])
    if kind == "circle" and len(points) == 2:
        centre, edge = points
        angles = numpy.linspace(0, 2 * numpy.pi, 256, endpoint=False)
        around = numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
        return to_polygon(name, [centre + numpy.hypot(*(edge - centre)) * around])
    return to_polygon(name, [points]) if kind in ("polygon", "rectangle") else None
