"""Memory that is kept from call to call, for calls from any number of threads.

What is in it is never shared by two calls at once, is no part of a copy or of a pickle, and can be used inside and
outside of torch.inference_mode().
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PACKED = 4
"""For how many shapes of inputs a convolution keeps its packed weights."""


class Scratch:
    """Scratch tensors by the shape that they are for, which a call borrows.

    As many are kept as calls have needed at once: one, as long as calls come one after the other.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[tuple[torch.Size, list[Tensor]]] = []
        self.borrowed = self.most = 0

    def __reduce__(self) -> tuple[type["Scratch"], tuple[()]]:
        return Scratch, ()

    @contextmanager
    def borrow(self, shape: torch.Size, make: Callable[[], list[Tensor]]) -> Iterator[list[Tensor]]:
        """Tensors for this call alone; what they hold is what another call left there, or what `make` put there."""
        with self.lock:
            self.borrowed += 1
            self.most = max(self.most, self.borrowed)
            place = next((i for i, (known, _) in enumerate(self.idle) if known == shape), None)
            tensors = None if place is None else self.idle.pop(place)[1]
        try:
            if tensors is None:
                with torch.inference_mode(False):
                    tensors = make()
            yield tensors
        finally:
            with self.lock:
                self.borrowed -= 1
                if tensors is not None:
                    self.idle.append((shape, tensors))
                del self.idle[: max(0, len(self.idle) + self.borrowed - self.most)]


class PackedWeights:
    """Weights in the layout that a library wants for inputs of a shape; made once, and never changed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[Hashable, Tensor] = {}

    def __reduce__(self) -> tuple[type["PackedWeights"], tuple[()]]:
        return PackedWeights, ()

    def get(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """The weights for a key: a shape, and whatever else they depend on."""
        found = self.known.get(key)
        if found is None:
            with self.lock, torch.inference_mode(False):
                found = self.known.get(key)
                if found is None:
                    found = self.known[key] = make()
                    while len(self.known) > PACKED:
                        del self.known[next(iter(self.known))]
        return found


class DeviceLock:
    """One call at a time, whatever threads the calls are in and, on a GPU, whatever queues (CUDA streams).

    A call that comes in another queue than the one before waits there for the end of that one; the host does not.
    """

    def __init__(self, device: torch.device):
        self.device, self.lock = device, threading.Lock()
        if device.type == "cuda":
            # what has been made for the calls is made in this queue
            self.stream, self.done = torch.cuda.current_stream(device), torch.cuda.Event()
            self.done.record(self.stream)

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
            except BaseException:
                self.lock.release()
                raise

    def __exit__(self, *_: object) -> None:
        try:
            if self.device.type == "cuda":
                self.done.record(self.stream)
        finally:
            self.lock.release()

    def settle(self) -> None:
        """Wait until the GPU has done what calls before this one have asked for."""
        if self.device.type == "cuda":
            self.done.synchronize()
