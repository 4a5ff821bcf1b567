"""First labels at once: the eager network labels frames while the fast engine is prepared for their size.

    first batches of a size ──▶ eager engine ──▶ labels
                │ asks for
                ▼
    background thread: imports Triton, folds the network, compiles kernels, captures the graph of one size at a time
                │ prepared
                ▼
    later batches of the size ─▶ fast engine ──▶ labels

The first size is that of a single frame: batches of other numbers of frames are labelled in parts that are prepared,
at worst frame by frame, until they are prepared themselves.

Much of a preparation is Python: beside it the eager network, which calls torch a thousand times for a batch, would take
ten times as long or more. So the background thread gives way to it (RightOfWay) where frames come from live sources.
Where they wait for labels, as those of files do, all of them take less time if it does not.

Both engines have the same contexts, so that a stream keeps its past when the other engine takes over.
"""

import ctypes
import logging
import threading
import time
import weakref
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from itertools import chain

import torch
from torch import Tensor

from streamseg.engine.buffers import Size, key_of
from streamseg.engine.engine import EagerEngine, Engine, FrameBatch, Prediction
from streamseg.engine.fast import FastEngine
from streamseg.parallel.threads import RightOfWay, set_torch_threads

LOG = logging.getLogger("streamseg")

DELAY_SECONDS = 0.1
"""Time before the background thread begins: the first labels, which are on their way, do not share the interpreter with
the import of Triton."""

STOP_SECONDS = 10.0
"""How long the end of the program waits for the background thread: for the kernel that is being compiled, at most."""


class PreparationStopped(BaseException):
    """Raised in the background thread to end it."""


class PreparingEngine(Engine):
    """Labels batches with the fast engine if it is prepared for their size, and with the eager engine until then.

    A size is prepared when it has come twice, so that a single picture costs nothing. If it cannot be prepared, the
    eager engine keeps it.
    """

    def __init__(self, eager: EagerEngine, fast: FastEngine):
        self.eager, self.fast = eager, fast
        self.classes, self.widths, self.context_shape = fast.classes, fast.widths, fast.context_shape
        self.preparation = Preparation(fast)
        # at the end of the program, and when the engine is not needed any more
        weakref.finalize(self, self.preparation.stop)

    def __reduce__(self) -> tuple[type["PreparingEngine"], tuple[EagerEngine, FastEngine]]:
        return PreparingEngine, (self.eager, self.fast)  # a copy prepares its own sizes

    @property
    def device(self) -> torch.device:
        return self.fast.device

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        if self.fast.is_prepared(key_of(batch)):
            return self.fast.predict(batch)
        if parts := self.prepared_parts(batch):
            each, contexts = zip(*map(self.fast.predict, parts), strict=True)
            result = list(chain.from_iterable(each)), torch.cat(contexts)
        else:
            with self.preparation.right_of_way.taken():
                result = self.eager.predict(batch)
        # asked for afterwards: the first labels do not share the machine with a compiler
        for wanted in [*single_frames(batch), batch]:
            if self.fast.is_frequent(key_of(wanted)):
                self.preparation.request(wanted)
        return result

    def prepared_parts(self, batch: FrameBatch) -> list[FrameBatch]:
        """Return a batch in parts that the fast engine is prepared for, halves of halves; empty if it is not."""
        if self.fast.is_prepared(key_of(batch)):
            return [batch]
        if not is_divisible(batch):
            return []
        half = len(batch.images) // 2
        first = self.prepared_parts(batch.part(slice(0, half)))
        rest = self.prepared_parts(batch.part(slice(half, None))) if first else []
        return first + rest if rest else []

    def is_settled(self, batch: FrameBatch) -> bool:
        """Return whether batches like this one are labelled by the engine that will label them from now on.

        The images may be on the device "meta": only their shape counts.
        """
        key = key_of(batch)
        return self.fast.is_prepared(key) or key in self.preparation.failed

    def request(self, batch: FrameBatch) -> None:
        """Prepare for batches like this one in the background, before any of them has come."""
        self.preparation.request(batch)


def is_preparing(engine: Engine, size: tuple[int, int]) -> bool:
    """Return whether batches of frames of a height and width are being prepared for.

    The eager network may label them until then, so that their times say little about later ones.
    """
    return isinstance(engine, PreparingEngine) and engine.preparation.is_preparing(size)


def is_divisible(batch: FrameBatch) -> bool:
    """Return whether the frames of a batch could as well come in several batches."""
    return len(batch.images) > 1 and batch.shares is None


def single_frames(batch: FrameBatch) -> list[FrameBatch]:
    """Return a frame of each kind in a batch as a batch of its own: labels may differ in size; none if it is one."""
    parts = [batch.part(slice(i, i + 1)) for i in range(len(batch.images))] if is_divisible(batch) else []
    return list({key_of(part): part for part in parts}.values())


