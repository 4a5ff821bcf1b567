"""Clockwork: deep stages of a network change slowly from frame to frame, so they run less often than shallow ones.

E. Shelhamer, K. Rakelly, J. Hoffman, T. Darrell, "Clockwork Convnets for Video Semantic Segmentation", 2016. Nothing is
warped: a stage that does not run leaves its last map in place, and the fusion runs on every frame.

    image ──shallow──▶ x1, x2 ────────────────────────▶ merge ──head──▶ logits
                          └──deep, when its clock fires──▶ x3 ──┘

The clocks differ: alternating (Clockwork), one frame late (PipelinedClockwork), by change (AdaptiveClockwork). The
authors cut FCN-8s in three by its skips; here the backbone is cut in two, after Res-2. There is no training on video:
the weights are those of the image network. Only the adaptive clock needs a layer of its own, a 1x1 classifier on Res-2
in place of FCN's score of pool4.

Shapes: B batch, K classes, H x W the image, h x w the map of Res-2.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from streamseg.models.layers import resize
from streamseg.models.video.backbone import Shallow
from streamseg.models.video.schedule import check_threshold, chosen_entries, put_entries, take_chosen, take_entries
from streamseg.models.video.scheme import VideoMethod, sizes, train_backbone


class ClockworkState(NamedTuple):
    """The deep map that was computed last."""

    deep: Tensor
    position: int
    streams: int
    height: int
    width: int


class Clockwork(VideoMethod[ClockworkState]):
    """The alternating clock: the deep part runs on every `interval`-th frame, in the paper on every other."""

    state_type = ClockworkState
    kind = "clockwork"
    trained = ("backbone",)

    def __init__(self, network: nn.Module, interval: int | None = 2):
        super().__init__(network, interval)

    def key_frame(self, image: Tensor) -> tuple[Tensor, ClockworkState]:
        shallow = self.backbone.shallow(image)
        deep = self.backbone.deep(shallow)
        return fuse(self, image, shallow, deep), ClockworkState(deep, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: ClockworkState) -> tuple[Tensor, ClockworkState]:
        logits = fuse(self, image, self.backbone.shallow(image), state.deep)
        return logits, state._replace(position=state.position + 1)

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        return train_backbone(self, clip)


class PipelinedState(NamedTuple):
    """The deep map for the next frame; until finish() has made it, an empty one."""

    deep: Tensor
    out: Tensor
    """Res-2 of the last frame, from which the deep part continues."""
    position: int
    streams: int
    height: int
    width: int


class PipelinedClockwork(VideoMethod[PipelinedState]):
    """The pipelined clock: the deep part runs for every frame, after its labels are out, and serves the next frame.

    The deep map is one frame late, and a frame waits for the shallow part alone. With `interval` 1 nothing is late.
    """

    state_type = PipelinedState
    kind = "clockwork-pipelined"
    trained = ("backbone",)

    def __init__(self, network: nn.Module, interval: int | None = None):
        super().__init__(network, interval)

    def key_frame(self, image: Tensor) -> tuple[Tensor, PipelinedState]:
        shallow = self.backbone.shallow(image)
        deep = self.backbone.deep(shallow)
        return fuse(self, image, shallow, deep), PipelinedState(deep, shallow.out, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: PipelinedState) -> tuple[Tensor, PipelinedState]:
        shallow = self.backbone.shallow(image)
        logits = fuse(self, image, shallow, state.deep)
        empty = shallow.out.new_empty(0)
        return logits, state._replace(deep=empty, out=shallow.out, position=state.position + 1)

    def finish(self, state: PipelinedState) -> PipelinedState:
        if state.deep.numel():
            return state
        return state._replace(deep=self.backbone.deep(Shallow(state.out, state.out, state.out)))

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        return train_backbone(self, clip)


class AdaptiveState(NamedTuple):
    """The deep map that was computed last, and the labels of Res-2 at that time."""

    deep: Tensor
    labels: Tensor
    """(B, h, w), uint8."""
    position: int
    streams: int
    height: int
    width: int


class AdaptiveClockwork(VideoMethod[AdaptiveState]):
    """The adaptive clock: the deep part runs when the labels of Res-2 have changed enough since it ran last.

    Until its classifier is trained, all these labels are the same, and only a threshold of 0 fires.

    Args:
        threshold: Share of the pixels whose labels must have changed; 0 runs the deep part on every frame.
        interval: The most frames from one run of the deep part to the next; None for no limit.
    """

    state_type = AdaptiveState
    kind = "clockwork-adaptive"
    decides_by = "threshold"
    trained = ("score2",)

    def __init__(self, network: nn.Module, threshold: float = 0.25, interval: int | None = None):
        super().__init__(network, interval)
        check_threshold(threshold)
        self.threshold = threshold
        self.score2 = nn.Conv2d(self.backbone.shallow_channels, self.classes, 1)
        # zeros, as in FCN: what is left of random weights after a short training changes labels where nothing changes
        nn.init.zeros_(self.score2.weight)
        nn.init.zeros_(self.score2.bias)  # type: ignore[arg-type] # it has one

    def key_frame(self, image: Tensor) -> tuple[Tensor, AdaptiveState]:
        shallow = self.backbone.shallow(image)
        deep = self.backbone.deep(shallow)
        labels = self.shallow_labels(shallow)
        return fuse(self, image, shallow, deep), AdaptiveState(deep, labels, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: AdaptiveState) -> tuple[Tensor, AdaptiveState]:
        shallow = self.backbone.shallow(image)
        labels = self.shallow_labels(shallow)
        changed = (labels != state.labels).flatten(1).float().mean(dim=1)
        fired = chosen_entries(changed >= self.threshold, default=self.threshold <= 0)
        deep, since = state.deep, state.labels
        if fired:
            deep = put_entries(deep, fired, self.backbone.deep(take_entries(shallow, fired)))
            since = put_entries(since, fired, take_chosen(labels, fired))
        position = 0 if len(fired) == len(image) else state.position + 1
        return fuse(self, image, shallow, deep), AdaptiveState(deep, since, position, *sizes(image))

    def shallow_labels(self, shallow: Shallow) -> Tensor:
        """Return the labels (B, h, w) by Res-2 alone."""
        return self.score2(shallow.out).argmax(dim=1).to(torch.uint8)

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Train the classifier on Res-2, which nothing else trains: its logits are those of the clip."""
        return self.score2(self.backbone.shallow(clip[-1]).out), None


def fuse(method: VideoMethod, image: Tensor, shallow: Shallow, deep: Tensor) -> Tensor:
    """Return the logits (B, K, H, W) of a shallow and a deep map, which may be of different frames."""
    return resize(method.backbone.head(method.backbone.merge(shallow, deep)), image)


def clockwork(network: nn.Module, interval: int | None = 2) -> Clockwork:
    """Clockwork with the alternating clock: 64.4 % mIoU on Cityscapes val in the paper, with FCN-8s."""
    return Clockwork(network, interval)


def clockwork_pipelined(network: nn.Module, interval: int | None = None) -> PipelinedClockwork:
    """Clockwork with the pipelined clock."""
    return PipelinedClockwork(network, interval)


def clockwork_adaptive(network: nn.Module, interval: int | None = None) -> AdaptiveClockwork:
    """Clockwork with the adaptive clock: 65.8 % mIoU in the authors' repository at a threshold of 0.25."""
    return AdaptiveClockwork(network, interval=interval)
