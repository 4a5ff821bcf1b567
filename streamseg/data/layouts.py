"""Where the files of each data set lie, in the layouts that people have: its splits, their frames and label files."""

import math
import re
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
from streamseg.classes import ADE20K, CAMVID, CITYSCAPES, COCO_STUFF, COCO_STUFF_182, IGNORE, Classes, Colour
from streamseg.data.labels import read_camvid_colours, read_mat, read_translated

HIDDEN = (".", "@")
"""What names of folders start with that systems keep for themselves, such as .thumbnails and @eaDir."""


@dataclass(frozen=True)
class Pair:
    """The files of one labelled frame."""

    image: Path
    labels: Path


class Split(NamedTuple):
    """The files of one split and how to read them; the fields are those of a Dataset."""

    classes: Classes
    pairs: tuple[Pair, ...]
    read_labels: Callable[[Path], Tensor]
    sequences: tuple[tuple[Path, ...], ...] = ()
    rate: float = 25.0
    ahead: int = 0


def list_cityscapes(data: Path) -> dict[str, Split]:
    """The splits of Cityscapes."""
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
            for pair in match(images / city, labels / city, ("_leftImg8bit", "_gtFine_labelIds"))
        ]
        frames = [frame for city in subfolders(video) for frame in by_stem(video / city, "_leftImg8bit").values()]
        # a labelled frame is there twice: the one that is labelled is the one in the sequence
        known = {pair.image.stem for pair in pairs}
        whole = [pair.image for pair in pairs] + [frame for frame in frames if frame.stem not in known]
        # of 30 frames, 17 a second, the 20th is labelled
        sequences = sequences_of(whole, 1) if frames else ()
        splits[split] = Split(CITYSCAPES, tuple(pairs), read, sequences, rate=17.0, ahead=19)
    return splits


def list_camvid(data: Path) -> dict[str, Split]:
    """The splits of CamVid, in either layout."""
    splits = {}
    if (data / "701_StillsRaw_full").is_dir():
        pairs = match(data / "701_StillsRaw_full", data / "LabeledApproved_full", ("", "_L"))
        for split in ("train", "val", "test"):
            ours = [pair for pair in pairs if camvid_split(pair.image) == split]
            splits[split] = Split(CAMVID, tuple(ours), read_camvid_colours)
    else:
        read = partial(read_translated, label_of={id: id for id in range(11)} | {11: IGNORE, IGNORE: IGNORE})
        for split in subfolders(data, ("train", "val", "test")):
            # SegNet's lists hold "/SegNet/CamVid/train/NAME.png /SegNet/CamVid/trainannot/NAME.png"
            given = data / f"{split}.txt"
            names = [line.split()[0] for line in lines(given)] if given.is_file() else None
            found = match(data / split, data / f"{split}annot", names=names)
            splits[split] = Split(CAMVID, found, read)
    # 30 frames are a second; most labelled frames are one apart, those of val a fifteenth
    return {
        name: split._replace(sequences=sequences_of([pair.image for pair in split.pairs], 30), rate=30.0)
        for name, split in splits.items()
    }


def camvid_split(image: Path) -> str:
    """The split that a frame of the original CamVid belongs to in the usual division into 367, 101 and 233."""
    recording, number = recording_and_number(image)
    if recording.startswith("0016E5"):
        return "val" if 7959 <= number <= 8159 else "train"
    if recording.startswith("0001TP"):
        return "train" if number <= 8520 else "test"
    if recording.startswith("0006R0"):
        return "train"
    if recording.startswith("Seq05VD"):
        return "test"
    raise ValueError(f"{image} is no frame of CamVid: expected 0001TP_…, 0006R0_…, 0016E5_… or Seq05VD_….")


def list_coco_stuff(data: Path) -> dict[str, Split]:
    """The splits of COCO-Stuff, of either size."""
    ids = [i for i, name in enumerate(COCO_STUFF_182.names) if name in COCO_STUFF.names]
    splits = {}
    if (data / "imageLists").is_dir():
        read = partial(read_mat, label_of={id + 1: label for label, id in enumerate(ids)} | {0: IGNORE})
        for given in (data / "imageLists" / "train.txt", data / "imageLists" / "test.txt"):
            if given.is_file():
                pairs = match(data / "images", data / "annotations", kinds=(SUFFIXES, (".mat",)), names=lines(given))
                splits[given.stem] = Split(COCO_STUFF, pairs, read)
    else:
        read = partial(read_translated, label_of={id: label for label, id in enumerate(ids)} | {IGNORE: IGNORE})
        maps = data / ("stuffthingmaps" if (data / "stuffthingmaps").is_dir() else "annotations")
        for year in subfolders(data / "images", ("train2017", "val2017")):
            split = year.removesuffix("2017")
            splits[split] = Split(COCO_STUFF, match(data / "images" / year, maps / year), read)
    return splits


