"""Data sets on disk: labelled frames, alone and in clips.

A frame is RGB, uint8, (3, H, W); labels are uint8, (H, W), 255 = ignore; a clip has T frames.
"""

import os.path
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from streamseg.checks import missing_data_error
from streamseg.classes import IGNORE, Classes
from streamseg.data.layouts import LAYOUTS, Pair as Pair, frame_before, recording_and_number
from streamseg.io import images

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Clip:
    """The files of consecutive frames, and the labels of the last."""

    images: tuple[Path, ...]
    labels: Path


@dataclass(frozen=True)
class SequenceFrame:
    """A frame of a sequence."""

    image: Path
    labels: Path | None
    """None for a frame between, or before, those that are labelled."""
    seconds: float
    """When it was taken, by the clock of its recording."""


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
    rate: float = 25.0
    """Frames a second, as the numbers in their names count them."""
    ahead: int = 0
    """How many frames come before each labelled one in its sequence; where some are missing, the data are not whole."""
    read_image: Callable[[Path], Tensor] = images.read_image
    """The frame of a file, which may lie in another."""
    size_of: Callable[[Path], int] = os.path.getsize
    """The bytes of a file."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        pair = self.pairs[i]
        frame, labels = self.read_image(pair.image), self.read_labels(pair.labels)
        check_sizes(frame, pair.image, labels, pair.labels)
        return frame, labels

    def clips(self, frames: int) -> list[Clip]:
        """Every labelled frame that has frames - 1 predecessors in its sequence, with them."""
        if frames < 1:
            raise ValueError(f"A clip of {frames} frames; expected 1 or more.")
        return [
            Clip(sequence[place + 1 - frames : place + 1], path)
            for sequence, labels in self.labelled(frames - 1)
            for place, path in labels.items()
            if place + 1 >= frames
        ]

    def stills(self, before: int | None = None) -> list[tuple[SequenceFrame, ...]]:
        """The sequences in order, of each the labelled frames and so many before each, or, without a number, all.

        Where frames are left out between two labelled ones, another sequence begins.
        """
        found = []
        for sequence, labels in self.labelled(before):
            stills = [
                SequenceFrame(image, labels.get(place), recording_and_number(image)[1] / self.rate)
                for place, image in enumerate(sequence)
            ]
            wanted, left = [], -1
            for still in reversed(stills):
                left = (len(sequence) if before is None else before) if still.labels else left - 1
                wanted.append(left >= 0)
            runs = groupby(zip(reversed(wanted), stills, strict=True), key=itemgetter(0))
            found += [tuple(still for _, still in run) for kept, run in runs if kept]
        return found

    def labelled(self, before: int | None) -> Iterator[tuple[tuple[Path, ...], dict[int, Path]]]:
        """Every sequence with its labels, by their places in it.

        Raises a FileNotFoundError if any of so many frames before a labelled one is missing from the data set.
        """
        labels_of = {pair.image: pair.labels for pair in self.pairs}
        needed = self.ahead if before is None else min(self.ahead, before)
        for sequence in self.sequences:
            labels = {place: labels_of[image] for place, image in enumerate(sequence) if image in labels_of}
            if labels and min(labels) < needed:
                raise FileNotFoundError(
                    f"{frame_before(sequence[0])} is missing from the sequences of {self.name}, but is one of those "
                    f"before {sequence[min(labels)]}: add it, or look at fewer frames."
                )
            yield sequence, labels

    def read_still(self, still: SequenceFrame) -> tuple[Tensor, Tensor]:
        """A frame of a sequence, and its labels; IGNORE everywhere where it has none."""
        frame = self.read_image(still.image)
        if still.labels is None:
            return frame, torch.full(frame.shape[1:], IGNORE, dtype=torch.uint8)
        labels = self.read_labels(still.labels)
        check_sizes(frame, still.image, labels, still.labels)
        return frame, labels

    def read_clip(self, clip: Clip) -> tuple[Tensor, Tensor]:
        """The frames of a clip (T, 3, H, W), and the labels (H, W) of the last."""
        frames, labels = [self.read_image(path) for path in clip.images], self.read_labels(clip.labels)
        last, path = frames[-1], clip.images[-1]
        for frame, other in zip(frames, clip.images, strict=True):
            check_sizes(last, path, frame, other)
        check_sizes(last, path, labels, clip.labels)
        return torch.stack(frames), labels


def check_sizes(frame: Tensor, path: Path, other: Tensor, other_path: Path) -> None:
    """Raise a ValueError if a frame, and its labels or another frame of its clip, differ in size."""
    (height, width), (other_height, other_width) = frame.shape[-2:], other.shape[-2:]
    if (height, width) == (other_height, other_width):
        return
    turned = (height, width) == (other_width, other_height)
    raise ValueError(
        f"{path} is {width} x {height} pixels but {other_path} is {other_width} x {other_height}; "
        f"{'turn one of them upright' if turned else 'make them the same size'}."
    )


def cityscapes(data: str | Path, split: str) -> Dataset:
    """Cityscapes, finely labelled: 34 ids become the 19 classes of evaluation; sequences if they are there."""
    return pick_split("cityscapes", data, split, list_splits("cityscapes", data))


def camvid(data: str | Path, split: str) -> Dataset:
    """CamVid with 11 classes, from SegNet's copy or from the original; trainval is train and val."""
    splits = list_splits("camvid", data)
    if "train" in splits and "val" in splits:
        splits["trainval"] = join_splits("trainval", [splits["train"], splits["val"]])
    return pick_split("camvid", data, split, splits)


