"""Accel: the warped features of a large network, corrected on every frame by a small one.

S. Jain, X. Wang, J. Gonzalez, "Accel: A Corrective Fusion Network for Efficient Semantic Segmentation on Video", 2019.

    key frame       image ──▶ features ───────▶ head ──▶ logits
                                  │
    other frames    flow ──────▶ warp ────────▶ head ──▶ logits ─┐
                    image ──▶ small network ───────────▶ logits ─┴─ 1x1 ──▶ logits

The features are warped from frame to frame: the warped ones replace those of the state. Key frames have the large
network's logits alone.

Differences: the networks are of this package. The small one is a SwiftNetRN-18 that sees half the frame's size, where
the authors have a ResNet-18; the fusion starts as the mean of both.

Shapes: B batch, K classes, C channels, H height, W width, h x w the map of the features.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.layers import resize
from streamseg.models.video.backbone import split
from streamseg.models.video.flownet import FlowEstimator, flownet_slim
from streamseg.models.video.scheme import VideoMethod, resize_flow, sizes, warp


class AccelState(NamedTuple):
    """The frame before, and the features that were warped to it."""

    image: Tensor
    """(B, 3, H, W)."""
    features: Tensor
    """(B, C, h, w)."""
    position: int
    """Frames since the key frame."""
    streams: int
    height: int
    width: int


class Accel(VideoMethod[AccelState]):
    """A reference branch, an update branch that sees every frame at half its size, and their fusion.

    Args:
        network: The reference branch.
        update: The update branch: an image network for the same classes.
        flow: Optical flow.
        interval: Frames from one key frame to the next.
    """

    state_type = AccelState
    kind = "accel"

    def __init__(self, network: nn.Module, update: nn.Module, flow: FlowEstimator, interval: int | None = 5):
        super().__init__(network, interval)
        self.update = split(update)
        if self.update.classes != self.classes:
            raise ValueError(
                f"The update branch has {self.update.classes} classes; expected the {self.classes} of the reference."
            )
        self.flow = flow
        # the authors train only the fusion: the image networks and the flow are trained before. An update branch of
        # another kind than the reference has no such weights here.
        same = shapes(self.update) == shapes(self.backbone)
        self.trained = ("fuse",) if same else ("fuse", "update")
        self.fuse = nn.Conv2d(2 * self.classes, self.classes, 1)
        half = 0.5 * torch.eye(self.classes)
        with torch.no_grad():
            self.fuse.weight.copy_(torch.cat([half, half], dim=1)[..., None, None])
            self.fuse.bias.zero_()  # type: ignore[union-attr] # it has a bias

    def key_frame(self, image: Tensor) -> tuple[Tensor, AccelState]:
        features = self.backbone.features(image)
        return resize(self.backbone.head(features), image), AccelState(image, features, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: AccelState) -> tuple[Tensor, AccelState]:
        features = self.propagate(state.features, image, state.image)
        reference = resize(self.backbone.head(features), image)
        update = resize(self.update.head(self.update.features(self.halve(image))), image)
        logits = self.fuse(torch.cat([reference, update], dim=1))
        return logits, AccelState(image, features, state.position + 1, *sizes(image))

    def propagate(self, features: Tensor, image: Tensor, previous: Tensor) -> Tensor:
        """Return features of the previous frame, warped to the current one."""
        return warp(features, resize_flow(self.flow(image, previous), features))

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the last frame; the frames between are warped through, and not segmented."""
        features = self.backbone.features(clip[0])
        for previous, image in pairwise(clip[:-1]):
            features = self.propagate(features, image, previous)
        logits, _ = self.next_frame(clip[-1], AccelState(clip[-2], features, len(clip) - 2, *sizes(clip[-2])))
        return logits, None

    def halve(self, image: Tensor) -> Tensor:
        """Return an image (B, 3, H, W) at half its height and width, in the network's precision."""
        return F.avg_pool2d(image.to(self.fuse.weight.dtype), 2, ceil_mode=True)


def shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of a module's weights by their names."""
    return {name: x.shape for name, x in module.state_dict().items()}


def accel(network: nn.Module, interval: int | None = 5) -> Accel:
    """Accel with a SwiftNetRN-18 as its update branch: 72.1 % mIoU on Cityscapes val in the paper, as Accel-18."""
    return Accel(network, swiftnet18(split(network).classes), flownet_slim(), interval)
