"""Resolve the names that a user gives to sources of frames.

A name is a picture, a folder, a video, a pattern, a list, numbered pictures, a camera, an address, or - for standard
input. torch is imported only if a suffix does not tell what a file is, so that a wrong name is reported at once.
"""

import glob
import os
import re
import stat
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from streamseg import checks
from streamseg.checks import CutShort, check_rate
from streamseg.io import web
from streamseg.io.files import UNFINISHED
from streamseg.io.sources import (
    DEFAULT_RATE,
    NUMBER_FIELD,
    LiveSource,
    NumberedPictures,
    PictureFile,
    Pictures,
    RawFrames,
    Source,
    VideoFile,
    fill_number,
    numbered_files,
    open_camera,
    open_stream,
    plural,
    readable_errors,
)
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from torch import Tensor

READABLE_PICTURES = (*checks.PICTURE_SUFFIXES, ".gif", ".apng", ".avif", ".ppm", ".pgm")
"""Suffixes of pictures that can be read; the first picture of an animation is used."""
READABLE_VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".wmv", ".flv")
"""Suffixes of videos that can be read."""
INDEXED_SUFFIXES = (".mp4", ".mov", ".m4v", ".avi")
"""Suffixes of videos with an index, which only complete files have: no live stream is one."""

MAX_REQUESTS = 128
"""How many addresses are asked at once what they are."""

Item: TypeAlias = PictureFile | NumberedPictures | VideoFile | LiveSource | RawFrames
"""What a single name is resolved to; pictures are grouped into one source afterwards."""


def read_frames(source: str | Path | int) -> Generator["Tensor", None, None]:
    """Yield the frames of a picture, a folder, a video, a camera or an address.

    A Path is always a file or a folder, a number a camera; a string may be anything that find_sources takes.
    """
    if isinstance(source, Path):
        source = str(absolute(source))
    elif type(source) is int:
        source = str(source)
    if not isinstance(source, str):
        raise ValueError(
            f"The source is {source!r:.80}, a {type(source).__name__}; expected a path, an address, or a whole number "
            "for a camera."
        )
    return frames_of(find_sources([source]))


def frames_of(sources: Iterable[Source]) -> Generator["Tensor", None, None]:
    """Yield the frames of sources, one source after the other."""
    for source in sources:
        with closing(source.captures()) as captures:
            for capture in captures:
                yield capture.frame


def find_sources(
    names: Sequence[str], *, raw_size: tuple[int, int] | None = None, rate: float | None = None
) -> list[Source]:
    """Return the sources of names, each once, in the order given; all single pictures are one source.

    A name that cannot be resolved is an error.

    Args:
        names: Pictures, videos, folders, patterns such as frames/*.png, numbered pictures such as frame_%04d.png, lists
            of such names (.txt), cameras (0, 1, … or a device), addresses (rtsp, http), or - for raw frames on
            standard input.
        raw_size: Height and width of raw frames.
        rate: Frames a second of raw frames and of numbered pictures; 25 by default.
    """
    sources, problems = resolve_sources(names, raw_size=raw_size, rate=rate)
    if problems:
        raise problems[0]
    return sources


def resolve_sources(
    names: Sequence[str], *, raw_size: tuple[int, int] | None = None, rate: float | None = None
) -> tuple[list[Source], list[OSError | ValueError]]:
    """Return the sources that find_sources returns, and an error for each name that cannot be resolved."""
    if not names:
        raise ValueError("Nothing to read: give a picture, a video, a folder, a camera or an address.")
    if rate is not None:
        check_rate(rate)
    if raw_size is not None and min(raw_size) < 1:
        raise ValueError(f"Raw frames of {raw_size[0]} x {raw_size[1]} pixels; expected 1 or more a side.")
    found: dict[str, Item] = {}
    problems: list[OSError | ValueError] = []
    lists: list[list[tuple[str, str]] | OSError | ValueError] = []
    for name in names:
        try:
            with readable_errors(name):
                lists.append(read_list(Path(name)) if is_list(name) else [(name, "")])
        except (OSError, ValueError) as problem:
            lists.append(problem)
    answers = ask_addresses(entry for part in lists if isinstance(part, list) for entry, _ in part if is_address(entry))
    for entries in lists:
        if not isinstance(entries, list):
            problems.append(entries)
            continue
        for entry, prefix in entries:
            try:
                with readable_errors(entry, prefix):
                    answer = answers.get(entry)
                    if isinstance(answer, Exception):
                        raise answer
                    step = Fraction(rate or DEFAULT_RATE).limit_denominator(100_000)
                    items = [answer] if answer else resolve_name(entry, raw_size, step)
            except (OSError, ValueError) as problem:
                problems.append(problem)
            else:
                found.update((source_key(item), item) for item in items if source_key(item) not in found)
    return to_sources(found.values()), problems


