"""Find the errors of a data set before training does."""

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from streamseg.checks import check_suffix
from streamseg.classes import IGNORE, Classes
from streamseg.data.datasets import Dataset, describe_missing, in_parallel, list_splits
from streamseg.data.labels import UnknownIdsError, format_ranges
from streamseg.data.layouts import by_stem, device_of
from streamseg.draw import overlay
from streamseg.io.captions import write_sheet
from streamseg.io.files import written_whole
from streamseg.machine import available_cores
from streamseg.models.fanet import MIN_SIDE


@dataclass(frozen=True)
class DatasetReport:
    """The contents of a data set, and its errors and warnings."""

    name: str
    data: Path
    classes: Classes
    counts: dict[str, int]
    """Labelled frames of each split, including those with errors."""
    pixels: dict[str, tuple[int, ...]]
    """Pixels per class, for each split."""
    ignored: dict[str, int]
    """Pixels without a class, for each split."""
    errors: tuple[str, ...]
    """What would make training fail, or its accuracy wrong."""
    warnings: tuple[str, ...]
    samples: tuple[tuple[Dataset, int], ...]
    """Up to twelve frames without errors, evenly spread: split and index."""


class UnknownIds(NamedTuple):
    """The ids of a label file, and those that are no class; unlike the exception, it keeps no frames in memory."""

    ids: tuple[int, ...]
    unknown: tuple[int, ...]
    path: Path


@dataclass(frozen=True)
class Finding:
    """The result of checking one labelled frame."""

    digest: bytes = b""
    """Hash of the frame's file."""
    pixels: Tensor | None = None
    """(256): pixels of each label, if the frame has no error."""
    problem: str = ""
    unknown: UnknownIds | None = None


