"""Checks of what a user gives: names of files, suffixes, numbers. Standard library only.

They come before heavy imports, so that whoever mistypes a name hears of it at once.
"""

from fractions import Fraction
from pathlib import Path

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")
"""What names of pictures to write end in."""
VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm")
"""What names of videos to write end in."""
EXPORT_SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2", "aotinductor": ".pt2"}
"""What export can write, and the suffix of each; of one suffix the first is meant unless told otherwise."""

DATASET_LAYOUTS = {
    "cityscapes": "leftImg8bit/SPLIT/CITY/ and gtFine/SPLIT/CITY/",
    "camvid": "SPLIT/ and SPLITannot/, or 701_StillsRaw_full/ and LabeledApproved_full/",
    "coco-stuff": (
        "images/SPLIT2017/ and annotations/SPLIT2017/ (or stuffthingmaps/), or imageLists/, images/ and annotations/"
    ),
    "ade20k": "images/training/, annotations/training/, images/validation/ and annotations/validation/",
    "folder": (
        'classes.txt (one class a line, "name" or "name #rrggbb") and files of the same names in images/ and labels/'
    ),
}
"""The data sets, and what is expected in the folder of each."""


class CutShort(OSError):  # noqa: N818 - an end, not a fault of the program
    """A source that ended before its time: all that came before is good."""


def check_choice(option: str, given: object, known: tuple[object, ...]) -> None:
    """Raise a ValueError that lists the known values, if an option is none of them."""
    if given not in known:
        raise ValueError(f"{option} is {given!r:.80}; choose one of: {', '.join(map(repr, known))}.")


def check_count(option: str, given: object) -> None:
    """Raise a ValueError if an option is not a whole number from 1 up."""
    if type(given) is not int or given < 1:
        raise ValueError(f"{option} is {given!r:.80}; expected a whole number, 1 or more.")


def check_positive(option: str, given: float) -> None:
    """Raise a ValueError if an option is no number above 0."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not given > 0:
        raise ValueError(f"{option} is {given!r:.80}; expected a number above 0.")


def check_rate(rate: Fraction | float) -> None:
    """Raise a ValueError if no video has so many frames a second."""
    if not isinstance(rate, (int, float, Fraction)) or not 0.001 <= rate <= 1000:
        raise ValueError(f"A rate of {rate!r:.80} frames a second; expected 0.001 to 1000.")


def check_readable(path: Path) -> None:
    """Raise an error in a sentence if there is no file of weights at a path, or it may not be read."""
    if not path.exists():
        raise FileNotFoundError(f"No weights at {path}: check the path.")
    if not path.is_file():
        raise ValueError(f"{path} is a folder or a device: give a file of weights.")
    try:
        path.open("rb").close()
    except PermissionError:
        raise PermissionError(f"{path} may not be read: change its permissions.") from None


def missing_data_error(dataset: str, data: str | Path) -> FileNotFoundError:
    """The error that a folder holds nothing of a data set."""
    return FileNotFoundError(f"No {dataset} data in {data}: expected there {DATASET_LAYOUTS[dataset]}.")


def check_suffix(path: Path) -> None:
    """Raise a ValueError if no picture can be written under such a name."""
    check_ending(path, "picture", PICTURE_SUFFIXES)


def check_video_suffix(path: Path) -> None:
    """Raise a ValueError if no video can be written under such a name."""
    check_ending(path, "video", VIDEO_SUFFIXES)


def check_ending(path: Path, thing: str, suffixes: tuple[str, ...]) -> None:
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"{path} names no kind of {thing} that can be written: end it in one of {' '.join(suffixes)}.")


def pick_export_format(path: Path, to: str) -> str:
    """The kind of exported file that a path and, if given, a name stand for."""
    if to and to not in EXPORT_SUFFIXES:
        raise ValueError(f"{to!r:.80} is no kind of file; choose one of: {', '.join(EXPORT_SUFFIXES)}.")
    fitting = [kind for kind, suffix in EXPORT_SUFFIXES.items() if suffix == path.suffix.lower() and to in ("", kind)]
    if not fitting:
        wanted = EXPORT_SUFFIXES[to] if to else ", ".join(dict.fromkeys(EXPORT_SUFFIXES.values()))
        raise ValueError(f"{path} has no suffix for what is to be written; expected {wanted}.")
    return fitting[0]
