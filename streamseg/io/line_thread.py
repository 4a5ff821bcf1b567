"""Lines of text that a thread of its own writes, so that a reader who is slow or hangs holds up nobody else."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

CAPACITY = 1000
"""Lines that may wait; of more, the oldest are dropped."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for lines that are not written yet."""


class LineWriter(Protocol):
    """A place for lines of text: a file, or a server."""

    def write(self, text: str, /) -> object: ...


class LineThread:
    """Writes lines from a thread of its own. An error of the place is raised by the next write, or at the end.

    Args:
        place: Where the lines go; it may wait for ever.
        shown: Its name in messages.
        notify: Receives a sentence when the first line is dropped, and at the end how many were.
    """

    def __init__(self, place: LineWriter, shown: str, notify: Callable[[str], None]):
        self.place, self.shown, self.notify = place, shown, notify
        self.waiting: deque[str] = deque()
        self.change = threading.Condition()
        self.dropped = 0
        self.closing = False
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self.work, name=f"write {shown}", daemon=True)
        self.thread.start()

    def write(self, text: str, /) -> None:
        """Queue a line in place of the oldest where the queue is full. Never waits for the reader."""
        with self.change:
            if self.failure:
                raise self.failure
            is_full = len(self.waiting) >= CAPACITY
            if is_full:
                self.waiting.popleft()
                self.dropped += 1
            self.waiting.append(text)
            self.change.notify()
            is_first = is_full and self.dropped == 1
        if is_first:
            self.notify(f"{self.shown} takes lines too slowly: the oldest are dropped.")

    def work(self) -> None:
        """Write lines until the end, or an error."""
        while (text := self.next_line()) is not None:
            try:
                self.place.write(text)
            except Exception as error:  # the thread that writes next gets it
                with self.change:
                    self.failure = error
                return

    def next_line(self) -> str | None:
        """Wait for a line; None at the end."""
        with self.change:
            self.change.wait_for(lambda: self.waiting or self.closing)
            return self.waiting.popleft() if self.waiting else None

    @property
    def hangs(self) -> bool:
        """Whether the place still keeps the thread waiting."""
        return self.thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what waits, for a limited time."""
        with self.change:
            self.closing = True
            self.change.notify()
        self.thread.join(CLOSE_SECONDS)
        if self.failure:
            if kind is None:
                raise self.failure
            return
        with self.change:
            missing = self.dropped + len(self.waiting) + self.hangs  # with the one that is being written
            self.waiting.clear()
        if missing:
            self.notify(f"{self.shown} took lines too slowly: {missing:,} of them were dropped.")
