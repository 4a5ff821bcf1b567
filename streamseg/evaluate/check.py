"""The doctor: what is wrong with a data set, before a training finds out.

K classes.
"""

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
from streamseg.data.datasets import Dataset, in_parallel, list_splits, missing
from streamseg.data.labels import UnknownIdsError, format_ranges
from streamseg.draw import overlay
from streamseg.io import images
from streamseg.io.files import written_whole
from streamseg.machine import available_cores
from streamseg.models.fanet import MIN_SIDE


@dataclass(frozen=True)
class Report:
    """What was found in a data set."""

    name: str
    data: Path
    classes: Classes
    counts: dict[str, int]
    """Labelled frames of each split, whole or not."""
    pixels: dict[str, tuple[int, ...]]
    """Pixels of each class, of each split."""
    ignored: dict[str, int]
    """Pixels of no class, of each split."""
    errors: tuple[str, ...]
    """Why a training, or its measure of accuracy, would be wrong."""
    warnings: tuple[str, ...]
    samples: tuple[tuple[Dataset, int], ...]
    """Up to twelve frames that are whole, from first to last, by their place in their split."""


class UnknownIds(NamedTuple):
    """The ids of a label file with some that stand for no class; an error would keep whole frames by its traceback."""

    ids: tuple[int, ...]
    foreign: tuple[int, ...]
    path: Path


@dataclass(frozen=True)
class Finding:
    """What was found in one labelled frame."""

    digest: bytes = b""
    """Of the frame's file."""
    pixels: Tensor | None = None
    """(256): pixels of each label, if the frame is whole."""
    problem: str = ""
    foreign: UnknownIds | None = None


