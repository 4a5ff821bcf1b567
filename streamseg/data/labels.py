"""Read label files: their ids or colours become labels, uint8, (H, W), 255 = ignore."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from streamseg.classes import IGNORE
from streamseg.io.images import lookup_labels, read_colour_codes, read_label_ids


class UnknownIdsError(ValueError):
    """A label file holds ids that are no class."""

    def __init__(self, path: Path, ids: list[int], unknown: list[int], expected: list[int]) -> None:
        super().__init__(
            f"{path} holds ids that are not in the class list: {format_ranges(unknown)}; expected "
            f"{format_ranges(expected)}. Run streamseg check for the likely cause."
        )
        self.ids = ids
        self.unknown = unknown


def read_translated(path: Path, label_of: dict[int, int]) -> Tensor:
    """Read the labels of a file of ids; label_of has the label of each id."""
    return translate(read_label_ids(path), label_of, path)


def read_mat(path: Path, label_of: dict[int, int]) -> Tensor:
    """Read the labels of a MATLAB file of COCO-Stuff 10k, whose variable S holds ids."""
    try:
        from scipy.io import loadmat  # type: ignore
    except ImportError:
        raise ModuleNotFoundError(
            "The labels of COCO-Stuff 10k are MATLAB files, which need scipy: pip install 'streamseg[train]'"
        ) from None
    try:
        ids = torch.from_numpy(loadmat(path, variable_names=["S"])["S"].astype("int32"))
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(
            f"{path} is not a MATLAB file with ids in S, or is damaged ({error}): download it again."
        ) from error
    return translate(ids, label_of, path)


CAMVID_COLOURS = (
    *[(0, "808080"), (1, "800000"), (1, "40c000")],  # Sky, Building, Wall
    *[(2, "c0c080"), (3, "804080"), (3, "8000c0")],  # Column_Pole, Road, LaneMkgsDriv
    *[(3, "c00040"), (3, "8080c0"), (4, "0000c0")],  # LaneMkgsNonDriv, RoadShoulder, Sidewalk
    *[(4, "40c080"), (5, "808000"), (5, "c0c000")],  # ParkingBlock, Tree, VegetationMisc
    *[(6, "c08080"), (6, "808040"), (6, "004040")],  # SignSymbol, Misc_Text, TrafficLight
    *[(7, "404080"), (8, "400080"), (8, "4080c0")],  # Fence, Car, SUVPickupTruck
    *[(8, "c080c0"), (9, "404000"), (10, "0080c0"), (10, "c000c0")],  # Truck_Bus, Pedestrian, Bicyclist, Motorcycle…
)
"""Label and colour of the classes in the original label files; all other colours are ignored."""


def read_camvid_colours(path: Path) -> Tensor:
    """Read the labels of an original CamVid label file."""
    labels, _ = lookup_labels(read_colour_codes(path), colour_table(CAMVID_COLOURS, IGNORE))
    return labels


COMMA10K_COLOURS = (
    *[(0, "402020"), (1, "ff0000"), (2, "808060")],  # road, lane markings, undrivable
    *[(3, "00ff66"), (4, "cc00ff"), (4, "00ccff")],  # movable, my car, movable inside my car
    *[(IGNORE, "000000"), (IGNORE, "ffffff")],  # empty
)
"""Label and colour of the classes in the masks of comma10k."""

UNKNOWN = 254
"""In a table of colours, the entry of those that are no class."""


def read_comma10k_colours(path: Path) -> Tensor:
    """Read the labels of a mask of comma10k; other colours than those of its classes are an error."""
    codes = read_colour_codes(path)
    labels, _ = lookup_labels(codes, colour_table(COMMA10K_COLOURS, UNKNOWN))
    # in numpy: torch starts a pool of threads in each thread that decodes
    wrong = labels.numpy() == UNKNOWN
    if wrong.any():
        raise ValueError(describe_colours(path, sorted({*codes.numpy()[wrong].tolist()})))
    return labels


def describe_colours(path: Path, unknown: list[int]) -> str:
    """Return a sentence about the colours of a mask that are no class, with the likely cause."""
    known = [int(code, 16) for _, code in COMMA10K_COLOURS]
    # JPEG and smooth scaling give many colours, or some close to the right ones
    blurred = (
        path.suffix.lower() in (".jpg", ".jpeg")
        or len(unknown) > 16
        or all(min(colour_distance(a, b) for b in known) <= 16 for a in unknown)
    )
    cause = "JPEG or smooth scaling, which change colours: use PNG, and scale masks by the nearest neighbour"
    names = ", ".join(f"#{code:06x}" for code in unknown[:4]) + (
        f", … {len(unknown)} in all" if len(unknown) > 4 else ""
    )
    return (
        f"{path} has colours that are no class of comma10k ({names}); expected "
        f"{', '.join(f'#{code}' for _, code in COMMA10K_COLOURS)}; likely cause: "
        f"{cause if blurred else 'masks of other classes'}."
    )


def colour_distance(a: int, b: int) -> int:
    """Return the largest difference of two colours, 0xrrggbb, in red, green or blue."""
    return max(abs((a >> shift & 255) - (b >> shift & 255)) for shift in (16, 8, 0))


@cache
def colour_table(labels: tuple[tuple[int, str], ...], others: int) -> Tensor:
    """Return the label of each of the 16.8 million colours; `others` for those that are not listed."""
    table = torch.full((0x1000000,), others, dtype=torch.uint8)
    for label, code in labels:
        table[int(code, 16)] = label
    return table


def translate(ids: Tensor, label_of: dict[int, int], path: Path) -> Tensor:
    """Return the labels of ids; the path is only for the error."""
    # the last entry is for all larger ids
    table = torch.full((max(label_of) + 2,), -1, dtype=torch.int16)
    table[list(label_of)] = torch.tensor(list(label_of.values()), dtype=torch.int16)
    labels, unknown = lookup_labels(ids, table)
    if unknown:
        raise UnknownIdsError(path, ids.unique().tolist(), unknown, list(label_of))
    return labels


def format_ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: "0–10, 255"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
