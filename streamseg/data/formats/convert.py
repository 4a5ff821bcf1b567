"""Convert the export of an annotation tool to the layout `folder`, which check and train read."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch

from streamseg.classes import IGNORE, Classes
from streamseg.data.formats.detect import open_export
from streamseg.data.formats.files import ExportError, place_picture
from streamseg.data.formats.shapes import IGNORED, AnnotatedPicture, Export, draw_labels
from streamseg.data.layouts import fill_colours, write_classes
from streamseg.io.files import check_new_folder, folder_written_whole
from streamseg.io.images import write_labels


@dataclass(frozen=True)
class Conversion:
    """What was converted."""

    format: str
    classes: Classes
    pictures: Mapping[str, int]
    """How many pictures each split has; the only split is called all."""
    empty: int
    """How many pictures were left out because they have no object and there is no background."""
    other_kinds: Mapping[str, int]
    """How many objects of each kind without an area were left out."""
    other_classes: Sequence[str]
    """The classes of the export that were not asked for; their pixels are unlabelled."""


def convert(
    source: Path,
    out: Path,
    *,
    format: str = "",
    classes: Sequence[str] = (),
    background: str = "",
    images: Path | None = None,
    link: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Conversion:
    """Convert an export to a folder with images/, labels/ and classes.txt.

    Args:
        source: The folder of the export, or its only file.
        out: The folder to write, which must not exist or be empty.
        format: The format of the export, such as cvat; empty to find it.
        classes: The names of the classes to keep, in order; all if empty.
        background: The class of pixels without an object; without one they are ignored.
        images: Another folder with the pictures.
        link: Link to the pictures instead of copying them.
        progress: Called with the number of pictures done and of all.
    """
    check_new_folder(out)
    format, export = open_export(source, format, images)
    listed = choose_classes(export, classes, background)
    with folder_written_whole(out) as temporary:
        (temporary / "images").mkdir()
        (temporary / "labels").mkdir()
        writer = FolderWriter(temporary, listed, background, pick_splits(export.subsets), link)
        for done, picture in enumerate(export.pictures(), start=1):
            writer.add(picture)
            progress(done, export.count)
        foreign = {name: path for name, path in writer.others.items() if name not in export.classes}
        check_written(source, writer, {} if classes else foreign)
        write_classes(temporary / "classes.txt", listed)
    return Conversion(format, listed, writer.counts, writer.empty, writer.other_kinds, sorted(writer.others))


def choose_classes(export: Export, kept: Sequence[str], background: str) -> Classes:
    """Return the classes of the labels: all of an export, or those to keep; a new background comes first."""
    known = dict(export.classes)
    if kept:
        known = {name: export.classes[name] for name in (find_name(name, export, background) for name in kept) if name}
    if background and background not in known:
        known = {background: export.classes.get(background), **known}
    for name in known:
        same = [other for other in known if other.casefold() == name.casefold()]
        if len(same) > 1:
            raise ExportError(f"The export has the classes {' and '.join(map(repr, same))}: rename one in the tool.")
    return Classes(tuple(known), fill_colours(list(known.values())))


def find_name(given: str, export: Export, background: str) -> str:
    """Return a class of an export by its name; empty for a background that is none of them."""
    if given in export.classes:
        return given
    if given == background:
        return ""
    near = get_close_matches(given, export.classes, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ExportError(f"The export has no class {given!r:.80}, only {', '.join(export.classes):.300}.{hint}")


def pick_splits(subsets: Sequence[str]) -> dict[str, str]:
    """Return the split of each subset, if they are train, val and perhaps test; empty if all become one."""
    splits = {}
    for subset in subsets:
        found = re.fullmatch(r"(train|val|test)(id|idation)?\d*", subset.casefold())
        splits[subset] = found[1] if found else ""
    return splits if {"train", "val"} <= {*splits.values()} <= {"train", "val", "test"} else {}


class FolderWriter:
    """Writes annotated pictures into a folder, and counts them."""

    def __init__(self, folder: Path, classes: Classes, background: str, splits: Mapping[str, str], link: bool) -> None:
        self.folder, self.classes, self.splits, self.link = folder, classes, splits, link
        self.number_of = {name: number for number, name in enumerate(classes.names)}
        self.has_background = bool(background)
        self.unlabelled = self.number_of[background] if background else IGNORE
        self.counts: Counter[str] = Counter()
        self.other_kinds: Counter[str] = Counter()
        self.others: dict[str, Path] = {}
        """Classes that are not kept, with a file that has them."""
        self.empty = 0
        self.origin_of: dict[Path, Path] = {}
        self.names: dict[str, Path] = {}

    def add(self, picture: AnnotatedPicture) -> None:
        """Write a picture and its labels."""
        self.other_kinds.update(picture.other_kinds)
        for shape in picture.shapes:
            if shape.name not in self.number_of and shape.name != IGNORED:
                self.others.setdefault(shape.name, picture.origin)
        if not picture.shapes and not self.has_background:
            self.empty += 1
            return
        split, place = self.place_of(picture)
        target = self.folder / "images" / f"{place}{picture.image.suffix.lower()}"
        labels = self.folder / "labels" / f"{place}.png"
        for path in (target, labels):
            path.parent.mkdir(exist_ok=True)
        place_picture(picture.image, target, link=self.link)
        drawn = draw_labels(picture, self.number_of, self.unlabelled)
        write_labels(labels, torch.from_numpy(drawn), self.classes)
        self.counts[split or "all"] += 1

    def place_of(self, picture: AnnotatedPicture) -> tuple[str, str]:
        """Return the split of a picture, and the path of its files without a suffix; no two may be the same."""
        image, origin = picture.image.resolve(), picture.origin
        if image in self.origin_of:
            raise ExportError(f"{picture.image} is annotated twice, in {self.origin_of[image]} and {origin}: keep one.")
        self.origin_of[image] = origin
        split, name = self.splits.get(picture.subset, ""), picture.name
        place = f"{split}/{name}" if split else name
        if place.casefold() in self.names and picture.subset and not split:
            place = f"{picture.subset}_{name}".replace("/", "_").replace("\\", "_").lstrip(".")
        if place.casefold() in self.names:
            other = self.names[place.casefold()]
            raise ExportError(f"{picture.image} and {other} would have the same name, {name}: rename one of them.")
        self.names[place.casefold()] = picture.image
        return split, place


def check_written(source: Path, writer: FolderWriter, foreign: Mapping[str, Path]) -> None:
    """Raise an error if an export has classes that its own list lacks, or if nothing was converted."""
    if foreign:
        raise ExportError(
            f"{source} has objects of classes that its own list lacks: {', '.join(sorted(foreign)):.300} (the first in "
            f"{next(iter(foreign.values()))}); correct the export, or give --classes with those to keep."
        )
    if not writer.counts:
        raise ExportError(
            f"{source} has {writer.empty} pictures, but none with a polygon or a mask"
            + (f", only {', '.join(writer.other_kinds)}" if writer.other_kinds else "")
            + ": annotate areas."
        )