def coco_stuff(data: str | Path, split: str) -> Dataset:
    """COCO-Stuff with 171 classes, of 164,000 frames or of 10,000; the latter's val is its test."""
    splits = list_splits("coco-stuff", data)
    if "test" in splits:
        splits["val"] = replace(splits["test"], split="val")
    return pick_split("coco-stuff", data, split, splits)


def ade20k(data: str | Path, split: str) -> Dataset:
    """ADE20K with the 150 classes of the scene parsing challenge."""
    return pick_split("ade20k", data, split, list_splits("ade20k", data))


def folder(data: str | Path, split: str) -> Dataset:
    """One's own data set: classes.txt, images/ and labels/; the split all is everything.

    Splits are folders in images/ and labels/, or else lists train.txt, val.txt, test.txt of names; without either,
    every fifth picture is val and the others are train. A folder in that of a split is a video, of which some frames
    are labelled, or all.
    """
    splits = list_splits("folder", data)
    return pick_split("folder", data, split, splits | {"all": join_splits("all", list(splits.values()))})


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


def list_splits(name: str, data: str | Path) -> dict[str, Dataset]:
    """Every split of a data set by its name; files of its pairs may be missing."""
    if name not in LAYOUTS:
        raise ValueError(f"No data set is called {name!r}; expected one of {', '.join(LAYOUTS)}.")
    list_them, _ = LAYOUTS[name]
    splits = {split: Dataset(name, split, *found) for split, found in list_them(Path(data)).items()}
    if not splits:
        raise missing_data_error(name, data)
    return splits


def pick_split(name: str, data: str | Path, split: str, splits: dict[str, Dataset]) -> Dataset:
    """One of the splits, if none of its files is missing."""
    remedy = " Add pictures, or train with --validate ''." if split == "val" else ""
    layout = f"the layout is {LAYOUTS[name][1]}.{remedy}"
    if split not in splits:
        raise ValueError(f"No split {split!r} in {data}, which has {', '.join(splits)}; {layout}")
    if not splits[split].pairs:
        raise ValueError(f"The split {split!r} of {data} is empty; {layout}")
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


def join_splits(split: str, parts: list[Dataset]) -> Dataset:
    """Several splits as one."""
    pairs = sorted((pair for part in parts for pair in part.pairs), key=lambda pair: (pair.image.name, pair.image))
    sequences = tuple(sequence for part in parts for sequence in part.sequences)
    return replace(parts[0], split=split, pairs=tuple(pairs), sequences=sequences)