def list_ade20k(data: Path) -> dict[str, Split]:
    """The splits of ADE20K."""
    if (data / "ADEChallengeData2016").is_dir():
        data = data / "ADEChallengeData2016"
    read = partial(read_translated, label_of={id: id - 1 for id in range(1, 151)} | {0: IGNORE})
    return {
        split: Split(ADE20K, match(data / "images" / part, data / "annotations" / part), read)
        for part, split in (("training", "train"), ("validation", "val"))
        if (data / "images" / part).is_dir()
    }


def list_folder(data: Path) -> dict[str, Split]:
    """The splits of one's own data set."""
    images, labels = data / "images", data / "labels"
    if not (data / "classes.txt").is_file():
        return {}
    classes = read_classes(data / "classes.txt")
    parts = {split: match_videos(images / split, labels / split) for split in subfolders(images)}
    # a folder without pictures is no split
    if pairs := {split: found for split, found in parts.items() if found}:
        if flat := by_stem(images):
            raise ValueError(f"{images} holds splits ({', '.join(pairs)}) and also {len(flat)} pictures: move these.")
    elif lists := [split for split in ("train", "val", "test") if (data / f"{split}.txt").is_file()]:
        pairs = {split: match(images, labels, names=lines(data / f"{split}.txt")) for split in lists}
    else:
        flat_pairs = match(images, labels)
        pairs = {"train": tuple(pair for i, pair in enumerate(flat_pairs) if i % 5 != 4), "val": flat_pairs[4::5]}
    read = partial(read_translated, label_of={id: id for id in range(len(classes))} | {IGNORE: IGNORE})
    return {split: Split(classes, found, read, sequences_in(images / split)) for split, found in pairs.items() if found}


def match_videos(images: Path, labels: Path) -> tuple[Pair, ...]:
    """The frames and label files of two folders, and of the videos in them, each a folder.

    Of a video it is enough that some frames are labelled.
    """
    pairs = list(match(images, labels))
    for video in sorted({*subfolders(images), *subfolders(labels)}):
        found = match(images / video, labels / video)
        pairs += [pair for pair in found if pair.labels.is_file()] or found
    return tuple(pairs)


WRONG_COLOUR = "|".join(
    (
        r"(^|\s)#",  # a word that begins so and is no colour
        r"#[0-9a-fA-F]{3,8}$",  # no space before it
        r"\s(0x)?(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{6}$",  # no # before it
        r"[\s,(]\d{1,3}[\s,]+\d{1,3}[\s,]+\d{1,3}\)?$",  # three numbers
    )
)
"""What a line of classes.txt holds whose colour is not written as expected."""


def read_classes(path: Path) -> Classes:
    """Classes of a text file, one a line: "name" or "name #rrggbb"; a colour that is not given is made up."""
    names: list[str] = []
    given: list[Colour | None] = []
    for number, line in enumerate(all_lines(path), start=1):
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
                f"{path}, line {number}: {names[-1]!r:.80} is there already, as {same[0]!r:.80}: give each class a "
                "name of its own."
            )
    try:
        return Classes(tuple(names), fill_colours(given))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def fill_colours(given: list[Colour | None]) -> tuple[Colour, ...]:
    """The given colours; where there is none, that of a cube of colours which lies farthest from all others."""
    shades = (0, 32, 64, 96, 128, 160, 192, 224, 255)
    cube: list[Colour] = [(red, green, blue) for red in shades for green in shades for blue in shades]
    # black is what overlays and label files leave unmarked
    taken = [(0, 0, 0), *filter(None, given)]
    room = {colour: min(distance(colour, other) for other in taken) for colour in cube}
    chosen = []
    for wanted in given:
        colour = wanted or max(room, key=room.__getitem__)
        room = {free: min(space, distance(free, colour)) for free, space in room.items()}
        chosen.append(colour)
    return tuple(chosen)


def distance(colour: Colour, other: Colour) -> int:
    return sum((a - b) ** 2 for a, b in zip(colour, other, strict=True))


