"""Steady labels on a GPU: all that follows the network's scores, as one CUDA graph for each size of frames.

The graph reads the frames and scores in the buffers of the network's graph, so that nothing is copied between the two.

Shapes: B streams in a batch, K classes, h x w the map of scores, H x W the labels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from streamseg.engine import kernels
from streamseg.engine.engine import FrameBatch, Prediction
from streamseg.engine.graphs import capture_graph
from streamseg.engine.steadying import (
    Evidence,
    Steadiness,
    average,
    fit_evidence,
    luma_size,
    shrink_to_luma,
    weigh_gap,
)


class SteadyGraph:
    """The buffers of one size of frames and labels, and the CUDA graph that reads and writes them.

    Args:
        images: The frames (B, 3, H', W'), bytes, in the network's buffers.
        scores: Their scores (B, K, h, w), likewise.
        size: Height and width of the labels.
    """

    @torch.inference_mode(False)
    def __init__(
        self, images: Tensor, scores: Tensor, size: tuple[int, int], steadiness: Steadiness, with_confidence: bool
    ):
        self.images, self.scores, self.steadiness = images, scores, steadiness
        batch, classes, h, w = scores.shape
        device = scores.device
        self.earlier = torch.zeros(batch, classes, h, w, device=device)
        self.before = torch.zeros(batch, 1, *luma_size((h, w), images.shape[2:]), device=device)
        self.previous = torch.zeros(batch, *size, dtype=torch.uint8, device=device)
        self.weight = torch.zeros(batch, device=device)
        self.weights = [0.0] * batch
        """What `weight` holds."""
        self.fused, self.luma = torch.zeros_like(self.earlier), torch.zeros_like(self.before)
        self.labels = torch.zeros_like(self.previous)
        self.confidence = torch.zeros_like(self.previous) if with_confidence else None
        self.graph: torch.cuda.CUDAGraph | None = None

    def predict(self, batch: FrameBatch) -> list[Prediction]:
        """Return predictions for the frames and scores in the network's buffers."""
        self.set_evidence(list(batch.evidence) or [None] * len(self.scores), batch.gaps or [0.0] * len(self.scores))
        if self.scores.device.type != "cuda":
            self.run()
        else:
            self.graph = self.graph or capture_graph(self.run, self.scores.device)
            self.graph.replay()
        predictions = []
        for i in range(len(self.scores)):
            labels = self.labels[i].clone()
            after = Evidence(self.luma[i, 0].clone(), self.fused[i].clone(), self.labels[i].clone())
            confidence = None if self.confidence is None else self.confidence[i].clone()
            predictions.append(Prediction(labels, confidence, evidence=after))
        return predictions

    def set_evidence(self, evidence: Sequence[Evidence | None], gaps: Sequence[float]) -> None:
        """Copy the evidence of the frames before to the buffers."""
        weights = []
        for i, (entry, gap) in enumerate(zip(evidence, gaps, strict=True)):
            known = fit_evidence(entry, self.scores[i], self.before[i, 0])
            fits = known is not None and known.labels.shape == self.previous[i].shape
            weights.append(weigh_gap(gap) if known is not None and fits else 0.0)
            if weights[i] == 0 and self.weights[i] > 0:
                self.earlier[i].zero_()  # nothing of another stream stays, not even a nan
            if known is not None and fits:
                self.before[i, 0].copy_(known.luma)
                self.earlier[i].copy_(known.scores)
                self.previous[i].copy_(known.labels)
        if weights != self.weights:  # they rarely change, which saves a copy to the GPU
            self.weights = weights
            self.weight.copy_(torch.tensor(weights))

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self) -> None:
        """Compute labels, confidence and evidence from what is in the buffers."""
        size = (self.labels.shape[1], self.labels.shape[2])
        luma = shrink_to_luma(self.images, (self.before.shape[2], self.before.shape[3]))
        fused, luma, margin = average(
            self.scores.float(), luma, self.earlier, self.before, self.weight, self.steadiness
        )
        self.fused.copy_(fused)
        self.luma.copy_(luma)
        kernels.label(self.fused, size, self.labels, self.confidence, (self.previous, margin))


def label_on_gpu(scores: Tensor, size: tuple[int, int], with_confidence: bool) -> tuple[Tensor, Tensor | None]:
    """Return the labels of scores (K, h, w) in a height and width, and their confidence if it is wanted."""
    labels = torch.empty(1, *size, dtype=torch.uint8, device=scores.device)
    confidence = torch.empty_like(labels) if with_confidence else None
    kernels.label(scores[None], size, labels, confidence)
    return labels[0], None if confidence is None else confidence[0]
