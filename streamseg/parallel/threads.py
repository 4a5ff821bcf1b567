"""Threads that work hand in hand: short queues between them, and one failure that ends the work of all."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")


class GroupStopped(Exception):  # noqa: N818 (no error: another thread has the error)
    """The work has failed elsewhere: leave, and keep nothing unfinished."""


class ThreadGroup:
    """Threads that share a lock: what changes for one wakes the others, and the error of one is that of all."""

    def __init__(self) -> None:
        self.change = threading.Condition()
        self.failure: BaseException | None = None

    def start(self, name: str, work: Callable[..., None], *given: object, threads: int = 1) -> threading.Thread:
        """Do something in a thread of its own, in which torch computes with so many threads."""
        thread = threading.Thread(target=self.guard, args=(work, given, threads), name=name, daemon=True)
        thread.start()
        return thread

    def guard(self, work: Callable[..., None], given: tuple[object, ...], threads: int) -> None:
        """Do a thread's work; its error becomes everybody's."""
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
        """Wait for something that another thread does; the caller has the lock, before and after."""
        while not self.failure and not ready():
            self.change.wait()
        if self.failure:
            raise GroupStopped


class BoundedQueue(Generic[Item]):
    """A short queue between two threads of a crew; its writer closes it."""

    def __init__(self, group: ThreadGroup, room: int):
        self.group, self.room = group, room
        self.waiting: deque[Item] = deque()
        self.closed = False

    @property
    def full(self) -> bool:
        return len(self.waiting) >= self.room

    @property
    def ended(self) -> bool:
        """Whether nothing waits, and nothing will come."""
        return self.closed and not self.waiting

    def put(self, item: Item) -> bool:
        """Add something once there is room; False if the queue was closed meanwhile."""
        with self.group.change:
            self.group.wait_until(lambda: self.closed or not self.full)
            if not self.closed:
                self.waiting.append(item)
                self.group.change.notify_all()
            return not self.closed

    def replace(self, item: Item) -> int | None:
        """Put something in place of all that waits; how many that were, or None if the queue is closed."""
        with self.group.change:
            if self.closed or self.group.failure:
                return None
            replaced = len(self.waiting)
            self.waiting.clear()
            self.waiting.append(item)
            self.group.change.notify_all()
            return replaced

    def take(self) -> Item:
        """The first that waits; the caller has the lock, and has seen that there is one."""
        self.group.change.notify_all()
        return self.waiting.popleft()

    def close(self) -> None:
        with self.group.change:
            self.closed = True
            self.group.change.notify_all()

    def __iter__(self) -> Iterator[Item]:
        """What comes through, until the queue is closed and empty."""
        while True:
            with self.group.change:
                self.group.wait_until(lambda: self.waiting or self.closed)
                if self.ended:
                    return
                item = self.take()
            yield item


def set_torch_threads(count: int) -> None:
    """Let torch compute with so many threads in the thread that asks for it."""
    # a thread that has not asked how many there are takes what any thread set last, when it first computes
    torch.get_num_threads()
    torch.set_num_threads(count)