def check_dataset(name: str, data: Path) -> DatasetReport:
    """Read every file of a data set, in all its splits, and report errors and warnings."""
    splits = list_splits(name, data)
    classes = next(iter(splits.values())).classes
    pixels = {split: torch.zeros(IGNORE + 1, dtype=torch.int64) for split in splits}
    problems: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    unknown: list[UnknownIds] = []
    paths_of: dict[bytes, dict[str, Path]] = defaultdict(dict)
    usable: list[tuple[Dataset, int]] = []
    labels_in: dict[Path, tuple[int, ...]] = {}
    for split, dataset in splits.items():
        if not dataset.pairs:
            problems[f"empty {split}"].append((f"The split {split} is empty.", data))
        findings = in_parallel(partial(check_frame, dataset), range(len(dataset)), available_cores())
        for i, (pair, found) in enumerate(zip(dataset.pairs, findings, strict=True)):
            if found.digest:
                paths_of[found.digest].setdefault(split, pair.image)
            if found.unknown:
                unknown.append(found.unknown)
            elif found.problem:
                problems[problem_kind(found.problem, pair.image, pair.labels)].append((found.problem, pair.image))
            elif found.pixels is not None:
                pixels[split] += found.pixels
                labels_in[pair.labels] = tuple(found.pixels.nonzero().flatten().tolist())
                usable.append((dataset, i))

    total = torch.stack([*pixels.values()]).sum(dim=0)
    errors = [first + also([path for _, path in rest]) for (first, _), *rest in problems.values()]
    if unknown:
        errors.append(describe_unknown_ids(name, unknown, len(classes), bool(total[0] > 0)))
    errors += find_unlabelled_splits(pixels, classes) + only_one_class(total, classes)
    mask_errors, mask_warnings = find_binary_masks(labels_in) if name == "folder" else ([], [])
    errors += mask_errors
    duplicates = [list(paths.values()) for paths in paths_of.values() if len(paths) > 1]
    if duplicates:
        first, *rest = duplicates
        errors.append(
            f"The same frame is in two splits, which would make the accuracy too high: {' and '.join(map(str, first))}"
            f"{also([paths[0] for paths in rest])}"
        )
    return DatasetReport(
        name,
        data,
        classes,
        {split: len(dataset) for split, dataset in splits.items()},
        {split: tuple(found[: len(classes)].tolist()) for split, found in pixels.items()},
        {split: int(found[IGNORE]) for split, found in pixels.items()},
        tuple(errors),
        (*mask_warnings, *find_device_warnings(splits, data), *find_rarity_warnings(total, pixels, classes)),
        tuple(usable[i * len(usable) // 12] for i in range(12)) if len(usable) > 12 else tuple(usable),
    )


def check_frame(dataset: Dataset, i: int) -> Finding:
    """Read and check one labelled frame."""
    pair = dataset.pairs[i]
    digest = b""
    try:
        if pair.image.is_file():
            digest = hashlib.blake2b(pair.image.read_bytes()).digest()
        if problem := describe_missing(pair):
            return Finding(digest, problem=problem)
        frame, labels = dataset[i]
    except UnknownIdsError as error:
        return Finding(digest, unknown=UnknownIds(tuple(error.ids), tuple(error.unknown), pair.labels))
    except (ValueError, OSError) as error:
        return Finding(digest, problem=str(error))
    height, width = frame.shape[1:]
    if min(height, width) < MIN_SIDE:
        problem = f"{pair.image} is {height} x {width} pixels; expected at least {MIN_SIDE} x {MIN_SIDE}: remove it."
        return Finding(digest, problem=problem)
    return Finding(digest, labels.flatten().bincount(minlength=IGNORE + 1))


def problem_kind(problem: str, *paths: Path) -> str:
    """Return what similar problems have in common: the sentence without paths, numbers and details in brackets."""
    for path in paths:
        problem = problem.replace(str(path), "")
    return re.sub(r"\(.*\)|\d+", "", problem)


def also(paths: list[Path]) -> str:
    """Return the end of a sentence about one file that names the others with the same problem."""
    if not paths:
        return ""
    names = ", ".join(path.name for path in paths[:3])
    return f" (and {len(paths)} more: {names}{', …' if len(paths) > 3 else ''})"


def describe_unknown_ids(name: str, found: list[UnknownIds], classes: int, zero: bool) -> str:
    """Return a sentence about ids that are no class: which, where and the likely cause.

    Args:
        zero: Whether label 0 occurs in the label files without such ids.
    """
    ids = {id for file in found for id in file.ids}
    unknown = {id for file in found for id in file.unknown}
    paths = [file.path for file in found]
    return (
        f"Label ids {format_ranges(unknown)} are not in the class list, in {paths[0]}{also(paths[1:])}; likely cause: "
        f"{likely_cause(name, ids, unknown, classes, zero or 0 in ids, paths[0])}."
    )


def likely_cause(name: str, ids: set[int], unknown: set[int], classes: int, zero: bool, path: Path) -> str:
    """Return why label files may hold unknown ids."""
    if path.suffix.lower() in (".jpg", ".jpeg"):
        return "JPEG changes ids: save labels as PNG"
    if ids <= {0, IGNORE}:
        return "masks of 0 and 255, but each pixel should hold the number of its class"
    if name == "cityscapes" and max(ids - {IGNORE}) < classes:
        return "these are trainIds, but the original labelIds are expected"
    if name == "ade20k" and unknown == {IGNORE}:
        return "ids shifted down by one, but the original ones (0 = other, 1–150) are expected"
    if name == "camvid" and max(ids - {IGNORE}) < 32:
        return "ids of the 32 original classes, but those of the usual 11 are expected"
    if classes == 19 and max(ids - {IGNORE}) <= 33:
        return "Cityscapes' labelIds, but its trainIds are expected"
    if unknown == {182 if name == "coco-stuff" else classes}:
        if not zero:
            return "ids shifted by one: they start from 1, but should start from 0"
        return f"one class more than the {classes} in the list, or ignored pixels, which should be {IGNORE}"
    if max(ids) >= 64 and all(after - before > 1 for before, after in pairwise(sorted(ids))):
        return "shades of grey for viewing, but each pixel should hold the number of its class"
    return f"labels of another class list than this one of {classes} classes"


def find_binary_masks(labels_in: dict[Path, tuple[int, ...]]) -> tuple[list[str], list[str]]:
    """Return errors and warnings about single label files of 0 and 255, whose 255 would be taken for ignored pixels.

    Args:
        labels_in: The labels that occur in each file, in ascending order.
    """
    binary = [path for path, labels in labels_in.items() if labels == (0, IGNORE)]
    others = [labels for labels in labels_in.values() if labels != (0, IGNORE)]
    if not 0 < 2 * len(binary) < len(labels_in) or not any(set(labels) - {0, IGNORE} for labels in others):
        return [], []  # if all files are like that, only_one_class reports it
    sentence = (
        f"{binary[0]}{also(binary[1:])} holds only 0 and {IGNORE}, unlike {len(others)} other label files; likely "
        "cause: a mask of 0 and 255, but each pixel should hold the number of its class."
    )
    if not any(IGNORE in labels for labels in others):
        return [sentence], []
    # if other files have ignored pixels too, a frame of the first class only is possible, but rare
    return [], [sentence]


def find_device_warnings(splits: dict[str, Dataset], data: Path) -> list[str]:
    """Return warnings about frames of comma10k: devices in two splits, and frames that are left out."""
    if next(iter(splits.values())).name == "comma10k":
        cabin = by_stem(data / "imgsd")
        unlabelled = by_stem(data / "imgs2").keys() - by_stem(data / "masks2").keys()
        return [
            *([f"Frames of the driver camera in imgsd, which are left out: {len(cabin)}."] if cabin else []),
            *([f"Frames without a mask in imgs2, which are left out: {len(unlabelled)}."] if unlabelled else []),
        ]
    splits_of: dict[str, set[str]] = defaultdict(set)
    for split, dataset in splits.items():
        for pair in dataset.pairs:
            splits_of[device_of(pair.image)].add(split)
    shared = [device for device, names in splits_of.items() if device and len(names) > 1]
    if not shared:
        return []
    return [
        f"{len(shared)} devices of comma10k are in more than one split ({', '.join(shared[:3])}"
        f"{', …' * (len(shared) > 3)}), which makes the accuracy too high: give comma10k as the data set, which is "
        "split by device."
    ]


def find_unlabelled_splits(pixels: dict[str, Tensor], classes: Classes) -> list[str]:
    """Return an error if all labels of a split are 255."""
    blank = [split for split, found in pixels.items() if found[IGNORE] > 0 and found[: len(classes)].sum() == 0]
    # Cityscapes does not publish the labels of its test frames
    if not blank or (blank == ["test"] and len(pixels) > 1):
        return []
    return [f"No pixel of {', '.join(blank)} has a class: all labels are {IGNORE} or ignored ids."]


def only_one_class(total: Tensor, classes: Classes) -> list[str]:
    """Return an error if only one class exists or occurs."""
    if len(classes) == 1:
        return [f"The only class is {classes.names[0]}: add another, such as background."]
    occurring = total[: len(classes)].nonzero().flatten().tolist()
    if len(occurring) != 1:
        return []
    cause = ""
    if occurring == [0] and total[IGNORE] > 0:
        cause = f"; likely cause: masks of 0 and {IGNORE}, but each pixel should hold the number of its class"
    return [f"Of {len(classes)} classes only {classes.names[occurring[0]]} occurs{cause}."]


def find_rarity_warnings(total: Tensor, pixels: dict[str, Tensor], classes: Classes) -> list[str]:
    """Return warnings about classes that never occur, and about splits with few labels."""
    train = pixels.get("train", total)
    never = [name for name, found in zip(classes.names, total.tolist(), strict=False) if not found]
    not_in_train = [name for i, name in enumerate(classes.names) if total[i] > 0 and train[i] == 0]
    warnings = []
    if never:
        warnings.append(f"Classes that never occur: {', '.join(never)}.")
    if not_in_train:
        warnings.append(f"Classes that never occur in train, and so cannot be learned: {', '.join(not_in_train)}.")
    for split, found in pixels.items():
        if found[IGNORE] * 2 > found.sum():
            warnings.append(f"In {split} {found[IGNORE] / found.sum():.0%} of the pixels have no class.")
    return warnings


def format_dataset_report(report: DatasetReport) -> str:
    """Format a report as text: the splits, the share of each class, errors and warnings."""
    names = [*report.classes.names, "(ignored)"]
    counts = {split: [*found, report.ignored[split]] for split, found in report.pixels.items()}
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    width = max(map(len, [*names, "frames"]))
    lines = [
        f"{report.name} in {report.data}",
        "",
        "  ".join([" " * width, *(f"{split:>9}" for split in counts)]),
        "  ".join([f"{'frames':{width}}", *(f"{report.counts[split]:>9}" for split in counts)]),
    ]
    for i, name in enumerate(names):
        shares = [found[i] / max(1, sum(found)) for found in counts.values()]
        bar = "█" * round(30 * totals[i] / max(1, *totals)) or ("▏" if totals[i] else "")
        lines.append("  ".join([f"{name:{width}}", *(f"{share:>9.2%}" for share in shares), bar]).rstrip())
    lines += ["", *(f"error: {error}" for error in report.errors), *(f"warning: {text}" for text in report.warnings)]
    errors, warnings = len(report.errors), len(report.warnings)
    lines.append(f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    return "\n".join(lines)


def dataset_report_to_json(report: DatasetReport) -> dict:
    """Return a report as JSON values."""
    return {
        "dataset": report.name,
        "data": str(report.data),
        "frames": report.counts,
        "pixels": {
            split: dict(zip(report.classes.names, found, strict=True)) for split, found in report.pixels.items()
        },
        "ignored_pixels": report.ignored,
        "errors": report.errors,
        "warnings": report.warnings,
    }


def write_contact_sheet(path: Path, report: DatasetReport) -> None:
    """Write one picture with up to twelve frames and the colours of their labels over them."""
    check_suffix(path)
    if not report.samples:
        raise ValueError(f"{report.data} has no frame without errors to draw: fix the errors first.")
    frames = [overlay(*dataset[i], dataset.classes) for dataset, i in report.samples]
    captions = [f"{dataset.split}  {dataset.pairs[i].image.name}" for dataset, i in report.samples]
    with written_whole(path) as file:
        write_sheet(file, frames, captions)
