"""The forward and backward pass of training as one CUDA graph.

A compiled network is still hundreds of kernels, which the host launches one by one; on a large GPU it takes longer to
launch them than the GPU to run them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from streamseg.engine.graphs import new_stream, record_graph
from streamseg.train.feed import Batch

WARM_UP_STEPS = 5
"""Steps before the graph is captured, in which kernels are compiled and cuDNN selects its algorithms."""


class GradientGraph:
    """Computes the gradients of a batch; after some steps, by replaying a CUDA graph.

    The graph is for batches like the one that it was captured with. Others are computed without it.

    Args:
        compute: Adds the gradients of a batch to its parameters' `grad`, without waiting for the GPU.
        parameters: Those that get gradients. Their `grad` must be None before each call.
    """

    def __init__(self, compute: Callable[[Batch], None], parameters: Sequence[nn.Parameter]):
        self.compute = compute
        self.parameters = parameters
        self.steps = 0
        self.batch: Batch | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.gradients: list[Tensor | None] = []
        self.stream = new_stream(parameters[0].device)

    def __call__(self, batch: Batch) -> None:
        """Set the `grad` of the parameters to the gradients of a batch."""
        self.steps += 1
        if self.steps <= WARM_UP_STEPS or (self.batch is not None and not alike(batch, self.batch)):
            self.run(lambda: self.compute(batch))
            return
        if self.batch is None:
            self.batch = Batch._make(None if part is None else part.clone() for part in batch)
            torch.cuda.empty_cache()  # the graph cannot use the memory of the steps before
            self.run(self.capture)
        for part, new in zip(self.batch, batch, strict=True):
            if part is not None and new is not None:
                part.copy_(new)
        assert self.graph is not None
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def run(self, work: Callable[[], None]) -> None:
        """Run a function in the stream of the graph: only what ran there before can be captured there."""
        outer = torch.cuda.current_stream(self.stream.device)  # which need not be the current device
        self.stream.wait_stream(outer)
        with torch.cuda.stream(self.stream):
            work()
        outer.wait_stream(self.stream)

    def capture(self) -> None:
        """Capture the computation for the graph's own batch; the gradients keep their memory."""
        batch = self.batch
        assert batch is not None

        def compute_anew() -> None:
            for parameter in self.parameters:  # a capture that ran out of memory may have left some
                parameter.grad = None
            self.compute(batch)

        self.graph = record_graph(compute_anew)
        self.gradients = [parameter.grad for parameter in self.parameters]


def alike(batch: Batch, other: Batch) -> bool:
    """Whether two batches have the same parts, of the same shapes and types."""
    return [part if part is None else (part.shape, part.dtype) for part in batch] == [
        part if part is None else (part.shape, part.dtype) for part in other
    ]
