"""Data sets on disk: labelled frames, alone and in clips, in the layouts that people have.

A frame is RGB, uint8, (3, H, W); labels are uint8, (H, W), 255 = ignore.
"""

import colorsys
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from streamseg.classes import ADE20K, CAMVID, CITYSCAPES, COCO_STUFF, COCO_STUFF_182, IGNORE, Classes, Colour
from streamseg.images import SUFFIXES, read_colour_codes, read_ids, read_image

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pair:
    """The files of one labelled frame."""

    image: Path
    labels: Path


@dataclass(frozen=True)
class Clip:
    """The files of consecutive frames, and the labels of the last."""

    images: tuple[Path, ...]
    labels: Path


@dataclass(frozen=True)
class Dataset:
    """One split of a data set; item i is its frame and its labels."""

    name: str
    split: str
    classes: Classes
    pairs: tuple[Pair, ...]
    """In the order of their names."""
    read_labels: Callable[[Path], Tensor]
    """Labels of a file; a ValueError names the file and the ids in it that stand for no class."""
    sequences: tuple[tuple[Path, ...], ...] = ()
    """Images, labelled or not, of each run of consecutive frames; none where there is no video."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        pair = self.pairs[i]
        frame, labels = read_image(pair.image), self.read_labels(pair.labels)
        if frame.shape[1:] != labels.shape:
            turned = frame.shape[1:] == labels.T.shape
            raise ValueError(
                f"{pair.image} is {frame.shape[2]} x {frame.shape[1]} pixels but {pair.labels} is {labels.shape[1]} x "
                f"{labels.shape[0]}; {'turn the labels upright' if turned else 'make them the same size'}."
            )
        return frame, labels

    def clips(self, frames: int) -> list[Clip]:
        """Every labelled frame that has frames - 1 predecessors in its sequence, with them."""
        if frames < 1:
            raise ValueError(f"A clip of {frames} frames; expected 1 or more.")
        labels = {pair.image.stem: pair.labels for pair in self.pairs}
        return [
            Clip(sequence[end - frames : end], labels[sequence[end - 1].stem])
            for sequence in self.sequences
            for end in range(frames, len(sequence) + 1)
            if sequence[end - 1].stem in labels
        ]


class ForeignIdsError(ValueError):
    """A label file holds ids that stand for no class: all its ids, and the foreign ones among them."""

    def __init__(self, path: Path, ids: list[int], foreign: list[int], expected: list[int]) -> None:
        super().__init__(
            f"{path} holds ids that stand for no class: {ranges(foreign)}; expected {ranges(expected)}: "
            "streamseg check says the likely cause."
        )
        self.ids = ids
        self.foreign = foreign


def cityscapes(data: Path, split: str) -> Dataset:
    """Cityscapes, finely labelled: 34 ids become the 19 classes of evaluation; sequences if they are there."""
    return choose("cityscapes", data, split, list_splits("cityscapes", data))


def camvid(data: Path, split: str) -> Dataset:
    """CamVid with 11 classes, from SegNet's copy or from the original; trainval is train and val."""
    splits = list_splits("camvid", data)
    if "train" in splits and "val" in splits:
        splits["trainval"] = unite("trainval", [splits["train"], splits["val"]])
    return choose("camvid", data, split, splits)


def coco_stuff(data: Path, split: str) -> Dataset:
    """COCO-Stuff with 171 classes, of 164,000 frames or of 10,000; the latter's val is its test."""
    splits = list_splits("coco-stuff", data)
    if "test" in splits:
        splits["val"] = replace(splits["test"], split="val")
    return choose("coco-stuff", data, split, splits)


def ade20k(data: Path, split: str) -> Dataset:
    """ADE20K with the 150 classes of the scene parsing challenge."""
    return choose("ade20k", data, split, list_splits("ade20k", data))


def folder(data: Path, split: str) -> Dataset:
    """One's own data set: classes.txt, images/ and labels/; the split all is everything.

    Splits are folders in images/ and labels/, or else lists train.txt, val.txt, test.txt of names; without either,
    every fifth picture is val and the others are train.
    """
    splits = list_splits("folder", data)
    return choose("folder", data, split, splits | {"all": unite("all", list(splits.values()))})


