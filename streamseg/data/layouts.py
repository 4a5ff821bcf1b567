"""The folder layouts of each data set: its splits, their frames and label files."""

import math
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from torch import Tensor

from streamseg.checks import DATASET_LAYOUTS, PICTURE_SUFFIXES as SUFFIXES
from streamseg.classes import ADE20K, CAMVID, CITYSCAPES, COCO_STUFF, COCO_STUFF_182, COMMA10K, IGNORE, Classes, Colour
from streamseg.data.labels import read_camvid_colours, read_comma10k_colours, read_mat, read_translated

HIDDEN = (".", "@")
"""Prefixes of folders that operating systems create, such as .thumbnails and @eaDir."""


@dataclass(frozen=True)
class Pair:
    """The files of one labelled frame."""

    image: Path
    labels: Path


class Split(NamedTuple):
    """The files of one split and how to read them; the fields are the same as in Dataset."""

    classes: Classes
    pairs: tuple[Pair, ...]
    read_labels: Callable[[Path], Tensor]
    sequences: tuple[tuple[Path, ...], ...] = ()
    rate: float = 25.0
    ahead: int = 0


def list_cityscapes(data: Path) -> dict[str, Split]:
    """List the splits of Cityscapes."""
    labels_of = (
        {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5} | {id: id - 13 for id in range(19, 29)} | {31: 16, 32: 17, 33: 18}
    )
    read = partial(read_translated, label_of=dict.fromkeys(range(34), IGNORE) | labels_of)
    splits = {}
    for split in subfolders(data / "leftImg8bit", ("train", "val", "test")):
        images, labels, video = (data / kind / split for kind in ("leftImg8bit", "gtFine", "leftImg8bit_sequence"))
        pairs = [
            pair
            for city in sorted({*subfolders(images), *subfolders(labels)})
            for pair in pair_files(images / city, labels / city, ("_leftImg8bit", "_gtFine_labelIds"))
        ]
        frames = [frame for city in subfolders(video) for frame in by_stem(video / city, "_leftImg8bit").values()]
        # a labelled frame is in both folders: the sequence gets the one of leftImg8bit
        known = {pair.image.stem for pair in pairs}
        whole = [pair.image for pair in pairs] + [frame for frame in frames if frame.stem not in known]
        # 30 frames at 17 per second, of which the 20th is labelled
        sequences = sequences_of(whole, 1) if frames else ()
        splits[split] = Split(CITYSCAPES, tuple(pairs), read, sequences, rate=17.0, ahead=19)
    return splits


def list_camvid(data: Path) -> dict[str, Split]:
    """List the splits of CamVid, in either layout."""
    splits = {}
    if (data / "701_StillsRaw_full").is_dir():
        pairs = pair_files(data / "701_StillsRaw_full", data / "LabeledApproved_full", ("", "_L"))
        for split in ("train", "val", "test"):
            ours = [pair for pair in pairs if camvid_split(pair.image) == split]
            splits[split] = Split(CAMVID, tuple(ours), read_camvid_colours)
    else:
        read = partial(read_translated, label_of={id: id for id in range(11)} | {11: IGNORE, IGNORE: IGNORE})
        for split in subfolders(data, ("train", "val", "test")):
            # SegNet's lists hold "/SegNet/CamVid/train/NAME.png /SegNet/CamVid/trainannot/NAME.png"
            given = data / f"{split}.txt"
            names = [line.split()[0] for line in read_names(given)] if given.is_file() else None
            found = pair_files(data / split, data / f"{split}annot", names=names)
            splits[split] = Split(CAMVID, found, read)
    # 30 frames per second; most labelled frames are a second apart, those of val a fifteenth
    return {
        name: split._replace(sequences=sequences_of([pair.image for pair in split.pairs], 30), rate=30.0)
        for name, split in splits.items()
    }


def camvid_split(image: Path) -> str:
    """Return the split of a frame of the original CamVid, in the usual division into 367, 101 and 233."""
    recording, number = recording_and_number(image)
    if recording.startswith("0016E5"):
        return "val" if 7959 <= number <= 8159 else "train"
    if recording.startswith("0001TP"):
        return "train" if number <= 8520 else "test"
    if recording.startswith("0006R0"):
        return "train"
    if recording.startswith("Seq05VD"):
        return "test"
    raise ValueError(f"{image} is not a frame of CamVid: expected 0001TP_…, 0006R0_…, 0016E5_… or Seq05VD_….")


