"""The rivals that the FANet paper compares itself with: one network a file, with FANet's contract.

Each takes RGB images (B, 3, H, W), bytes or floats in 0–255, of any size from 32 up, and returns logits (B, K, H, W).
For training, `outputs` gives the logits before the last resize, and the maps on which its authors hang auxiliary heads,
from shallow to deep; `deep_channels` are the channels of those maps.
"""

from collections.abc import Callable

from torch import nn

from streamseg.peers.bisenet import bisenet18
from streamseg.peers.deeplab import deeplab
from streamseg.peers.enet import enet
from streamseg.peers.erfnet import erfnet
from streamseg.peers.fcn import fcn8s, fcn16s
from streamseg.peers.icnet import icnet
from streamseg.peers.segnet import segnet
from streamseg.peers.shelfnet import shelfnet18
from streamseg.peers.swiftnet import swiftnet18

PEERS: dict[str, Callable[[int], nn.Module]] = {
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
"""Every rival's factory, by the name that it has on the command line."""

__all__ = ["PEERS", *PEERS]
