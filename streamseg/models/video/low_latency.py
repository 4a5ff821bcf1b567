"""Low-Latency: features of the last key frame are propagated by predicted kernels; a scheduler chooses key frames.

Y. Li, J. Shi, D. Lin, "Low-Latency Video Semantic Segmentation", 2018. The shallow part runs on every frame, the deep
part on key frames:

    x3 of the key frame ──spatially variant convolution──▶ ──adapt──▶ x3 ──merge(x1, x2)──head──▶ logits
    x2 of both frames ──▶ kernels ──┘         x2 of this frame ──┘
    x2 of both frames ──▶ scheduler ──▶ expected share of changed labels ──▶ a new key frame?

A new key frame does not wait for its deep part: it is answered by propagation as well, and finish() computes the deep
map after its labels are out, for the next frame. Only a first frame, and one of another size, waits.

No code was published. Assumed: the cut after Res-2; kernels and adaptation at the size of x3 with 64 channels, because
with 256 at the size of x2 they would cost as much as the deep part that they replace; the adaptation is a residual;
the scheduler compares the maps by their absolute difference; the default threshold is 0.1 instead of 0.3.

Shapes: B batch, C channels of x3, K classes, H x W the image, h x w the map x3, n x n the kernels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.layers import conv, resize
from streamseg.models.video.backbone import Shallow
from streamseg.models.video.schedule import check_threshold, chosen_entries, put_entries, take_chosen
from streamseg.models.video.scheme import VideoMethod, sizes


class LowLatencyState(NamedTuple):
    """The key frame of each stream, and the streams whose next key frame is still to be computed."""

    deep: Tensor
    """x3 of the key frame (B, C, h, w)."""
    key: Tensor
    """Res-2 of the key frame."""
    out: Tensor
    """Res-2 of the last frame."""
    due: Tensor
    """(B,), bool, on the device: streams whose last frame becomes their key frame in finish(); empty after that. It is
    not read before the labels are out, so that no frame waits for the decision."""
    position: int
    streams: int
    height: int
    width: int


class LowLatency(VideoMethod[LowLatencyState]):
    """Adaptive feature propagation with a scheduler.

    Args:
        threshold: Expected share of changed labels above which a frame becomes a key frame; 0 makes every frame one.
        interval: The most frames from one frame that is computed in full to the next; None for no limit.
        channels: Channels of the kernel predictor, the adaptation and the scheduler.
        kernel: Side n of the kernels.
    """

    state_type = LowLatencyState
    kind = "low-latency"
    decides_by = "threshold"
    trained = ("kernel_predictor", "adapt", "schedule")

    def __init__(
        self,
        network: nn.Module,
        threshold: float = 0.1,
        interval: int | None = None,
        channels: int = 64,
        kernel: int = 9,
    ):
        super().__init__(network, interval)
        check_threshold(threshold)
        self.threshold = threshold
        shallow, deep = self.backbone.shallow_channels, self.backbone.deep_channels
        self.kernel_predictor = KernelPredictor(shallow, channels, kernel)
        self.adapt = AdaptNet(shallow, deep, channels)
        self.schedule = Scheduler(shallow, channels)

    def key_frame(self, image: Tensor) -> tuple[Tensor, LowLatencyState]:
        shallow = self.backbone.shallow(image)
        deep = self.backbone.deep(shallow)
        due = torch.empty(0, dtype=torch.bool, device=image.device)
        logits = resize(self.backbone.head(self.backbone.merge(shallow, deep)), image)
        return logits, LowLatencyState(deep, shallow.out, shallow.out, due, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: LowLatencyState) -> tuple[Tensor, LowLatencyState]:
        shallow = self.backbone.shallow(image)
        logits = resize(self.propagate(shallow, state), image)
        deviation = self.schedule(shrink(state.key, state.deep), shrink(shallow.out, state.deep))
        due = (deviation > self.threshold) | (self.threshold <= 0)
        return logits, state._replace(out=shallow.out, due=due, position=state.position + 1)

    def finish(self, state: LowLatencyState) -> LowLatencyState:
        if not state.due.numel():
            return state
        chosen = chosen_entries(state.due, default=self.threshold <= 0)
        state = state._replace(due=state.due[:0])
        if not chosen:
            return state
        every = len(chosen) == state.streams
        out = take_chosen(state.out, chosen)
        deep = put_entries(state.deep, chosen, self.backbone.deep(Shallow(out, out, out)))
        position = 0 if every else state.position
        return state._replace(deep=deep, key=put_entries(state.key, chosen, out), position=position)

    def propagate(self, shallow: Shallow, state: LowLatencyState) -> Tensor:
        """Return the logits (B, K, ...) of a frame from the deep map of its key frame."""
        key, out = shrink(state.key, state.deep), shrink(shallow.out, state.deep)
        deep = convolve_variant(state.deep, self.kernel_predictor(key, out))
        return self.backbone.head(self.backbone.merge(shallow, self.adapt(deep, out)))

    def clip_outputs(self, clip: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the last frame, propagated from the first, and the loss of the scheduler.

        The scheduler learns the share of pixels whose labels by the backbone differ between the two frames.
        """
        key_logits, state = self.key_frame(clip[0])
        shallow = self.backbone.shallow(clip[-1])
        logits = self.propagate(shallow, state)
        with torch.no_grad():
            labels = self.backbone.head(self.backbone.merge(shallow, self.backbone.deep(shallow))).argmax(dim=1)
            before = F.interpolate(key_logits, labels.shape[-2:], mode="bilinear").argmax(dim=1)
            changed = (labels != before).flatten(1).float().mean(dim=1)
        expected = self.schedule(shrink(state.key, state.deep), shrink(shallow.out, state.deep))
        return logits, F.mse_loss(expected.float(), changed)


