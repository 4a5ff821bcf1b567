"""Kernels that are compiled in the background, where a frame would have to wait for the compiler.

Until such a kernel is there, and where it cannot be compiled, its definition in PyTorch runs. The kernels of the
network itself are compiled in another way (engine/prepare.py).
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

LOG = logging.getLogger("streamseg")

DELAY_SECONDS = 1.0
"""Time before the first kernel is compiled: the first labels do not share the interpreter with a compiler."""

STOP_SECONDS = 10.0
"""How long the end of the program waits for the kernel that is being compiled."""

Key = tuple[Hashable, ...]


class BackgroundCompiler:
    """Compiles kernels by launching them once in a background thread, one after the other."""

    def __init__(self, delay: float = DELAY_SECONDS) -> None:
        self.delay = delay
        self.change = threading.Condition()
        self.ready: set[Key] = set()
        """The kernels that are compiled."""
        self.asked: set[Key] = set()
        """The kernels that were asked for."""
        self.waiting: deque[tuple[Key, torch.device, Callable[[], object]]] = deque()
        self.thread: threading.Thread | None = None
        self.hurries = self.stopped = self.warned = False

    def has(self, key: Key, device: torch.device, launch: Callable[[], object]) -> bool:
        """Return whether a kernel is compiled; if not, ask for it.

        Args:
            launch: Launches the kernel in the current stream. It keeps what the kernel reads and writes.
        """
        if key in self.ready:
            return True
        with self.change:
            if key not in self.asked and not self.stopped:
                self.asked.add(key)
                self.waiting.append((key, device, launch))
                if self.thread is None:
                    self.thread = threading.Thread(target=self.work, name="compile", daemon=True)
                    self.thread.start()
        return False

    def work(self) -> None:
        """Compile kernels until none is left; the background thread."""
        with self.change:
            self.change.wait_for(lambda: self.hurries or self.stopped, self.delay)
        while True:
            with self.change:
                if not self.waiting:
                    self.thread = None
                    self.change.notify_all()
                    return
                key, device, launch = self.waiting.popleft()
            try:
                with own_stream(device):
                    launch()
                self.ready.add(key)
            except Exception as error:  # such as no C compiler: the definition in PyTorch goes on
                self.warn(error)
            del launch  # its tensors

    def warn(self, error: Exception) -> None:
        """Tell the user once that frames are converted and drawn more slowly."""
        if not self.warned:
            self.warned = True
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            LOG.warning(
                "The kernels that convert and draw frames could not be compiled (%s): PyTorch does it, more slowly.",
                reason,
            )

    def wait(self) -> None:
        """Wait until the kernels that were asked for are compiled, or cannot be."""
        with self.change:
            self.hurries = True
            self.change.notify_all()
            self.change.wait_for(lambda: self.thread is None)

    def stop(self) -> None:
        """End the background thread: one that runs torch while Python shuts down can abort the process."""
        with self.change:
            self.stopped = True
            self.waiting.clear()
            self.change.notify_all()
            self.change.wait_for(lambda: self.thread is None, STOP_SECONDS)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Do GPU work in a stream of its own, and wait for it; on the CPU there is nothing to wait for."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    # what is read may not have been written yet, which does not matter
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()  # until then the tensors must be kept


COMPILER = BackgroundCompiler()
atexit.register(COMPILER.stop)


def is_compiled(
    kernel: str, tensors: tuple[Tensor, ...], numbers: tuple[int, ...], launch: Callable[[], object]
) -> bool:
    """Return whether a kernel is compiled for tensors and numbers of a kind; if not, it is compiled in the background.

    Args:
        kernel: Its name, and that of the variant.
        tensors: What it reads; their types count.
        numbers: Triton compiles it anew for numbers that are 1, and for those that are multiples of 16.
        launch: Launches the kernel; what it writes is not used.
    """
    kinds = tuple(1 if number == 1 else 16 if number % 16 == 0 else 0 for number in numbers)
    device = tensors[0].device
    return COMPILER.has((kernel, device, *(x.dtype for x in tensors), *kinds), device, launch)


def wait_until_compiled() -> None:
    """Wait until the kernels that were asked for so far are compiled."""
    COMPILER.wait()
