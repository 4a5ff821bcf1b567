"""Steady labels on a GPU: two CUDA graphs for each size of frames, around that of the network.

The first compares the frames with those before, in a CUDA stream of its own, while the network looks at them. The
second averages the scores and labels them. Both read the frames and scores in the buffers of the network's graph, so
that nothing is copied between them.

Shapes: B streams in a batch, K classes, h x w the map of scores, H x W the labels, l x m the brightness.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from streamseg.engine import kernels
from streamseg.engine.engine import FrameBatch, Prediction
from streamseg.engine.graphs import capture_graph
from streamseg.engine.steadying import Comparison, Evidence, Steadiness, fit_evidence, luma_size, weigh_gap


class SteadyGraph:
    """The buffers of one size of frames and labels, and the CUDA graphs that read and write them.

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
        self.pair = torch.zeros(2, batch, *luma_size((h, w), images.shape[2:]), device=device)
        """Brightness of the frames, and of those before."""
        self.previous = torch.zeros(batch, *size, dtype=torch.uint8, device=device)
        self.weight = torch.zeros(batch, device=device)
        self.weights = [0.0] * batch
        """What `weight` holds."""
        self.comparison: Comparison | None = None
        self.fused = torch.zeros_like(self.earlier)
        self.labels = torch.zeros_like(self.previous)
        self.confidence = torch.zeros_like(self.previous) if with_confidence else None
        # of the usual priority, which no graph is captured in: see graphs.new_stream
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def fits(self, batch: FrameBatch) -> bool:
        """Return whether the graphs are those of a batch of this size of frames."""
        size = (self.labels.shape[1], self.labels.shape[2])
        has_size = all(size == other for other in batch.sizes)
        return has_size and self.steadiness == batch.steady and batch.with_confidence is (self.confidence is not None)

    def predict(self, batch: FrameBatch) -> list[Prediction]:
        """Return predictions for the frames and scores in the network's buffers."""
        self.start(batch)
        return self.finish()

    def start(self, batch: FrameBatch) -> None:
        """Compare the frames in the network's buffers with those before; the scores need not be there yet.

        finish() must follow before the frames, or the evidence of the batch, are freed or overwritten.
        """
        if self.stream is not None and self.graphs is None:
            self.graphs = self.capture()
        with self.beside():
            self.set_evidence(list(batch.evidence) or [None] * len(self.scores), batch.gaps or [0.0] * len(self.scores))
            if self.graphs is None:
                self.compare()
            else:
                self.graphs[0].replay()

    def capture(self) -> "tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]":
        """Return the graphs of compare() and label()."""
        first = capture_graph(self.compare, self.scores.device)
        first.replay()  # the second reads what it writes
        return first, capture_graph(self.label, self.scores.device)

    def finish(self) -> list[Prediction]:
        """Return predictions for the scores in the network's buffers."""
        self.join()
        if self.graphs is None:
            self.label()
        else:
            self.graphs[1].replay()
        predictions = []
        for i in range(len(self.scores)):
            labels = self.labels[i].clone()
            after = Evidence(self.pair[0, i].clone(), self.fused[i].clone(), self.labels[i].clone())
            confidence = None if self.confidence is None else self.confidence[i].clone()
            predictions.append(Prediction(labels, confidence, evidence=after))
        return predictions

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On a GPU, work in the own CUDA stream, after what the current one has been given so far."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.scores.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """On a GPU, let the current CUDA stream wait for the own one."""
        if self.stream is not None:
            torch.cuda.current_stream(self.scores.device).wait_stream(self.stream)

    def set_evidence(self, evidence: Sequence[Evidence | None], gaps: Sequence[float]) -> None:
        """Copy the evidence of the frames before to the buffers."""
        weights = []
        for i, (entry, gap) in enumerate(zip(evidence, gaps, strict=True)):
            known = fit_evidence(entry, self.scores[i], self.pair[1, i])
            fits = known is not None and known.labels.shape == self.previous[i].shape
            weights.append(weigh_gap(gap) if known is not None and fits else 0.0)
            if weights[i] == 0 and self.weights[i] > 0:
                self.earlier[i].zero_()  # nothing of another stream stays, not even a nan
            if known is not None and fits:
                self.pair[1, i].copy_(known.luma)
                self.earlier[i].copy_(known.scores)
                self.previous[i].copy_(known.labels)
        if weights != self.weights:  # they rarely change, which saves a copy to the GPU
            self.weights = weights
            self.weight.copy_(torch.tensor(weights))

    @torch.inference_mode(False)
    @torch.no_grad()
    def compare(self) -> None:
        """Compare the frames with those before."""
        size = (self.scores.shape[2], self.scores.shape[3])
        self.comparison = kernels.compare_frames(self.images, self.pair, size, self.steadiness)

    @torch.inference_mode(False)
    @torch.no_grad()
    def label(self) -> None:
        """Compute averaged scores, labels and confidence from the scores and what compare() has found."""
        assert self.comparison is not None
        size = (self.labels.shape[1], self.labels.shape[2])
        margin = kernels.average_scores(
            self.scores, self.earlier, self.comparison, self.weight, self.steadiness, self.fused
        )
        kernels.label(self.fused, size, self.labels, self.confidence, (self.previous, margin))


def compile_steady(images: Tensor, scores: Tensor | None, batch: FrameBatch) -> None:
    """Run the kernels of steady labels once, if a batch asks for them, so that a frame need not wait for the compiler.

    Args:
        images: The frames (B, 3, H', W'), bytes, in the network's buffers.
        scores: Their scores (B, K, h, w), likewise.
        batch: Only its sizes and options count.
    """
    if scores is None or not isinstance(batch.steady, Steadiness):
        return
    graph = SteadyGraph(images, scores, batch.sizes[0], batch.steady, batch.with_confidence)
    graph.compare()
    graph.label()


def label_on_gpu(scores: Tensor, size: tuple[int, int], with_confidence: bool) -> tuple[Tensor, Tensor | None]:
    """Return the labels of scores (K, h, w) in a height and width, and their confidence if it is wanted."""
    labels = torch.empty(1, *size, dtype=torch.uint8, device=scores.device)
    confidence = torch.empty_like(labels) if with_confidence else None
    kernels.label(scores[None], size, labels, confidence)
    return labels[0], None if confidence is None else confidence[0]
