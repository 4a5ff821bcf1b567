"""Class tables: the label of each data set for each class of a network.

Data sets that train one network together have different labels: CamVid's Road includes lane markings, and comma10k's
undrivable is everything from sky to fence. A class table has a row for each class of the network, and a column for each
data set with its label for that class. For training, a label means any of the classes in whose rows it stands; for
evaluation, a predicted class counts as the label in its row.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from streamseg.classes import IGNORE, Classes, name_key, parse_colour

NO_LABEL = "-"
"""Cell of a class that a data set does not label."""


@dataclass(frozen=True)
class ClassTable:
    """The classes of a network, and the label of each data set for each of them."""

    classes: Classes
    columns: dict[str, tuple[str, ...]]
    """For each data set, its label for each class; NO_LABEL for a class that it does not label."""

    def label_of(self, dataset: str, labels: Classes) -> tuple[int, ...]:
        """Return the number of a data set's label for each class, IGNORE for a class that it does not label.

        Args:
            dataset: Name of the column.
            labels: The labels of the data set, all of which the column must hold.
        """
        if dataset not in self.columns:
            raise ValueError(
                f"The class table has no column {dataset}, only {', '.join(self.columns)}: add one with its labels."
            )
        column = self.columns[dataset]
        for name in column:
            if name not in (*labels.names, NO_LABEL):
                hint = "".join(f" Did you mean {match!r}?" for match in get_close_matches(name, labels.names, 1))
                raise ValueError(
                    f"The class table has the label {name!r:.80} in column {dataset}, which is none of its labels "
                    f"({', '.join(labels.names):.200}).{hint}"
                )
        missing = [name for name in labels.names if name not in column]
        if missing:
            raise ValueError(
                f"The class table has no class for the label {missing[0]!r:.80} of {dataset}: "
                "add it to the rows of the classes that it means."
            )
        return tuple(IGNORE if name == NO_LABEL else labels.names.index(name) for name in column)

    def columns_of(self, dataset: str) -> list[str]:
        """Return the columns of a data set; those of two folders are called folder and folder2."""
        return [column for column in self.columns if re.fullmatch(rf"{re.escape(dataset)}\d*", column)]

    def cells_of(self, classes: Classes, dataset: str = "") -> tuple[int, ...] | None:
        """Return for each row the number of its class in a class set that the table has, as its own or in a column.

        IGNORE stands for a row without one; None if the table does not have these classes. A ValueError asks for one
        column if several have them, in different rows.

        Args:
            dataset: The data set whose columns to look in, if the table has any.
        """
        own = self.columns_of(dataset) if dataset else []
        if not own and (rows := find_rows(self.classes.names, classes)):
            return rows
        fitting = {name: rows for name in own or self.columns if (rows := find_rows(self.columns[name], classes))}
        if len({*fitting.values()}) > 1:
            *others, last = fitting
            named = f", or name it: --class-table FILE:{last}" if dataset else ""
            raise ValueError(
                f"{', '.join(classes.names):.200} are in the columns {', '.join(others)} and {last} of the class "
                f"table, in different rows: give a table with one of these columns{named}."
            )
        return next(iter(fitting.values()), None)

    def check_teachable(self, datasets: Sequence[str]) -> None:
        """Raise a ValueError if the data sets cannot teach a class, or cannot tell two classes apart."""
        names = " and ".join(datasets)
        rows: dict[tuple[str, ...], list[str]] = {}
        for name, *row in zip(self.classes.names, *(self.columns[dataset] for dataset in datasets), strict=True):
            rows.setdefault(tuple(row), []).append(name)
        for cells, classes in rows.items():
            if set(cells) == {NO_LABEL}:
                raise ValueError(
                    f"No label of {names} means the class {classes[0]!r:.80}: remove the class, or add it to a label."
                )
        for classes in rows.values():
            if len(classes) > 1:
                raise ValueError(
                    f"The classes {classes[0]!r:.80} and {classes[1]!r:.80} have the same labels in {names}, "
                    "which cannot tell them apart: merge them."
                )


def find_rows(cells: Sequence[str], classes: Classes) -> tuple[int, ...] | None:
    """Return the number of the class in each cell, IGNORE for NO_LABEL; None if the cells are of other classes."""
    by_key = {name_key(name): number for number, name in enumerate(classes.names)}
    exact = {name: number for number, name in enumerate(classes.names)}
    if {name_key(cell) for cell in cells if cell != NO_LABEL} != {*by_key}:
        return None
    return tuple(IGNORE if cell == NO_LABEL else exact.get(cell, by_key[name_key(cell)]) for cell in cells)


def parse_class_table(text: str, origin: str) -> ClassTable:
    """Parse a class table: comma-separated lines, the first "class, colour, DATA SET, …".

    Args:
        origin: Where the text is from, for errors.
    """
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    header = lines[0] if lines else []
    if header[:2] != ["class", "colour"] or len(header) < 3:
        raise ValueError(f'{origin} is no class table; expected a first line "class, colour, DATA SET, …".')
    if len({*header}) < len(header):
        raise ValueError(f"{origin} has two columns of the same name: {', '.join(header):.200}.")
    for line in lines[1:]:
        if len(line) != len(header) or not all(line):
            raise ValueError(
                f'{origin} has the row "{", ".join(line):.200}"; expected {len(header)} cells, '
                f"and {NO_LABEL} for a class that a data set does not label."
            )
    try:
        classes = Classes(tuple(line[0] for line in lines[1:]), tuple(parse_colour(line[1]) for line in lines[1:]))
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    return ClassTable(classes, {name: tuple(line[i] for line in lines[1:]) for i, name in enumerate(header) if i > 1})


def read_class_table(path: Path) -> ClassTable:
    """Read a class table from a text file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"No class table at {path}: check the path.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8.") from None
    return parse_class_table(text, str(path))


