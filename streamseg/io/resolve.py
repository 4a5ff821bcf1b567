"""Where frames come from: pictures, folders, videos, numbered pictures, cameras, network streams, standard input.

`find_sources` turns what a user names into sources; a source's `captures` gives its frames. A frame is RGB, uint8,
(3, H, W); a size is (height, width). Passwords in addresses are never shown.

What names stand for is found without torch, so that a wrong name is told at once; frames are read with it.
"""

import glob
import os
import re
import stat
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
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from torch import Tensor

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

PICTURE_SUFFIXES = (*checks.PICTURE_SUFFIXES, ".gif", ".apng", ".avif", ".ppm", ".pgm")
"""What names of pictures end in; of an animation the first picture is taken."""

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".wmv", ".flv")
"""What names of videos end in."""

INDEXED_SUFFIXES = (".mp4", ".mov", ".m4v", ".avi")
"""Suffixes of videos with an index, which only whole files have: no live stream is one."""

Found: TypeAlias = PictureFile | NumberedPictures | VideoFile | LiveSource | RawFrames


def read_frames(source: str | Path | int) -> Generator["Tensor", None, None]:
    """The frames of whatever a name stands for: a picture, a folder, a video, a camera, an address, ….

    A Path is always a file or a folder, a number a camera; a text may be anything that find_sources takes.
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
    """The frames of sources, one source after the other."""
    for source in sources:
        with closing(source.captures()) as captures:
            for capture in captures:
                yield capture.frame


def find_sources(
    names: Sequence[str], *, raw_size: tuple[int, int] | None = None, rate: float | None = None
) -> list[Source]:
    """The sources that names stand for, each once, in the order given; all pictures alone are one source.

    A name that stands for nothing is an error.

    Args:
        names: Pictures, videos, folders, patterns such as frames/*.png, numbered pictures such as frame_%04d.png, lists
            of such names (.txt), cameras (0, 1, … or a device), addresses (rtsp, http), or - for raw frames on
            standard input.
        raw_size: Height and width of raw frames.
        rate: Frames a second of raw frames and of numbered pictures; 25 if not given.
    """
    sources, problems = resolve_sources(names, raw_size=raw_size, rate=rate)
    if problems:
        raise problems[0]
    return sources


def resolve_sources(
    names: Sequence[str], *, raw_size: tuple[int, int] | None = None, rate: float | None = None
) -> tuple[list[Source], list[OSError | ValueError]]:
    """The sources that names stand for, as find_sources gives them, and what is wrong with the other names."""
    if not names:
        raise ValueError("Nothing to read: give a picture, a video, a folder, a camera or an address.")
    if rate is not None:
        check_rate(rate)
    if raw_size is not None and min(raw_size) < 1:
        raise ValueError(f"Raw frames of {raw_size[0]} x {raw_size[1]} pixels; expected 1 or more a side.")
    found: dict[str, Found] = {}
    problems: list[OSError | ValueError] = []
    for name in names:
        try:
            with readable_errors(name):
                entries = read_list(Path(name)) if is_list(name) else [(name, "")]
        except (OSError, ValueError) as problem:
            problems.append(problem)
            continue
        for entry, opening in entries:
            try:
                with readable_errors(entry, opening):
                    items = resolve_name(entry, raw_size, Fraction(rate or DEFAULT_RATE).limit_denominator(100_000))
            except (OSError, ValueError) as problem:
                problems.append(problem)
            else:
                found.update((source_key(item), item) for item in items if source_key(item) not in found)
    return with_unique_names(found.values()), problems


def source_key(item: Found) -> str:
    """What is the same for two names of one thing."""
    elsewhere = is_address(item.address) or isinstance(item, RawFrames | LiveSource)
    return item.address if elsewhere else str(absolute(item.address))


def absolute(path: str | Path) -> Path:
    """A path from the root, without detours; links stay what they are called."""
    return Path(os.path.normpath(Path(path).absolute()))


def read_list(path: Path) -> list[tuple[str, str]]:
    """The names in a list, and how a sentence about each begins."""
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


def resolve_name(name: str, raw_size: tuple[int, int] | None, rate: Fraction) -> list[Found]:
    """What a name stands for; a list is read before."""
    path = Path(name)
    if is_list(name):
        raise ValueError(f"{name} is a list itself; lists in lists are not read.")
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


def find_file(path: Path) -> Found:
    """The picture or the video in a file; what its name does not tell its content does."""
    kind = path.stat().st_mode
    if stat.S_ISCHR(kind):
        return LiveSource(path.name, str(path), open_camera)
    if not stat.S_ISREG(kind):
        raise ValueError(f"{path} is neither a file nor a camera: raw frames can come through standard input, as -.")
    if path.suffix.lower() in PICTURE_SUFFIXES:
        return PictureFile(path.stem, str(path))
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return VideoFile(path.stem, str(path))
    for item in (PictureFile(path.stem, str(path)), VideoFile(path.stem, str(path))):
        if is_readable(item):
            return item
    raise ValueError(f"{path} is neither a picture nor a video that can be read.")


def is_readable(item: PictureFile | VideoFile) -> bool:
    """Whether there is anything to see."""
    try:
        if isinstance(item, PictureFile):
            item.read()
        else:
            with closing(item.captures()) as captures:
                next(captures)
    except (CutShort, ValueError, StopIteration):
        return False
    return True


def find_in_folder(folder: Path) -> list[Found]:
    """The pictures and videos in a folder, not in folders within."""
    found = find_by_suffix(path for path in folder.iterdir() if not path.name.startswith("."))
    if not found:
        raise FileNotFoundError(f"No picture and no video in {folder}: looked for {all_suffixes()}.")
    return found


def find_matching(pattern: str) -> list[Found]:
    """The pictures and videos that a pattern matches."""
    names = glob.iglob(pattern, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
    found = find_by_suffix(Path(name) for name in names)
    if not found:
        raise FileNotFoundError(f"No picture and no video matches {pattern}: looked for {all_suffixes()}.")
    return found


def find_by_suffix(paths: Iterable[Path]) -> list[Found]:
    """The pictures and videos among files, in the order in which people count."""
    wanted = [
        path
        for path in paths
        if path.suffix.lower() in PICTURE_SUFFIXES + VIDEO_SUFFIXES
        and not path.name.startswith(UNFINISHED)
        and path.is_file()
    ]
    return [find_file(path) for path in sorted(wanted, key=natural_key)]


def natural_key(path: Path) -> tuple[list[list[str | int]], str]:
    """A key that sorts frame2 before frame10."""
    # text and numbers alternate, so that only like is compared with like
    parts = [[int(p) if p.isdecimal() else p.lower() for p in re.split(r"(\d+)", part)] for part in path.parts]
    return parts, str(path)


def all_suffixes() -> str:
    return " ".join(PICTURE_SUFFIXES + VIDEO_SUFFIXES)


def find_numbered(pattern: Path, rate: Fraction) -> NumberedPictures:
    """The pictures of a pattern such as frame_%04d.png: from the lowest number up to where one is missing."""
    places = NUMBER_FIELD.findall(pattern.name)
    if len(places) != 1 or NUMBER_FIELD.search(str(pattern.parent)):
        raise ValueError(f"{pattern} needs one number in the name of its files, such as frame_%04d.png.")
    paths = numbered_files(pattern)
    if not paths:
        raise FileNotFoundError(f"No picture is called {pattern}, with a number in place of {places[0]}.")
    first = end = min(paths)
    while end in paths:
        end += 1
    left_out = len(paths) - (end - first)
    skipped = plural(left_out, "later picture")
    note = f"{fill_number(pattern.name, end)} is missing: the video ends before it, ignoring {skipped}."
    before, after = NUMBER_FIELD.split(pattern.name)
    frames = tuple(paths[number] for number in range(first, end))
    name = before.rstrip("_-. ") or after.removesuffix(pattern.suffix).lstrip("_-. ") or "sequence"
    return NumberedPictures(name, str(pattern), frames, rate, note if left_out else "")


def find_address(address: str) -> Found:
    """The picture, video or stream at an address."""
    parts = web.split_address(address)
    place = PurePosixPath(unquote(parts.path))
    name = "_".join([(parts.hostname or "").replace(".", "-"), *([place.stem] if place.stem else [])])
    if parts.scheme.startswith("rtsp"):
        return LiveSource(name, address, open_stream)
    address, suffix = web.join_address(parts), place.suffix.lower()
    if suffix in PICTURE_SUFFIXES:
        return PictureFile(place.stem, address)
    with web.open_address(address) as response:
        kind = web.content_type(response)
        if suffix == ".m3u8" or "mpegurl" in kind:
            return (
                VideoFile(name, address) if web.has_end(response, address) else LiveSource(name, address, open_stream)
            )
        if kind.startswith("image/"):
            return PictureFile(place.stem or name, address)
        if kind.startswith(("audio/", "text/html")):
            what = "sound" if kind.startswith("audio/") else "a web page"
            raise ValueError(f"{redact(address)} is {what}, not a video.")
        has_end = "Content-Length" in response.headers or suffix in INDEXED_SUFFIXES
    from streamseg.io.video_reading import has_known_length

    # asked after the answer has been closed: some servers talk with one at a time
    live = kind.startswith("multipart/") or not (has_end or has_known_length(address))
    return LiveSource(name, address, open_stream) if live else VideoFile(name, address)


def with_unique_names(items: Iterable[Found]) -> list[Source]:
    """Sources in order, the pictures among the items as one of them, all under names that differ."""
    items = list(items)
    pictures = [item for item in items if isinstance(item, PictureFile)]
    sources: list[Source] = []
    for item in items:
        if not isinstance(item, PictureFile):
            sources.append(item)
        elif item is pictures[0]:
            sources.append(group_pictures(pictures))
    names = unique_file_names([place_of(source) for source in sources])
    return [replace(source, name=name) for source, name in zip(sources, names, strict=True)]


def group_pictures(pictures: Sequence[PictureFile]) -> Pictures:
    """Pictures as one source."""
    names = unique_file_names([place_of(picture) for picture in pictures])
    named = tuple(replace(picture, name=name) for picture, name in zip(pictures, names, strict=True))
    folders = {place_of(picture)[:-2] for picture in pictures}
    together = [folder[-1] for folder in folders if folder] if len(folders) == 1 else []
    return Pictures(names[0] if len(names) == 1 else (together or ["pictures"])[0], named)


def place_of(item: PictureFile | Source) -> tuple[str, ...]:
    """What tells an item from others of its name: folders, name, suffix."""
    if isinstance(item, Pictures | NumberedPictures | LiveSource | RawFrames):
        return item.name, ""
    place: PurePath
    if is_address(item.address):
        parts = urlsplit(item.address)
        place = PurePosixPath((parts.hostname or "").replace(".", "-") + unquote(parts.path))
    else:
        place = absolute(item.address).relative_to(absolute(item.address).anchor)
    return *place.parts[:-1], item.name, place.suffix


def unique_file_names(places: Sequence[tuple[str, ...]]) -> list[str]:
    """A name for each place, fit for files: its own, with the suffix or with as many folders as it takes to differ."""
    alike = defaultdict(list)
    for i, place in enumerate(places):
        alike[safe_file_name(place[-2]).lower()].append(i)
    names = [safe_file_name(place[-2]) for place in places]
    for group in alike.values():
        if len(group) == 1:
            continue
        deepest = max(len(places[i]) for i in group) - 1
        for depth, suffixed in ((depth, suffixed) for depth in range(deepest) for suffixed in (False, True)):
            longer = [
                safe_file_name("_".join(places[i][-2 - depth : -1]) + suffixed * places[i][-1].replace(".", "_"))
                for i in group
            ]
            if len({name.lower() for name in longer}) == len(group):
                for i, name in zip(group, longer, strict=True):
                    names[i] = name
                break
    # names that differ in the end only: the same under two queries of a server, or a longer one that was there already
    taken, numbers = set(), Counter[str]()
    for i, name in enumerate(names):
        while names[i].lower() in taken:
            numbers[name] += 1
            names[i] = f"{name}_{numbers[name] + 1}"
        taken.add(names[i].lower())
    return names


def safe_file_name(name: str) -> str:
    """A name that every file system takes, with room for an ending."""
    fit = re.sub(r'[\x00-\x1f<>:"/\\|?*]', "_", name.encode(errors="replace").decode())
    return fit.encode()[:200].decode(errors="ignore").strip(" .") or "_"
