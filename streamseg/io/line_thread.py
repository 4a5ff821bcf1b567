"""Lines of text that a thread of its own writes, so that a reader who is slow or hangs holds up nobody else."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

CAPACITY, CAPACITY_LETTERS = 1000, 2**24
"""Lines that may wait, and their letters; of more, the oldest are dropped."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for lines that are not written yet."""


class LineWriter(Protocol):
    """A place for lines of text: a file, or a server."""

    def write(self, text: str, /) -> object: ...


class LineThread:
    """Writes lines from a thread of its own. An error of the place is raised by each write after it, and at the end.

    Args:
        place: Where the lines go; it may wait for ever.
        shown: Its name in messages.
        notify: Receives a sentence when the first line is dropped, and at the end how many were. It may wait, too.
    """

    def __init__(self, place: LineWriter, shown: str, notify: Callable[[str], None]):
        self.place, self.shown, self.notify = place, shown, notify
        self.waiting: deque[str] = deque()
        self.letters = 0
        """Of the lines that wait."""
        self.change = threading.Condition()
        self.dropped = 0
        self.closing = False
        self.failure: Exception | None = None
        # not join(): if a signal interrupts that, Python 3.11 takes a thread for ended that still runs
        self.ended = threading.Event()
        threading.Thread(target=self.work, name=f"write {shown}", daemon=True).start()

    def write(self, text: str, /) -> None:
        """Queue a line in place of the oldest ones where the queue is full. Never waits for the reader."""
        with self.change:
            self.raise_failure()
            before = self.dropped
            self.waiting.append(text)
            self.letters += len(text)
            while len(self.waiting) > CAPACITY or (self.letters > CAPACITY_LETTERS and len(self.waiting) > 1):
                self.letters -= len(self.waiting.popleft())
                self.dropped += 1
            self.change.notify()
            is_first = self.dropped > before == 0
        if is_first:
            sentence = f"{self.shown} takes lines too slowly: the oldest are dropped."
            threading.Thread(target=self.notify, args=(sentence,), daemon=True).start()

    def raise_failure(self) -> None:
        """Raise the error of the place, if it has failed: a new one, as each keeps the frames that it went through."""
        if self.failure:
            error = type(self.failure)(*self.failure.args)
            raise error from None

    def work(self) -> None:
        """Write lines until the end, or an error."""
        try:
            while (text := self.next_line()) is not None:
                self.place.write(text)
        except Exception as error:  # whoever writes next gets it
            self.failure = error
        finally:
            self.ended.set()

    def next_line(self) -> str | None:
        """Wait for a line; None at the end."""
        with self.change:
            self.change.wait_for(lambda: self.waiting or self.closing)
            if not self.waiting:
                return None
            text = self.waiting.popleft()
            self.letters -= len(text)
            return text

    @property
    def hangs(self) -> bool:
        """Whether the place still keeps the thread waiting."""
        return not self.ended.is_set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what waits, for a limited time."""
        with self.change:
            self.closing = True
            self.change.notify()
        self.ended.wait(CLOSE_SECONDS)
        if kind is None:
            self.raise_failure()
        if self.failure:
            return
        with self.change:
            missing = self.dropped + len(self.waiting) + self.hangs  # with the one that is being written
            self.waiting.clear()
        if missing:
            self.notify(f"{self.shown} took lines too slowly: {missing:,} of them were dropped.")
