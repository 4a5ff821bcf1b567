"""Capture the GPU work of a function as a CUDA graph, while other threads use the GPU."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from streamseg.engine.convolutions import measure_algorithms

T = TypeVar("T")

CAPTURE_LOCK = threading.Lock()
"""Held while a graph is captured: torch captures one at a time."""

BRANCHES: set["SideStream"] = set()
"""What has been started in the capture and not joined."""

WARM_UP_RUNS = 3
"""How often a function runs before it is captured."""

NETWORK_PRIORITY, BESIDE_PRIORITY = -2, -1
"""Priorities of CUDA streams, kept by the graphs that are captured in them: where both have work, a GPU starts that of
the network, the lower number, first. Other work has the usual priority, 0."""


def new_stream(device: torch.device | None = None, priority: int = NETWORK_PRIORITY) -> "torch.cuda.Stream":
    """Return a CUDA stream for work that is captured, by default on the current device.

    Streams come in turn from pools of 32, one for each priority, that all threads share. Readers and drawers use that
    of the usual priority: what one of them does in a stream that captures would be recorded instead of done.
    """
    return torch.cuda.Stream(device, priority=priority)


class SideStream:
    """A second CUDA stream, for work in parallel to what follows it; on the CPU everything runs in order.

    In a capture, run() starts a branch of the graph, and join() ends it.
    """

    def __init__(self, device: torch.device, priority: int = NETWORK_PRIORITY):
        self.device, self.priority = device, priority
        self.stream = new_stream(device, priority) if device.type == "cuda" else None

    def __reduce__(self) -> tuple[type["SideStream"], tuple[torch.device, int]]:
        return SideStream, (self.device, self.priority)  # a copy gets another CUDA stream

    def run(self, work: Callable[[], T]) -> T:
        """Start work; its result may be used only after join()."""
        if self.stream is None:
            return work()
        BRANCHES.add(self)
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            return work()

    def join(self) -> None:
        """Make later work wait for all work that has been started."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            BRANCHES.discard(self)


def capture_graph(run: Callable[[], object], device: torch.device) -> "torch.cuda.CUDAGraph":
    """Run a function to prepare it, and capture all its GPU work as one CUDA graph on the same buffers."""
    with torch.cuda.device(device):
        stream = new_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            with CAPTURE_LOCK:  # a capture in another thread could record these kernels
                warm_up(run)
            graph = record_graph(run)
        torch.cuda.current_stream().wait_stream(stream)
    return graph


def warm_up(run: Callable[[], object]) -> None:
    """Run a function in the current stream: cuDNN selects its algorithms, and Triton compiles the kernels."""
    with measure_algorithms():
        for _ in range(WARM_UP_RUNS):
            run()


def record_graph(run: Callable[[], object]) -> "torch.cuda.CUDAGraph":
    """Capture the GPU work of a function in the current stream, which is not the default one; nothing is computed."""
    with CAPTURE_LOCK:
        with suppress(torch.OutOfMemoryError):
            return record_once(run)
        torch.cuda.empty_cache()  # a graph cannot use the memory that torch keeps for later
        return record_once(run)


def record_once(run: Callable[[], object]) -> "torch.cuda.CUDAGraph":
    """Capture the GPU work of a function in the current stream.

    torch.cuda.graph would first wait for all work on the GPU and give back unused memory, at the cost of the frames
    that other threads label.
    """
    graph = torch.cuda.CUDAGraph()
    BRANCHES.clear()  # a run that failed may have left some
    graph.capture_begin(capture_error_mode="thread_local")  # other threads may use the GPU meanwhile
    try:
        run()
    except BaseException:
        join_branches()
        raise
    finally:
        graph.capture_end()
    return graph


def join_branches() -> None:
    """Join what a capture that has failed has started.

    Else CUDA would refuse to end it: that error would hide the first one, and torch would go on to allocate as in a
    capture.
    """
    for branch in tuple(BRANCHES):
        with suppress(RuntimeError):  # the first error has spoilt the capture
            branch.join()
