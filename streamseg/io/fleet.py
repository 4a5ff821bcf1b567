"""Read a fleet file: a TOML file that names cameras, with their addresses, settings and outputs.

    [defaults]
    size = "360x640"
    out = "recordings"

    [[camera]]
    name = "front"
    address = "rtsp://user:password@10.0.0.2/live"
    classes = ["Road", "Car"]

A network address counts as live and is not asked here: cameras that are away hold up no other. Passwords are never
shown.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from streamseg.io import web
from streamseg.io.resolve import resolve_name, safe_file_name
from streamseg.io.sources import (
    DEFAULT_RATE,
    NUMBER_FIELD,
    LiveSource,
    NumberedPictures,
    VideoFile,
    numbered_files,
    open_stream,
)
from streamseg.io.web import is_address

OUTPUTS = ("overlay", "labels", "confidence", "colours")
"""The keys that say what to write, as the options of the same names do."""
SETTINGS = ("size", "classes", "mask", "out", *OUTPUTS)
"""The keys that [defaults] may have, and each camera."""
KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(("name", "size", "mask", "out"), (str, "a text in quotation marks")),
    "address": ((str, int), "a text in quotation marks, or the number of a camera"),
    "classes": (list, 'a list of names, such as ["Road", "Car"]'),
    **dict.fromkeys(OUTPUTS, (bool, "true or false")),
}
"""The type of each key, and how to write it."""


@dataclass(frozen=True)
class Camera:
    """A camera of a fleet: its source, and what differs from the options of the command."""

    name: str
    source: LiveSource | NumberedPictures | VideoFile
    size: str = ""
    """Network input size, HEIGHTxWIDTH; empty for that of the command."""
    classes: tuple[str, ...] = ()
    """The classes to colour; those of the command if empty."""
    out: str = ""
    """Where to write; empty for that of the command."""
    outputs: dict[str, bool] = field(default_factory=dict)
    """Whether to write an overlay, labels and so on, where the file says so."""
    mask: str = ""
    """The picture whose black pixels are ignored, or bonnet; empty for that of the command."""


def read_fleet(path: Path) -> tuple[list[Camera], list[OSError]]:
    """Return the cameras in a fleet file, and an error for each that is away; a ValueError if the file is wrong."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ValueError(f"{path} is not a fleet file that can be read: {reason}.") from None
    except OSError as error:
        raise type(error)(f"The fleet file {path} cannot be read: {error.strerror}.") from None
    check_keys(table, ("defaults", "camera"), f"{path}:")
    defaults, entries = table.get("defaults", {}), table.get("camera", [])
    if not isinstance(defaults, dict):
        raise ValueError(f"{path}: defaults is no table; expected [defaults] and its keys on the lines below.")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: camera is no list of tables; expected [[camera]], in double brackets, for each.")
    if not entries:
        raise ValueError(f"{path} names no camera: give each a table [[camera]] with a name and an address.")
    check_table(defaults, SETTINGS, f"{path}, [defaults]:")
    cameras: dict[str, Camera] = {}
    missing = []
    for number, entry in enumerate(entries, start=1):
        try:
            camera = read_camera(path, number, defaults, entry, cameras)
        except OSError as problem:
            missing.append(problem)
        else:
            cameras[camera.name.lower()] = camera
    return list(cameras.values()), missing


def read_camera(path: Path, number: int, defaults: dict, entry: dict, others: Mapping[str, Camera]) -> Camera:
    """Return a camera by its table; an OSError if it is not there, and a ValueError if the table is wrong."""
    name = entry.get("name")
    place = f"{path}, camera {name!r:.80}:" if isinstance(name, str) and name else f"{path}, camera {number}:"
    check_table(entry, ("name", "address", *SETTINGS), place)
    for key, example in (("name", "front"), ("address", "rtsp://10.0.0.2/live")):
        if entry.get(key, "") == "":
            raise ValueError(f'{place} it has no {key}: add one, such as {key} = "{example}".')
    name = entry["name"]
    if safe_file_name(name) != name:
        raise ValueError(f"{place} the name cannot be that of a file: expected letters, digits, -, _ and spaces.")
    if name.lower() in others:
        raise ValueError(f"{place} there are two cameras of this name: give each its own.")
    settings = defaults | entry
    return Camera(
        name,
        find_source(name, str(entry["address"]), path, place),
        settings.get("size", ""),
        tuple(settings.get("classes", ())),
        settings.get("out", ""),
        {key: settings[key] for key in OUTPUTS if key in settings},
        find_mask(settings.get("mask", ""), path),
    )


def find_mask(mask: str, path: Path) -> str:
    """Return the path of a mask that a fleet file names: beside the file, or from the current folder."""
    return str(path.parent / mask) if mask and (path.parent / mask).is_file() else mask


def find_source(name: str, address: str, path: Path, place: str) -> LiveSource | NumberedPictures | VideoFile:
    """Return the source at an address: a network stream, a camera of this machine, or a video beside the fleet file."""
    try:
        if is_address(address):
            return LiveSource(name, web.join_address(web.split_address(address)), open_stream)
        beside = path.parent / address
        is_beside = beside.exists() or bool(NUMBER_FIELD.search(beside.name) and numbered_files(beside))
        items = resolve_name(str(beside) if is_beside else address, None, DEFAULT_RATE)
    except ValueError as error:
        raise ValueError(f"{place} {error}") from None
    except OSError as error:
        raise type(error)(f"{name}: {error}") from None
    item = items[0] if len(items) == 1 else None
    if isinstance(item, LiveSource):
        return LiveSource(name, item.address, item.open)
    if isinstance(item, VideoFile):
        return VideoFile(name, item.address)
    if isinstance(item, NumberedPictures):
        return NumberedPictures(name, item.address, item.paths, item.rate, item.note)
    raise ValueError(f"{place} {address} is no camera and no video: give an address, a camera's number, or a video.")


def check_table(table: Mapping[str, object], keys: Sequence[str], place: str) -> None:
    """Raise a ValueError if a table has an unknown key, or a value of a wrong type."""
    check_keys(table, keys, place)
    for key, value in table.items():
        kinds, expected = KINDS[key]
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
        if wrong or (isinstance(value, list) and not all(isinstance(part, str) for part in value)):
            shown = "is something else" if key == "address" else f"is {value!r:.80}"
            raise ValueError(f"{place} {key} {shown}; expected {expected}.")


def check_keys(table: Mapping[str, object], keys: Sequence[str], place: str) -> None:
    """Raise a ValueError if a table has an unknown key."""
    for key in table:
        if key not in keys:
            near = get_close_matches(key.lower(), keys, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"{place} there is no key {key!r:.80}: {meant}Keys are {', '.join(keys)}.")