def list_comma10k(data: Path) -> dict[str, Split]:
    """List the splits of comma10k, in either layout; each device is in one split.

    The frames of the driver camera, imgsd/, are left out: they show the cabin, and their names do not say the device.
    """
    if subfolders(data, ("imgs", "imgs2")):
        # imgs2 is not finished: some of its frames have no mask yet
        second = [pair for pair in pair_files(data / "imgs2", data / "masks2") if pair.labels.is_file()]
        pairs, read = (*pair_files(data / "imgs", data / "masks"), *second), read_comma10k_colours
    elif len(subfolders(data, ("images", "labels"))) == 2:
        check_comma10k_classes(data / "classes.txt")
        pairs = pair_files(data / "images", data / "labels")
        read = partial(read_translated, label_of={id: id for id in range(len(COMMA10K))} | {IGNORE: IGNORE})
    else:
        return {}
    split_of = {pair: comma10k_split(pair.image) for pair in sorted(pairs, key=lambda pair: pair.image.name)}
    return {
        split: Split(COMMA10K, tuple(pair for pair, its_split in split_of.items() if its_split == split), read)
        for split in ("train", "val")
    }


def comma10k_split(image: Path) -> str:
    """Return the split of a frame of comma10k: val for about 15 % of the devices, chosen by a checksum of their names.

    So a device keeps its split when frames or devices are added.
    """
    device = device_of(image)
    if not device:
        raise ValueError(
            f"{image} is not a frame of comma10k: expected the device in its name, 16 hexadecimal digits, such as "
            "0000_0085e9e41513078a_…. For your own data, give folder as the data set."
        )
    return "val" if zlib.crc32(device.encode()) % 100 < 15 else "train"


def device_of(image: Path) -> str:
    """Return the device that a frame of comma10k is from, the part of its name of 16 hexadecimal digits; or ""."""
    return next((part for part in image.stem.split("_") if re.fullmatch("[0-9a-f]{16}", part)), "")


def check_comma10k_classes(path: Path) -> None:
    """Raise a ValueError if a list of classes exists and does not have those of comma10k."""
    if path.is_file() and (names := read_classes(path).names) != COMMA10K.names:
        raise ValueError(
            f"{path} lists {', '.join(names):.200}; comma10k has {', '.join(COMMA10K.names)}. For your own data, give "
            "folder as the data set."
        )


def list_coco_stuff(data: Path) -> dict[str, Split]:
    """List the splits of COCO-Stuff, 164k or 10k."""
    ids = [i for i, name in enumerate(COCO_STUFF_182.names) if name in COCO_STUFF.names]
    splits = {}
    if (data / "imageLists").is_dir():
        read = partial(read_mat, label_of={id + 1: label for label, id in enumerate(ids)} | {0: IGNORE})
        for given in (data / "imageLists" / "train.txt", data / "imageLists" / "test.txt"):
            if given.is_file():
                pairs = pair_files(
                    data / "images", data / "annotations", kinds=(SUFFIXES, (".mat",)), names=read_names(given)
                )
                splits[given.stem] = Split(COCO_STUFF, pairs, read)
    else:
        read = partial(read_translated, label_of={id: label for label, id in enumerate(ids)} | {IGNORE: IGNORE})
        maps = data / ("stuffthingmaps" if (data / "stuffthingmaps").is_dir() else "annotations")
        for year in subfolders(data / "images", ("train2017", "val2017")):
            split = year.removesuffix("2017")
            splits[split] = Split(COCO_STUFF, pair_files(data / "images" / year, maps / year), read)
    return splits


def list_ade20k(data: Path) -> dict[str, Split]:
    """List the splits of ADE20K."""
    if (data / "ADEChallengeData2016").is_dir():
        data = data / "ADEChallengeData2016"
    read = partial(read_translated, label_of={id: id - 1 for id in range(1, 151)} | {0: IGNORE})
    return {
        split: Split(ADE20K, pair_files(data / "images" / part, data / "annotations" / part), read)
        for part, split in (("training", "train"), ("validation", "val"))
        if (data / "images" / part).is_dir()
    }


def list_folder(data: Path) -> dict[str, Split]:
    """List the splits of a folder of your own data."""
    images, labels = data / "images", data / "labels"
    if not (data / "classes.txt").is_file():
        return {}
    classes = read_classes(data / "classes.txt")
    parts = {split: match_videos(images / split, labels / split) for split in subfolders(images)}
    # a folder without pictures is not a split
    if pairs := {split: found for split, found in parts.items() if found}:
        if flat := by_stem(images):
            raise ValueError(
                f"{images} has splits ({', '.join(pairs)}) and {len(flat)} pictures: move these into a split."
            )
    elif lists := [split for split in ("train", "val", "test") if (data / f"{split}.txt").is_file()]:
        pairs = {split: pair_files(images, labels, names=read_names(data / f"{split}.txt")) for split in lists}
    else:
        flat_pairs = pair_files(images, labels)
        pairs = {"train": tuple(pair for i, pair in enumerate(flat_pairs) if i % 5 != 4), "val": flat_pairs[4::5]}
    read = partial(read_translated, label_of={id: id for id in range(len(classes))} | {IGNORE: IGNORE})
    return {split: Split(classes, found, read, sequences_in(images / split)) for split, found in pairs.items() if found}


