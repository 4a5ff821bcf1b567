"""How long a thread waits for Python's lock: a thread gives it up again and again, and times how long it is gone.

Only one thread at a time runs Python. Those that call FFmpeg or a GPU give up its lock meanwhile, and wait for it
afterwards; a stage that takes longer in company than alone, while cores are idle, waits for it.
"""

import threading
import time
from statistics import fmean
from types import TracebackType
from typing import Self

PERIOD_SECONDS = 0.005
"""Time between two samples; each takes a few microseconds of the lock itself."""


def time_lock() -> float:
    """Give up Python's lock; return the seconds until it is back."""
    begin = time.perf_counter()
    time.sleep(0)
    return time.perf_counter() - begin


class LockProbe:
    """A thread that samples the waits for Python's lock, in a with statement."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.work, name="lock probe", daemon=True)

    def work(self) -> None:
        """Sample until the end."""
        while not self.done.wait(PERIOD_SECONDS):
            self.waits.append(time_lock())

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done.set()
        self.thread.join()

    def milliseconds(self) -> dict[str, float]:
        """Return the mean of the waits, and the one that 95 % do not exceed."""
        return summarise_waits(self.waits)


def summarise_waits(waits: list[float]) -> dict[str, float]:
    """Return the mean and the 95th percentile of waits, in milliseconds; zeros if there are none."""
    ranked = sorted(waits) or [0.0]
    return {"mean": 1000 * fmean(ranked), "p95": 1000 * ranked[int(0.95 * (len(ranked) - 1))]}
