"""Exports of Supervisely: meta.json, and for each dataset the folders ann/ and img/.

ann/NAME.jpg.json has the objects of img/NAME.jpg: polygons with holes, and bitmaps, which are PNGs for a box, deflated
and in base64. Later objects are over earlier ones, as Supervisely draws them.
"""

import base64
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from streamseg.classes import Colour, parse_colour
from streamseg.data.formats.files import (
    MAX_BITMAP,
    ExportError,
    PictureFiles,
    decode_mask,
    file_name,
    read_json,
    reading,
)
from streamseg.data.formats.shapes import AnnotatedPicture, Export, Mask, Shape, to_polygon

TOOL = "Supervisely"


def read_supervisely(source: Path, pictures: PictureFiles) -> Export:
    """Read an export of Supervisely."""
    path = source / "meta.json"
    if not path.is_file():
        raise FileNotFoundError(f"No {path}, which has the classes: give the folder of the whole project.")
    meta = read_json(path)
    classes: dict[str, Colour | None] = {}
    with reading(path, TOOL):
        for entry in meta["classes"]:
            classes[str(entry["title"]).strip()] = parse_colour(entry["color"]) if entry.get("color") else None
    files = sorted(source.glob("**/ann/*.json"))
    subsets = sorted({subset_of(file, source) for file in files})
    return Export(classes, subsets, partial(read_pictures, source, files, pictures), len(files))


def subset_of(path: Path, source: Path) -> str:
    """Return the name of the dataset that a file in ann/ belongs to."""
    folder = path.parent.parent
    return folder.name if folder != source else ""


def read_pictures(source: Path, files: list[Path], pictures: PictureFiles) -> Iterator[AnnotatedPicture]:
    """Yield the annotated pictures of JSON files."""
    for path in files:
        content = read_json(path)
        with reading(path, TOOL):
            size = int(content["size"]["height"]), int(content["size"]["width"])
            image, size = pictures.open(path.stem, path, size, (path.parent.parent / "img",))
            objects = [(kind_of(entry), read_object(entry, path)) for entry in content["objects"]]
        drawn = tuple(shape for _, shape in objects if shape)
        others = tuple(kind for kind, shape in objects if not shape)
        yield AnnotatedPicture(
            image, file_name(Path(path.stem).stem), size, drawn, path, subset_of(path, source), others
        )


def kind_of(entry: dict[str, Any]) -> str:
    """Return the kind of an object; old exports do not say it."""
    return str(entry.get("geometryType") or ("bitmap" if entry.get("bitmap") else "polygon"))


def read_object(entry: dict[str, Any], path: Path) -> Shape | None:
    """Return an object as a shape, or None if it has no area."""
    name, kind = str(entry["classTitle"]).strip(), kind_of(entry)
    if kind == "bitmap":
        left, top = entry["bitmap"]["origin"]
        return Mask(name, decode_bitmap(entry["bitmap"]["data"], path), int(left), int(top))
    if kind == "polygon":
        return to_polygon(name, [entry["points"]["exterior"], *entry["points"].get("interior", ())])
    return None


def decode_bitmap(text: str, path: Path) -> Any:
    """Return the mask (H, W) of a bitmap."""
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(text), MAX_BITMAP)
    except (ValueError, zlib.error) as error:
        raise ExportError(f"A bitmap in {path} is damaged ({error}): export it again.") from None
    return decode_mask(unpacked, f"A bitmap in {path}")
