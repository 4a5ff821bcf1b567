"""Checks of user input: file names, suffixes, numbers. Standard library only.

They run before heavy imports, so that a typing error is reported at once.
"""

import re
from fractions import Fraction
from pathlib import Path

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")
"""Suffixes of pictures that can be written."""
VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm")
"""Suffixes of videos that can be written."""
EXPORT_SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2", "aotinductor": ".pt2"}
"""Suffix of each export format; the first format with a suffix is its default."""

DATASET_LAYOUTS = {
    "cityscapes": "leftImg8bit/SPLIT/CITY/ and gtFine/SPLIT/CITY/",
    "camvid": "SPLIT/ and SPLITannot/, or 701_StillsRaw_full/ and LabeledApproved_full/",
    "comma10k": (
        "imgs/ and masks/ (and imgs2/ and masks2/; imgsd/, the driver camera, is left out), "
        "or images/, labels/ and classes.txt"
    ),
    "coco-stuff": (
        "images/SPLIT2017/ and annotations/SPLIT2017/ (or stuffthingmaps/), or imageLists/, images/ and annotations/"
    ),
    "ade20k": "images/training/, annotations/training/, images/validation/ and annotations/validation/",
    "folder": (
        'classes.txt (one class a line, "name" or "name #rrggbb") and files of the same names in images/ and labels/; '
        "streamseg convert makes them of the export of an annotation tool"
    ),
}
"""Expected contents of the folder of each data set."""


class CutShort(OSError):  # noqa: N818 - the end of a source, not an error of the program
    """A source ended early; all frames before are valid."""


def check_choice(option: str, given: object, known: tuple[object, ...]) -> None:
    """Raise a ValueError that lists the known values, if an option is none of them."""
    if given not in known:
        raise ValueError(f"{option} is {given!r:.80}; choose one of: {', '.join(map(repr, known))}.")


def check_count(option: str, given: object) -> None:
    """Raise a ValueError if an option is not a whole number from 1 up."""
    if type(given) is not int or given < 1:
        raise ValueError(f"{option} is {given!r:.80}; expected a whole number, 1 or more.")


def check_positive(option: str, given: float) -> None:
    """Raise a ValueError if an option is not a number above 0."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not given > 0:
        raise ValueError(f"{option} is {given!r:.80}; expected a number above 0.")


def check_rate(rate: Fraction | float) -> None:
    """Raise a ValueError if a frame rate is outside 0.001 to 1000."""
    if not isinstance(rate, (int, float, Fraction)) or not 0.001 <= rate <= 1000:
        raise ValueError(f"A rate of {rate!r:.80} frames a second; expected 0.001 to 1000.")


def is_repository(name: str) -> bool:
    """Return whether a name could be that of a repository, USER/NAME."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-]+", name, re.ASCII) is not None


def check_readable(path: Path) -> None:
    """Raise an error if a file of weights does not exist or cannot be read."""
    if not path.exists():
        name = path.as_posix().partition("huggingface.co/")[2] or path.as_posix()
        hub = f", or give hf:{name} for a repository of the Hugging Face Hub" if is_repository(name) else ""
        raise FileNotFoundError(f"No weights at {path}: check the path{hub}.")
    if not path.is_file():
        raise ValueError(f"{path} is a folder or a device: give a file of weights.")
    try:
        path.open("rb").close()
    except PermissionError:
        raise PermissionError(f"{path} cannot be read: change its permissions.") from None


def missing_data_error(dataset: str, data: str | Path) -> FileNotFoundError:
    """Return the error for a folder that does not contain a data set."""
    return FileNotFoundError(f"No data set of kind {dataset} in {data}: expected {DATASET_LAYOUTS[dataset]}.")


def check_suffix(path: Path) -> None:
    """Raise a ValueError if a path does not have the suffix of a picture that can be written."""
    check_known_suffix(path, "picture", PICTURE_SUFFIXES)


def check_video_suffix(path: Path) -> None:
    """Raise a ValueError if a path does not have the suffix of a video that can be written."""
    check_known_suffix(path, "video", VIDEO_SUFFIXES)


def check_known_suffix(path: Path, kind: str, suffixes: tuple[str, ...]) -> None:
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"{path} does not have the suffix of a {kind}; expected one of {' '.join(suffixes)}.")


def pick_export_format(path: Path, to: str) -> str:
    """Return the export format of a path and, if given, a format name."""
    if to and to not in EXPORT_SUFFIXES:
        raise ValueError(f"{to!r:.80} is not an export format; choose one of: {', '.join(EXPORT_SUFFIXES)}.")
    formats = [name for name, suffix in EXPORT_SUFFIXES.items() if suffix == path.suffix.lower() and to in ("", name)]
    if not formats:
        expected = EXPORT_SUFFIXES[to] if to else ", ".join(dict.fromkeys(EXPORT_SUFFIXES.values()))
        raise ValueError(f"{path} does not have an export suffix; expected {expected}.")
    return formats[0]
