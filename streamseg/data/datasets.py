"""Data sets on disk: labelled frames, single and in clips.

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
from streamseg.data.layouts import LAYOUTS, Pair as Pair, device_of, frame_before, recording_and_number
from streamseg.io import images

Item = TypeVar("Item")
Output = TypeVar("Output")


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
    """None for a frame without labels."""
    seconds: float
    """Time in its recording."""


@dataclass(frozen=True)
class Dataset:
    """One split of a data set; item i is a frame and its labels."""

    name: str
    split: str
    classes: Classes
    pairs: tuple[Pair, ...]
    """Sorted by name."""
    read_labels: Callable[[Path], Tensor]
    """Reads the labels of a file; a ValueError names ids that are no class."""
    sequences: tuple[tuple[Path, ...], ...] = ()
    """Images, labelled or not, of each run of consecutive frames; empty without video."""
    rate: float = 25.0
    """Frames per second, as the numbers in their names count."""
    ahead: int = 0
    """Frames that should precede each labelled one in its sequence; if some are missing, files are missing."""
    read_image: Callable[[Path], Tensor] = images.read_image
    """Reads the frame of a file, which may be in a shard."""
    size_of: Callable[[Path], int] = os.path.getsize
    """Returns the size of a file in bytes."""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        pair = self.pairs[i]
        frame, labels = self.read_image(pair.image), self.read_labels(pair.labels)
        check_sizes(frame, pair.image, labels, pair.labels)
        return frame, labels

    def clips(self, frames: int) -> list[Clip]:
        """Return every labelled frame with the frames - 1 before it; those with fewer are left out."""
        if frames < 1:
            raise ValueError(f"frames is {frames}; expected 1 or more.")
        return [
            Clip(sequence[index + 1 - frames : index + 1], path)
            for sequence, labels in self.sequences_with_labels(frames - 1)
            for index, path in labels.items()
            if index + 1 >= frames
        ]

    def labelled_sequences(self, before: int | None = None) -> list[tuple[SequenceFrame, ...]]:
        """Return the labelled frames of each sequence with the `before` frames before each; None for all.

        Where frames are left out between two labelled ones, a new sequence starts.
        """
        found = []
        for sequence, labels in self.sequences_with_labels(before):
            frames = [
                SequenceFrame(image, labels.get(index), recording_and_number(image)[1] / self.rate)
                for index, image in enumerate(sequence)
            ]
            needed, remaining = [], -1
            for frame in reversed(frames):
                remaining = (len(sequence) if before is None else before) if frame.labels else remaining - 1
                needed.append(remaining >= 0)
            runs = groupby(zip(reversed(needed), frames, strict=True), key=itemgetter(0))
            found += [tuple(frame for _, frame in run) for kept, run in runs if kept]
        return found

    def sequences_with_labels(self, before: int | None) -> Iterator[tuple[tuple[Path, ...], dict[int, Path]]]:
        """Yield every sequence with its label files, by the index of the frame.

        Raises a FileNotFoundError if one of the `before` frames before a labelled one is missing from the data set.
        """
        labels_of = {pair.image: pair.labels for pair in self.pairs}
        needed = self.ahead if before is None else min(self.ahead, before)
        for sequence in self.sequences:
            labels = {index: labels_of[image] for index, image in enumerate(sequence) if image in labels_of}
            if labels and min(labels) < needed:
                raise FileNotFoundError(
                    f"{frame_before(sequence[0])} is missing from the sequences of {self.name}, before "
                    f"{sequence[min(labels)]}: add it, or use a smaller window."
                )
            yield sequence, labels

    def read_sequence_frame(self, entry: SequenceFrame) -> tuple[Tensor, Tensor]:
        """Read a frame of a sequence and its labels, which are all IGNORE if it has none."""
        frame = self.read_image(entry.image)
        if entry.labels is None:
            return frame, torch.full(frame.shape[1:], IGNORE, dtype=torch.uint8)
        labels = self.read_labels(entry.labels)
        check_sizes(frame, entry.image, labels, entry.labels)
        return frame, labels

    def read_clip(self, clip: Clip) -> tuple[Tensor, Tensor]:
        """Read the frames of a clip (T, 3, H, W), and the labels (H, W) of the last."""
        frames, labels = [self.read_image(path) for path in clip.images], self.read_labels(clip.labels)
        last, path = frames[-1], clip.images[-1]
        for frame, other in zip(frames, clip.images, strict=True):
            check_sizes(last, path, frame, other)
        check_sizes(last, path, labels, clip.labels)
        return torch.stack(frames), labels


def check_sizes(frame: Tensor, path: Path, other: Tensor, other_path: Path) -> None:
    """Raise a ValueError if a frame and its labels, or another frame of its clip, differ in size."""
    (height, width), (other_height, other_width) = frame.shape[-2:], other.shape[-2:]
    if (height, width) == (other_height, other_width):
        return
    rotated = (height, width) == (other_width, other_height)
    raise ValueError(
        f"{path} is {height} x {width} pixels but {other_path} is {other_height} x {other_width}; "
        f"{'rotate one of them' if rotated else 'make them the same size'}."
    )


def cityscapes(data: str | Path, split: str) -> Dataset:
    """Open Cityscapes with fine labels and the 19 classes of evaluation; with leftImg8bit_sequence, as sequences."""
    return pick_split("cityscapes", data, split, list_splits("cityscapes", data))


def camvid(data: str | Path, split: str) -> Dataset:
    """Open CamVid with 11 classes, SegNet's copy or the original; the split trainval is train and val."""
    return pick_split("camvid", data, split, with_trainval(list_splits("camvid", data)))