STREET_TABLE = parse_class_table(
    """
    class,       colour, camvid,     comma10k
    Sky,         808080, Sky,        undrivable
    Building,    800000, Building,   undrivable
    Pole,        c0c080, Pole,       undrivable
    Road,        804080, Road,       road
    Pavement,    0000c0, Pavement,   undrivable
    Tree,        808000, Tree,       undrivable
    SignSymbol,  c08080, SignSymbol, undrivable
    Fence,       404080, Fence,      undrivable
    Car,         400080, Car,        movable
    Pedestrian,  404000, Pedestrian, movable
    Bicyclist,   0080c0, Bicyclist,  movable
    LaneMarking, ffffff, Road,       lane marking
    OwnCar,      cc00ff, -,          my car
    """,
    "the class table street",
)
"""The classes of the bundled weights `street`: CamVid's, lane markings, and the car that carries the camera."""

CLASS_TABLES = {"street": STREET_TABLE}
"""The class tables that can be given by name."""


def open_class_table(name: str) -> ClassTable:
    """Return a class table by its name, or read it from a file."""
    if name in CLASS_TABLES:
        return CLASS_TABLES[name]
    if not Path(name).suffix and not Path(name).exists():
        near = [f"did you mean {match}?" for match in get_close_matches(name, CLASS_TABLES, 1)]
        advice = near[0] if near else f"give {', '.join(CLASS_TABLES)}, or a file."
        raise ValueError(f"No class table is called {name!r:.80}: {advice}")
    return read_class_table(Path(name))


def open_table_of(name: str, dataset: str) -> ClassTable:
    """Return a class table to evaluate a data set with, by its name or file, or as FILE:COLUMN.

    With a column, the table has this one as the only column of the data set.
    """
    file, _, column = name.rpartition(":")
    # the : of C:\table.txt is part of a path
    if not file or Path(name).exists() or {*"/\\"} & {*column}:
        return open_class_table(name)
    table = open_class_table(file)
    if column not in table.columns:
        raise ValueError(f"The class table {file} has no column {column!r:.80}, only {', '.join(table.columns)}.")
    others = {other: cells for other, cells in table.columns.items() if other not in table.columns_of(dataset)}
    return ClassTable(table.classes, {**others, dataset: table.columns[column]})


@dataclass(frozen=True)
class Translation:
    """How the classes of a network count as the labels of a data set."""

    network: Classes
    labels: Classes
    """The labels of the data set; those that the network cannot tell apart are joined to one: road + lane marking."""
    label_of: tuple[int, ...]
    """For each class of the network, the number of its label; IGNORE for a class that the data set does not label."""
    joined: tuple[int, ...]
    """For each label of the data set, its number in `labels`."""

    def renamed(self) -> dict[str, str | None]:
        """Return the classes that count as a label of another name, with it; None for a class without a label."""
        names = {IGNORE: None, **dict(enumerate(self.labels.names))}
        pairs = zip(self.network.names, [names[label] for label in self.label_of], strict=True)
        return {name: label for name, label in pairs if label is None or name_key(label) != name_key(name)}

    def missing(self) -> list[str]:
        """Return the labels that no class of the network counts as."""
        return [name for label, name in enumerate(self.labels.names) if label not in self.label_of]


def find_translation(
    network: Classes, dataset: str, labels: Classes, table: ClassTable | None = None
) -> Translation | None:
    """Return how the classes of a network count as the labels of a data set, from what is known; None if nothing is.

    It is known for a network with the classes of the data set itself, and where a table has both, as its classes or in
    a column. Upper and lower case, spaces, hyphens and underscores make no difference.

    Args:
        dataset: The name of the data set.
        labels: Its labels.
        table: The table to use, which must have both; by default those that can be given by name.
    """
    if table is not None:
        return translate_by_table(network, dataset, labels, table)
    if {*map(name_key, network.names)} == {*map(name_key, labels.names)}:
        same = ClassTable(labels, {dataset: labels.names})
        return translate_by_table(network, dataset, labels, same)
    for known in CLASS_TABLES.values():
        if known.cells_of(network) and known.cells_of(labels, dataset):
            return translate_by_table(network, dataset, labels, known)
    return None


def translate_by_table(network: Classes, dataset: str, labels: Classes, table: ClassTable) -> Translation:
    """Return how the classes of a network count as the labels of a data set by a table; a ValueError if it lacks them.

    A class counts as the label that stands in a row with it. Where a class stands with several labels, the network
    cannot tell these apart.
    """
    classes, numbers = table.cells_of(network), table.cells_of(labels, dataset)
    if classes is None:
        raise ValueError(
            f"The class table has neither as classes nor in a column those of the network, "
            f"{', '.join(network.names):.200}: add a column with them."
        )
    if numbers is None:
        numbers = table.label_of(dataset, labels)
    together = [{label} for label in range(len(labels))]
    labels_of: list[set[int]] = [set() for _ in network.names]
    for number, label in zip(classes, numbers, strict=True):
        if IGNORE not in (number, label):
            labels_of[number].add(label)
            merged = set().union(*(together[other] for other in labels_of[number]))
            for other in merged:
                together[other] = merged
    groups = sorted({tuple(sorted(group)) for group in together})
    names = tuple(" + ".join(labels.names[label] for label in group) for group in groups)
    joined = [next(i for i, group in enumerate(groups) if label in group) for label in range(len(labels))]
    return Translation(
        network,
        Classes(names, tuple(labels.colours[group[0]] for group in groups)),
        tuple(joined[min(found)] if found else IGNORE for found in labels_of),
        tuple(joined),
    )
