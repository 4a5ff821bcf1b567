"""Deep Feature Flow (DFF): the features of the last key frame, warped to the current frame.

X. Zhu, Y. Xiong, J. Dai, L. Yuan, Y. Wei, "Deep Feature Flow for Video Recognition", 2017. The flow network's last map
also gives a scale for every channel and pixel of the warped features.

    key frame       image ──▶ features ──────────▶ head ──▶ logits
                                  │
    other frames    flow ──────▶ warp ──× scale──▶ head ──▶ logits

Differences: the backbone is one of this package instead of a ResNet-101, and the flow is used at 1/8 of the frame, as
FlowNetS computes it from frames of half the size, instead of averaged to 1/16.

Shapes: B batch, C channels, H height, W width, h x w the map of the features.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.layers import resize
from streamseg.models.video.flownet import FlowNetS, flownet_slim
from streamseg.models.video.scheme import VideoMethod, resize_flow, sizes, warp


class DFFState(NamedTuple):
    """The last key frame."""

    image: Tensor
    """(B, 3, H, W)."""
    features: Tensor
    """(B, C, h, w)."""
    position: int
    """Frames since then."""
    streams: int
    height: int
    width: int


class DFF(VideoMethod[DFFState]):
    """The backbone on key frames, a flow network and the backbone's head on all others."""

    state_type = DFFState
    kind = "dff"
    trained = ("backbone", "flow", "scale")  # end to end, by the loss of the current frame

    def __init__(self, network: nn.Module, flow: FlowNetS, interval: int | None = 5):
        super().__init__(network, interval)
        self.flow = flow
        self.scale = nn.Conv2d(flow.detail_channels, self.backbone.channels, 1)
        nn.init.zeros_(self.scale.weight)
        nn.init.ones_(self.scale.bias)  # type: ignore[arg-type] # it has a bias

    def key_frame(self, image: Tensor) -> tuple[Tensor, DFFState]:
        features = self.backbone.features(image)
        return resize(self.backbone.head(features), image), DFFState(image, features, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: DFFState) -> tuple[Tensor, DFFState]:
        outputs = self.flow.outputs(image, state.image)
        features = warp(state.features, resize_flow(outputs.flow, state.features))
        # at half the size of the flow, as published
        scale = self.scale(F.avg_pool2d(outputs.detail, 2, ceil_mode=True))
        features = features * resize(scale, features)
        return resize(self.backbone.head(features), image), state._replace(position=state.position + 1)

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the last frame from the first, as published: nothing depends on those between."""
        key = DFFState(clip[0], self.backbone.features(clip[0]), 0, *sizes(clip[0]))
        logits, _ = self.next_frame(clip[-1], key)
        return logits, None


def dff(network: nn.Module, interval: int | None = 5) -> DFF:
    """DFF with a slim FlowNetS: 69.2 % mIoU on Cityscapes val in the paper, with a ResNet-101."""
    return DFF(network, flownet_slim(), interval)
