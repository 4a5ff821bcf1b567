"""Predictions of a network with other classes than a data set, counted as its labels.

Shapes: K labels of the data set, H height, W width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from streamseg.class_table import ClassTable, Translation, find_translation
from streamseg.classes import IGNORE, Classes, name_key
from streamseg.data.datasets import Dataset


def translate_dataset(
    network: Classes, dataset: Dataset, table: ClassTable | None = None
) -> tuple[Translation, Dataset]:
    """Return how the classes of a network count as labels of a data set, and the data set with just these labels.

    Raises a ValueError if this is not known.

    Args:
        table: The class table to use; by default those that streamseg knows.
    """
    translation = find_translation(network, dataset.name, dataset.classes, table)
    if translation is None:
        raise ValueError(
            f"{describe_difference(network, dataset)}; no class table translates them: give the --dataset that it was "
            "trained on, or --class-table FILE."
        )
    if len(translation.labels) == len(dataset.classes):
        return translation, dataset
    read = partial(read_joined, dataset.read_labels, translation.joined)
    return translation, replace(dataset, classes=translation.labels, read_labels=read)


def describe_difference(network: Classes, dataset: Dataset) -> str:
    """Return a sentence about a network whose classes are not those of a data set, with the first that differs."""
    pairs = enumerate(zip_longest(network.names, dataset.classes.names, fillvalue="missing"))
    number, (ours, theirs) = next(pair for pair in pairs if name_key(pair[1][0]) != name_key(pair[1][1]))
    return (
        f"The network was trained for other classes than those of {dataset.name} {dataset.split}: class {number} is "
        f"{ours:.80} in the network and {theirs:.80} in the data set"
    )


def check_same_classes(network: Classes, dataset: Dataset) -> None:
    """Raise a ValueError if weights were trained for other classes than those of a data set."""
    if [*map(name_key, network.names)] != [*map(name_key, dataset.classes.names)]:
        raise ValueError(f"{describe_difference(network, dataset)}; give the --dataset that it was trained on.")


def read_joined(read_labels: Callable[[Path], Tensor], joined: Sequence[int], path: Path) -> Tensor:
    """Read the labels (H, W) of a file, and join those that a network cannot tell apart."""
    labels = read_labels(path)
    lookup = torch.arange(256, dtype=torch.uint8)
    lookup[: len(joined)] = torch.tensor(joined, dtype=torch.uint8)
    return lookup[labels.long()]


def describe_translation(translation: Translation, dataset: str) -> str:
    """Return which classes count as another label, or as none; empty if each is a label itself."""
    classes_of: dict[str | None, list[str]] = {}
    for name, label in translation.renamed().items():
        classes_of.setdefault(label, []).append(name)
    parts = []
    for label, names in classes_of.items():
        listed, several = list_names(names), len(names) > 1
        if label is None:
            parts.append(f"{listed} {'have' if several else 'has'} no label in {dataset}")
        else:
            parts.append(f"{listed} {'count' if several else 'counts'} as {label}")
    if missing := translation.missing():
        parts.append(f"no class of the network counts as {list_names(missing, 'or')}")
    return "; ".join(parts)


def list_names(names: Sequence[str], word: str = "and") -> str:
    """Return names as text: a, b and c."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def to_lookup(label_of: Sequence[int], labels: int, device: torch.device) -> Tensor:
    """Return the label of each predicted class (256,), uint8, for translate_predicted.

    A class without a label becomes K, which is none of them: unlike IGNORE it is wrong wherever there is a label.

    Args:
        label_of: The number of the data set's label for each class of the network; IGNORE for none.
        labels: Number K of the data set's labels.
    """
    wrong = [label for label in label_of if label != IGNORE and not 0 <= label < labels]
    if wrong:
        raise ValueError(
            f"label_of holds {wrong[0]}; expected 0–{labels - 1}, or {IGNORE} for a class without a label."
        )
    lookup = torch.full((256,), labels, dtype=torch.uint8)
    for number, label in enumerate(label_of):
        lookup[number] = labels if label == IGNORE else label
    return lookup.to(device)


def translate_predicted(predicted: Tensor, lookup: Tensor | None) -> Tensor:
    """Return predicted classes (H, W) as labels of the data set; unchanged without a lookup."""
    return predicted if lookup is None else lookup[predicted.long()]
