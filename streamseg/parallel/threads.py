"""Groups of threads with bounded queues between them, in which the failure of one stops all.

Each queue wakes its own two threads only: with the hundreds of threads of many cameras, waking all of them at every
frame would take longer than the frames do.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Item = TypeVar("Item")

TURN_SECONDS = 5e-5
"""Python's own is 100 times as long: see benchmarks/lock_emulation.py --interval."""

WAIT_SECONDS, GO_SECONDS = 0.02, 0.01
"""How long a thread waits at most for those that have the right of way, and then goes on beside them."""


class GroupStopped(Exception):  # noqa: N818 (no error: another thread has the error)
    """Another thread has failed: clean up and end."""


class GroupThread(threading.Thread):
    """A thread of a group.

    Wait for `ended`, not by join(): if a signal interrupts that, Python 3.11 takes a thread for ended that still runs.
    """

    def __init__(self, name: str, work: Callable[..., None], given: tuple[object, ...]):
        super().__init__(target=work, args=given, name=name, daemon=True)
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.ended.set()


class ThreadGroup:
    """Threads that share a lock, and the error of the first that fails."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.change = threading.Condition(self.lock)
        """For a thread that waits for several queues at once."""
        self.conditions = [self.change]
        self.failure: BaseException | None = None

    def start(self, name: str, work: Callable[..., None], *given: object, threads: int = 1) -> GroupThread:
        """Start a daemon thread, in which torch computes with a number of threads."""
        thread = GroupThread(name, self.guard, (work, given, threads))
        thread.start()
        return thread

    def guard(self, work: Callable[..., None], given: tuple[object, ...], threads: int) -> None:
        """Run a thread's function; an error stops the group."""
        set_torch_threads(threads)
        try:
            work(*given)
        except GroupStopped:
            pass
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        with self.lock:
            self.failure = self.failure or error
            for condition in self.conditions:
                condition.notify_all()

    def wait_until(self, ready: Callable[[], object], condition: threading.Condition | None = None) -> None:
        """Wait for a change by another thread, by default of the group; the caller holds the lock."""
        while not self.failure and not ready():
            (condition or self.change).wait()
        if self.failure:
            raise GroupStopped


class BoundedQueue(Generic[Item]):
    """A bounded queue between two threads of a group; the writing side closes it.

    Args:
        watcher: A further condition to notify of changes, for a thread that waits for several queues.
    """

    def __init__(self, group: ThreadGroup, capacity: int, watcher: threading.Condition | None = None):
        self.group, self.capacity, self.watcher = group, capacity, watcher
        self.change = threading.Condition(group.lock)
        group.conditions.append(self.change)
        self.waiting: deque[Item] = deque()
        self.closed = False

    @property
    def full(self) -> bool:
        return len(self.waiting) >= self.capacity

    @property
    def ended(self) -> bool:
        """Whether the queue is closed and empty."""
        return self.closed and not self.waiting

    def put(self, item: Item) -> bool:
        """Add an item once there is room; return False if the queue was closed."""
        with self.group.lock:
            self.group.wait_until(lambda: self.closed or not self.full, self.change)
            if not self.closed:
                self.waiting.append(item)
                self.notify(watched=len(self.waiting) == 1)
            return not self.closed

    def replace(self, item: Item) -> int | None:
        """Replace all waiting items; return how many were dropped, or None if the queue is closed."""
        with self.group.lock:
            if self.closed or self.group.failure:
                return None
            replaced = len(self.waiting)
            self.waiting.clear()
            self.waiting.append(item)
            self.notify(watched=True)  # a newer frame may tell that another source is silent
            return replaced

    def take(self) -> Item:
        """Return the first item; the caller holds the lock and knows that there is one.

        A thread that waits for room is woken when half the queue is free: it then adds several items in one turn.
        """
        was_full, item = self.full, self.waiting.popleft()
        if len(self.waiting) <= self.capacity // 2:
            self.change.notify_all()
        if self.watcher and was_full:
            self.watcher.notify_all()
        return item

    def close(self) -> None:
        with self.group.lock:
            self.closed = True
            self.notify(watched=True)

    def notify(self, watched: bool) -> None:
        """Wake the threads that wait for this queue; the caller holds the lock.

        Args:
            watched: Whether it is no longer empty or full, or is closed: the watcher waits for nothing else.
        """
        self.change.notify_all()
        if self.watcher and watched:
            self.watcher.notify_all()

    def __iter__(self) -> Iterator[Item]:
        """Yield items until the queue is closed and empty."""
        while True:
            with self.group.lock:
                self.group.wait_until(lambda: self.waiting or self.closed, self.change)
                if self.ended:
                    return
                item = self.take()
            yield item


@contextmanager
def short_turns(wanted: bool = True, seconds: float = TURN_SECONDS) -> Iterator[None]:
    """A context in which a thread has Python's lock for so many seconds at most while others wait for it.

    Calls to a GPU give the lock up and take it back at once, a hundred times for a batch. Threads that wait for it are
    too slow to get it in between, so that they wait for Python's whole turn of 5 ms, and with them their codec.
    """
    before = sys.getswitchinterval()
    if wanted:
        sys.setswitchinterval(min(seconds, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class RightOfWay:
    """Lets a thread that computes in Python wait for those that call torch, for a while each time.

    Each of the thousand calls of a network gives Python's lock up and wants it back at once. The other thread has taken
    it by then, for a turn that is ten times as long as the call (short_turns), if not a hundred times.
    """

    def __init__(self, wait_seconds: float = WAIT_SECONDS, go_seconds: float = GO_SECONDS):
        self.wait_seconds, self.go_seconds = wait_seconds, go_seconds
        self.lock = threading.Lock()
        self.running = 0
        """How many threads have the right of way."""
        self.is_free = threading.Event()
        self.is_free.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A context in which this thread has the right of way."""
        self.count(1)
        try:
            yield
        finally:
            self.count(-1)

    def count(self, change: int) -> None:
        with self.lock:
            self.running += change
            if self.running:
                self.is_free.clear()
            else:
                self.is_free.set()

    @contextmanager
    def given(self) -> Iterator[None]:
        """A context in which this thread waits for those that have the right of way, where it calls a function."""
        may_go_until = 0.0

        def give_way(*_: object) -> None:
            nonlocal may_go_until
            if not self.is_free.is_set() and time.monotonic() > may_go_until:
                self.is_free.wait(self.wait_seconds)
                may_go_until = time.monotonic() + self.go_seconds

        before = sys.getprofile()
        sys.setprofile(give_way)
        try:
            yield
        finally:
            sys.setprofile(before)


def set_torch_threads(count: int) -> None:
    """Set the number of threads with which torch computes in the calling thread."""
    import torch  # here, because segment uses this module before torch is imported

    # without this first call, a thread uses the number that any thread set last when it first computes
    torch.get_num_threads()
    torch.set_num_threads(count)
