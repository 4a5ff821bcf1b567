"""A data set in memory, and a network that predicts what its frames show."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from streamseg.classes import Classes
from streamseg.data.datasets import Pair
from streamseg.engine.engine import ImageEngine

THREE = Classes(("Road", "Sky", "Car"), ((128, 64, 128), (128, 128, 128), (64, 0, 128)))


@dataclass(frozen=True)
class InMemory:
    """A data set in memory."""

    maps: tuple
    classes: Classes = THREE
    name: str = "toy"
    split: str = "val"

    @property
    def pairs(self):
        return [Pair(Path(f"{i}.png"), Path(f"{i}_labels.png")) for i in range(len(self.maps))]

    def __len__(self):
        return len(self.maps)

    def __getitem__(self, index):
        return self.maps[index]


class Painted(nn.Module):
    """A network that predicts the red channel of a frame as labels."""

    def __init__(self, classes=3):
        super().__init__()
        self.classes = classes
        self.norm = nn.BatchNorm2d(3)

    def forward(self, frames):
        return 20 * F.one_hot(frames[:, 0].long(), self.classes).permute(0, 3, 1, 2).float()


def painter(classes=3):
    """Return an engine of it."""
    network = Painted(classes).eval()
    return ImageEngine(network, network)


def painted(labels, predicted):
    """Return a frame for which Painted predicts some labels, and its true labels."""
    return predicted.to(torch.uint8).expand(3, -1, -1), labels.to(torch.uint8)


def halves(left, right):
    labels = torch.full((32, 48), left)
    labels[:, 24:] = right
    return labels