def match_videos(images: Path, labels: Path) -> tuple[Pair, ...]:
    """Pair the frames and label files of two folders, and of the videos in them, each a subfolder.

    A video needs labels for some of its frames only.
    """
    pairs = list(pair_files(images, labels))
    for video in sorted({*subfolders(images), *subfolders(labels)}):
        found = pair_files(images / video, labels / video)
        pairs += [pair for pair in found if pair.labels.is_file()] or found
    return tuple(pairs)


WRONG_COLOUR = "|".join(
    (
        r"(^|\s)#",  # a word that starts with # and is not a colour
        r"#[0-9a-fA-F]{3,8}$",  # no space before the colour
        r"\s(0x)?(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{6}$",  # no # before the colour
        r"[\s,(]\d{1,3}[\s,]+\d{1,3}[\s,]+\d{1,3}\)?$",  # three numbers
    )
)
"""Matches a line of classes.txt whose colour is not written as expected."""


def read_classes(path: Path) -> Classes:
    """Read the classes of a text file, one per line: "name" or "name #rrggbb"; missing colours are chosen."""
    names: list[str] = []
    given: list[Colour | None] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue
        coloured = re.fullmatch(r"(.*\S)\s+#([0-9a-fA-F]{6})", line)
        if not coloured and re.search(WRONG_COLOUR, line):
            raise ValueError(
                f'{path}, line {number}: {line!r:.80} is neither a name nor a name and a colour; expected "name" or '
                '"name #rrggbb", such as "road #804080".'
            )
        names.append(coloured[1] if coloured else line)
        code = int(coloured[2], 16) if coloured else 0
        given.append((code >> 16, code >> 8 & 255, code & 255) if coloured else None)
        if (same := [name for name in names[:-1] if name.casefold() == names[-1].casefold()]) != []:
            raise ValueError(
                f"{path}, line {number}: {names[-1]!r:.80} is already in the list, as {same[0]!r:.80}: give "
                "each class another name."
            )
    try:
        return Classes(tuple(names), fill_colours(given))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_classes(path: Path, classes: Classes) -> None:
    """Write a list of classes that read_classes reads."""
    pairs = zip(classes.names, classes.colours, strict=True)
    path.write_text("".join(f"{name} #{bytes(colour).hex()}\n" for name, colour in pairs), encoding="utf-8")


def fill_colours(given: list[Colour | None]) -> tuple[Colour, ...]:
    """Replace each missing colour by the colour of a grid that is farthest from all others."""
    shades = (0, 32, 64, 96, 128, 160, 192, 224, 255)
    grid: list[Colour] = [(red, green, blue) for red in shades for green in shades for blue in shades]
    # black means "no class" in overlays and label files
    taken = [(0, 0, 0), *filter(None, given)]
    nearest = {colour: min(distance(colour, other) for other in taken) for colour in grid}
    chosen = []
    for colour in given:
        colour = colour or max(nearest, key=nearest.__getitem__)
        nearest = {other: min(space, distance(other, colour)) for other, space in nearest.items()}
        chosen.append(colour)
    return tuple(chosen)


def distance(colour: Colour, other: Colour) -> int:
    """Return the squared distance of two colours."""
    return sum((a - b) ** 2 for a, b in zip(colour, other, strict=True))


LAYOUTS: dict[str, tuple[Callable[[Path], dict[str, Split]], str]] = {
    "cityscapes": (list_cityscapes, DATASET_LAYOUTS["cityscapes"]),
    "camvid": (list_camvid, DATASET_LAYOUTS["camvid"]),
    "comma10k": (list_comma10k, DATASET_LAYOUTS["comma10k"]),
    "coco-stuff": (list_coco_stuff, DATASET_LAYOUTS["coco-stuff"]),
    "ade20k": (list_ade20k, DATASET_LAYOUTS["ade20k"]),
    "folder": (list_folder, DATASET_LAYOUTS["folder"]),
}
"""For each data set, the function that lists its splits, and the expected layout in words."""

