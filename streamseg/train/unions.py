"""The data sets of a run: one, or several with different labels that train one network by a class table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from streamseg.class_table import ClassTable, open_class_table
from streamseg.classes import IGNORE, Classes
from streamseg.data.datasets import Dataset
from streamseg.data.shards import has_split, open_dataset
from streamseg.train.config import TrainConfig, check_second_folder
from streamseg.train.feed import exclude_frames
from streamseg.train.label_sets import LabelSets, make_label_sets


class Validation(NamedTuple):
    """A split to validate on."""

    dataset: Dataset
    label_of: tuple[int, ...] | None
    """Label of the data set for each class of the network; None if the labels are the classes."""


@dataclass(frozen=True)
class TrainingData:
    """The data sets of a run."""

    folders: tuple[Path, ...]
    datasets: tuple[Dataset, ...]
    """Their labels are numbered in one sequence."""
    validations: tuple[Validation, ...]
    table: ClassTable | None
    """None if the labels of the only data set are the classes."""

    @property
    def classes(self) -> Classes:
        """The classes of the network."""
        return self.table.classes if self.table else self.datasets[0].classes

    def summary(self) -> str:
        """Return the number of frames of each data set in words."""
        return " and ".join(f"{len(data)} frames of {data.name} {data.split}" for data in self.datasets)

    def label_sets(self) -> LabelSets | None:
        """Return the classes that each label means; None if the labels are the classes."""
        if self.table is None:
            return None
        columns = zip(column_names(self.datasets), self.datasets, strict=True)
        return make_label_sets([self.table.label_of(name, data.classes) for name, data in columns])


def open_training_data(config: TrainConfig, data: Path, with_data: Path | None) -> TrainingData:
    """Open the data sets of a run, and check that they can train one network."""
    parts = [(config.dataset, data, config.split, config.leave_out)]
    check_second_folder(config, with_data)
    if config.with_dataset != "none" and with_data is not None:
        parts.append((config.with_dataset, with_data, config.with_split, config.with_leave_out))
    named = open_class_table(config.class_table) if config.class_table else None
    opened = [exclude_frames(open_dataset(name, folder, split), left) for name, folder, split, left in parts]
    table = named or join_equal_labels(opened)
    if table:
        check_table(table, opened)
    check_apart(opened)
    firsts = accumulate((len(dataset.classes) for dataset in opened), initial=0)
    validations = []
    for column, dataset, (name, folder, *_) in zip(column_names(opened), opened, parts, strict=True):
        # only the first data set must have the split
        if config.validate and (dataset is opened[0] or has_split(name, folder, config.validate)):
            label_of = table.label_of(column, dataset.classes) if table else None
            validations.append(Validation(open_dataset(name, folder, config.validate), label_of))
    return TrainingData(
        folders=tuple(folder for _, folder, *_ in parts),
        datasets=tuple(number_labels_from(first, dataset) for first, dataset in zip(firsts, opened, strict=False)),
        validations=tuple(validations),
        table=table,
    )


def column_names(datasets: Sequence[Dataset]) -> list[str]:
    """Return the names of data sets in a class table; the second of two with the same name has a 2 after it."""
    names = [dataset.name for dataset in datasets]
    return [name if name not in names[:i] else f"{name}{names[:i].count(name) + 1}" for i, name in enumerate(names)]


def join_equal_labels(datasets: Sequence[Dataset]) -> ClassTable | None:
    """Return the class table of data sets that all have the same labels; None for a single data set."""
    classes = datasets[0].classes
    if len(datasets) == 1:
        return None
    if any(dataset.classes.names != classes.names for dataset in datasets):
        names = " and ".join(column_names(datasets))
        raise ValueError(f"{names} have different labels: give --class-table street, or --class-table FILE.")
    return ClassTable(classes, dict.fromkeys(column_names(datasets), classes.names))


def check_table(table: ClassTable, datasets: Sequence[Dataset]) -> None:
    """Raise a ValueError if a class table lacks a label of the data sets, or a class that they cannot teach."""
    names = column_names(datasets)
    for name, dataset in zip(names, datasets, strict=True):
        table.label_of(name, dataset.classes)
    table.check_teachable(names)
    count = sum(len(dataset.classes) for dataset in datasets)
    if count > IGNORE:
        raise ValueError(f"{' and '.join(names)} have {count} labels in all; expected {IGNORE} at most.")


def check_apart(datasets: Sequence[Dataset]) -> None:
    """Raise a ValueError if two data sets have a frame in common."""
    seen: dict[tuple[str, int], tuple[Dataset, Path]] = {}
    for dataset in datasets:
        # in a shard, NAME.jpg is called NAME.image.jpg
        files = ((pair.image.name.replace(".image.", "."), pair.image) for pair in dataset.pairs)
        found = {(name, dataset.size_of(path)): path for name, path in files}
        for key in sorted(found.keys() & seen.keys()):
            other, path = seen[key]
            # names such as 1.png, and sizes, may be the same by chance
            if path == found[key] or dataset.read_image(found[key]).equal(other.read_image(path)):
                where = "" if path == found[key] else f", also as {found[key]}"
                raise ValueError(f"{path} is in both data sets{where}: give data sets with different frames.")
        seen |= {key: (dataset, path) for key, path in found.items()}


def number_labels_from(first: int, dataset: Dataset) -> Dataset:
    """Return a data set whose labels are numbered from `first` instead of 0."""
    return replace(dataset, read_labels=partial(read_shifted, dataset, first)) if first else dataset


def read_shifted(dataset: Dataset, first: int, path: Path) -> Tensor:
    """Read labels of a data set, numbered from `first`."""
    labels = dataset.read_labels(path)
    return torch.where(labels == IGNORE, IGNORE, labels + first)
