"""Frames of many clients through one network: those of one size together, in the order in which they came."""

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

IDLE_SECONDS = 1.0
"""Seconds without a request after which an engine may prepare sizes, which takes much longer than a frame on a GPU."""

Answer = tuple[Tensor, State]
"""Labels (H, W), uint8, and what the stream has then seen."""


@dataclass(frozen=True, eq=False)
class LabelRequest:
    """A frame that waits for its labels."""

    frame: Tensor
    state: State | None
    size: tuple[int, int]
    """What the network sees it at."""
    answer: "Future[Answer]" = field(default_factory=Future)


@runtime_checkable
class PreparesSizes(Protocol):
    """An engine that prepares sizes of frames, and can wait with it."""

    capture_when_idle: bool
    """Whether it prepares sizes only when told to."""

    def capture_next(self) -> bool:
        """Prepare the size that is wanted most, if there is one; False if no other is left."""


class Batcher:
    """A queue of frames, and the thread that labels them.

    Args:
        window: What is remembered of a stream's earlier frames.
        most: The most frames that the network sees at once; together they have no more pixels than two of the largest.
        seen: Called with the number of frames in each batch.
        busy: Whether frames are on their way here.

    A new size of frames is labelled without being prepared, and one that comes often is prepared when nobody waits.
    """

    def __init__(
        self,
        engine: Engine,
        window: int | Policy = 1,
        most: int = 8,
        seen: Callable[[int], None] = lambda number: None,
        busy: Callable[[], bool] = lambda: False,
    ):
        self.engine, self.window, self.most, self.seen, self.busy = engine, window, most, seen, busy
        self.prepares = engine if isinstance(engine, PreparesSizes) else None
        if self.prepares:
            self.prepares.capture_when_idle = True
        self.waiting: deque[LabelRequest] = deque()
        self.change = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self.work, args=(torch.get_num_threads(),), name="batches", daemon=True)
        self.thread.start()

    def submit(self, frame: Tensor, state: State | None = None) -> "Future[Answer]":
        """Labels of a frame (3, H, W), the next one of a stream or one alone; who cancels them is not worked for."""
        job = LabelRequest(frame, state, network_size(frame.shape[1], frame.shape[2]))
        with self.change:
            if self.closed:
                raise RuntimeError("The queue is closed.")
            self.waiting.append(job)
            self.change.notify()
        return job.answer

    def close(self) -> None:
        """Label what waits, and end the thread."""
        with self.change:
            self.closed = True
            self.change.notify()
        self.thread.join()

    def work(self, threads: int) -> None:
        set_torch_threads(threads)
        more = False  # there may be sizes to prepare
        while True:
            if more and self.is_quiet():
                more = self.busy() or self.prepare()
                continue
            jobs = self.take()
            if not jobs:
                return
            wanted = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
            if wanted:
                self.label(wanted)
            more = self.prepares is not None

    def is_quiet(self) -> bool:
        """Whether no frame comes for a while."""
        with self.change:
            return not self.change.wait_for(lambda: self.waiting or self.closed, IDLE_SECONDS)

    def prepare(self) -> bool:
        """Prepare the size that is wanted most; False if no other is left."""
        assert self.prepares is not None
        try:
            return self.prepares.capture_next()
        except Exception:  # memory that is full, say: frames are labelled without it
            logging.getLogger("streamseg").exception("A size could not be prepared.")
            return False

    def take(self) -> list[LabelRequest]:
        """The job that has waited longest, and others of its size; none when the queue is closed and empty."""
        with self.change:
            self.change.wait_for(lambda: self.waiting or self.closed)
            if not self.waiting:
                return []
            height, width = size = self.waiting[0].size
            most = max(1, min(self.most, 2 * MAX_PIXELS // (height * width)))
            jobs = [job for job in self.waiting if job.size == size][:most]
            self.waiting = deque(job for job in self.waiting if job not in jobs)
            return jobs

    def label(self, jobs: list[LabelRequest]) -> None:
        self.seen(len(jobs))
        try:
            frames, states = [job.frame for job in jobs], [job.state for job in jobs]
            labels, after = label_batch(self.engine, frames, states, self.window, size=jobs[0].size)
        except Exception as error:  # which is the clients' to hear of; the thread goes on with the next batch
            for job in jobs:
                job.answer.set_exception(error)
        else:
            for job, answer in zip(jobs, zip(labels, after, strict=True), strict=True):
                job.answer.set_result(answer)
