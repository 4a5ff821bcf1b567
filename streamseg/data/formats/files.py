"""The files of an export: JSON that may be damaged, and pictures that it names."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
from numpy.typing import NDArray

from streamseg.checks import PICTURE_SUFFIXES
from streamseg.io.images import read_image
from streamseg.io.pictures import decode_file

MAX_BITMAP = 2**26
"""The most bytes that a bitmap inside of a JSON file may have."""


class ExportError(ValueError):
    """An export that cannot be converted; the message says what to do."""


@contextmanager
def reading(path: Path, tool: str) -> Iterator[None]:
    """Turn what goes wrong with a file's contents into an error that names the file."""
    try:
        yield
    except ExportError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ExportError(f"{path} is not as {tool} writes it ({reason:.120}): export it again.") from error


@contextmanager
def decoding() -> Iterator[None]:
    """Keep the sentence about a damaged picture as it is."""
    try:
        yield
    except ValueError as error:
        raise ExportError(str(error)) from error


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path} is no JSON file, or is damaged ({error!s:.80}): export it again.") from None


def json_files(source: Path) -> list[Path]:
    """Return the JSON files of an export, in order."""
    if source.is_file():
        return [source] if source.suffix.lower() == ".json" else []
    return sorted(path for path in source.rglob("*.json") if path.is_file() and not path.name.startswith("."))


def decode_mask(data: bytes, name: str) -> NDArray[numpy.bool_]:
    """Return the mask (H, W) in a PNG: the pixels that are not transparent or, without transparency, not black."""
    with decoding():
        return decode_file(io.BytesIO(data), name, to_mask, ("PNG",))


def to_mask(picture: Any) -> NDArray[numpy.bool_]:
    """Return which pixels of a PIL picture are set."""
    transparent = "A" in picture.getbands() or "transparency" in picture.info
    return numpy.asarray(picture.convert("RGBA").getchannel("A") if transparent else picture.convert("L")) > 0


def file_name(text: str) -> str:
    """Return a name for output files, from the name that an export has for a picture; folders become part of it."""
    return re.sub(r'[\\/:*?"<>|\x00-\x1f\x7f]+', "_", text).lstrip("._ ") or "picture"


def place_picture(image: Path, target: Path, *, link: bool) -> None:
    """Copy a picture, or link to it."""
    if not link:
        shutil.copyfile(image, target)
        return
    try:
        target.symlink_to(image.resolve())
    except OSError as error:
        raise OSError(f"Could not link to {image} ({error.strerror}): leave out --link, to copy.") from error


class PictureFiles:
    """Finds the pictures that an export names, in its own folder and in another one if given."""

    def __init__(self, *roots: Path) -> None:
        self.roots = [root.resolve() for root in roots]
        self.by_name: dict[str, list[Path]] | None = None

    def open(
        self, name: str, origin: Path, size: tuple[int, int] | None = None, folders: tuple[Path, ...] = ()
    ) -> tuple[Path, tuple[int, int]]:
        """Return the file of a picture and its height and width, after it was read once.

        Args:
            name: What the export calls it: a path, of which the beginning may be of another machine.
            origin: The file with this name, for errors.
            size: Height and width that the export states, if it does.
            folders: Where to look first.
        """
        path = self.find(name, origin, folders)
        with decoding():
            _, height, width = read_image(path).shape
        if size and size != (height, width):
            raise ExportError(
                f"{path} is {height} x {width} pixels, but {size[0]} x {size[1]} in {origin}: "
                "use the pictures that were annotated."
            )
        return path, (height, width)

    def find(self, name: str, origin: Path, folders: tuple[Path, ...] = ()) -> Path:
        """Return the file of a picture; an error names what is missing. No path leads out of the given folders."""
        # the name may be of another system or machine: its end is what counts
        parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("/", ".", "..")]
        tails = [Path(*parts[start:]) for start in range(len(parts))]
        tries = (folder / tail for tail in tails for folder in (*folders, *self.roots))
        found = [next((path for path in tries if "\0" not in str(path) and path.is_file()), None)]
        if found == [None]:
            found = [*self.index().get(parts[-1] if parts else "", ())]
        if len(found) != 1 or not found[0]:
            problem = f"{len(found)} pictures are called {parts[-1]!r:.80}" if found else f"No picture {name!r:.80}"
            raise FileNotFoundError(
                f"{problem} in {' or '.join(map(str, self.roots))}, which {origin} names: "
                f"{'keep one' if found else 'add it, or give --images with its folder'}."
            )
        path = found[0]
        if not any(path.resolve().is_relative_to(root) for root in self.roots):
            raise ExportError(
                f"{path} is a link that leads out of the export: give --images with the pictures' folder."
            )
        if path.suffix.lower() not in PICTURE_SUFFIXES:
            raise ExportError(f"{path} is no picture to train on; expected one of {' '.join(PICTURE_SUFFIXES)}.")
        return path

    def index(self) -> dict[str, list[Path]]:
        """Return all pictures by their file names; the folders are searched once."""
        if self.by_name is None:
            self.by_name = {}
            for root in self.roots:
                for path in sorted(root.rglob("*") if root.is_dir() else ()):
                    if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file():
                        self.by_name.setdefault(path.name, []).append(path)
        return self.by_name
