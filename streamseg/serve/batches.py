"""Batching: frames of many clients through one network, those of one size together, first come first served."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from streamseg.engine.engine import Engine
from streamseg.parallel.threads import set_torch_threads
from streamseg.stream.label_frames import MAX_PIXELS, label_batch, network_size
from streamseg.stream.state import Policy, State

PREPARE_AFTER_SECONDS = 1.0
"""An engine prepares sizes after this time without a request: on a GPU that takes much longer than a frame."""

Labelled = tuple[Tensor, State]
"""Labels (H, W), uint8, and the state of the stream after the frame."""


@dataclass(frozen=True, eq=False)
class LabelRequest:
    """A frame in the queue."""

    frame: Tensor
    state: State | None
    size: tuple[int, int]
    """Network input size."""
    future: "Future[Labelled]" = field(default_factory=Future)


@runtime_checkable
class PreparesSizes(Protocol):
    """An engine that prepares itself for sizes of frames, now or later."""

    capture_when_idle: bool
    """Whether it prepares sizes in capture_next() only."""

    def capture_next(self) -> bool:
        """Prepare the most frequent size, if any is due; return whether there are more."""


class Batcher:
    """A queue of frames, and the thread that labels them.

    Args:
        window: Number of frames, or policy, that the past of a stream is made of.
        max_frames: The largest number of frames in a batch; their pixels are limited too, to twice MAX_PIXELS.
        on_batch: Called with the number of frames in each batch.
        busy: Whether requests are active; no size is prepared then.

    Frames of a new size are labelled without preparation; a frequent size is prepared when the server is idle.
    """

    def __init__(
        self,
        engine: Engine,
        window: int | Policy = 1,
        max_frames: int = 8,
        on_batch: Callable[[int], None] = lambda number: None,
        busy: Callable[[], bool] = lambda: False,
    ):
        self.engine, self.window, self.max_frames = engine, window, max_frames
        self.on_batch, self.busy = on_batch, busy
        self.prepares = engine if isinstance(engine, PreparesSizes) else None
        if self.prepares:
            self.prepares.capture_when_idle = True
        self.queue: deque[LabelRequest] = deque()
        self.change = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self.work, args=(torch.get_num_threads(),), name="batches", daemon=True)
        self.thread.start()

    def submit(self, frame: Tensor, state: State | None = None) -> "Future[Labelled]":
        """Queue a frame (3, H, W): a picture, or the next frame of a stream. Cancel the future to drop it."""
        request = LabelRequest(frame, state, network_size(frame.shape[1], frame.shape[2]))
        with self.change:
            if self.closed:
                raise RuntimeError("The queue is closed.")
            self.queue.append(request)
            self.change.notify()
        return request.future

    def close(self) -> None:
        """Label the frames in the queue, and end the thread."""
        with self.change:
            self.closed = True
            self.change.notify()
        self.thread.join()

    def work(self, threads: int) -> None:
        """Label batches until the queue is closed and empty; prepare sizes when idle."""
        set_torch_threads(threads)
        unprepared = False  # whether there may be sizes to prepare
        while True:
            if unprepared and self.is_idle():
                unprepared = self.busy() or self.prepare_next()
                continue
            batch = self.take_batch()
            if not batch:
                return
            batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
            if batch:
                self.label(batch)
            unprepared = self.prepares is not None

    def is_idle(self) -> bool:
        """Wait for a frame; return whether none has come for PREPARE_AFTER_SECONDS."""
        with self.change:
            return not self.change.wait_for(lambda: self.queue or self.closed, PREPARE_AFTER_SECONDS)

    def prepare_next(self) -> bool:
        """Prepare the most frequent size; return whether there are more."""
        assert self.prepares is not None
        try:
            return self.prepares.capture_next()
        except Exception:  # such as out of memory: frames are labelled without preparation
            logging.getLogger("streamseg").exception("A size could not be prepared.")
            return False

    def take_batch(self) -> list[LabelRequest]:
        """Take the oldest request and others of its size; nothing when the queue is closed and empty."""
        with self.change:
            self.change.wait_for(lambda: self.queue or self.closed)
            if not self.queue:
                return []
            height, width = size = self.queue[0].size
            max_frames = max(1, min(self.max_frames, 2 * MAX_PIXELS // (height * width)))
            batch = [request for request in self.queue if request.size == size][:max_frames]
            self.queue = deque(request for request in self.queue if request not in batch)
            return batch

    def label(self, batch: list[LabelRequest]) -> None:
        """Label a batch, and set the result or the exception of each request."""
        self.on_batch(len(batch))
        try:
            frames, states = [request.frame for request in batch], [request.state for request in batch]
            labels, states_after = label_batch(self.engine, frames, states, self.window, size=batch[0].size)
        except Exception as error:  # the clients get it; the thread goes on with the next batch
            for request in batch:
                request.future.set_exception(error)
        else:
            for request, labelled in zip(batch, zip(labels, states_after, strict=True), strict=True):
                request.future.set_result(labelled)
