"""Exports of Label Studio in its JSON format: a list of tasks with brush strokes and polygons.

Polygons are in per cent of the picture. A brush region is RGBA, packed by a run-length encoding of bits (rle-pack): 32
bits for the number of values, 5 for the bits of a value less 1, four times 4 for the bits of a length less 1; then,
until all values are there, one bit that tells a run from single values, two that choose the bits of the length, the
length less 1, and the value or the values. Later regions are over earlier ones, as Label Studio draws them.

The export names pictures by their addresses on the server, and does not hold them.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy
from numpy.typing import NDArray

from streamseg.checks import PICTURE_SUFFIXES
from streamseg.data.formats.files import ExportError, PictureFiles, file_name, json_files, read_json, reading
from streamseg.data.formats.shapes import AnnotatedPicture, Export, Mask, Shape, to_points, to_polygon

TOOL = "Label Studio"
UPLOADED = re.compile(r"[0-9a-f]{8}-(.+)")
"""The name of an uploaded picture: Label Studio puts eight digits before it."""


def is_labelstudio(content: Any) -> bool:
    """Return whether JSON is an export of Label Studio with all of its fields."""
    return isinstance(content, list) and all(
        isinstance(task, dict) and "data" in task and ("annotations" in task or "completions" in task)
        for task in content[:1] or [{}]
    )


def holds_predictions(content: Any) -> bool:
    """Return whether JSON is tasks with predictions for Label Studio, such as prelabel writes, and no export."""
    return isinstance(content, list) and bool(content) and isinstance(content[0], dict) and "predictions" in content[0]


def read_labelstudio(source: Path, pictures: PictureFiles) -> Export:
    """Read an export of Label Studio."""
    tasks_of, names, count = {}, set(), 0
    for path in json_files(source):
        tasks = read_json(path)
        if is_labelstudio(tasks):
            tasks_of[path] = tasks
            with reading(path, TOOL):
                count += len(tasks)
                names |= {class_name(region) for task in tasks for region in regions_of(task)}
    classes = dict.fromkeys(sorted(names - {""}))
    return Export(classes, (), partial(read_pictures, tasks_of, pictures), count)


def regions_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the regions of a task: of the annotation marked as ground truth, or else of the last."""
    annotations = task.get("annotations") or task.get("completions") or []
    valid = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    chosen = [annotation for annotation in valid if annotation.get("ground_truth")] or valid
    return [region for region in chosen[-1]["result"] if "value" in region] if chosen else []


def class_name(region: dict[str, Any]) -> str:
    """Return the class of a region; empty if it has none."""
    labels = region["value"].get(region.get("type", "")) or [""]
    return str(labels[0]).strip() if isinstance(labels, list) else ""


def read_pictures(tasks_of: dict[Path, Any], pictures: PictureFiles) -> Iterator[AnnotatedPicture]:
    """Yield the annotated pictures of all tasks."""
    for path, tasks in tasks_of.items():
        for task in tasks:
            with reading(path, TOOL):
                picture = read_task(task, path, pictures)
            yield picture


def read_task(task: dict[str, Any], path: Path, pictures: PictureFiles) -> AnnotatedPicture:
    """Return the picture of a task with its regions."""
    regions = regions_of(task)
    sizes = {(int(region["original_height"]), int(region["original_width"])) for region in regions}
    if len(sizes) > 1:
        raise ValueError(f"the regions of task {task.get('id')} are for pictures of different sizes")
    name = picture_name(task["data"])
    uploaded = UPLOADED.fullmatch(Path(name).name)
    if uploaded and uploaded[1] in pictures.index() and Path(name).name not in pictures.index():
        name = uploaded[1]
    image, size = pictures.open(name, path, next(iter(sizes), None))
    if any(region.get("image_rotation") for region in regions):
        raise ExportError(
            f"{image} was rotated in Label Studio, which {path} holds only as an angle: rotate it before."
        )
    read = [(str(region.get("type")), read_region(region, size)) for region in regions]
    drawn = tuple(shape for _, shape in read if shape)
    others = tuple(kind for kind, shape in read if not shape)
    return AnnotatedPicture(image, file_name(image.stem), size, drawn, path, other_kinds=others)


def picture_name(data: dict[str, Any]) -> str:
    """Return the path of a task's picture, from its address: the first value that ends like a picture."""
    for address in data.values():
        if isinstance(address, str):
            parts = urlsplit(address)
            local = parse_qs(parts.query).get("d", [])
            name = unquote(local[0] if local else parts.path)
            if name.lower().endswith(PICTURE_SUFFIXES):
                return name
    raise ValueError(f"a task without a picture: {data!r:.60}")


def read_region(region: dict[str, Any], size: tuple[int, int]) -> Shape | None:
    """Return a region as a shape, or None if it has no area or no class."""
    name, kind, value = class_name(region), region.get("type"), region["value"]
    height, width = size
    if name and kind == "polygonlabels":
        return to_polygon(name, [to_points(value["points"]) * (width / 100, height / 100)])
    if name and kind == "brushlabels" and "rle" in value:
        return Mask(name, decode_brush(value["rle"], height, width))
    return None


def decode_brush(packed: list[int], height: int, width: int) -> NDArray[numpy.bool_]:
    """Return the mask (H, W) of a brush region: where its alpha is not 0."""
    bits = numpy.unpackbits(numpy.asarray(packed, dtype=numpy.uint8)).astype(numpy.uint8)
    text = (bits + ord("0")).tobytes().decode("ascii")
    place = 0

    def read(count: int) -> int:
        nonlocal place
        place += count
        if place > len(text):
            raise ValueError("a brush region is cut short")
        return int(text[place - count : place], 2)

    total, word = read(32), read(5) + 1
    lengths = [read(4) + 1 for _ in range(4)]
    if total != height * width * 4:
        raise ValueError(f"a brush region of {total} values in a picture of {height} x {width} pixels")
    values = numpy.zeros(total, dtype=bool)
    done = 0
    while done < total:
        is_run, choice = read(1), read(2)
        end = min(done + read(lengths[choice]) + 1, total)
        if is_run:
            values[done:end] = read(word) != 0
        else:
            values[done:end] = [read(word) != 0 for _ in range(end - done)]
        done = end
    return values.reshape(height, width, 4)[:, :, 3]
