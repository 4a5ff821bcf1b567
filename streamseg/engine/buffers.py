"""The buffers of the fast engine on a GPU, one set for each size of frames.

Shapes: B batch, H x W the frame.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from streamseg.engine.engine import FrameBatch
from streamseg.engine.folded import View
from streamseg.engine.steady_graph import SteadyBuffers
from streamseg.engine.steadying import Steadiness

Steady = tuple[Steadiness, tuple[int, int] | None]
"""How steady labels are kept, and their height and width, if they are the same for all frames."""

Size = tuple[torch.Size, bool, bool, bool, Steady | None]
"""Shape of the frames as given, whether to compute confidence, whether there is a mask, whether frames attend to one
context, and how labels are kept steady, if they are by a Steadiness."""


def key_of(batch: FrameBatch) -> Size:
    """Return what a graph is captured for."""
    steady: Steady | None = None
    if isinstance(batch.steady, Steadiness):
        size = batch.sizes[0]
        steady = batch.steady, size if all(other == size for other in batch.sizes) else None
    return batch.images.shape, batch.with_confidence, batch.mask is not None, batch.shares is not None, steady


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
    no_context: Tensor
    """The contexts of no frames, for batches that need none."""
    unfolded: Tensor
    labels: Tensor
    """Not written if labels are kept steady."""
    output: Tensor
    """A view of the labels in the shape that corresponds to the input."""
    own_labels: list[Tensor]
    """Views of the labels of each frame."""
    size: tuple[int, int]
    """Height and width of the frames."""
    confidence: Tensor | None
    no_weights: tuple[float, ...]
    """The weights of frames without a past: zeros."""
    weights: tuple[float, ...]
    """The weights from which `scale` was computed."""
    view: View
    """The mask and the shares of the frames, if the key has them."""
    wanted: Steady | None
    """How labels are kept steady, as in the key."""
    scores: Tensor | None = None
    graph: "torch.cuda.CUDAGraph | None" = None
    has_past: bool = False
    steady: SteadyBuffers | None = None
    """What keeps labels steady, if the graph does."""
