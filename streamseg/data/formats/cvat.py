"""Exports of CVAT: "Segmentation mask 1.1" and "CVAT for images 1.1".

Segmentation mask: labelmap.txt has a line NAME:RED,GREEN,BLUE:: for each class, SegmentationClass/ a PNG in these
colours for each picture of JPEGImages/, and ImageSets/Segmentation/ a list of names for each subset. CVAT writes the
class background for pixels without an object, which here are unlabelled.

CVAT for images: annotations.xml has polygons and masks for each picture of images/. A higher z_order is over a lower
one, and later shapes are over earlier ones. A mask counts the pixels of a box row by row, in turn outside and inside.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy
from numpy.typing import NDArray

from streamseg.checks import PICTURE_SUFFIXES
from streamseg.classes import Colour, parse_colour
from streamseg.data.formats.files import ExportError, PictureFiles, decoding, file_name, reading
from streamseg.data.formats.shapes import AnnotatedPicture, Export, Mask, Shape, to_polygon
from streamseg.data.layouts import read_lines
from streamseg.io.images import read_colour_codes

TOOL = "CVAT"
BACKGROUND = "background"
"""The class of CVAT's label map for pixels without an object."""


def find_xml(source: Path) -> list[Path]:
    """Return the annotation files of CVAT for images."""
    if source.is_file():
        return [source] if source.suffix.lower() == ".xml" else []
    return sorted(source.rglob("annotations*.xml"))


def is_cvat(source: Path) -> bool:
    """Return whether a folder or file is an export of CVAT."""
    return bool(find_xml(source)) or (source / "labelmap.txt").is_file()


def read_cvat(source: Path, pictures: PictureFiles) -> Export:
    """Read an export of CVAT."""
    if (source / "labelmap.txt").is_file():
        return read_masks(source, pictures)
    files = find_xml(source)
    if not files:
        raise FileNotFoundError(f"Neither labelmap.txt nor annotations.xml in {source}: unpack the whole export there.")
    return read_xml_files(files, pictures)


def read_masks(source: Path, pictures: PictureFiles) -> Export:
    """Read an export "Segmentation mask 1.1"."""
    path, colours = source / "labelmap.txt", {}
    for line in read_lines(path):
        if line and not line.startswith("#"):
            entry = re.fullmatch(r"(.+?):(\d{1,3}),(\d{1,3}),(\d{1,3})(:.*)?", line)
            if not entry or any(int(part) > 255 for part in entry.groups()[1:4]):
                raise ExportError(f'{path} has the line {line!r:.80}; expected "name:red,green,blue::".')
            colours[entry[1].strip()] = (int(entry[2]), int(entry[3]), int(entry[4]))
    same = [name for name, colour in colours.items() if [*colours.values()].count(colour) > 1]
    if same:
        raise ExportError(f"{path} has one colour for {' and '.join(same):.120}: give each its own, and export again.")
    subset_of = read_subsets(source / "ImageSets" / "Segmentation")
    files = sorted((source / "SegmentationClass").rglob("*.png"))
    subsets = sorted({subset_of.get(mask_name(source, file), "") for file in files})
    classes = {name: colour for name, colour in colours.items() if name.lower() != BACKGROUND}
    return Export(classes, subsets, partial(read_mask_files, source, files, colours, subset_of, pictures), len(files))


def read_subsets(folder: Path) -> dict[str, str]:
    """Return the subset of each name in the lists of a folder."""
    return {line: file.stem for file in sorted(folder.glob("*.txt")) for line in read_lines(file) if line}


def mask_name(source: Path, file: Path) -> str:
    """Return the name of a mask, with its folders."""
    return file.relative_to(source / "SegmentationClass").with_suffix("").as_posix()