class Preparation:
    """The sizes that the fast engine is to be prepared for, and the background thread that does it, one at a time.

    The thread ends when no size is left.
    """

    def __init__(self, fast: FastEngine):
        self.fast = fast
        self.lock = threading.RLock()  # the garbage collector may call stop() in any thread
        self.waiting: dict[Size, FrameBatch] = {}
        """Batches without images to prepare for, first come first served; the first is being prepared."""
        self.failed: set[Size] = set()
        """The sizes that could not be prepared."""
        self.thread: threading.Thread | None = None
        self.right_of_way = RightOfWay()
        """Of threads that label frames."""
        self.gives_way = True
        """Whether the background thread waits for them, which live sources need and files do not."""
        self.stopped = self.announced = False

    def request(self, batch: FrameBatch) -> None:
        """Prepare for batches like this one, unless that has been asked for before."""
        key = key_of(batch)
        with self.lock:
            if self.stopped or key in self.waiting or key in self.failed or self.fast.is_prepared(key):
                return
            self.waiting[key] = without_images(batch)
            if self.thread is None:
                self.thread = threading.Thread(target=self.work, name="prepare", daemon=True)
                self.thread.start()

    def is_preparing(self, size: tuple[int, int]) -> bool:
        """Return whether batches of frames of a height and width wait for it."""
        with self.lock:
            return any(tuple(shape[-2:]) == size for shape, *_ in self.waiting)

    def work(self) -> None:
        """Prepare sizes in the background thread."""
        try:
            time.sleep(DELAY_SECONDS)
            import_whole("streamseg.engine.kernels.language", self.giving_way())  # with Triton
            set_torch_threads(1)
            with self.giving_way():
                self.prepare_sizes()
        except PreparationStopped:
            pass

    def giving_way(self) -> AbstractContextManager[None]:
        """Return the context of a thread that prepares, in which it waits for those that label live frames."""
        return self.right_of_way.given() if self.gives_way else nullcontext()

    def prepare_sizes(self) -> None:
        """Prepare sizes until none is left."""
        while (batch := self.first()) is not None:
            self.announce(batch)
            try:
                self.fast.prepare(batch)
            except Exception as error:  # such as out of memory, or no compiler: frames are labelled anyway
                self.fail(batch, error)
            with self.lock:
                del self.waiting[key_of(batch)]

    def first(self) -> FrameBatch | None:
        """Return the batch to prepare for; None if none is left, which ends the thread."""
        with self.lock:
            if self.stopped or not self.waiting:
                self.thread = None
                return None
            return next(iter(self.waiting.values()))

    def announce(self, batch: FrameBatch) -> None:
        """Tell the user once that the first frames are slower."""
        if not self.announced:
            self.announced = True
            LOG.info(
                "Preparing the fast engine for frames of %d x %d: half a minute on a new machine. The network itself "
                "labels frames meanwhile.",
                *batch.images.shape[-2:],
            )

    def fail(self, batch: FrameBatch, error: Exception) -> None:
        """Keep the eager engine for a size, and tell the user the first time."""
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        height, width = batch.images.shape[-2:]
        with self.lock:
            is_first = not self.failed
            self.failed.add(key_of(batch))
        if is_first:
            LOG.warning(
                "The fast engine could not be prepared for frames of %d x %d (%s): the network itself goes on, more "
                "slowly.",
                height,
                width,
                reason,
            )

    def stop(self) -> None:
        """End the background thread: a thread that runs torch while Python shuts down can abort the process."""
        with self.lock:  # until then the thread cannot end by itself
            self.stopped, thread = True, self.thread
            if thread is None or thread is threading.current_thread():
                return
            raise_in_thread(thread, PreparationStopped)
        thread.join(STOP_SECONDS)


def import_whole(module: str, context: AbstractContextManager[None]) -> None:
    """Import a module in a thread that nothing ends: Triton cannot be imported again if half of it was.

    Args:
        context: That of the thread.
    """

    def work() -> None:
        with context:
            import_module(module)

    thread = threading.Thread(target=work, name="import", daemon=True)
    thread.start()
    thread.join()


def raise_in_thread(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise an exception in another thread, at its next step in Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


def without_images(batch: FrameBatch) -> FrameBatch:
    """Return a batch of the same shape that holds no frames and no past."""
    count = len(batch.images)
    images = torch.empty(batch.images.shape, dtype=torch.uint8, device="meta")
    mask, shares = (None if x is None else x.to("meta") for x in (batch.mask, batch.shares))
    first = batch._replace(
        past=None, weights=[0.0] * count, previous_labels=[None] * count, evidence=(), gaps=(), longest_gaps=()
    )
    return first._replace(images=images, mask=mask, shares=shares)
