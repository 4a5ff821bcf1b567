"""Batching: frames of many clients through one network, those of one size together, first come first served."""

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from streamseg.engine.engine import Engine
from streamseg.engine.prepare import is_preparing
from streamseg.io.masks import Mask
from streamseg.parallel.threads import set_torch_threads, short_turns
from streamseg.stream.batch_limit import BATCH_SECONDS, MAX_BATCH_PIXELS, BatchLimit, floor_power_of_two
from streamseg.stream.label_frames import MAX_PIXELS, finish_state, label_batch, network_size
from streamseg.stream.state import Policy, State

TURN_SECONDS = 5e-4
"""How long a thread has Python's lock on a GPU while another waits for it. Only two threads want it often, this one and
the one that answers requests, which gives it up at each packet: shorter turns would only interrupt both."""

Labelled = tuple[Tensor, State]
"""Labels (H, W), uint8, and the state of the stream after the frame."""


@dataclass(frozen=True, eq=False)
class LabelRequest:
    """A frame in the queue."""

    frame: Tensor
    state: State | None
    size: tuple[int, int]
    """Network input size."""
    mask: Mask | None = None
    """Pixels to ignore; None for none."""
    seconds: float | None = None
    """When the frame was taken, on any clock of its stream; None for 1/25 s after the one before."""
    future: "Future[Labelled]" = field(default_factory=Future)


class Batcher:
    """A queue of frames, and the thread that labels them.

    Args:
        window: Number of frames, or policy, that the past of a stream is made of.
        max_frames: The largest number of frames in a batch; their pixels are limited too, see limit_batches.
        on_batch: Called with the number of frames in each batch.
        seconds: How long a batch should take; None for the default of the engine's device.
    """

    def __init__(
        self,
        engine: Engine,
        window: int | Policy = 1,
        max_frames: int = 8,
        on_batch: Callable[[int], None] = lambda number: None,
        seconds: float | None = None,
    ):
        self.engine, self.window = engine, window
        self.cuda = engine.device.type == "cuda"
        self.limit = limit_batches(engine.device, max_frames, seconds)
        self.on_batch = on_batch
        self.queue: deque[LabelRequest] = deque()
        self.finished: WeakKeyDictionary[State, State] = WeakKeyDictionary()
        """By the state that a stream was answered with: the one after the work that was left for later."""
        self.change = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self.work, args=(torch.get_num_threads(),), name="batches", daemon=True)
        self.thread.start()

    def submit(
        self,
        frame: Tensor,
        state: State | None = None,
        seconds: float | None = None,
        *,
        size: tuple[int, int] | None = None,
        mask: Mask | None = None,
    ) -> "Future[Labelled]":
        """Queue a frame (3, H, W): a picture, or the next frame of a stream. Cancel the future to drop it.

        Args:
            seconds: When the frame was taken, on any clock of its stream; None for 1/25 s after the one before.
            size: Height and width of the network input; None for the frame's own, up to a limit.
            mask: Pixels to ignore; None for none.
        """
        request = LabelRequest(frame, state, size or network_size(frame.shape[1], frame.shape[2]), mask, seconds)
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
        """Label batches until the queue is closed and empty."""
        set_torch_threads(threads)
        with short_turns(self.cuda, TURN_SECONDS):
            while batch := self.take_batch():
                batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
                if batch:
                    self.label(batch)

    def take_batch(self) -> list[LabelRequest]:
        """Take the oldest request and others of its size; nothing when the queue is closed and empty."""
        with self.change:
            self.change.wait_for(lambda: self.queue or self.closed)
            if not self.queue:
                return []
            size = self.queue[0].size
            most = self.limit.most_frames(size) if is_preparing(self.engine, size) else self.limit.frames(size)
            batch = [request for request in self.queue if request.size == size][:most]
            if self.cuda:
                del batch[floor_power_of_two(len(batch)) :]
            self.queue = deque(request for request in self.queue if request not in batch)
            return batch

    def label(self, batch: list[LabelRequest]) -> None:
        """Label a batch, and set the result or the exception of each request."""
        self.on_batch(len(batch))
        size, begin = batch[0].size, perf_counter()
        was_preparing = is_preparing(self.engine, size)
        try:
            frames = [request.frame for request in batch]
            states = [request.state and self.finished.pop(request.state, request.state) for request in batch]
            times, masks = [request.seconds for request in batch], [request.mask for request in batch]
            labels, states_after = label_batch(
                self.engine, frames, states, self.window, times=times, size=size, masks=masks
            )
        except Exception as error:  # the clients get it; the thread goes on with the next batch
            for request in batch:
                request.future.set_exception(error)
        else:
            # on a GPU too, the labels are on the host by now
            if not (was_preparing or is_preparing(self.engine, size)):
                self.limit.record(size, len(batch), perf_counter() - begin)
            for request, labelled in zip(batch, zip(labels, states_after, strict=True), strict=True):
                request.future.set_result(labelled)
            for state in states_after:
                finished = finish_state(self.engine, state)
                if finished is not None and finished is not state:
                    self.finished[state] = finished


def limit_batches(device: torch.device, max_frames: int, seconds: float | None) -> BatchLimit:
    """Return the limit of batches on a device.

    On a GPU it is that of segment: a batch takes little longer than a frame, and the time keeps a slow network from
    holding up the others. On a CPU a batch has at most two of the largest frames, and no limit of time unless one is
    given: clients wait for their answers anyway, and smaller batches gave fewer of them a second (docs/cameras.md).
    """
    if device.type == "cuda":
        return BatchLimit(BATCH_SECONDS if seconds is None else seconds, max_frames, MAX_BATCH_PIXELS)
    return BatchLimit(math.inf if seconds is None else seconds, max_frames, 2 * MAX_PIXELS)
