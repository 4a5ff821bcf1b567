"""Save what people correct on the page: labelled pictures into a data folder, and files of zones.

The folder has the layout `folder`, which check and train read: images/, labels/ and classes.txt; files of zones are
in zones/. Nothing is written outside of it, and each file is written whole or not at all.
"""

import asyncio
import json
import logging
import re
import threading
from email.message import Message as Header
from pathlib import Path

from fastapi import APIRouter, Depends, Request
from torch import Tensor

from streamseg.checks import PICTURE_SUFFIXES
from streamseg.classes import IGNORE, Classes
from streamseg.data.labels import format_ranges
from streamseg.data.layouts import read_classes, subfolders, write_classes
from streamseg.io.files import written_whole
from streamseg.io.images import read_image, write_image, write_labels
from streamseg.regions.zones import zones_to_json
from streamseg.serve.gate import Gate, RequestError, RequestGate, require_own_page, require_token
from streamseg.serve.zone_watch import Areas
from streamseg.serve.zones import receive_zones

NAME = re.compile(r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")
"""The name of a saved picture: no folders, no hidden files."""
DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices."""

router = APIRouter()


class SaveError(ValueError):
    """Something cannot be saved as it is: a status and a sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class DataFolder:
    """A folder of labelled pictures that clients add to."""

    def __init__(self, folder: Path, classes: Classes):
        """Raise an error if pictures with labels of these classes cannot be added to a folder."""
        self.root, self.classes = folder.resolve(), classes
        self.lock = threading.Lock()
        if not folder.is_dir():
            if folder.exists():
                raise NotADirectoryError(f"{folder} is a file; expected a folder to save into: give another --save.")
            raise FileNotFoundError(f"No folder {folder} to save into: create it first.")
        if splits := subfolders(folder / "images"):
            raise ValueError(
                f"{folder} has splits ({', '.join(splits):.80}), and pictures cannot be added beside them: give "
                "another folder for --save."
            )
        listed = folder / "classes.txt"
        if listed.exists() and (names := read_classes(listed).names) != classes.names:
            raise ValueError(
                f"{listed} lists {', '.join(names):.200}; the network has {', '.join(classes.names):.200}: give "
                "another folder for --save."
            )

    def place(self, *parts: str) -> Path:
        """Return a path in the folder; an error if links lead out of it."""
        path = self.root.joinpath(*parts)
        if not path.resolve().is_relative_to(self.root):
            raise SaveError(409, f"{'/'.join(parts)} is a link out of the data folder: give another name.")
        return path

    def save_picture(self, name: str, data: bytes, frame: Tensor, labels: Tensor) -> list[str]:
        """Save a picture and its labels; labels that a picture has already are replaced. Return the files' names.

        Args:
            data: The picture's file.
            frame: The picture, (3, H, W).
            labels: Its labels, (H, W).
        """
        is_jpeg = data.startswith(b"\xff\xd8")
        with self.lock:
            image = self.place("images", f"{name}{'.jpg' if is_jpeg else '.png'}")
            target = self.place("labels", f"{name}.png")
            for folder in (image.parent, target.parent):
                folder.mkdir(exist_ok=True)
            same = [path for path in image.parent.iterdir() if path.stem.casefold() == name.casefold()]
            for known in (path for path in same if path.suffix.lower() in PICTURE_SUFFIXES):
                if known.stem != name or not is_picture(known, frame):
                    raise SaveError(409, f"The data folder has another picture called {known.name}: give another name.")
                image = known
            if not self.place("classes.txt").exists():
                with written_whole(self.place("classes.txt")) as temporary:
                    write_classes(temporary, self.classes)
            with written_whole(target) as temporary:
                write_labels(temporary, labels, self.classes)
                if image not in same:
                    with written_whole(image) as picture:
                        if is_jpeg or data.startswith(b"\x89PNG"):
                            picture.write_bytes(data)
                        else:
                            write_image(picture, frame)
        return [path.relative_to(self.root).as_posix() for path in (image, target)]

    def save_zones(self, name: str, areas: Areas) -> list[str]:
        """Save zones as a JSON file, in the place of one of the same name; return its name."""
        with self.lock:
            path = self.place("zones", f"{name}.json")
            path.parent.mkdir(exist_ok=True)
            with written_whole(path) as temporary:
                temporary.write_text(json.dumps(zones_to_json(areas), indent=1) + "\n", encoding="utf-8")
        return [path.relative_to(self.root).as_posix()]


def is_picture(path: Path, frame: Tensor) -> bool:
    """Return whether a file holds a picture."""
    try:
        return read_image(path).equal(frame)
    except ValueError:
        return False


@router.put("/data/{name}", dependencies=[Depends(require_token), Depends(require_own_page)])
async def save_data(name: str, request: Request, gate: Gate) -> dict[str, list[str]]:
    """Save a picture and its labels into the server's data folder.

    The body is a form with the files picture and labels, an indexed PNG in which each pixel is the number of its class
    or 255; and, optionally, classes, a JSON list of the names that these numbers mean.
    """
    folder = find_folder(gate, name)
    with gate.reserve(), gate.codecs.open() as codec:
        form = parse_form(await gate.read_body(request), request.headers.get("content-type", ""))
        for part in ("picture", "labels"):
            if not form.get(part):
                raise RequestError(400, f"The form has no {part}: send the files picture and labels.")
        check_classes(form.get("classes", b""), folder.classes)
        frame = await gate.decode(form["picture"], codec)
        labels = await gate.decode_ids(form["labels"])
        height, width = frame.shape[1:]
        if labels.shape != (height, width):
            raise RequestError(
                422,
                f"The labels are {labels.shape[0]} x {labels.shape[1]}, the picture is {height} x {width}: send labels "
                "of the picture's size.",
            )
        unknown = [number for number in labels.unique().tolist() if not 0 <= number < len(folder.classes)]
        if foreign := [number for number in unknown if number != IGNORE]:
            raise RequestError(
                422,
                f"The labels hold {format_ranges(foreign)}; expected classes 0 to {len(folder.classes) - 1}, or "
                f"{IGNORE} for pixels without a class.",
            )
        return {"saved": await save(folder.save_picture, name, form["picture"], frame, labels)}


@router.put("/zones/{name}", dependencies=[Depends(require_token), Depends(require_own_page)])
async def save_zones(name: str, request: Request, gate: Gate) -> dict[str, list[str]]:
    """Save the JSON of a file of zones into the server's data folder, for --zones."""
    folder = find_folder(gate, name)
    areas = await receive_zones(request, gate.served.classes, gate.limits.seconds)
    return {"saved": await save(folder.save_zones, name, areas)}


def find_folder(gate: RequestGate, name: str) -> DataFolder:
    if gate.folder is None:
        raise RequestError(404, "This server saves nothing: start it with --save FOLDER.")
    if not NAME.fullmatch(name) or DEVICES.fullmatch(name):
        raise RequestError(422, f"{name!r:.80} cannot be a name here: give up to 100 letters, digits, -, _ and dots.")
    return gate.folder


async def save(write, *things: object) -> list[str]:  # type: ignore[no-untyped-def] # save_picture or save_zones
    """Call a method of a data folder in a thread; its errors become answers."""
    try:
        saved: list[str] = await asyncio.to_thread(write, *things)
    except SaveError as error:
        raise RequestError(error.status, str(error)) from None
    except OSError as error:
        logging.getLogger("streamseg").exception("%s could not be saved.", things[0])
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        reason = cause.strerror or type(error).__name__
        raise RequestError(507, f"{things[0]} could not be saved ({reason}): see the server's log.") from None
    return saved


def check_classes(given: bytes, classes: Classes) -> None:
    """Raise a RequestError if the classes of labels, as JSON, are not those of the folder."""
    try:
        names = json.loads(given or b"null")
    except (ValueError, RecursionError):
        names = ()
    if names is not None and names != [*classes.names]:
        shown = ", ".join(map(str, names)) if isinstance(names, list) else "no list"
        raise RequestError(
            422,
            f"The labels are of other classes ({shown:.120}) than the data folder ({', '.join(classes.names):.200}): "
            "load the page again.",
        )


def parse_form(body: bytes, content_type: str) -> dict[str, bytes]:
    """Return the parts of a form (multipart/form-data) by name; the first of several of a name."""
    header = Header()
    header["Content-Type"] = "".join(letter for letter in content_type if letter.isprintable())
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise RequestError(400, "Expected a form (multipart/form-data) with the files picture and labels.")
    parts: dict[str, bytes] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode(errors="replace"))[1:]:
        head, _, content = part.partition(b"\r\n\r\n")
        if name := re.search(rb'\bname="(\w+)"', head):
            parts.setdefault(name[1].decode(), content)
    return parts