def check(name: str, data: Path) -> Report:
    """Read every file of a data set, in all its splits, and report what is wrong."""
    splits = list_splits(name, data)
    classes = next(iter(splits.values())).classes
    pixels = {split: torch.zeros(IGNORE + 1, dtype=torch.int64) for split in splits}
    problems: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    foreign: list[UnknownIds] = []
    places: dict[bytes, dict[str, Path]] = defaultdict(dict)
    whole: list[tuple[Dataset, int]] = []
    labels_in: dict[Path, tuple[int, ...]] = {}
    for split, dataset in splits.items():
        if not dataset.pairs:
            problems[split].append((f"The split {split} is empty.", data))
        findings = in_parallel(partial(check_frame, dataset), range(len(dataset)), available_cores())
        for i, (pair, found) in enumerate(zip(dataset.pairs, findings, strict=True)):
            if found.digest:
                places[found.digest].setdefault(split, pair.image)
            if found.foreign:
                foreign.append(found.foreign)
            elif found.problem:
                problems[problem_kind(found.problem, pair.image, pair.labels)].append((found.problem, pair.image))
            elif found.pixels is not None:
                pixels[split] += found.pixels
                labels_in[pair.labels] = tuple(found.pixels.nonzero().flatten().tolist())
                whole.append((dataset, i))

    total = torch.stack([*pixels.values()]).sum(dim=0)
    errors = [first + also([path for _, path in rest]) for (first, _), *rest in problems.values()]
    if foreign:
        errors.append(describe_foreign(name, foreign, len(classes), bool(total[0] > 0)))
    errors += without_classes(pixels, classes) + only_one_class(total, classes)
    odd_errors, odd_warnings = find_binary_masks(labels_in) if name == "folder" else ([], [])
    errors += odd_errors
    twice = [list(where.values()) for where in places.values() if len(where) > 1]
    if twice:
        first, *rest = twice
        errors.append(
            f"The same frame is in two splits, whose accuracy would be too good: {' and '.join(map(str, first))}"
            f"{also([paths[0] for paths in rest])}"
        )
    return Report(
        name,
        data,
        classes,
        {split: len(dataset) for split, dataset in splits.items()},
        {split: tuple(found[: len(classes)].tolist()) for split, found in pixels.items()},
        {split: int(found[IGNORE]) for split, found in pixels.items()},
        tuple(errors),
        (*odd_warnings, *rare_classes(total, pixels, classes)),
        tuple(whole[i * len(whole) // 12] for i in range(12)) if len(whole) > 12 else tuple(whole),
    )


def check_frame(dataset: Dataset, i: int) -> Finding:
    """Read one labelled frame."""
    pair = dataset.pairs[i]
    digest = b""
    try:
        if pair.image.is_file():
            digest = hashlib.blake2b(pair.image.read_bytes()).digest()
        if problem := missing(pair):
            return Finding(digest, problem=problem)
        frame, labels = dataset[i]
    except UnknownIdsError as error:
        return Finding(digest, foreign=UnknownIds(tuple(error.ids), tuple(error.foreign), pair.labels))
    except (ValueError, OSError) as error:
        return Finding(digest, problem=str(error))
    height, width = frame.shape[1:]
    if min(height, width) < MIN_SIDE:
        problem = (
            f"{pair.image} is {width} x {height} pixels; the least is {MIN_SIDE} x {MIN_SIDE}: remove or enlarge it."
        )
        return Finding(digest, problem=problem)
    return Finding(digest, labels.flatten().bincount(minlength=IGNORE + 1))


def problem_kind(problem: str, *paths: Path) -> str:
    """What like problems have in common: the sentence without paths, numbers and details in brackets."""
    for path in paths:
        problem = problem.replace(str(path), "")
    return re.sub(r"\(.*\)|\d+", "", problem)


def also(paths: list[Path]) -> str:
    """The end of a sentence about one file, if others are like it."""
    if not paths:
        return ""
    names = ", ".join(path.name for path in paths[:3])
    return f" (and {len(paths)} more: {names}{', …' if len(paths) > 3 else ''})"


def describe_foreign(name: str, foreign: list[UnknownIds], classes: int, zero: bool) -> str:
    """A sentence on ids that stand for no class: which, where and the likely cause.

    Args:
        zero: Whether label 0 occurs in the label files without such ids.
    """
    ids = {id for found in foreign for id in found.ids}
    strangers = {id for found in foreign for id in found.foreign}
    paths = [found.path for found in foreign]
    return (
        f"Label ids {format_ranges(strangers)} stand for no class, in {paths[0]}{also(paths[1:])}; likely cause: "
        f"{likely_cause(name, ids, strangers, classes, zero or 0 in ids, paths[0])}."
    )


def likely_cause(name: str, ids: set[int], foreign: set[int], classes: int, zero: bool, path: Path) -> str:
    """Why label files hold foreign ids."""
    if path.suffix.lower() in (".jpg", ".jpeg"):
        return "JPEG changes ids: save labels as PNG"
    if ids <= {0, IGNORE}:
        return "masks of 0 and 255, where each pixel should hold the number of its class"
    if name == "cityscapes" and max(ids - {IGNORE}) < classes:
        return "these are trainIds, where the original labelIds are expected"
    if name == "ade20k" and foreign == {IGNORE}:
        return "ids moved down by one, where the original ones (0 = other, 1–150) are expected"
    if name == "camvid" and max(ids - {IGNORE}) < 32:
        return "ids of the 32 original classes, where those of the usual 11 are expected"
    if classes == 19 and max(ids - {IGNORE}) <= 33:
        return "Cityscapes' labelIds, where its trainIds are expected"
    if foreign == {182 if name == "coco-stuff" else classes}:
        if not zero:
            return "ids shifted by one: they count from 1, and should from 0"
        return f"one class more than the {classes} listed, or ignored pixels, which should be {IGNORE}"
    if max(ids) >= 64 and all(after - before > 1 for before, after in pairwise(sorted(ids))):
        return "shades of grey made for the eye, where each pixel should hold the number of its class"
    return f"labels of another class list than this one of {classes}"


def find_binary_masks(labels_in: dict[Path, tuple[int, ...]]) -> tuple[list[str], list[str]]:
    """Errors and warnings of label files of 0 and 255 alone among others, where 255 would pass for ignored pixels.

    Args:
        labels_in: The labels that occur in each file, in ascending order.
    """
    binary = [path for path, labels in labels_in.items() if labels == (0, IGNORE)]
    others = [labels for labels in labels_in.values() if labels != (0, IGNORE)]
    if not 0 < 2 * len(binary) < len(labels_in) or not any(set(labels) - {0, IGNORE} for labels in others):
        return [], []  # where all are like that, only_one_class tells it
    told = (
        f"{binary[0]}{also(binary[1:])} holds 0 and {IGNORE} alone, unlike {len(others)} other label files; likely "
        "cause: a mask of 0 and 255, where each pixel should hold the number of its class."
    )
    if not any(IGNORE in labels for labels in others):
        return [told], []
    # where others ignore pixels too, a frame of the first class alone is possible, but rare
    return [], [told]


def without_classes(pixels: dict[str, Tensor], classes: Classes) -> list[str]:
    """An error, if all labels of splits are 255."""
    blank = [split for split, found in pixels.items() if found[IGNORE] > 0 and found[: len(classes)].sum() == 0]
    # Cityscapes keeps the labels of its test frames to itself
    if not blank or (blank == ["test"] and len(pixels) > 1):
        return []
    return [f"No pixel of {', '.join(blank)} has a class: all labels there are {IGNORE} or stand for it."]


def only_one_class(total: Tensor, classes: Classes) -> list[str]:
    """An error, if the labels tell nothing apart."""
    if len(classes) == 1:
        return [f"The only class is {classes.names[0]}: list another, such as background, to tell it from."]
    occurring = total[: len(classes)].nonzero().flatten().tolist()
    if len(occurring) != 1:
        return []
    cause = ""
    if occurring == [0] and total[IGNORE] > 0:
        cause = f"; likely cause: masks of 0 and {IGNORE}, where each pixel should hold the number of its class"
    return [f"Of {len(classes)} classes only {classes.names[occurring[0]]} occurs{cause}."]


def rare_classes(total: Tensor, pixels: dict[str, Tensor], classes: Classes) -> list[str]:
    """Warnings of classes that never occur, and of splits with few labels."""
    train = pixels.get("train", total)
    never = [name for name, found in zip(classes.names, total.tolist(), strict=False) if not found]
    unseen = [name for i, name in enumerate(classes.names) if total[i] > 0 and train[i] == 0]
    warnings = []
    if never:
        warnings.append(f"Classes that never occur: {', '.join(never)}.")
    if unseen:
        warnings.append(f"Classes that never occur in train, and so cannot be learned: {', '.join(unseen)}.")
    for split, found in pixels.items():
        if found[IGNORE] * 2 > found.sum():
            warnings.append(f"In {split} {found[IGNORE] / found.sum():.0%} of the pixels have no class.")
    return warnings


def format_report(report: Report) -> str:
    """A report as text: the splits, how often each class occurs, errors and warnings."""
    names = [*report.classes.names, "(ignored)"]
    counts = {split: [*found, report.ignored[split]] for split, found in report.pixels.items()}
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    width = max(map(len, [*names, "pairs"]))
    lines = [
        f"{report.name} in {report.data}",
        "",
        "  ".join([" " * width, *(f"{split:>9}" for split in counts)]),
        "  ".join([f"{'pairs':{width}}", *(f"{report.counts[split]:>9}" for split in counts)]),
    ]
    for i, name in enumerate(names):
        shares = [found[i] / max(1, sum(found)) for found in counts.values()]
        bar = "█" * round(30 * totals[i] / max(1, *totals)) or ("▏" if totals[i] else "")
        lines.append("  ".join([f"{name:{width}}", *(f"{share:>9.2%}" for share in shares), bar]).rstrip())
    lines += ["", *(f"error: {error}" for error in report.errors), *(f"warning: {text}" for text in report.warnings)]
    errors, warnings = len(report.errors), len(report.warnings)
    lines.append(f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    return "\n".join(lines)


def to_json(report: Report) -> dict:
    """A report as JSON can hold it: pixels of each class, of each split."""
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


def write_contact_sheet(path: Path, report: Report) -> None:
    """Write up to twelve frames of a data set under the colours of their labels as one picture."""
    check_suffix(path)
    if not report.samples:
        raise ValueError(f"No frame of {report.data} is whole, so there is none to draw: mend the errors first.")
    frames = [overlay(*dataset[i], dataset.classes) for dataset, i in report.samples]
    captions = [f"{dataset.split}  {dataset.pairs[i].image.name}" for dataset, i in report.samples]
    with written_whole(path) as file:
        images.write_sheet(file, frames, captions)
