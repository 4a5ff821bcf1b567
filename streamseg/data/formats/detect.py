"""Find out which tool wrote an export."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamseg.checks import check_choice
from streamseg.data.formats.coco import is_coco, is_coco_panoptic, read_coco, read_coco_panoptic
from streamseg.data.formats.cvat import is_cvat, read_cvat
from streamseg.data.formats.files import ExportError, PictureFiles, json_files, read_json
from streamseg.data.formats.labelme import is_labelme, read_labelme
from streamseg.data.formats.labelstudio import holds_predictions, is_labelstudio, read_labelstudio
from streamseg.data.formats.shapes import Export
from streamseg.data.formats.supervisely import read_supervisely
from streamseg.data.formats.yolo import find_yaml, read_yolo

READERS: dict[str, Callable[[Path, PictureFiles], Export]] = {
    "cvat": read_cvat,
    "labelstudio": read_labelstudio,
    "labelme": read_labelme,
    "coco": read_coco,
    "coco-panoptic": read_coco_panoptic,
    "yolo": read_yolo,
    "supervisely": read_supervisely,
}
"""For each format, the function that reads an export."""

JSON_KINDS: dict[str, Callable[[Any], bool]] = {
    "labelstudio": is_labelstudio,
    "labelme": is_labelme,
    "coco": is_coco,
    "coco-panoptic": is_coco_panoptic,
}
"""The formats that are JSON files, with the function that tells them."""

EXPECTED = (
    "labelmap.txt or annotations.xml of CVAT, the JSON file of Label Studio, JSON files of Labelme, a JSON file of "
    "COCO, data.yaml for YOLO, or meta.json of Supervisely"
)

TRIED = 8
"""How many JSON files are looked at, the smallest first: large ones take seconds."""


def open_export(source: Path, format: str = "", images: Path | None = None) -> tuple[str, Export]:
    """Return the format of an export, and what it holds.

    Args:
        source: The folder of the export, or its only file.
        format: The format; empty to find it.
        images: Another folder with the pictures.
    """
    check_source(source, images)
    if format:
        check_choice("--format", format, tuple(READERS))
    name = format or find_format(source)
    roots = [source if source.is_dir() else source.parent, *([images] if images else [])]
    export = READERS[name](source, PictureFiles(*roots))
    if not export.count:
        raise ExportError(f"{source} has no annotated pictures of the format {name}; expected {EXPECTED}.")
    return name, export


def check_source(source: Path, images: Path | None) -> None:
    """Raise an error if an export does not exist or is packed, or if the folder of pictures is none."""
    if not source.exists():
        raise FileNotFoundError(f"No export at {source}: check the path.")
    if source.is_file() and zipfile.is_zipfile(source):
        raise ExportError(f"{source} is a ZIP file: unpack it into a folder, and give the folder.")
    if images and not images.is_dir():
        raise NotADirectoryError(f"--images is {images}; expected a folder.")


def find_format(source: Path) -> str:
    """Return the format of an export; an error if it has none, or several."""
    found = {"cvat"} if is_cvat(source) else set()
    if find_yaml(source):
        found.add("yolo")
    if (source / "meta.json").is_file():
        found.add("supervisely")
    else:
        for path in sorted(json_files(source), key=lambda path: path.stat().st_size)[:TRIED]:
            content = read_json(path)
            found |= {name for name, matches in JSON_KINDS.items() if matches(content)}
    if not found:
        if (source / "tasks.json").is_file() and holds_predictions(read_json(source / "tasks.json")):
            raise ExportError(
                f"{source} has predictions for Label Studio, which nobody has corrected: import tasks.json there, and "
                'convert what it exports as "JSON".'
            )
        raise ExportError(f"{source} is no export that is known; expected {EXPECTED}. --format says which it is.")
    if len(found) > 1:
        names = " and ".join(sorted(found))
        raise ExportError(f"{source} could be an export of {names}: say which with --format {min(found)}.")
    return found.pop()