def read_mask_files(
    source: Path, files: list[Path], colours: dict[str, Colour], subset_of: dict[str, str], pictures: PictureFiles
) -> Iterator[AnnotatedPicture]:
    """Yield the pictures of mask files."""
    name_of = {red << 16 | green << 8 | blue: name for name, (red, green, blue) in colours.items()}
    folders = (source / "JPEGImages", source / "images", *pictures.roots)
    for file in files:
        with decoding():
            codes = read_colour_codes(file).numpy()
        name = mask_name(source, file)
        # the picture's suffix is not known
        tries = (f"{name}{suffix}" for suffix in PICTURE_SUFFIXES)
        given = next((text for text in tries if any((folder / text).is_file() for folder in folders)), f"{name}.jpg")
        image, size = pictures.open(given, file, codes.shape, folders)
        shapes = []
        for code in numpy.unique(codes).tolist():
            kind = name_of.get(code, "" if not code else f"#{code:06x}")
            if kind and kind.lower() != BACKGROUND:
                shapes.append(Mask(kind, codes == code))
        yield AnnotatedPicture(image, file_name(name), size, tuple(shapes), file, subset_of.get(name, ""))


def read_xml_files(files: list[Path], pictures: PictureFiles) -> Export:
    """Read an export "CVAT for images 1.1"."""
    roots = {path: parse_xml(path) for path in files}
    classes: dict[str, Colour | None] = {}
    subsets, count = set(), 0
    for path, root in roots.items():
        with reading(path, TOOL):
            for label in root.iterfind("meta//labels/label"):
                colour = label.findtext("color")
                classes.setdefault((label.findtext("name") or "").strip(), parse_colour(colour) if colour else None)
        subsets |= {image.get("subset", "") for image in root.iterfind("image")}
        count += len(root.findall("image"))
    return Export(classes, sorted(subsets), partial(read_images, roots, pictures), count)


def parse_xml(path: Path) -> ElementTree.Element:
    """Return the root of an XML file; document types, with which a small file can fill the memory, are refused."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise ExportError(f"{path} declares a document type, which CVAT never writes: export it again.")
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} is no XML file, or is damaged ({error!s:.80}): export it again.") from None
    if root.tag != "annotations" or root.find("track") is not None:
        raise ExportError(f'{path} is no annotation of pictures: export as "CVAT for images 1.1".')
    return root


def read_images(roots: dict[Path, ElementTree.Element], pictures: PictureFiles) -> Iterator[AnnotatedPicture]:
    """Yield the annotated pictures of XML files."""
    for path, root in roots.items():
        for image in root.iterfind("image"):
            with reading(path, TOOL):
                name, subset = image.attrib["name"], image.get("subset", "")
                size = int(image.attrib["height"]), int(image.attrib["width"])
                folders = tuple(path.parent / "images" / part for part in (subset, ""))
                file, size = pictures.open(name, path, size, folders)
                entries = [entry for entry in image if entry.tag != "tag"]
                entries.sort(key=lambda entry: int(entry.get("z_order") or 0))
                shapes = [(entry.tag, read_shape(entry, size)) for entry in entries]
            drawn = tuple(shape for _, shape in shapes if shape)
            others = tuple(kind for kind, shape in shapes if not shape)
            stem = file_name(str(Path(name.replace("\\", "/")).with_suffix("")))
            yield AnnotatedPicture(file, stem, size, drawn, path, subset, others)


def read_shape(entry: ElementTree.Element, size: tuple[int, int]) -> Shape | None:
    """Return a shape, or None if it has no area."""
    if entry.tag == "polygon":
        points = [pair.split(",") for pair in entry.attrib["points"].split(";")]
        return to_polygon(entry.attrib["label"].strip(), [points])
    if entry.tag == "mask":
        left, top, width, height = (int(entry.attrib[key]) for key in ("left", "top", "width", "height"))
        if height > size[0] or width > size[1]:
            raise ValueError(f"a mask of {height} x {width} in a picture of {size[0]} x {size[1]} pixels")
        return Mask(entry.attrib["label"].strip(), decode_counts(entry.attrib["rle"], height, width), left, top)
    return None


def decode_counts(text: str, height: int, width: int) -> NDArray[numpy.bool_]:
    """Return the mask (H, W) of CVAT's counts."""
    counts = numpy.array([int(count) for count in text.split(",")], dtype=numpy.int64)
    if not ((counts >= 0) & (counts <= height * width)).all() or counts.sum() > height * width:
        raise ValueError(f"a mask that is no {height} x {width} pixels")
    inside = numpy.repeat(numpy.arange(len(counts)) % 2 == 1, counts)
    # the pixels after the last one inside may be left out
    return numpy.pad(inside, (0, height * width - len(inside))).reshape(height, width)
