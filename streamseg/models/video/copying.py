"""Copying: the labels of the last key frame, unchanged, until the next. What every propagation has to beat.

Shapes: B batch, K classes, H x W the image, h x w the map of the logits.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from streamseg.models.layers import resize
from streamseg.models.video.scheme import VideoMethod, sizes, train_backbone


class CopyState(NamedTuple):
    """The logits (B, K, h, w) of the last key frame."""

    logits: Tensor
    position: int
    streams: int
    height: int
    width: int


class Copying(VideoMethod[CopyState]):
    """The backbone on key frames, and nothing on all others."""

    state_type = CopyState
    kind = "copy"
    trained = ("backbone",)

    def key_frame(self, image: Tensor) -> tuple[Tensor, CopyState]:
        logits = self.backbone.head(self.backbone.features(image))
        return resize(logits, image), CopyState(logits, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: CopyState) -> tuple[Tensor, CopyState]:
        return resize(state.logits, image), state._replace(position=state.position + 1)

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        return train_backbone(self, clip)


def copying(network: nn.Module, interval: int | None = 5) -> Copying:
    """Copy the labels of the last key frame."""
    return Copying(network, interval)
