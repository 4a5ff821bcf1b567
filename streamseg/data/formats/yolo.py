"""Exports for YOLO segmentation: data.yaml, and for each picture a text file of polygons.

labels/…/NAME.txt belongs to images/…/NAME.jpg. A line is the number of a class, then x and y of each point as shares
of width and height. A line of four numbers is a box. The objects have no order: smaller ones are drawn over larger
ones. A picture without a text file has no objects.

Of data.yaml only names, path, train, val and test are read, by hand: a value on the same line, a list in brackets, or
indented lines "- value" or "key: value".
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from streamseg.checks import PICTURE_SUFFIXES
from streamseg.data.formats.files import ExportError, PictureFiles, file_name, reading
from streamseg.data.formats.shapes import AnnotatedPicture, Export, Shape, larger_first, to_polygon
from streamseg.data.layouts import read_lines

TOOL = "a tool that knows YOLO"
SPLITS = ("train", "val", "test")
KEYS = ("names", "path", *SPLITS)

Values = dict[str, str]
"""The values of a key by their own keys; those of a list by 0, 1, …"""


def find_yaml(source: Path) -> Path | None:
    """Return the file that describes an export for YOLO, if there is one."""
    if source.is_file():
        return source if source.suffix.lower() in (".yaml", ".yml") else None
    files = sorted(path for path in source.iterdir() if path.suffix.lower() in (".yaml", ".yml"))
    named = [path for path in files if path.stem in ("data", "dataset")]
    return next(iter(named or files), None)


def read_yolo(source: Path, pictures: PictureFiles) -> Export:
    """Read an export for YOLO segmentation."""
    path = find_yaml(source)
    if path is None:
        raise FileNotFoundError(f"No data.yaml in {source}, which has the classes: add it.")
    values = parse_yaml(path)
    names = [name.strip() for _, name in sorted(values["names"].items(), key=lambda item: int(item[0]))]
    found = {split: list_pictures(path, values, split, pictures) for split in SPLITS if values.get(split)}
    found = {split: images for split, images in found.items() if images} or {"": list_folder(path.parent / "images")}
    count = sum(map(len, found.values()))
    return Export(dict.fromkeys(names), [*found], partial(read_pictures, found, names, pictures), count)


def parse_yaml(path: Path) -> dict[str, Values]:
    """Return the values of the keys that are needed."""
    values: dict[str, Values] = {}
    key = ""
    read_lines(path)  # only to refuse what is no text
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        text = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        top = re.fullmatch(r"([A-Za-z_]\w*)\s*:\s*(.*)", text)
        inner = re.fullmatch(r"\s*-\s+(.+)", text), re.fullmatch(r"\s+([\w'\"]+)\s*:\s*(.+)", text)
        if top:
            key = top[1]
            values[key] = parse_value(top[2])
        elif inner[0]:
            values.setdefault(key, {})[str(len(values.get(key, {})))] = unquote(inner[0][1])
        elif inner[1]:
            values.setdefault(key, {})[unquote(inner[1][1])] = unquote(inner[1][2])
    names = values.get("names", {})
    if not names or not all(number.isdecimal() for number in names):
        raise ExportError(
            f'{path} has no names of classes that can be read; expected "names: [a, b]", or a line for each.'
        )
    return {key: values[key] for key in KEYS if key in values}


def parse_value(text: str) -> Values:
    """Return the values after a key: one, or a list or mapping in brackets."""
    text = text.strip()
    if text[:1] + text[-1:] in ("[]", "{}"):
        entries = re.findall(r"'[^']*'|\"[^\"]*\"|[^,\s][^,]*", text[1:-1])
        if text[0] == "{":
            return {unquote(key): unquote(value) for key, _, value in (entry.partition(":") for entry in entries)}
        return {str(i): unquote(entry) for i, entry in enumerate(entries)}
    return {"0": unquote(text)} if unquote(text) else {}


def unquote(text: str) -> str:
    """Return a value without quotes."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def list_pictures(path: Path, values: dict[str, Values], split: str, pictures: PictureFiles) -> list[Path]:
    """Return the pictures of a split: those in its folders, or in the text files that list them."""
    base = values.get("path", {}).get("0", "")
    found = []
    for place in values[split].values():
        # exports name folders by where they were or will be: the end of the path is what counts
        parts = [part for part in Path(f"{base}/{place}".replace("\\", "/")).parts if part not in ("/", ".", "..")]
        tries = [path.parent.joinpath(*parts[start:]) for start in range(len(parts))]
        spot = next((spot for spot in tries if spot.exists()), None)
        if spot is None:
            # CVAT and Roboflow name splits that were not exported
            continue
        if spot.is_dir():
            found += list_folder(spot)
        else:
            found += [pictures.find(line, spot, (path.parent,)) for line in read_lines(spot) if line]
    return found


def list_folder(folder: Path) -> list[Path]:
    """Return the pictures in a folder and its folders."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file())


def read_pictures(found: dict[str, list[Path]], names: list[str], pictures: PictureFiles) -> Iterator[AnnotatedPicture]:
    """Yield the annotated pictures of each split."""
    for split, images in found.items():
        for image in images:
            path = labels_of(image)
            file, size = pictures.open(image.name, path, None, (image.parent,))
            with reading(path, TOOL):
                lines = [line for line in read_lines(path) if line] if path.is_file() else []
                objects = [read_line(line, names, size) for line in lines]
            drawn = larger_first([shape for shape in objects if shape])
            others = ("box",) * objects.count(None)
            yield AnnotatedPicture(file, file_name(image.stem), size, drawn, path, split, others)


def labels_of(image: Path) -> Path:
    """Return the text file of a picture: in labels instead of the last folder images, or beside it."""
    parts = list(image.parts)
    if "images" in parts[:-1]:
        parts[len(parts) - 2 - parts[-2::-1].index("images")] = "labels"
    return Path(*parts).with_suffix(".txt")


def read_line(line: str, names: list[str], size: tuple[int, int]) -> Shape | None:
    """Return the polygon in a line, or None if it is a box."""
    number, *shares = line.split()
    kind = int(number)
    name = names[kind] if 0 <= kind < len(names) else f"class {kind}"
    if len(shares) <= 4:
        return None
    height, width = size
    if len(shares) % 2:
        raise ValueError(f"{len(shares)} numbers after the class, expected x and y in turn")
    return to_polygon(
        name, [[(float(x) * width, float(y) * height) for x, y in zip(shares[::2], shares[1::2], strict=True)]]
    )
