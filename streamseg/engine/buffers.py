"""The buffers of the fast engine on a GPU, one set for each size of frames.

Shapes: B batch, H x W the frame.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from streamseg.engine.engine import FrameBatch
from streamseg.engine.folded import View
from streamseg.engine.steady_graph import SteadyGraph
from streamseg.engine.steadying import Steadiness

Size = tuple[torch.Size, bool, bool, bool, bool]
"""Shape of the frames as given, whether to compute confidence, whether there is a mask, whether frames attend to one
context, and whether labels are kept steady, so that only scores are computed."""


def key_of(batch: FrameBatch) -> Size:
    """Return what a graph is captured for."""
    is_steady = isinstance(batch.steady, Steadiness)
    return batch.images.shape, batch.with_confidence, batch.mask is not None, batch.shares is not None, is_steady


@dataclass(eq=False)
class GraphBuffers:
    """The buffers of one size of frames on a GPU, and the CUDA graph that reads and writes them."""

    input: Tensor
    """The frames in the shape in which they are given, (3, H, W) or (B, 3, H, W)."""
    frame: Tensor
    """A view of the input as (B, 3, H, W)."""
    past: Tensor
    scale: Tensor
    context: Tensor
    unfolded: Tensor
    labels: Tensor
    """Not written if the key says that labels are kept steady."""
    output: Tensor
    """A view of the labels in the shape that corresponds to the input."""
    confidence: Tensor | None
    no_weights: tuple[float, ...]
    """The weights of frames without a past: zeros."""
    weights: tuple[float, ...]
    """The weights from which `scale` was computed."""
    view: View
    """The mask and the shares of the frames, if the key has them."""
    only_scores: bool
    """Whether the graph ends with the scores, which are labelled by another."""
    scores: Tensor | None = None
    graph: "torch.cuda.CUDAGraph | None" = None
    has_past: bool = False
    steady: SteadyGraph | None = None
    """What keeps labels steady, for the size of labels and the steadiness that were last asked for."""
