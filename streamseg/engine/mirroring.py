"""Frames, masks and scores with left and right exchanged."""

import torch
from torch import Tensor


def mirror(maps: Tensor, mirrored: Tensor | None) -> Tensor:
    """Return maps (B, …, W), of which those whose number in (B,) is 1 have left and right exchanged; None for none."""
    if mirrored is None:
        return maps
    if maps.device.type == "cpu" and bool(mirrored.all()):
        return maps.flip(-1)
    return mirror_some(maps, mirrored)


def mirror_some(maps: Tensor, mirrored: Tensor) -> Tensor:
    """Return the same as mirror, by operators that look at no values, as a graph needs them."""
    return torch.where(mirrored.view(-1, *[1] * (maps.ndim - 1)) > 0, maps.flip(-1), maps)