def ask_addresses(addresses: Iterable[str]) -> "dict[str, Item | OSError | ValueError]":
    """Return what is at each of several addresses, or why it is unknown; asked at once, as dead ones take seconds."""
    todo = list(dict.fromkeys(addresses))
    if len(todo) < 2:
        return {}
    answers: dict[str, Item | OSError | ValueError] = {}
    remaining, lock = iter(todo), threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                address = next(remaining, None)
            if address is None:
                return
            try:
                answers[address] = find_address(address)
            except (OSError, ValueError) as problem:
                answers[address] = problem

    # daemons: Ctrl-C does not wait for servers
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(min(MAX_REQUESTS, len(todo)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def source_key(item: Item) -> str:
    """Return a key that two names of one source share."""
    no_file = is_address(item.address) or isinstance(item, RawFrames | LiveSource)
    return item.address if no_file else str(absolute(item.address))


def absolute(path: str | Path) -> Path:
    """Return a path from the root, without . and .., links not followed."""
    return Path(os.path.normpath(Path(path).absolute()))


def read_list(path: Path) -> list[tuple[str, str]]:
    """Return the names in a list, each with a prefix for error messages about it."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no list of names: expected text in UTF-8, one name a line.") from None
    entries = []
    for number, line in enumerate(lines, start=1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        if re.search(r"[\x00-\x1f\x7f]", name):
            raise ValueError(f"Line {number} of {path}: {name!r:.80} is no name: expected text, one name a line.")
        beside = path.parent / name
        if not is_address(name) and (beside.exists() or not (name == "-" or is_number(name))):
            name = str(beside)
        entries.append((name, f"Line {number} of {path}: "))
    if not entries:
        raise ValueError(f"{path} lists nothing: expected the name of a picture or of a video on each line.")
    return entries


def resolve_name(name: str, raw_size: tuple[int, int] | None, rate: Fraction) -> list[Item]:
    """Return what a name stands for; it must not be a list."""
    path = Path(name)
    if is_list(name):
        raise ValueError(f"{name} is a list in a list: name its files in one list.")
    if name == "-":
        if raw_size is None:
            raise ValueError("Raw frames on standard input need their size: --raw-size HEIGHTxWIDTH.")
        return [RawFrames(raw_size, rate)]
    if is_address(name):
        return [find_address(name)]
    if name and path.exists():
        return find_in_folder(path) if path.is_dir() else [find_file(path)]
    if is_number(name):
        return [LiveSource(f"camera{int(name)}", name, open_camera)]
    if name.startswith("/dev/"):
        raise FileNotFoundError(f"No camera at {name}: is it plugged in?")
    if NUMBER_FIELD.search(name):
        return [find_numbered(path, rate)]
    if glob.has_magic(name):
        return find_matching(name)
    raise FileNotFoundError(
        f"Nothing at {name or repr(name)}: expected a picture, a video, a folder or a list of names."
    )


def is_list(name: str) -> bool:
    return name.lower().endswith(".txt") and Path(name).is_file()


def is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def find_file(path: Path) -> Item:
    """Return the picture or video in a file, by its suffix or else by its content; or the camera of a device."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode):
        return LiveSource(path.name, str(path), open_camera)
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is neither a file nor a camera: pipe raw frames into standard input, as -.")
    if path.suffix.lower() in READABLE_PICTURES:
        return PictureFile(path.stem, str(path))
    if path.suffix.lower() in READABLE_VIDEOS:
        return VideoFile(path.stem, str(path))
    for item in (PictureFile(path.stem, str(path)), VideoFile(path.stem, str(path))):
        if is_readable(item):
            return item
    raise ValueError(f"{path} is neither a picture nor a video that can be read.")


def is_readable(item: PictureFile | VideoFile) -> bool:
    """Return whether a frame can be read."""
    try:
        if isinstance(item, PictureFile):
            item.read()
        else:
            with closing(item.captures()) as captures:
                next(captures)
    except (CutShort, ValueError, StopIteration):
        return False
    return True


def find_in_folder(folder: Path) -> list[Item]:
    """Return the pictures and videos in a folder, without subfolders."""
    found = find_by_suffix(path for path in folder.iterdir() if not path.name.startswith("."))
    if not found:
        raise FileNotFoundError(f"No picture and no video in {folder}: looked for {all_suffixes()}.")
    return found


def find_matching(pattern: str) -> list[Item]:
    """Return the pictures and videos that a pattern matches."""
    names = glob.iglob(pattern, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
    found = find_by_suffix(Path(name) for name in names)
    if not found:
        raise FileNotFoundError(f"No picture and no video matches {pattern}: looked for {all_suffixes()}.")
    return found


def find_by_suffix(paths: Iterable[Path]) -> list[Item]:
    """Return the pictures and videos among files, in natural order."""
    wanted = [
        path
        for path in paths
        if path.suffix.lower() in READABLE_PICTURES + READABLE_VIDEOS
        and not path.name.startswith(UNFINISHED)
        and path.is_file()
    ]
    return [find_file(path) for path in sorted(wanted, key=natural_key)]


def natural_key(path: Path) -> tuple[list[list[str | int]], str]:
    """Return a key that sorts frame2 before frame10."""
    # text and numbers alternate, so that numbers are compared with numbers only
    parts = [[int(p) if p.isdecimal() else p.lower() for p in re.split(r"(\d+)", part)] for part in path.parts]
    return parts, str(path)


def all_suffixes() -> str:
    return " ".join(READABLE_PICTURES + READABLE_VIDEOS)


def find_numbered(pattern: Path, rate: Fraction) -> NumberedPictures:
    """Return the pictures of a pattern such as frame_%04d.png, from the lowest number up to the first gap."""
    places = NUMBER_FIELD.findall(pattern.name)
    if len(places) != 1 or NUMBER_FIELD.search(str(pattern.parent)):
        raise ValueError(f"{pattern} needs one number in the name of its files, such as frame_%04d.png.")
    paths = numbered_files(pattern)
    if not paths:
        raise FileNotFoundError(f"No picture is called {pattern}, with a number in place of {places[0]}.")
    first = end = min(paths)
    while end in paths:
        end += 1
    ignored = plural(len(paths) - (end - first), "later picture")
    note = f"{fill_number(pattern.name, end)} is missing: the video ends before it, ignoring {ignored}."
    before, after = NUMBER_FIELD.split(pattern.name)
    frames = tuple(paths[number] for number in range(first, end))
    name = before.rstrip("_-. ") or after.removesuffix(pattern.suffix).lstrip("_-. ") or "sequence"
    return NumberedPictures(name, str(pattern), frames, rate, note if len(frames) < len(paths) else "")


def find_address(address: str) -> Item:
    """Return the picture, video or stream at an address."""
    parts = web.split_address(address)
    path = PurePosixPath(unquote(parts.path))
    name = "_".join([(parts.hostname or "").replace(".", "-"), *([path.stem] if path.stem else [])])
    if parts.scheme.startswith("rtsp"):
        return LiveSource(name, address, open_stream)
    address, suffix = web.join_address(parts), path.suffix.lower()
    if suffix in READABLE_PICTURES:
        return PictureFile(path.stem, address)
    with web.open_address(address) as response:
        content = web.content_type(response)
        if suffix == ".m3u8" or "mpegurl" in content:
            ended = web.has_end(response, address)
            return VideoFile(name, address) if ended else LiveSource(name, address, open_stream)
        if content.startswith("image/"):
            return PictureFile(path.stem or name, address)
        if content.startswith(("audio/", "text/html")):
            what = "sound" if content.startswith("audio/") else "a web page"
            raise ValueError(f"{redact(address)} is {what}, not a video.")
        has_end = "Content-Length" in response.headers or suffix in INDEXED_SUFFIXES
    from streamseg.io.video_streams import has_known_length

    # asked after the response has been closed: some servers take one connection at a time
    live = content.startswith("multipart/") or not (has_end or has_known_length(address))
    return LiveSource(name, address, open_stream) if live else VideoFile(name, address)


def to_sources(items: Iterable[Item]) -> list[Source]:
    """Return sources in order, all pictures as one of them, with names that differ."""
    items = list(items)
    pictures = [item for item in items if isinstance(item, PictureFile)]
    sources: list[Source] = []
    for item in items:
        if not isinstance(item, PictureFile):
            sources.append(item)
        elif item is pictures[0]:
            sources.append(group_pictures(pictures))
    names = unique_file_names([name_parts(source) for source in sources])
    return [replace(source, name=name) for source, name in zip(sources, names, strict=True)]


def group_pictures(pictures: Sequence[PictureFile]) -> Pictures:
    """Return pictures as one source."""
    names = unique_file_names([name_parts(picture) for picture in pictures])
    named = tuple(replace(picture, name=name) for picture, name in zip(pictures, names, strict=True))
    folders = {name_parts(picture)[:-2] for picture in pictures}
    common = [folder[-1] for folder in folders if folder] if len(folders) == 1 else []
    return Pictures(names[0] if len(names) == 1 else (common or ["pictures"])[0], named)


def name_parts(item: PictureFile | Source) -> tuple[str, ...]:
    """Return what distinguishes an item from others of its name: folders, name, suffix."""
    if isinstance(item, Pictures | NumberedPictures | LiveSource | RawFrames):
        return item.name, ""
    path: PurePath
    if is_address(item.address):
        parts = urlsplit(item.address)
        path = PurePosixPath((parts.hostname or "").replace(".", "-") + unquote(parts.path))
    else:
        path = absolute(item.address).relative_to(absolute(item.address).anchor)
    return *path.parts[:-1], item.name, path.suffix


def unique_file_names(names: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a distinct file name for each (folders …, name, suffix): the name, extended as little as possible.

    Where names collide, the suffix or as many folders as necessary are added.
    """
    alike = defaultdict(list)
    for i, parts in enumerate(names):
        alike[safe_file_name(parts[-2]).lower()].append(i)
    result = [safe_file_name(parts[-2]) for parts in names]
    for group in alike.values():
        if len(group) == 1:
            continue
        deepest = max(len(names[i]) for i in group) - 1
        for depth, suffixed in ((depth, suffixed) for depth in range(deepest) for suffixed in (False, True)):
            longer = [
                safe_file_name("_".join(names[i][-2 - depth : -1]) + suffixed * names[i][-1].replace(".", "_"))
                for i in group
            ]
            if len({name.lower() for name in longer}) == len(group):
                for i, name in zip(group, longer, strict=True):
                    result[i] = name
                break
    # what is still alike: one address under two queries, or a longer name that was there already
    taken, numbers = set(), Counter[str]()
    for i, name in enumerate(result):
        while result[i].lower() in taken:
            numbers[name] += 1
            result[i] = f"{name}_{numbers[name] + 1}"
        taken.add(result[i].lower())
    return result


def safe_file_name(name: str) -> str:
    """Return a name that every file system takes, with room for a suffix."""
    fit = re.sub(r'[\x00-\x1f<>:"/\\|?*]', "_", name.encode(errors="replace").decode())
    return fit.encode()[:200].decode(errors="ignore").strip(" .") or "_"