def comma10k(data: str | Path, split: str) -> Dataset:
    """Open comma10k with 5 classes, as downloaded or with label ids; the split trainval is train and val.

    The splits are train and val, which never have frames of the same device.
    """
    return pick_split("comma10k", data, split, with_trainval(list_splits("comma10k", data)))


def coco_stuff(data: str | Path, split: str) -> Dataset:
    """Open COCO-Stuff with 171 classes, 164k or 10k; the val of 10k is its test."""
    splits = list_splits("coco-stuff", data)
    if "test" in splits:
        splits["val"] = replace(splits["test"], split="val")
    return pick_split("coco-stuff", data, split, splits)


def ade20k(data: str | Path, split: str) -> Dataset:
    """Open ADE20K with the 150 classes of the scene parsing challenge."""
    return pick_split("ade20k", data, split, list_splits("ade20k", data))


def folder(data: str | Path, split: str) -> Dataset:
    """Open your own data set: classes.txt, images/ and labels/; the split all is everything.

    Splits are folders in images/ and labels/, or else lists train.txt, val.txt, test.txt of names; without either,
    every fifth picture is val and the others are train. A folder in a split is a video, with labels for some or all of
    its frames.
    """
    splits = list_splits("folder", data)
    return pick_split("folder", data, split, splits | {"all": join_splits("all", list(splits.values()))})


DATASETS = {
    "cityscapes": cityscapes,
    "camvid": camvid,
    "comma10k": comma10k,
    "coco-stuff": coco_stuff,
    "ade20k": ade20k,
    "folder": folder,
}


def read_pairs(dataset: Dataset, indices: Iterable[int], threads: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield frames and labels in the order of the indices, decoded ahead by threads."""
    return in_parallel(dataset.__getitem__, indices, threads)


def in_parallel(function: Callable[[Item], Output], items: Iterable[Item], threads: int) -> Iterator[Output]:
    """Yield the outputs of a function in the order of the items, computed ahead by threads."""
    remaining = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        try:
            ahead = deque(pool.submit(function, item) for item in islice(remaining, 2 * threads))
            while ahead:
                output = ahead.popleft().result()
                ahead.extend(pool.submit(function, item) for item in islice(remaining, 1))
                yield output
        finally:
            pool.shutdown(cancel_futures=True)


def list_splits(name: str, data: str | Path) -> dict[str, Dataset]:
    """Return every split of a data set by its name; files of its pairs may be missing."""
    if name not in LAYOUTS:
        raise ValueError(f"The data set is {name!r}; expected one of {', '.join(LAYOUTS)}.")
    list_files, _ = LAYOUTS[name]
    splits = {split: Dataset(name, split, *found) for split, found in list_files(Path(data)).items()}
    if not splits:
        raise FileNotFoundError(f"{missing_data_error(name, data)}{suggest_dataset(name, Path(data))}")
    return splits


def suggest_dataset(name: str, data: Path) -> str:
    """Return a sentence about the data set, other than the named one, whose layout a folder has; empty if none."""
    for other, (list_files, _) in LAYOUTS.items():
        try:
            pairs = [pair for split in list_files(data).values() for pair in split.pairs[:1]]
        except (ValueError, OSError):
            continue
        if other != name and any(not describe_missing(pair) for pair in pairs):
            return f" Its layout is that of {other}: give {other} as the data set."
    return ""


def pairs_by_name(dataset: Dataset, names: str) -> dict[str, set[Pair]]:
    """Return the frames that each of several names stands for: the start of their file names, or their device.

    Args:
        names: Separated by commas.
    """
    device = {pair: device_of(pair.image) for pair in dataset.pairs}
    return {
        name: {pair for pair in dataset.pairs if pair.image.name.startswith(name) or device[pair] == name}
        for name in map(str.strip, names.split(","))
        if name
    }


def pick_split(name: str, data: str | Path, split: str, splits: dict[str, Dataset]) -> Dataset:
    """Return one of the splits; raise an error if files of it are missing."""
    remedy = " Add pictures, or train with --validate ''." if split == "val" else ""
    layout = f"the layout is {LAYOUTS[name][1]}.{remedy}"
    if split not in splits:
        raise ValueError(f"No split {split!r} in {data}, which has {', '.join(splits)}; {layout}")
    if not splits[split].pairs:
        raise ValueError(f"The split {split!r} of {data} is empty; {layout}")
    for pair in splits[split].pairs:
        if problem := describe_missing(pair):
            raise FileNotFoundError(problem)
    return splits[split]


def describe_missing(pair: Pair) -> str:
    """Return a sentence about the missing file of a pair; empty if none is missing."""
    if not pair.image.is_file():
        partner = f", but there are labels {pair.labels}" if pair.labels.is_file() else ""
        return f"{pair.image} is missing{partner}: add the frame or remove it from the data set."
    if not pair.labels.is_file():
        return f"{pair.image} has no labels: expected {pair.labels}; add them or remove the frame."
    return ""


def with_trainval(splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Add the split trainval to splits that have train and val."""
    if not {"train", "val"} <= splits.keys():
        return splits
    return {**splits, "trainval": join_splits("trainval", [splits["train"], splits["val"]])}


def join_splits(split: str, parts: list[Dataset]) -> Dataset:
    """Join several splits into one."""
    pairs = sorted((pair for part in parts for pair in part.pairs), key=lambda pair: (pair.image.name, pair.image))
    sequences = tuple(sequence for part in parts for sequence in part.sequences)
    return replace(parts[0], split=split, pairs=tuple(pairs), sequences=sequences)
