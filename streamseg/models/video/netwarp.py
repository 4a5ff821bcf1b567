"""NetWarp: each frame's features are mixed with those of the frame before, warped by a corrected flow.

R. Gadde, V. Jampani, P. Gehler, "Semantic Video CNNs through Representation Warping", 2017. The backbone sees every
frame: NetWarp is about accuracy.

    image ──────────────▶ features z ──────────────┬──▶ w0 z + w1 warp(z before) ──▶ head ──▶ logits
    flow ──▶ flow CNN ──▶ warp(z of the frame before)

Differences: the backbone is one of this package instead of PSPNet-101, whole frames instead of crops at six scales. The
flow is resized to the features bilinearly, not by maxima. A first frame is the backbone's.

Shapes: B batch, C channels, H height, W width, h x w the map of the features.

Golden: the flow CNN has 6,396 parameters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.layers import resize
from streamseg.models.video.flownet import FlowEstimator, flownet_slim
from streamseg.models.video.scheme import VideoMethod, resize_flow, sizes, warp


class NetWarpState(NamedTuple):
    """The frame before."""

    image: Tensor
    """(B, 3, H, W)."""
    features: Tensor
    """(B, C, h, w), of this frame alone: not mixed with earlier ones."""
    position: int
    """Frames since the first."""
    streams: int
    height: int
    width: int


class NetWarp(VideoMethod[NetWarpState]):
    """The backbone, whose features are mixed with those of the frame before.

    Args:
        flow: Optical flow; DISFlow() is that of the authors.
        interval: Frames after which the past is left out once; None for never.
    """

    state_type = NetWarpState
    kind = "netwarp"
    trained = ("backbone", "correct", "w0", "w1")  # the flow is fixed

    def __init__(self, network: nn.Module, flow: FlowEstimator, interval: int | None = None):
        super().__init__(network, interval)
        self.flow = flow
        self.correct = FlowCNN()
        # starts as the backbone
        self.w0 = nn.Parameter(torch.ones(self.backbone.channels))
        self.w1 = nn.Parameter(torch.zeros(self.backbone.channels))

    def key_frame(self, image: Tensor) -> tuple[Tensor, NetWarpState]:
        features = self.backbone.features(image)
        return resize(self.backbone.head(features), image), NetWarpState(image, features, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: NetWarpState) -> tuple[Tensor, NetWarpState]:
        features = self.backbone.features(image)
        flow = resize_flow(self.flow(image, state.image), features)
        flow = self.correct(flow.to(features.dtype), shrink_like(image, features), shrink_like(state.image, features))
        warped = warp(state.features, flow)
        mixed = self.w0.view(1, -1, 1, 1) * features + self.w1.view(1, -1, 1, 1) * warped
        state = NetWarpState(image, features, state.position + 1, *sizes(image))
        return resize(self.backbone.head(mixed), image), state

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the last frame; they depend on the frame before it, and on no other."""
        before = NetWarpState(clip[-2], self.backbone.features(clip[-2]), 0, *sizes(clip[-2]))
        logits, _ = self.next_frame(clip[-1], before)
        return logits, None


class FlowCNN(nn.Module):
    """Corrects a flow, given both frames: the paper's Λ. It starts as the identity."""

    def __init__(self) -> None:
        super().__init__()
        last = nn.Conv2d(32, 2, 3, padding=1)
        self.difference = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), last
        )
        self.join = nn.Conv2d(4, 2, 1)
        with torch.no_grad():
            last.weight.zero_()
            last.bias.zero_()  # type: ignore[union-attr] # it has a bias
            self.join.weight.copy_(torch.eye(2).repeat(1, 2)[..., None, None])
            self.join.bias.zero_()  # type: ignore[union-attr]

    def forward(self, flow: Tensor, current: Tensor, previous: Tensor) -> Tensor:
        """Return the corrected flow (B, 2, h, w) of two frames (B, 3, h, w) in 0–1."""
        difference = self.difference(torch.cat([flow, current, warp(previous, flow)], dim=1))
        return self.join(torch.cat([difference, flow], dim=1))


def shrink_like(image: Tensor, features: Tensor) -> Tensor:
    """Return an image (B, 3, H, W) of 0–255 as the maxima (B, 3, h, w) over a map's pixels, in 0–1."""
    return F.adaptive_max_pool2d(image.to(features.dtype) / 255, features.shape[-2:])


def netwarp(network: nn.Module, interval: int | None = None) -> NetWarp:
    """NetWarp with a slim FlowNetS: 80.6 % mIoU on Cityscapes val in the paper, with PSPNet-101 at six scales."""
    return NetWarp(network, flownet_slim(), interval)
