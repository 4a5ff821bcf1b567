"""Label files: whatever ids or colours they hold becomes labels, uint8, (H, W), 255 = ignore."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from streamseg.classes import IGNORE
from streamseg.io.images import lookup_labels, read_colour_codes, read_label_ids


class UnknownIdsError(ValueError):
    """A label file holds ids that stand for no class: all its ids, and the foreign ones among them."""

    def __init__(self, path: Path, ids: list[int], foreign: list[int], expected: list[int]) -> None:
        super().__init__(
            f"{path} holds ids that stand for no class: {format_ranges(foreign)}; expected {format_ranges(expected)}: "
            "streamseg check says the likely cause."
        )
        self.ids = ids
        self.foreign = foreign


def read_translated(path: Path, label_of: dict[int, int]) -> Tensor:
    """Labels of a file of ids, by the label of each id."""
    return translate(read_label_ids(path), label_of, path)


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
        ids = torch.from_numpy(loadmat(path, variable_names=["S"])["S"].astype("int32"))
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise ValueError(f"{path} is no whole MATLAB file with ids in S ({error}): get a whole copy of it.") from error
    return translate(ids, label_of, path)


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
    labels, _ = lookup_labels(read_colour_codes(path), camvid_table())
    return labels


@cache
def camvid_table() -> Tensor:
    """The label of each of the 16.8 million colours."""
    table = torch.full((0x1000000,), IGNORE, dtype=torch.uint8)
    for label, code in CAMVID_COLOURS:
        table[int(code, 16)] = label
    return table


def translate(ids: Tensor, label_of: dict[int, int], path: Path) -> Tensor:
    """Labels of ids, by the label of each; the path, which they were read from, is for the complaint."""
    # the last entry is for all ids beyond
    table = torch.full((max(label_of) + 2,), -1, dtype=torch.int16)
    table[list(label_of)] = torch.tensor(list(label_of.values()), dtype=torch.int16)
    labels, foreign = lookup_labels(ids, table)
    if foreign:
        raise UnknownIdsError(path, ids.unique().tolist(), foreign, list(label_of))
    return labels


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers in words: "0–10, 255"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
