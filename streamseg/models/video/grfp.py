"""GRFP, gated recurrent flow propagation: the scores of all earlier frames, warped and mixed in by a recurrent unit.

D. Nilsson, C. Sminchisescu, "Semantic Video Segmentation by Gated Recurrent Flow Propagation", 2018. The backbone sees
every frame: GRFP is about accuracy.

    image ──▶ logits x ─────────────────┐
    flow ──▶ warp(scores h before) ──▶ unit ──▶ scores h ──▶ labels
    flow ──▶ warp(image before) ──▶ error of the flow: closes the gate

Differences: the backbone is one of this package, and the flow by default a slim FlowNetS, where the authors have
FlowNet2. The error of the flow is of pixels in 0–255.

Shapes: B batch, K classes, H height, W width.

Golden: the unit has 37,408 parameters for 19 classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streamseg.models.video.flownet import FlowEstimator, flownet_slim
from streamseg.models.video.scheme import VideoMethod, resize_flow, sizes, warp


class GRFPState(NamedTuple):
    """The frame before."""

    image: Tensor
    """(B, 3, H, W)."""
    scores: Tensor
    """(B, K, H, W)."""
    position: int
    """Frames since the first."""
    streams: int
    height: int
    width: int


class GRFP(VideoMethod[GRFPState]):
    """The backbone on every frame, and a recurrent unit on its scores.

    Args:
        flow: Optical flow.
        interval: Frames after which the past is left out once; None for never.
    """

    state_type = GRFPState
    kind = "grfp"
    trained = ("unit",)  # the authors train the backbone too in the second half, at a tiny rate

    def __init__(self, network: nn.Module, flow: FlowEstimator, interval: int | None = None):
        super().__init__(network, interval)
        self.flow = flow
        self.unit = STGRU(self.classes)

    def key_frame(self, image: Tensor) -> tuple[Tensor, GRFPState]:
        logits = self.backbone(image)
        return logits, GRFPState(image, logits, 0, *sizes(image))

    def next_frame(self, image: Tensor, state: GRFPState) -> tuple[Tensor, GRFPState]:
        logits = self.backbone(image)
        flow = resize_flow(self.flow(image, state.image), image)
        before = warp(centred_softmax(state.scores), flow)
        error = image.to(logits.dtype) - warp(state.image.to(logits.dtype), flow)
        scores = self.unit(centred_softmax(logits), before, error)
        return scores, GRFPState(image, scores, state.position + 1, *sizes(image))


class STGRU(nn.Module):
    """The paper's spatio-temporal transformer gated recurrent unit; all its convolutions are 7 x 7."""

    def __init__(self, classes: int):
        super().__init__()
        self.error = nn.Conv2d(3, 1, 7, padding=3)
        self.candidate_now = gate_conv(classes, classes)
        self.candidate_before = gate_conv(classes, classes)
        self.update_now = gate_conv(classes, 1)
        self.update_before = gate_conv(classes, 1)
        self.update_bias = nn.Parameter(torch.zeros(classes, 1, 1))
        self.keep = nn.Parameter(torch.tensor(2.0))
        nn.init.normal_(self.error.weight, std=0.001)
        nn.init.zeros_(self.error.bias)  # type: ignore[arg-type] # it has a bias
        with torch.no_grad():
            for convolution in (self.candidate_now, self.candidate_before):
                convolution.weight[:, :, 3, 3] += 6 * torch.eye(classes)

    def forward(self, now: Tensor, before: Tensor, error: Tensor) -> Tensor:
        """Return the scores (B, K, H, W).

        Args:
            now: The backbone's centred probabilities of the current frame (B, K, H, W).
            before: Those of the scores of the frame before, warped.
            error: Difference of the current frame and the warped frame before (B, 3, H, W).
        """
        reset = 1 - self.error(error).abs().tanh()  # (B, 1, H, W): where the flow is wrong the past is forgotten
        before = reset * before
        candidate = self.candidate_now(now) + self.candidate_before(before)
        update = (self.update_now(now) + self.update_before(before) + self.update_bias).sigmoid()
        return self.keep * (1 - update) * before + update * candidate


def centred_softmax(scores: Tensor) -> Tensor:
    """Return the probabilities of scores (B, K, H, W), less their mean 1 / K."""
    return scores.softmax(dim=1) - 1 / scores.shape[1]


def gate_conv(inputs: int, outputs: int) -> nn.Conv2d:
    """Build a 7 x 7 convolution without a bias, initialised as the authors do."""
    convolution = nn.Conv2d(inputs, outputs, 7, padding=3, bias=False)
    nn.init.normal_(convolution.weight, std=0.01)
    return convolution


def grfp(network: nn.Module, interval: int | None = None) -> GRFP:
    """GRFP with a slim FlowNetS: 73.6 % mIoU on Cityscapes val, with LRR-4x."""
    return GRFP(network, flownet_slim(), interval)
