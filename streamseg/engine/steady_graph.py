"""Steady labels on a GPU: the buffers of one size of frames, and the part of its CUDA graph that works on them.

    evidence of the last frames ──copy──▶ evidence of the frames before ───┬───────────────────────┐
                                                       ▼                   ▼                       ▼
    frames ──▶ network up to Res-2 ──┬────────────▶ compare ──▶ move along with the picture        │
                                     │                                     ▼                       ▼
                                     └──▶ the rest of the network ──▶ average scores ──────────▶ label ──▶ labels,
                                                                                            evidence of the frames

What copies, compares and moves is a branch of the graph beside the network, of lower priority. It compares when Res-2
is computed: the small maps after it leave a part of the GPU free. The evidence of a stream lies in one piece of memory,
so that one copy takes it away. The next frame of the stream finds it still there; that of another stream is copied.

Every second frame of a stream is mirrored where the network reads it, and its scores where they are averaged. Which
one is a flag of the evidence, which the host never reads.

Shapes: B streams in a batch, K classes, h x w the map of scores, H x W the labels, l x m the brightness.
"""

from functools import partial
from weakref import ref

import torch
from torch import Tensor

from streamseg.engine import kernels
from streamseg.engine.engine import FrameBatch, Prediction
from streamseg.engine.evidence import AnyEvidence, Layout, PackedEvidence
from streamseg.engine.graphs import BESIDE_PRIORITY, SideStream
from streamseg.engine.mirroring import mirror
from streamseg.engine.steadying import Steadiness, Trust, fit_evidence, leave_out_hidden, luma_size, weigh_gap