LAYOUTS: dict[str, tuple[Callable[[Path], dict[str, Split]], str]] = {
    "cityscapes": (list_cityscapes, DATASET_LAYOUTS["cityscapes"]),
    "camvid": (list_camvid, DATASET_LAYOUTS["camvid"]),
    "coco-stuff": (list_coco_stuff, DATASET_LAYOUTS["coco-stuff"]),
    "ade20k": (list_ade20k, DATASET_LAYOUTS["ade20k"]),
    "folder": (list_folder, DATASET_LAYOUTS["folder"]),
}
"""How the splits of each data set are listed, and where they are expected."""

VIDEOS = {
    "cityscapes": "the frames before the labelled ones in leftImg8bit_sequence/SPLIT/CITY/",
    "camvid": "neighbouring frames, by their numbers",
    "folder": "a folder of numbered frames for each video, images/SPLIT/VIDEO/, and its labels in labels/SPLIT/VIDEO/",
}
"""What the data sets that can have sequences of frames need for them."""


def match(
    images: Path,
    labels: Path,
    tails: tuple[str, str] = ("", ""),
    kinds: tuple[tuple[str, ...], tuple[str, ...]] = (SUFFIXES, SUFFIXES),
    names: Iterable[str] | None = None,
) -> tuple[Pair, ...]:
    """The frames and label files of two folders by their names, or those listed; a partner may be missing.

    Args:
        tails: What follows the common name in the stems of frames and of label files.
        kinds: Suffixes of frames and of label files.
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
    """The files of a folder, if it exists, whose stems end in the tail, by the part before it."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        # COCO-Stuff's converters leave files of other ids beside the originals
        if path.suffix.lower() not in kinds or path.name.startswith(".") or path.stem.endswith("_labelTrainIds"):
            continue
        if path.stem.endswith(tail):
            stem = path.stem.removesuffix(tail)
            if stem in found:
                raise ValueError(f"{found[stem]} and {path} have one name: remove or rename one.")
            found[stem] = path
    return found


def subfolders(folder: Path, names: Iterable[str] = ()) -> list[str]:
    """The names of a folder's folders but the hidden, or those of the given ones that exist, in their order."""
    if names:
        return [name for name in names if (folder / name).is_dir()]
    inside = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in inside if path.is_dir() and not path.name.startswith(HIDDEN))


def lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    return [line for line in all_lines(path) if line]


def all_lines(path: Path) -> list[str]:
    """The lines of a text file, without blanks around them."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: save it as such.") from None
    if control := re.search(r"[\x00-\x08\x0e-\x1f\x7f]", text):
        raise ValueError(f"{path} holds {control[0]!r}, which is no text: get a whole copy of it, or save it as text.")
    return [line.strip() for line in text.splitlines()]


def sequences_in(folder: Path) -> tuple[tuple[Path, ...], ...]:
    """Runs of consecutive frames of the videos in a folder, each a folder of numbered frames."""
    return tuple(run for video in subfolders(folder) for run in sequences_of(by_stem(folder / video).values()))


def sequences_of(frames: Iterable[Path], longest: float = math.inf) -> tuple[tuple[Path, ...], ...]:
    """Runs of consecutive frames: of one recording, their numbers as far apart as usual in it, at most the longest."""
    runs: list[tuple[Path, ...]] = []
    numbered = sorted((*recording_and_number(frame), frame) for frame in frames)
    for _, recording in groupby(numbered, key=itemgetter(0)):
        _, numbers, paths = zip(*recording, strict=True)
        steps = [after - before for before, after in pairwise(numbers)]
        usual = min(longest, median(steps)) if steps else 0
        # CamVid has a frame that lies 31 after the last, not 30: half a step is no gap
        starts = [0, *(i + 1 for i, step in enumerate(steps) if step > 1.5 * usual), len(paths)]
        runs += [paths[start:end] for start, end in pairwise(starts)]
    return tuple(runs)


def frame_before(frame: Path) -> str:
    """The name of the file of the frame that comes before."""
    return re.sub(r"\d+(?=(_leftImg8bit)?\.)", lambda digits: f"{int(digits[0]) - 1:0{len(digits[0])}}", frame.name)


def recording_and_number(frame: Path) -> tuple[str, int]:
    """The name of the recording that a frame is from, and its number in it: the digits at the end of its name."""
    parts = re.fullmatch(r"(.*?)(\d+)(_leftImg8bit)?", frame.stem)
    return (parts[1], int(parts[2])) if parts else (frame.stem, 0)
