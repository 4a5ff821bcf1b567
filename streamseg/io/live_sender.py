"""Send frames or lines to a peer that may be slow, refuse, hang or come back, without ever waiting for it.

Each sender has a thread and a short queue. Where the peer is slower than the run, the oldest items are dropped for the
newest, and counted. A lost connection is opened again, after pauses that grow.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from streamseg.io.sources import plural

Item = TypeVar("Item")
Sent = TypeVar("Sent", contravariant=True)

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each new attempt to connect; the last is for all further ones."""
ANSWER_SECONDS = 10.0
"""How long a peer may take to connect, and for each item."""
CLOSE_SECONDS = 15.0
"""How long the end of a run waits for what has not been sent yet."""


class Connection(Protocol[Sent]):
    """A connection to a peer. Its errors are OSErrors or ValueErrors."""

    def send(self, item: Sent) -> None:
        """Send an item; an error if that takes too long."""

    def close(self) -> None:
        """Send what is still held, and disconnect."""

    def abort(self) -> None:
        """Disconnect at once; another thread may call it."""


class LiveSender(Generic[Item]):
    """Sends items to an address from a thread of its own.

    Args:
        name: The stream's name, with which its messages begin.
        shown: The address without its password.
        connect: Opens a connection; it is given the first item, and must not wait for ever.
        capacity: How many items may wait.
        noun: What an item is called.
        notify: Receives a sentence when the connection is lost, and when it is back.
        hint: A sentence to add if the first attempt fails.
    """

    def __init__(
        self,
        name: str,
        shown: str,
        connect: Callable[[Item], Connection[Item]],
        *,
        capacity: int,
        noun: str,
        notify: Callable[[str], None],
        hint: str = "",
    ):
        self.name, self.shown, self.connect = name, shown, connect
        self.capacity, self.noun, self.notify = capacity, noun, notify
        self.hint = hint
        self.waiting: deque[Item] = deque()
        self.change = threading.Condition()
        self.closing = self.aborted = False
        self.connection: Connection[Item] | None = None
        self.sent = self.dropped = 0
        self.reached = False
        """Whether an item was sent."""
        self.fault = ""
        """Why there is no connection; empty while there is one."""
        self.hung = False
        """Whether it did not take the last items in time."""
        self.failed_attempts, self.lost_at, self.next_attempt = 0, 0.0, 0.0
        self.thread = threading.Thread(target=self.work, name=f"send {name}", daemon=True)
        self.thread.start()

    @property
    def problem(self) -> str:
        """A sentence on why the last items did not arrive; empty if they did."""
        fault = self.fault or (f"it did not take the rest within {CLOSE_SECONDS:.0f} s" if self.hung else "")
        if not fault:
            return ""
        if not self.reached:
            return f"{self.name}: {self.shown} could not be reached: {fault}."
        sent, dropped = plural(self.sent, self.noun), plural(self.dropped, self.noun)
        return f"{self.name}: {self.shown} was lost and took only {sent}, {dropped} dropped: {fault}."

    @property
    def counts(self) -> str:
        """How many items were sent and dropped."""
        dropped = f", {self.dropped:,} dropped" if self.dropped else ""
        return f"{self.shown}  ({self.sent:,} {self.noun}{'s' * (self.sent != 1)} sent{dropped})"

    def put(self, item: Item) -> None:
        """Queue an item in place of the oldest where the queue is full. Never waits for the peer."""
        with self.change:
            if len(self.waiting) >= self.capacity or self.closing:
                self.dropped += 1
                if self.closing:
                    return
                self.waiting.popleft()
            self.waiting.append(item)
            self.change.notify_all()

    def close(self) -> None:
        """Send what waits, for a limited time, and disconnect."""
        with self.change:
            self.closing = True
            self.change.notify_all()
        self.thread.join(CLOSE_SECONDS)
        if self.thread.is_alive():
            self.hung = True
            self.abort()

    def abort(self) -> None:
        """Disconnect and drop what waits."""
        with self.change:
            self.closing = self.aborted = True
            self.drop_waiting()
            self.change.notify_all()
            connection = self.connection
        if connection:
            connection.abort()

    def work(self) -> None:
        """Send items until the sender is closed."""
        while (item := self.next_item()) is not None:
            try:
                if self.connection is None:
                    self.connection = self.connect(item)
                if self.aborted:  # while it connected
                    raise ConnectionAbortedError("the run has ended")
                self.connection.send(item)
            except Exception as error:  # whatever a library raises: the run goes on without it
                self.put_back(item)
                self.disconnect(error)
            else:
                self.report_sent()
        if self.connection:
            try:
                self.connection.close()
            except Exception as error:
                self.disconnect(error)

    def next_item(self) -> Item | None:
        """Wait for an item, and until it is time for the next attempt; None at the end."""
        with self.change:
            while True:
                if self.aborted or (self.closing and (not self.waiting or self.failed_attempts > 1)):
                    self.drop_waiting()
                    return None
                pause = 0.0 if self.closing else self.next_attempt - time.monotonic()
                if self.waiting and pause <= 0:
                    return self.waiting.popleft()
                self.change.wait(pause if pause > 0 else None)

    def put_back(self, item: Item) -> None:
        """Queue an item again that was not sent, unless newer ones fill the queue."""
        with self.change:
            if len(self.waiting) < self.capacity and not self.aborted:
                self.waiting.appendleft(item)
            else:
                self.dropped += 1

    def drop_waiting(self) -> None:
        self.dropped += len(self.waiting)
        self.waiting.clear()

    def report_sent(self) -> None:
        """Count an item; say so if a lost connection is back. One that breaks at its first item does not count."""
        self.sent += 1
        if self.fault:
            since, what = time.monotonic() - self.lost_at, "came back" if self.reached else "answers now,"
            self.notify(f"{self.name}: {self.shown} {what} after {since:.1f} s.")
        self.fault, self.reached, self.failed_attempts = "", True, 0

    def disconnect(self, error: Exception) -> None:
        """Give up a connection; say so once, and plan the next attempt."""
        now, reason = time.monotonic(), (str(error) or type(error).__name__).rstrip(".")
        if self.connection:
            self.connection.abort()
            self.connection = None
        if self.aborted:
            return
        if not self.fault:
            what = "was lost" if self.reached else "cannot be reached"
            hint = f" {self.hint}" if self.hint and not self.reached else ""
            self.lost_at = now
            if not self.closing:
                self.notify(f"{self.name}: {self.shown} {what}: {reason}. Trying again while the run goes on.{hint}")
        self.fault = reason
        self.next_attempt = now + PAUSES[min(self.failed_attempts, len(PAUSES) - 1)]
        self.failed_attempts += 1
