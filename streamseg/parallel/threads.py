"""Groups of threads with bounded queues between them, in which the failure of one stops all."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")


class GroupStopped(Exception):  # noqa: N818 (no error: another thread has the error)
    """Another thread has failed: clean up and end."""


class ThreadGroup:
    """Threads that share a condition, and the error of the first that fails."""

    def __init__(self) -> None:
        self.change = threading.Condition()
        self.failure: BaseException | None = None

    def start(self, name: str, work: Callable[..., None], *given: object, threads: int = 1) -> threading.Thread:
        """Start a daemon thread, in which torch computes with a number of threads."""
        thread = threading.Thread(target=self.guard, args=(work, given, threads), name=name, daemon=True)
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
        with self.change:
            self.failure = self.failure or error
            self.change.notify_all()

    def wait_until(self, ready: Callable[[], object]) -> None:
        """Wait for a change by another thread; the caller holds the lock."""
        while not self.failure and not ready():
            self.change.wait()
        if self.failure:
            raise GroupStopped


class BoundedQueue(Generic[Item]):
    """A bounded queue between two threads of a group; the writing side closes it."""

    def __init__(self, group: ThreadGroup, room: int):
        self.group, self.room = group, room
        self.waiting: deque[Item] = deque()
        self.closed = False

    @property
    def full(self) -> bool:
        return len(self.waiting) >= self.room

    @property
    def ended(self) -> bool:
        """Whether the queue is closed and empty."""
        return self.closed and not self.waiting

    def put(self, item: Item) -> bool:
        """Add an item once there is room; return False if the queue was closed."""
        with self.group.change:
            self.group.wait_until(lambda: self.closed or not self.full)
            if not self.closed:
                self.waiting.append(item)
                self.group.change.notify_all()
            return not self.closed

    def replace(self, item: Item) -> int | None:
        """Replace all waiting items; return how many were dropped, or None if the queue is closed."""
        with self.group.change:
            if self.closed or self.group.failure:
                return None
            replaced = len(self.waiting)
            self.waiting.clear()
            self.waiting.append(item)
            self.group.change.notify_all()
            return replaced

    def take(self) -> Item:
        """Return the first item; the caller holds the lock and knows that there is one."""
        self.group.change.notify_all()
        return self.waiting.popleft()

    def close(self) -> None:
        with self.group.change:
            self.closed = True
            self.group.change.notify_all()

    def __iter__(self) -> Iterator[Item]:
        """Yield items until the queue is closed and empty."""
        while True:
            with self.group.change:
                self.group.wait_until(lambda: self.waiting or self.closed)
                if self.ended:
                    return
                item = self.take()
            yield item


def set_torch_threads(count: int) -> None:
    """Set the number of threads with which torch computes in the calling thread."""
    # without this first call, a thread uses the number that any thread set last when it first computes
    torch.get_num_threads()
    torch.set_num_threads(count)
