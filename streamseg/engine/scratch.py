"""Memory that is reused from call to call, from any number of threads.

It is never used by two calls at once, is not part of copies and pickles, and works inside and outside of
torch.inference_mode().
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MAX_PACKED = 4
"""Number of input shapes for which a convolution keeps its packed weights."""


class Scratch:
    """Scratch tensors that a call borrows, by the shape of its input.

    As many are kept as calls have run at the same time: one, as long as calls run one after the other.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[tuple[torch.Size, list[Tensor]]] = []
        self.borrowed = self.max_borrowed = 0

    def __reduce__(self) -> tuple[type["Scratch"], tuple[()]]:
        return Scratch, ()

    @contextmanager
    def borrow(self, shape: torch.Size, allocate: Callable[[], list[Tensor]]) -> Iterator[list[Tensor]]:
        """Lend tensors to this call only; they hold what an earlier call or `allocate` wrote."""
        with self.lock:
            self.borrowed += 1
            self.max_borrowed = max(self.max_borrowed, self.borrowed)
            index = next((i for i, (known, _) in enumerate(self.idle) if known == shape), None)
            tensors = None if index is None else self.idle.pop(index)[1]
        try:
            if tensors is None:
                with torch.inference_mode(False):
                    tensors = allocate()
            yield tensors
        finally:
            with self.lock:
                self.borrowed -= 1
                if tensors is not None:
                    self.idle.append((shape, tensors))
                del self.idle[: max(0, len(self.idle) + self.borrowed - self.max_borrowed)]


class PackedWeights:
    """A cache of weights in the layout that a library uses for inputs of a shape."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cached: dict[Hashable, Tensor] = {}

    def __reduce__(self) -> tuple[type["PackedWeights"], tuple[()]]:
        return PackedWeights, ()

    def get(self, key: Hashable, pack: Callable[[], Tensor]) -> Tensor:
        """Return the weights for a key: a shape, and whatever else the layout depends on."""
        weights = self.cached.get(key)
        if weights is None:
            with self.lock, torch.inference_mode(False):
                weights = self.cached.get(key)
                if weights is None:
                    weights = self.cached[key] = pack()
                    while len(self.cached) > MAX_PACKED:
                        del self.cached[next(iter(self.cached))]
        return weights


class DeviceLock:
    """A lock for one call at a time, across threads and, on a GPU, across CUDA streams.

    A call in another CUDA stream than the previous call waits on the GPU for that one to end; the host does not wait.
    Meanwhile the GPU is the current one, on which Triton launches its kernels.
    """

    def __init__(self, device: torch.device):
        self.device, self.lock = device, threading.Lock()
        if device.type == "cuda":
            # the stream in which everything that the calls use was made
            self.stream, self.done = torch.cuda.current_stream(device), torch.cuda.Event()
            self.done.record(self.stream)
            self.current = torch.cuda.device(device)

    def __reduce__(self) -> tuple[type["DeviceLock"], tuple[torch.device]]:
        return DeviceLock, (self.device,)

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.device.type == "cuda":
            try:
                stream = torch.cuda.current_stream(self.device)
                if stream != self.stream:
                    stream.wait_event(self.done)
                    self.stream = stream
                self.current.__enter__()
            except BaseException:
                self.lock.release()
                raise

    def __exit__(self, *_: object) -> None:
        try:
            if self.device.type == "cuda":
                self.current.__exit__(None, None, None)
                self.done.record(self.stream)
        finally:
            self.lock.release()

    def synchronize(self) -> None:
        """Wait until the GPU has finished the previous calls."""
        if self.device.type == "cuda":
            self.done.synchronize()
