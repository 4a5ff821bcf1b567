"""Exports in COCO's format: polygons and run-length encodings, or panoptic PNGs.

A JSON file has images, annotations and categories. COCO's objects have no order: smaller ones are drawn over larger
ones. Crowds count as their class. The panoptic variant has a PNG for each picture, in a folder with the name of the
JSON file, whose pixels are red + 256 green + 65536 blue = the id of a segment, and 0 for none.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from streamseg.classes import Colour
from streamseg.data.formats.files import (
    ExportError,
    PictureFiles,
    decoding,
    file_name,
    json_files,
    read_json,
    reading,
)
from streamseg.data.formats.shapes import AnnotatedPicture, Export, Mask, Shape, larger_first, to_polygon
from streamseg.io.images import read_colour_codes
from streamseg.regions.coco import decode_rle

TOOL = "a tool that knows COCO"
KINDS = ("instances_", "person_keypoints_", "panoptic_", "stuff_", "captions_")
"""How names of COCO's own files begin, before the subset."""


def is_coco(content: Any) -> bool:
    """Return whether JSON is of COCO with polygons or run-length encodings."""
    return is_any_coco(content) and not is_coco_panoptic(content)


def is_coco_panoptic(content: Any) -> bool:
    """Return whether JSON is of COCO's panoptic variant."""
    return is_any_coco(content) and any("segments_info" in entry for entry in content["annotations"][:1])


def is_any_coco(content: Any) -> bool:
    """Return whether JSON has the three lists of COCO."""
    return isinstance(content, dict) and all(
        isinstance(content.get(key), list) and all(isinstance(entry, dict) for entry in content[key][:1])
        for key in ("images", "annotations", "categories")
    )


def read_coco(source: Path, pictures: PictureFiles) -> Export:
    """Read an export with polygons or run-length encodings."""
    files = [path for path in json_files(source) if not path.name.startswith(("captions_", "person_keypoints_"))]
    # COCO's own folder has the same pictures in several files
    chosen = [path for path in files if path.name.startswith("instances_")] or files
    return read_files({path: content for path in chosen if is_coco(content := read_json(path))}, pictures)


def read_coco_panoptic(source: Path, pictures: PictureFiles) -> Export:
    """Read an export of the panoptic variant."""
    files = json_files(source)
    return read_files({path: content for path in files if is_coco_panoptic(content := read_json(path))}, pictures)


def read_files(contents: dict[Path, Any], pictures: PictureFiles) -> Export:
    """Return the export that is in JSON files, which have been read."""
    classes: dict[str, Colour | None] = {}
    for path, content in contents.items():
        with reading(path, TOOL):
            for entry in sorted(content["categories"], key=lambda entry: int(entry["id"])):
                classes.setdefault(str(entry["name"]).strip(), read_colour(entry.get("color")))
    subsets = [subset_of(path) for path in contents]
    count = sum(len(content["images"]) for content in contents.values())
    return Export(classes, subsets, partial(read_all, contents, pictures), count)


def read_colour(given: object) -> Colour | None:
    """Return the colour of a category, red, green and blue; None without one."""
    right = isinstance(given, list) and len(given) == 3 and all(type(part) is int and 0 <= part < 256 for part in given)
    return (given[0], given[1], given[2]) if right and isinstance(given, list) else None


def subset_of(path: Path) -> str:
    """Return the subset that a JSON file is for: instances_train2017.json, or train/_annotations.coco.json."""
    name = re.sub(rf"^({'|'.join(KINDS)})", "", path.stem)
    return path.parent.name if path.name.startswith("_annotations") else name


def read_all(contents: dict[Path, Any], pictures: PictureFiles) -> Iterator[AnnotatedPicture]:
    """Yield the annotated pictures of all files."""
    for path, content in contents.items():
        with reading(path, TOOL):
            name_of = {entry["id"]: str(entry["name"]).strip() for entry in content["categories"]}
            entries_of: dict[Any, list[dict[str, Any]]] = {entry["id"]: [] for entry in content["images"]}
            for entry in content["annotations"]:
                if entry["image_id"] not in entries_of:
                    raise ExportError(
                        f"{path} has an annotation of the image {entry['image_id']!r:.40}, which it lacks."
                    )
                entries_of[entry["image_id"]].append(entry)
        for image in content["images"]:
            with reading(path, TOOL):
                picture = read_picture(image, entries_of[image["id"]], name_of, path, pictures)
            yield picture


def read_picture(
    image: dict[str, Any], entries: list[dict[str, Any]], name_of: dict[Any, str], path: Path, pictures: PictureFiles
) -> AnnotatedPicture:
    """Return a picture with its annotations."""
    subset, name = subset_of(path), str(image["file_name"])
    size = (int(image["height"]), int(image["width"])) if image.get("height") and image.get("width") else None
    roots = [folder / kind for folder in (path.parent, *pictures.roots) for kind in ("", "images", "data")]
    folders = tuple(folder / part for part in (subset, "") for folder in roots)
    file, size = pictures.open(name, path, size, folders)
    stem = file_name(str(Path(name.replace("\\", "/")).with_suffix("")))
    if any("segments_info" in entry for entry in entries):
        shapes = [shape for entry in entries for shape in read_segments(entry, name_of, size, path)]
        return AnnotatedPicture(file, stem, size, tuple(shapes), path, subset)
    objects = [read_object(entry, class_name(entry, name_of), size) for entry in entries]
    drawn = larger_first([shape for shape in objects if shape])
    return AnnotatedPicture(file, stem, size, drawn, path, subset, ("box",) * objects.count(None))


def class_name(entry: dict[str, Any], name_of: dict[Any, str]) -> str:
    """Return the class name of an annotation; a category that the file lacks is called by its number."""
    return name_of.get(entry["category_id"], f"category {entry['category_id']}")


def read_object(entry: dict[str, Any], name: str, size: tuple[int, int]) -> Shape | None:
    """Return an annotation as a shape, or None if it is only a box."""
    given = entry.get("segmentation")
    if isinstance(given, dict):
        if [*given["size"]] != [*size]:
            raise ValueError(f"a mask of {given['size']!r:.40} in a picture of {size[0]} x {size[1]} pixels")
        return Mask(name, decode_rle(given))
    return to_polygon(name, *([points] for points in given)) if given else None


def read_segments(entry: dict[str, Any], name_of: dict[Any, str], size: tuple[int, int], path: Path) -> Iterator[Mask]:
    """Yield the segments of a panoptic PNG."""
    name = Path(str(entry["file_name"]).replace("\\", "/")).name
    places = [folder / name for folder in (path.parent / path.stem, path.parent / "panoptic", path.parent)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"No {places[0]}, which {path} names: add the folder with the panoptic PNGs.")
    with decoding():
        codes = read_colour_codes(file).numpy()
    if codes.shape != size:
        raise ExportError(
            f"{file} is {codes.shape[0]} x {codes.shape[1]} pixels; its picture is {size[0]} x {size[1]}."
        )
    ids = codes >> 16 | codes & 0xFF00 | (codes & 0xFF) << 16
    segments = {int(segment["id"]): segment for segment in entry["segments_info"]}
    unknown = {*numpy.unique(ids).tolist()} - {0, *segments}
    if unknown:
        raise ExportError(f"{file} has the segments {sorted(unknown)!s:.80}, which {path} lacks: export it again.")
    for number, segment in segments.items():
        yield Mask(class_name(segment, name_of), ids == number)