DATASETS = {"cityscapes": cityscapes, "camvid": camvid, "coco-stuff": coco_stuff, "ade20k": ade20k, "folder": folder}


def read_pairs(dataset: Dataset, indices: Iterable[int], threads: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Frames and labels in the order of the indices, decoded a little ahead by threads."""
    return in_parallel(dataset.__getitem__, indices, threads)


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Results of a function in the order of the items, computed a little ahead by threads."""
    remaining = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        try:
            ahead = deque(pool.submit(function, item) for item in islice(remaining, 2 * threads))
            while ahead:
                result = ahead.popleft().result()
                ahead.extend(pool.submit(function, item) for item in islice(remaining, 1))
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


def list_splits(name: str, data: Path) -> dict[str, Dataset]:
    """Every split of a data set by its name; files of its pairs may be missing."""
    if name not in LAYOUTS:
        raise ValueError(f"No data set is called {name!r}; expected one of {', '.join(LAYOUTS)}.")
    list_them, layout = LAYOUTS[name]
    splits = list_them(data)
    if not splits:
        raise FileNotFoundError(f"No {name} data in {data}: expected there {layout}.")
    return splits


def choose(name: str, data: Path, split: str, splits: dict[str, Dataset]) -> Dataset:
    """One of the splits, if none of its files is missing."""
    if split not in splits:
        raise ValueError(
            f"No split {split!r} in {data}, which has {', '.join(splits)}; the layout is {LAYOUTS[name][1]}."
        )
    if not splits[split].pairs:
        raise ValueError(f"The split {split!r} of {data} is empty; the layout is {LAYOUTS[name][1]}.")
    for pair in splits[split].pairs:
        if problem := missing(pair):
            raise FileNotFoundError(problem)
    return splits[split]


def missing(pair: Pair) -> str:
    """What is missing of a pair, in a sentence; empty if nothing is."""
    if not pair.image.is_file():
        partner = f" though there are labels {pair.labels}" if pair.labels.is_file() else ""
        return f"{pair.image} is missing{partner}: add the frame or remove it from the data set."
    if not pair.labels.is_file():
        return f"{pair.image} has no labels: expected {pair.labels}; add them or remove the frame."
    return ""


def unite(split: str, parts: list[Dataset]) -> Dataset:
    """Several splits as one."""
    pairs = sorted((pair for part in parts for pair in part.pairs), key=lambda pair: (pair.image.name, pair.image))
    sequences = tuple(sequence for part in parts for sequence in part.sequences)
    return replace(parts[0], split=split, pairs=tuple(pairs), sequences=sequences)


def list_cityscapes(data: Path) -> dict[str, Dataset]:
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
        splits[split] = Dataset("cityscapes", split, CITYSCAPES, tuple(pairs), read, sequences_of(frames, 1))
    return splits


def list_camvid(data: Path) -> dict[str, Dataset]:
    """The splits of CamVid, in either layout."""
    splits = {}
    if (data / "701_StillsRaw_full").is_dir():
        pairs = match(data / "701_StillsRaw_full", data / "LabeledApproved_full", ("", "_L"))
        for split in ("train", "val", "test"):
            ours = [pair for pair in pairs if camvid_split(pair.image) == split]
            splits[split] = Dataset("camvid", split, CAMVID, tuple(ours), read_camvid_colours)
    else:
        read = partial(read_translated, label_of={id: id for id in range(11)} | {11: IGNORE, IGNORE: IGNORE})
        for split in subfolders(data, ("train", "val", "test")):
            # SegNet's lists hold "/SegNet/CamVid/train/NAME.png /SegNet/CamVid/trainannot/NAME.png"
            given = data / f"{split}.txt"
            names = [line.split()[0] for line in lines(given)] if given.is_file() else None
            found = match(data / split, data / f"{split}annot", names=names)
            splits[split] = Dataset("camvid", split, CAMVID, found, read)
    # 30 frames are a second; most labelled frames are one apart, those of val a fifteenth
    return {
        split: replace(dataset, sequences=sequences_of([pair.image for pair in dataset.pairs], 30))
        for split, dataset in splits.items()
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


CAMVID_COLOURS = [
    *[(0, "808080"), (1, "800000"), (1, "40c000")],  # Sky, Building, Wall
    *[(2, "c0c080"), (3, "804080"), (3, "8000c0")],  # Column_Pole, Road, LaneMkgsDriv
    *[(3, "c00040"), (3, "8080c0"), (4, "0000c0")],  # LaneMkgsNonDriv, RoadShoulder, Sidewalk
    *[(4, "40c080"), (5, "808000"), (5, "c0c000")],  # ParkingBlock, Tree, VegetationMisc
    *[(6, "c08080"), (6, "808040"), (6, "004040")],  # SignSymbol, Misc_Text, TrafficLight
    *[(7, "404080"), (8, "400080"), (8, "4080c0")],  # Fence, Car, SUVPickupTruck
    *[(8, "c080c0"), (9, "404000"), (10, "0080c0"), (10, "c000c0")],  # Truck_Bus, Pedestrian, Bicyclist, Motorcycle…
]
"""The label of each colour of the original label files; all other colours are void."""


def read_camvid_colours(path: Path) -> Tensor:
    """Labels of an original CamVid label file."""
    codes = read_colour_codes(path)
    labels = torch.full(codes.shape, IGNORE, dtype=torch.uint8)
    for label, code in CAMVID_COLOURS:
        labels[codes == int(code, 16)] = label
    return labels


def list_coco_stuff(data: Path) -> dict[str, Dataset]:
    """The splits of COCO-Stuff, of either size."""
    ids = [i for i, name in enumerate(COCO_STUFF_182.names) if name in COCO_STUFF.names]
    splits = {}
    if (data / "imageLists").is_dir():
        read = partial(read_mat, label_of={id + 1: label for label, id in enumerate(ids)} | {0: IGNORE})
        for given in (data / "imageLists" / "train.txt", data / "imageLists" / "test.txt"):
            if given.is_file():
                pairs = match(data / "images", data / "annotations", kinds=(SUFFIXES, (".mat",)), names=lines(given))
                splits[given.stem] = Dataset("coco-stuff", given.stem, COCO_STUFF, pairs, read)
    else:
        read = partial(read_translated, label_of={id: label for label, id in enumerate(ids)} | {IGNORE: IGNORE})
        maps = data / ("stuffthingmaps" if (data / "stuffthingmaps").is_dir() else "annotations")
        for year in subfolders(data / "images", ("train2017", "val2017")):
            split = year.removesuffix("2017")
            splits[split] = Dataset("coco-stuff", split, COCO_STUFF, match(data / "images" / year, maps / year), read)
    return splits


def read_mat(path: Path, label_of: dict[int, int]) -> Tensor:
    """Labels of a MATLAB file of COCO-Stuff 10k, whose variable S holds ids."""
    try:
        from scipy.io import loadmat  # type: ignore
    except ImportError:
        raise ModuleNotFoundError(
            "The labels of COCO-Stuff 10k are MATLAB files, and scipy, which reads them, is not installed: "
            "pip install 'streamseg[train]'"
        ) from None
    try:
        ids = torch.from_numpy(loadmat(path, variable_names=["S"])["S"]).int()
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise ValueError(f"{path} is no whole MATLAB file with ids in S ({error}): get a whole copy of it.") from error
    return translate(ids, label_of, path)


def list_ade20k(data: Path) -> dict[str, Dataset]:
    """The splits of ADE20K."""
    if (data / "ADEChallengeData2016").is_dir():
        data = data / "ADEChallengeData2016"
    read = partial(read_translated, label_of={id: id - 1 for id in range(1, 151)} | {0: IGNORE})
    return {
        split: Dataset("ade20k", split, ADE20K, match(data / "images" / part, data / "annotations" / part), read)
        for part, split in (("training", "train"), ("validation", "val"))
        if (data / "images" / part).is_dir()
    }


def list_folder(data: Path) -> dict[str, Dataset]:
    """The splits of one's own data set."""
    images, labels = data / "images", data / "labels"
    if not (data / "classes.txt").is_file():
        return {}
    classes = read_classes(data / "classes.txt")
    if parts := subfolders(images):
        if flat := by_stem(images):
            raise ValueError(f"{images} holds splits ({', '.join(parts)}) and also {len(flat)} pictures: move these.")
        pairs = {split: match(images / split, labels / split) for split in parts}
    elif lists := [split for split in ("train", "val", "test") if (data / f"{split}.txt").is_file()]:
        pairs = {split: match(images, labels, names=lines(data / f"{split}.txt")) for split in lists}
    else:
        flat_pairs = match(images, labels)
        pairs = {"train": tuple(pair for i, pair in enumerate(flat_pairs) if i % 5 != 4), "val": flat_pairs[4::5]}
    read = partial(read_translated, label_of={id: id for id in range(len(classes))} | {IGNORE: IGNORE})
    return {split: Dataset("folder", split, classes, found, read) for split, found in pairs.items() if found}


def read_classes(path: Path) -> Classes:
    """Classes of a text file, one a line: "name" or "name #rrggbb"; a colour that is not given is made up."""
    names: list[str] = []
    given: list[Colour | None] = []
    for line in lines(path):
        coloured = re.fullmatch(r"(.*\S)\s+#([0-9a-fA-F]{6})", line)
        names.append(coloured[1] if coloured else line)
        code = int(coloured[2], 16) if coloured else 0
        given.append((code >> 16, code >> 8 & 255, code & 255) if coloured else None)
    new = (colour for colour in distinct_colours() if colour not in given)
    try:
        return Classes(tuple(names), tuple(colour or next(new) for colour in given))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def distinct_colours() -> Iterator[Colour]:
    """Colours that are easily told apart from those before, without end."""
    for i in count():
        # steps of the golden ratio spread hues evenly, however many there are
        red, green, blue = colorsys.hsv_to_rgb(i * 0.618034 % 1, (0.9, 0.6)[i // 3 % 2], (1.0, 0.7, 0.45)[i % 3])
        yield round(red * 255), round(green * 255), round(blue * 255)


LAYOUTS: dict[str, tuple[Callable[[Path], dict[str, Dataset]], str]] = {
    "cityscapes": (list_cityscapes, "leftImg8bit/SPLIT/CITY/ and gtFine/SPLIT/CITY/"),
    "camvid": (list_camvid, "SPLIT/ and SPLITannot/, or 701_StillsRaw_full/ and LabeledApproved_full/"),
    "coco-stuff": (
        list_coco_stuff,
        "images/SPLIT2017/ and annotations/SPLIT2017/ (or stuffthingmaps/), or imageLists/, images/ and annotations/",
    ),
    "ade20k": (list_ade20k, "images/training/, annotations/training/, images/validation/ and annotations/validation/"),
    "folder": (
        list_folder,
        'classes.txt (one class a line, "name" or "name #rrggbb") and files of the same names in images/ and labels/',
    ),
}
"""How the splits of each data set are listed, and where they are expected."""


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
    """The names of a folder's folders, or those of the given ones that exist, in their order."""
    if names:
        return [name for name in names if (folder / name).is_dir()]
    return sorted(path.name for path in (folder.iterdir() if folder.is_dir() else ()) if path.is_dir())


def lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]


def sequences_of(frames: Iterable[Path], longest: int) -> tuple[tuple[Path, ...], ...]:
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


def recording_and_number(frame: Path) -> tuple[str, int]:
    """The name of the recording that a frame is from, and its number in it: the digits at the end of its name."""
    parts = re.fullmatch(r"(.*?)(\d+)(_leftImg8bit)?", frame.stem)
    return (parts[1], int(parts[2])) if parts else (frame.stem, 0)


def read_translated(path: Path, label_of: dict[int, int]) -> Tensor:
    """Labels of a file of ids, by the label of each id."""
    return translate(read_ids(path), label_of, path)


def translate(ids: Tensor, label_of: dict[int, int], path: Path) -> Tensor:
    """Labels of ids, by the label of each; the path, which they were read from, is for the complaint."""
    table = torch.full((max(label_of) + 1,), -1, dtype=torch.int16)
    table[list(label_of)] = torch.tensor(list(label_of.values()), dtype=torch.int16)
    inside = (ids >= 0) & (ids < len(table))
    labels = table[ids.where(inside, 0).long()].where(inside, -1)
    if (labels < 0).any():
        raise ForeignIdsError(path, ids.unique().tolist(), ids[labels < 0].unique().tolist(), list(label_of))
    return labels.to(torch.uint8)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in words: "0–10, 255"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
