"""The legend of a source's pictures, drawn once."""

import torch
from torch import Tensor

from streamseg.classes import Classes
from streamseg.io.captions import render_legend


class LegendCache:
    """Keeps the last legend that was drawn, for the next frames of the same size and classes."""

    def __init__(self) -> None:
        self.key: tuple[tuple[int, ...], int, int] = ((), 0, 0)
        self.panel = torch.empty(3, 0, 0, dtype=torch.uint8)

    def get(self, classes: Classes, numbers: tuple[int, ...], picture: Tensor) -> Tensor:
        """Return a legend of some classes, of a size that fits a picture (3, H, W), on the picture's device."""
        key = (numbers, *picture.shape[1:])
        if key != self.key:
            self.key, self.panel = key, render_legend(classes, numbers, *picture.shape[1:]).to(picture.device)
        return self.panel
