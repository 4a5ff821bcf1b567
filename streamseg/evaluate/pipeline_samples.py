"""What is seen of a pipeline while it runs: how full its queues are, and how long a thread waits for Python's lock."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from streamseg.evaluate.lock_probe import time_lock
from streamseg.stream.latency import Meter
from streamseg.stream.pipeline import Pipeline

SAMPLING_SECONDS = 0.02
"""Time between two looks at a pipeline. Each takes Python's lock from its threads."""
WAITING, IDLE = 2 / 3, 1 / 3
"""A queue that is fuller on average makes the stage before it wait; one that is emptier, the stage behind it."""


@dataclass
class Samples:
    """What was seen of a pipeline while it ran."""

    queues: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """How full the queues between the stages were."""
    first_labels: float = 0.0
    """Seconds from the start to the first labels."""
    lock_waits: list[float] = field(default_factory=list)
    """Seconds that the sampling thread waited for Python's lock."""

    def fills(self) -> dict[str, float]:
        """Return how full each queue was on average."""
        return {name: fmean(found) for name, found in self.queues.items()}

    def take(self, pipeline: Pipeline, meter: Meter) -> None:
        """Look at a pipeline once."""
        if not self.first_labels and meter.frames_labelled:
            self.first_labels = meter.clock() - meter.begin
        for stream in pipeline.streams:
            queues = {"decode, network": stream.inbox}
            if stream.drawn_early:
                queues["network, encode"] = stream.drawn
            else:
                queues |= {"network, draw": stream.labelled, "draw, encode": stream.drawn}
            for name, queue in queues.items():
                if stream.threads and not queue.closed:
                    self.queues[name].append(len(queue.waiting) / queue.capacity)


@contextmanager
def sampled(pipeline: Pipeline, meter: Meter) -> Iterator[Samples]:
    """Look at a pipeline again and again while it runs."""
    samples, done = Samples(), threading.Event()

    def work() -> None:
        while not done.wait(SAMPLING_SECONDS):
            samples.take(pipeline, meter)
            samples.lock_waits.append(time_lock())

    thread = threading.Thread(target=work, name="samples", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        samples.take(pipeline, meter)


def describe_queue(name: str, fill: float) -> str:
    """Return which of two stages waits for the other, by the queue between them."""
    before, _, behind = name.partition(", ")
    level = f"(queue {100 * fill:.0f} % full)"
    if fill >= WAITING:
        return f"{before} waits for {behind} {level}"
    if fill <= IDLE:
        return f"{behind} waits for {before} {level}"
    return f"{before} and {behind} keep pace {level}"
