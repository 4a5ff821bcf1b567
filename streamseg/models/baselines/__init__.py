"""Baselines: the networks that the FANet paper compares itself with, one a file, with the interface of FANet.

Each takes RGB images (B, 3, H, W), bytes or floats in 0–255, with sides of 32 or more, and returns logits (B, K, H, W).
Its `name` is that of the function that builds it; its `encoder`, if it has one, can load ImageNet weights.
For training, `outputs` returns the logits before the last resize, and the maps on which the authors train auxiliary
heads, from shallow to deep; `deep_channels` are the channels of those maps.
"""

from collections.abc import Callable

from streamseg.models.baselines.bisenet import BiSeNet, bisenet18
from streamseg.models.baselines.deeplab import DeepLab, deeplab
from streamseg.models.baselines.enet import ENet, enet
from streamseg.models.baselines.erfnet import ERFNet, erfnet
from streamseg.models.baselines.fcn import FCN, fcn8s, fcn16s
from streamseg.models.baselines.icnet import ICNet, icnet
from streamseg.models.baselines.segnet import SegNet, segnet
from streamseg.models.baselines.shelfnet import ShelfNet, shelfnet18
from streamseg.models.baselines.swiftnet import SwiftNet, swiftnet18

Baseline = SegNet | ENet | ICNet | ERFNet | BiSeNet | ShelfNet | SwiftNet | FCN | DeepLab

BASELINES: dict[str, Callable[[int], Baseline]] = {
    "segnet": segnet,
    "enet": enet,
    "icnet": icnet,
    "erfnet": erfnet,
    "bisenet18": bisenet18,
    "shelfnet18": shelfnet18,
    "swiftnet18": swiftnet18,
    "fcn16s": fcn16s,
    "fcn8s": fcn8s,
    "deeplab": deeplab,
}
"""The function that builds each baseline, by its name on the command line."""

__all__ = ["BASELINES", "Baseline", *BASELINES]