VIDEOS = {
    "cityscapes": "the frames before the labelled ones in leftImg8bit_sequence/SPLIT/CITY/",
    "camvid": "neighbouring frames, by their numbers",
    "folder": "a folder of numbered frames for each video, images/SPLIT/VIDEO/, and its labels in labels/SPLIT/VIDEO/",
}
"""What a data set needs to have sequences of frames."""


def pair_files(
    images: Path,
    labels: Path,
    tails: tuple[str, str] = ("", ""),
    kinds: tuple[tuple[str, ...], tuple[str, ...]] = (SUFFIXES, SUFFIXES),
    names: Iterable[str] | None = None,
) -> tuple[Pair, ...]:
    """Pair the frames and label files of two folders by their names; one of a pair may be missing.

    Args:
        tails: What follows the common name in the stems of frames and of label files.
        kinds: Suffixes of frames and of label files.
        names: Pair these names only.
    """
    frame_of, labels_of = by_stem(images, tails[0], kinds[0]), by_stem(labels, tails[1], kinds[1])
    stems = frame_of.keys() | labels_of.keys()
    if names is not None:
        stems = {Path(name).stem if Path(name).suffix.lower() in SUFFIXES else Path(name).name for name in names}
    return tuple(
        Pair(
            frame_of.get(stem, images / f"{stem}{tails[0]}{kinds[0][0]}"),
            labels_of.get(stem, labels / f"{stem}{tails[1]}{kinds[1][0]}"),
        )
        for stem in sorted(stems)
    )


def by_stem(folder: Path, tail: str = "", kinds: tuple[str, ...] = SUFFIXES) -> dict[str, Path]:
    """Return the files of a folder, if it exists, whose stems end in a tail, by the part before it."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        # COCO-Stuff's converters write files with other ids beside the originals
        if path.suffix.lower() not in kinds or path.name.startswith(".") or path.stem.endswith("_labelTrainIds"):
            continue
        if path.stem.endswith(tail):
            stem = path.stem.removesuffix(tail)
            if stem in found:
                raise ValueError(f"{found[stem]} and {path} have the same name: remove or rename one.")
            found[stem] = path
    return found


def subfolders(folder: Path, names: Iterable[str] = ()) -> list[str]:
    """Return the names of the subfolders that are not hidden, or those of the given names that exist."""
    if names:
        return [name for name in names if (folder / name).is_dir()]
    inside = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in inside if path.is_dir() and not path.name.startswith(HIDDEN))


def read_names(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank."""
    return [line for line in read_lines(path) if line]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, stripped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8.") from None
    if control := re.search(r"[\x00-\x08\x0e-\x1f\x7f]", text):
        raise ValueError(f"{path} holds {control[0]!r}, which is not text: save it as text, or copy it again.")
    return [line.strip() for line in text.splitlines()]


def sequences_in(folder: Path) -> tuple[tuple[Path, ...], ...]:
    """Return the runs of consecutive frames of the videos in a folder, each a folder of numbered frames."""
    return tuple(run for video in subfolders(folder) for run in sequences_of(by_stem(folder / video).values()))


def sequences_of(frames: Iterable[Path], longest: float = math.inf) -> tuple[tuple[Path, ...], ...]:
    """Return runs of consecutive frames: of one recording, with the usual step between numbers, at most `longest`."""
    runs: list[tuple[Path, ...]] = []
    numbered = sorted((*recording_and_number(frame), frame) for frame in frames)
    for _, recording in groupby(numbered, key=itemgetter(0)):
        _, numbers, paths = zip(*recording, strict=True)
        steps = [after - before for before, after in pairwise(numbers)]
        usual = min(longest, median(steps)) if steps else 0
        # CamVid has a frame 31 after the last, not 30: half a step more is not a gap
        starts = [0, *(i + 1 for i, step in enumerate(steps) if step > 1.5 * usual), len(paths)]
        runs += [paths[start:end] for start, end in pairwise(starts)]
    return tuple(runs)


def frame_before(frame: Path) -> str:
    """Return the file name of the frame before."""
    return re.sub(r"\d+(?=(_leftImg8bit)?\.)", lambda digits: f"{int(digits[0]) - 1:0{len(digits[0])}}", frame.name)


def recording_and_number(frame: Path) -> tuple[str, int]:
    """Return the name of a frame's recording, and its number in it: the digits at the end of its name."""
    parts = re.fullmatch(r"(.*?)(\d+)(_leftImg8bit)?", frame.stem)
    return (parts[1], int(parts[2])) if parts else (frame.stem, 0)