class SteadyBuffers:
    """The buffers that keep the labels of one size of frames steady.

    set_evidence() fills them; start(), compare(), when Res-2 is computed, and finish(), after the network, are the work
    that a graph records; read() returns what it has computed.

    Args:
        images: The frames (B, 3, H', W'), bytes, in the network's buffers.
        scores: Number of classes, height and width of the scores.
        size: Height and width of the labels.
        mask: The unmasked share of each pixel (B, H', W'), in the network's buffers, mirrored where it sees the frame
            mirrored; None for 1.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        images: Tensor,
        scores: tuple[int, int, int],
        size: tuple[int, int],
        steadiness: Steadiness,
        with_confidence: bool,
        mask: Tensor | None = None,
    ):
        self.images, self.steadiness, self.mask = images, steadiness, mask
        batch, device = len(images), images.device
        self.layout = Layout(luma_size(scores[1:], images.shape[2:]), scores, size)
        self.packed = torch.zeros(2, batch, self.layout.length, device=device)
        """The evidence of the frames, and of those before."""
        self.now = list(self.packed[0])
        self.held: list[ref[PackedEvidence] | None] = [None] * batch
        """Of which evidence that read() has returned `now` holds the numbers."""
        parts = self.layout.split(self.packed)
        self.pair, (self.carried, self.earlier), (self.labels, self.previous), self.flags = parts
        """The last: whether the frames after those are mirrored, 1 or else 0, (2, B)."""
        self.mirrored = self.flags[0] if steadiness.mirror else None
        """1 for frames that are labelled mirrored, or else 0, (B,); finish() replaces it by that of the next frames."""
        self.own_labels = list(self.labels)
        self.confidence = torch.zeros(batch, *size, dtype=torch.uint8, device=device) if with_confidence else None
        self.class_shares = torch.empty(batch, scores[0], device=device)
        self.scores = torch.empty(batch, *scores, device=device)
        """Averaged scores, which decide the labels."""
        self.changes = torch.zeros(batch, 2, dtype=torch.int64, device=device)
        """How much the scores of the frames differ from those before; see average_scores."""
        self.weight = torch.zeros(batch, device=device)
        self.weights = [0.0] * batch
        """What `weight` holds."""
        self.beside = SideStream(device, BESIDE_PRIORITY)
        self.trust: Trust | None = None

    def set_evidence(self, batch: FrameBatch) -> None:
        """Copy the evidence of the last frames to the buffers, where it is not there already."""
        weights = []
        for i, row in enumerate(self.now):
            entry = batch.evidence[i] if batch.evidence else None
            held, self.held[i] = self.held[i], None
            is_there = held is not None and held() is entry
            if entry is not None and (is_there or self.copy_evidence(i, entry)):
                weights.append(weigh_gap(batch.gaps[i] if batch.gaps else 0.0))
                mirrors = self.steadiness.mirrors(batch.longest_gaps[i] if batch.longest_gaps else 0.0)
                if not mirrors and not (is_there and self.mirrored is None):
                    self.flags[0, i].zero_()
                continue
            weights.append(0.0)
            row.zero_()  # nothing of another stream stays, not even a nan
        if weights != self.weights:  # they rarely change, which saves a copy to the GPU
            self.weights = weights
            self.weight.copy_(torch.tensor(weights))

    def copy_evidence(self, i: int, evidence: AnyEvidence) -> bool:
        """Copy the evidence of a stream to the buffers; return whether it fits."""
        if isinstance(evidence, PackedEvidence) and evidence.layout.sizes == self.layout.sizes:
            self.now[i].copy_(evidence.packed)
            return True
        if evidence.labels.shape != self.layout.labels:
            return False
        known = fit_evidence(evidence, self.carried[i], self.pair[0, i])
        self.pair[0, i].copy_(known.luma)
        self.carried[i].copy_(known.scores)
        self.labels[i].copy_(known.labels)
        self.flags[0, i].copy_(known.mirror_next)
        return True

    def start(self) -> None:
        """Start to copy the evidence of the last frames to the place of those before; compare() must follow."""
        self.beside.run(partial(self.packed[1].copy_, self.packed[0]))

    def compare(self) -> None:
        """Start to compare the frames with those before, and all else that needs no scores; finish() must follow."""
        self.trust = self.beside.run(self.prepare_evidence)

    def prepare_evidence(self) -> Trust:
        """Count the classes of the frames before, compare the frames with them, and move their scores along.

        Returns:
            How far they count.
        """
        kernels.write_class_shares(self.previous, self.class_shares)
        comparison = kernels.compare_frames(self.images, self.pair, self.layout.scores[1:], self.steadiness)
        if self.mask is not None:
            comparison = leave_out_hidden(comparison, mirror(self.mask, self.mirrored))
        return kernels.move_scores(self.earlier, comparison, self.weight, self.steadiness, self.carried, self.changes)

    def finish(self, scores: Tensor) -> None:
        """Compute averaged scores, labels and confidence from the scores (B, K, h, w) and what compare() has found.

        The scores of mirrored frames are mirrored.
        """
        assert self.trust is not None
        self.beside.join()
        flags = None if self.mirrored is None else self.flags
        share = self.steadiness.share
        kernels.average_scores(scores, self.trust.likeness, share, self.carried, self.scores, self.changes, flags)
        steady = self.previous, self.trust.margin, self.class_shares, self.changes
        kernels.label(self.scores, self.layout.labels, self.labels, self.confidence, steady)

    def read(self) -> list[Prediction]:
        """Return the predictions in the buffers, copied."""
        predictions = []
        for i, row in enumerate(self.now):
            confidence = None if self.confidence is None else self.confidence[i].clone()
            # the caller may change the labels and keep them: they are no part of the evidence
            labels, evidence = self.own_labels[i].clone(), PackedEvidence(row.clone(), self.layout)
            self.held[i] = ref(evidence)
            predictions.append(Prediction(labels, confidence, None, None, evidence))
        return predictions


def label_on_gpu(scores: Tensor, size: tuple[int, int], with_confidence: bool) -> tuple[Tensor, Tensor | None]:
    """Return the labels of scores (K, h, w) in a height and width, and their confidence if it is wanted."""
    labels = torch.empty(1, *size, dtype=torch.uint8, device=scores.device)
    confidence = torch.empty_like(labels) if with_confidence else None
    kernels.label(scores[None], size, labels, confidence)
    return labels[0], None if confidence is None else confidence[0]
