"""Settings of a run: how frames are labelled, and how labels are drawn."""

from dataclasses import dataclass

import torch

from streamseg.classes import Classes
from streamseg.engine.engine import Engine, to_engine
from streamseg.io.masks import Mask
from streamseg.models.checkpoint import Network
from streamseg.stream.state import Policy


@dataclass(frozen=True)
class DrawStyle:
    """How labels are drawn over a frame."""

    alpha: float = 0.5
    only: tuple[int, ...] = ()
    """The classes to highlight; all if empty."""
    legend: bool = False
    side_by_side: bool = False
    borders: bool = False
    """Whether to draw a line between the classes."""
    classes: Classes | None = None
    """The classes in the colours to draw; None for the colours that they have."""


@dataclass(frozen=True)
class SourceSettings:
    """What one source has of its own."""

    size: tuple[int, int] | None
    """Height and width of the network input; None for the frame's own, up to a limit."""
    style: DrawStyle
    mask: Mask | None = None
    """Pixels to ignore; None for none."""


@dataclass(frozen=True)
class LabelSettings:
    """A network, and how it labels frames."""

    model: Network | Engine
    classes: Classes
    policy: Policy
    cut: float | None = None
    """The distance between contexts above which a new scene begins and the past is dropped."""
    size: tuple[int, int] | None = None
    """Height and width of the network input; None for the frame's own, up to a limit."""
    tiled: bool = False
    """Whether larger frames are labelled tile by tile at full size; this needs an eager engine."""
    with_confidence: bool = False
    """Whether to compute the probability of each label."""
    mask: Mask | None = None
    """Pixels to ignore; None for none."""
    together: bool = False
    """Whether the sources are cameras of one vehicle, which attend to one context of all."""

    @property
    def device(self) -> torch.device:
        return to_engine(self.model).device