class KernelPredictor(nn.Module):
    """Predicts the kernels (B, n * n, h, w) that move the map of a key frame to the current frame; each sums to 1."""

    def __init__(self, inputs: int, channels: int, kernel: int):
        super().__init__()
        self.narrow = nn.Sequential(nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU())
        self.compare = nn.Sequential(nn.Conv2d(2 * channels, channels, 3, padding=1), nn.ReLU())
        self.kernels = nn.Conv2d(channels, kernel * kernel, 1)
        # at first most of the weight is in the middle: the map of the key frame is copied
        nn.init.zeros_(self.kernels.weight)
        nn.init.zeros_(self.kernels.bias)  # type: ignore[arg-type] # it has one
        self.kernels.bias.data[kernel * kernel // 2] = 8.0  # type: ignore[union-attr]

    def forward(self, key: Tensor, current: Tensor) -> Tensor:
        both = torch.cat([self.narrow(key), self.narrow(current)], dim=1)
        return self.kernels(self.compare(both)).softmax(dim=1)


class AdaptNet(nn.Module):
    """Corrects a propagated map by the current frame's shallow map; at first it changes nothing."""

    def __init__(self, shallow: int, deep: int, channels: int):
        super().__init__()
        self.layers = nn.Sequential(*(conv(inputs, channels, 3) for inputs in (shallow, channels, channels)))
        self.mix = nn.Conv2d(deep + channels, deep, 3, padding=1)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)  # type: ignore[arg-type] # it has one

    def forward(self, propagated: Tensor, current: Tensor) -> Tensor:
        return propagated + self.mix(torch.cat([propagated, self.layers(current)], dim=1))


class Scheduler(nn.Module):
    """Predicts the share (B,) of pixels whose labels have changed since the key frame."""

    def __init__(self, inputs: int, channels: int):
        super().__init__()
        self.narrow = nn.Conv2d(inputs, channels, 3, padding=1)
        self.compare = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
        self.deviation = nn.Linear(channels, 1)

    def forward(self, key: Tensor, current: Tensor) -> Tensor:
        difference = self.compare((self.narrow(current) - self.narrow(key)).abs())
        return self.deviation(difference.mean(dim=(2, 3)))[:, 0]


def convolve_variant(x: Tensor, kernels: Tensor) -> Tensor:
    """Return a map (B, C, h, w) convolved at each pixel by its own kernel (B, n * n, h, w), the same for all channels.

    out(c, i, j) = sum over u, v of kernels(u, v, i, j) * x(c, i + u, j + v); borders are repeated.
    """
    side = int(kernels.shape[1] ** 0.5)
    windows = F.unfold(F.pad(x, (side // 2,) * 4, mode="replicate"), side)  # (B, C * n * n, h * w)
    windows = windows.unflatten(1, (x.shape[1], side * side))
    return torch.einsum("bcnp,bnp->bcp", windows, kernels.flatten(2)).view_as(x)


def shrink(x: Tensor, like: Tensor) -> Tensor:
    """Return a map averaged to the size of a smaller one."""
    return F.adaptive_avg_pool2d(x, (like.shape[2], like.shape[3]))


def low_latency(network: nn.Module, interval: int | None = None) -> LowLatency:
    """Low-Latency: 75.9 % mIoU on Cityscapes val in the paper, with PSPNet."""
    return LowLatency(network, interval=interval)
