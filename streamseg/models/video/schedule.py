"""Schedules that decide by the frames' content: which entries of a batch get the expensive work, and their maps.

An entry is a stream, or for DVSNet a cell of one.

Shapes: B entries of a batch, n of them chosen.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor

Maps = TypeVar("Maps", bound=tuple)


def check_threshold(threshold: float) -> None:
    """Raise a ValueError if a threshold of change is not a share from 0 to 1, or infinite."""
    if not is_number(threshold) or not (0 <= threshold <= 1 or threshold == math.inf):
        raise ValueError(f"threshold is {threshold!r:.80}; expected 0 to 1, or inf for never.")


def check_target(target: float) -> None:
    """Raise a ValueError if a target is not a percentage."""
    if not is_number(target) or not 0 <= target <= 100:
        raise ValueError(f"target is {target!r:.80}; expected 0 to 100.")


CHECKS = {"threshold": check_threshold, "target": check_target}
"""The check of each attribute by which a schedule decides."""


def is_number(given: object) -> bool:
    """Return whether an option is a number, and no bool."""
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def chosen_entries(decisions: Tensor, default: bool) -> list[int]:
    """Return the entries (n) of a batch for which a decision (B,) is true.

    This waits for the device. Where nothing has a value the default decides: on the meta device, where costs are
    counted, and while a CUDA graph is captured, to be timed.
    """
    without_values = decisions.is_meta or (decisions.is_cuda and torch.cuda.is_current_stream_capturing())
    decided = [default] * len(decisions) if without_values else decisions.tolist()
    return [number for number, yes in enumerate(decided) if yes]


def take_entries(maps: Maps, chosen: list[int]) -> Maps:
    """Return a NamedTuple of maps (B, ...) with only the chosen entries (n, ...)."""
    return type(maps)(*(take_chosen(x, chosen) for x in maps))


def take_chosen(x: Tensor, chosen: list[int]) -> Tensor:
    """Return the chosen entries (n, ...) of a map (B, ...); all of them are the map itself, without a copy."""
    return x if len(chosen) == len(x) else x[chosen]


def put_entries(x: Tensor, chosen: list[int], new: Tensor) -> Tensor:
    """Return maps (B, ...) in which those of the chosen entries are replaced by (n, ...); the old maps are kept."""
    if len(chosen) == len(x):
        return new
    x = x.clone()
    x[chosen] = new
    return x
