"""Video methods: the ways to segment video that the FANet paper compares itself with, one a file, on one backbone.

Each takes frame after frame by `step(image, state) -> logits, state`; scheme.py has the interface. A network's name is
that of its method and its backbone, such as dff-swiftnet18.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.fanet import fanet18
from streamseg.models.video.accel import accel
from streamseg.models.video.clockwork import clockwork, clockwork_adaptive, clockwork_pipelined
from streamseg.models.video.copying import copying
from streamseg.models.video.dff import dff
from streamseg.models.video.dvsnet import dvsnet
from streamseg.models.video.grfp import grfp
from streamseg.models.video.low_latency import low_latency
from streamseg.models.video.netwarp import netwarp
from streamseg.models.video.pearl import pearl
from streamseg.models.video.scheme import VideoMethod

METHODS: dict[str, Callable[[nn.Module], VideoMethod[Any]]] = {
    "copy": copying,
    "clockwork": clockwork,
    "clockwork-pipelined": clockwork_pipelined,
    "clockwork-adaptive": clockwork_adaptive,
    "dff": dff,
    "accel": accel,
    "low-latency": low_latency,
    "dvsnet": dvsnet,
    "netwarp": netwarp,
    "grfp": grfp,
    "pearl": pearl,
}
"""The function that builds each method on a backbone, by the first part of the name on the command line."""

BACKBONES: dict[str, Callable[[int], nn.Module]] = {"swiftnet18": swiftnet18, "fanet18": fanet18}
"""The backbones of the methods that have a name; in Python there are more, see backbone.split."""


def build_method(name: str, classes: int) -> VideoMethod[Any]:
    """Build a video method by its name, such as dff-swiftnet18, with random weights."""
    method, _, backbone = name.rpartition("-")
    return METHODS[method](BACKBONES[backbone](classes))


VIDEO_METHODS: dict[str, Callable[[int], VideoMethod[Any]]] = {
    name: partial(build_method, name)
    for name in (f"{method}-{backbone}" for backbone in BACKBONES for method in METHODS)
}
"""The function that builds each video method for a number of classes, by its name on the command line."""

__all__ = ["BACKBONES", "METHODS", "VIDEO_METHODS", "VideoMethod"]
