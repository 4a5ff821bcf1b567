"""Frames of many clients through one network: those of one size together, in the order in which they came."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from streamseg.crew import use_threads
from streamseg.stream import PIXELS, Engine, Policy, State, label_batch, working_size

Answer = tuple[Tensor, State]
"""Labels (H, W), uint8, and what the stream has then seen."""


@dataclass(frozen=True, eq=False)
class Job:
    """A frame that waits for its labels."""

    frame: Tensor
    state: State | None
    size: tuple[int, int]
    """What the network sees it at."""
    answer: "Future[Answer]" = field(default_factory=Future)


class Batcher:
    """A queue of frames, and the thread that labels them.

    Args:
        window: What is remembered of a stream's earlier frames.
        most: The most frames that the network sees at once; together they have no more pixels than two of the largest.
        seen: Called with the number of frames in each batch.
    """

    def __init__(
        self, engine: Engine, window: int | Policy = 1, most: int = 8, seen: Callable[[int], None] = lambda number: None
    ):
        self.engine, self.window, self.most, self.seen = engine, window, most, seen
        self.waiting: deque[Job] = deque()
        self.change = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self.work, args=(torch.get_num_threads(),), name="batches", daemon=True)
        self.thread.start()

    def submit(self, frame: Tensor, state: State | None = None) -> "Future[Answer]":
        """Labels of a frame (3, H, W), the next one of a stream or one alone; who cancels them is not worked for."""
        job = Job(frame, state, working_size(frame.shape[1], frame.shape[2]))
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
        use_threads(threads)
        while jobs := self.take():
            wanted = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
            if wanted:
                self.label(wanted)

    def take(self) -> list[Job]:
        """The job that has waited longest, and others of its size; none when the queue is closed and empty."""
        with self.change:
            self.change.wait_for(lambda: self.waiting or self.closed)
            if not self.waiting:
                return []
            height, width = size = self.waiting[0].size
            most = max(1, min(self.most, 2 * PIXELS // (height * width)))
            jobs = [job for job in self.waiting if job.size == size][:most]
            self.waiting = deque(job for job in self.waiting if job not in jobs)
            return jobs

    def label(self, jobs: list[Job]) -> None:
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
