"""Capture the GPU work of a function as a CUDA graph, while other threads use the GPU."""

import threading
from collections.abc import Callable
from contextlib import suppress

import torch

from streamseg.engine.convolutions import measure_algorithms

CAPTURE_LOCK = threading.Lock()
"""Held while a graph is captured: torch captures one at a time."""

WARM_UP_RUNS = 3
"""How often a function runs before it is captured."""


def new_stream(device: torch.device | None = None) -> "torch.cuda.Stream":
    """Return a CUDA stream for work that is captured, by default on the current device.

    Streams come in turn from pools of 32 that all threads share. Readers and drawers use the pool of the usual
    priority: what one of them does in a stream that captures would be recorded instead of done.
    """
    return torch.cuda.Stream(device, priority=-1)


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
    graph.capture_begin(capture_error_mode="thread_local")  # other threads may use the GPU meanwhile
    try:
        run()
    finally:
        graph.capture_end()
    return graph
