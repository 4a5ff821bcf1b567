"""PEARL, parsing with predictive feature learning: features that foresee the frame join those that see it.

X. Jin, X. Li, H. Xiao et al., "Video Scene Parsing with Predictive Feature Learning", 2017. No code is public: this
follows the abstract and the figure. The backbone sees every frame; no flow is needed.

    four frames before ──▶ predictor ──▶ adapt ──▶ foreseen ──┐
    image ──▶ shallow ──▶ deep ─────────────────────────── 1x1 ──▶ merge ──▶ head ──▶ logits

Assumed: the predictor is a second ResNet-18 over four stacked frames, its map passes a 3x3 convolution, and a 1x1
convolution joins it to the backbone's deep map, before the decoder. All is trained at once, by the labels: the authors
first pretrain the predictor to foresee the frame itself, with an adversarial loss, which is left out.

Shapes: B batch, K classes, H height, W width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from streamseg.models.encoder import resnet18
from streamseg.models.layers import conv, init_network, initialise, normalise, resize
from streamseg.models.video.scheme import VideoMethod, sizes

FRAMES = 4
"""Frames from which the next is foreseen."""


class PEARLState(NamedTuple):
    """The frames before."""

    frames: Tensor
    """(B, 4 * 3, H, W), oldest first; a short past is filled with its first frame."""
    position: int
    """Frames since the first."""
    streams: int
    height: int
    width: int


class PEARL(VideoMethod[PEARLState]):
    """The backbone, and a network that foresees the current frame from the four before it.

    Args:
        interval: Frames after which the past is left out once; None for never.
    """

    state_type = PEARLState
    kind = "pearl"
    trained = ("backbone", "predictor", "fuse")  # jointly

    def __init__(self, network: nn.Module, interval: int | None = None):
        super().__init__(network, interval)
        channels = self.backbone.deep_channels
        self.predictor = Predictor(self.classes)
        self.fuse = nn.Conv2d(channels + self.predictor.channels, channels, 1)
        # starts as the backbone
        identity = torch.eye(channels, channels + self.predictor.channels)
        with torch.no_grad():
            self.fuse.weight.copy_(identity[..., None, None])
            self.fuse.bias.zero_()  # type: ignore[union-attr] # it has a bias

    def key_frame(self, image: Tensor) -> tuple[Tensor, PEARLState]:
        return self.backbone(image), PEARLState(image.repeat(1, FRAMES, 1, 1), 0, *sizes(image))

    def next_frame(self, image: Tensor, state: PEARLState) -> tuple[Tensor, PEARLState]:
        foreseen = self.predictor(state.frames)
        shallow = self.backbone.shallow(image)
        deep = self.backbone.deep(shallow)
        deep = self.fuse(torch.cat([deep, resize(foreseen, deep)], dim=1))
        logits = resize(self.backbone.head(self.backbone.merge(shallow, deep)), image)
        frames = torch.cat([state.frames[:, 3:], image], dim=1)
        return logits, state._replace(frames=frames, position=state.position + 1)

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the last frame; of the frames before it, only the predictor sees anything."""
        before = [*[clip[0]] * FRAMES, *clip[1:-1]][-FRAMES:]
        logits, _ = self.next_frame(clip[-1], PEARLState(torch.cat(before, dim=1), 0, *sizes(clip[-1])))
        return logits, None


class Predictor(nn.Module):
    """Foresees a frame's features from the four frames before it, at 1/32 of their size."""

    channels = 128
    classes: int
    mean: Tensor
    std: Tensor

    def __init__(self, classes: int):
        super().__init__()
        init_network(self, classes)
        self.encoder = resnet18("None")
        self.encoder.conv1 = nn.Conv2d(3 * FRAMES, 64, 7, stride=2, padding=3, bias=False)
        initialise(self.encoder.conv1)
        self.adapt = conv(512, self.channels, 3)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the features (B, 128, H / 32, W / 32) of frames (B, 4 * 3, H, W)."""
        batch, _, height, width = frames.shape
        frames = normalise(frames.reshape(batch * FRAMES, 3, height, width), self.mean, self.std)
        _, _, _, x4 = self.encoder(frames.view(batch, 3 * FRAMES, height, width))
        return self.adapt(x4)


def pearl(network: nn.Module, interval: int | None = None) -> PEARL:
    """PEARL with a ResNet-18 as its predictor: 76.5 % mIoU on Cityscapes val in its publication."""
    return PEARL(network, interval)
