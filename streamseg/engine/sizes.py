"""Decides which frame sizes keep their buffers and CUDA graphs: the frequent ones."""

from collections import Counter, deque
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

RECENT = 512
"""Number of recent frames that are counted."""
RATIO = 3
"""How many times as frequent as the rarest kept size a new size must be to replace it. If more sizes come than are
kept, all equally often, none is prepared again and again."""


class SizeCounter(Generic[Key]):
    """Counts the sizes of recent frames.

    Args:
        capacity: Number of sizes that are kept at a time.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.recent: deque[Key] = deque()
        self.counts: Counter[Key] = Counter()

    def add(self, key: Key) -> None:
        """Count a frame of a size."""
        if len(self.recent) == RECENT and self.recent[0] == key:  # the usual case: the counts stay
            self.recent.rotate(-1)
            return
        self.recent.append(key)
        self.counts[key] += 1
        if len(self.recent) > RECENT:
            oldest = self.recent.popleft()
            self.counts[oldest] -= 1
            if not self.counts[oldest]:
                del self.counts[oldest]

    def admits(self, key: Key, kept: Collection[Key]) -> bool:
        """Return whether a size should be kept, in addition to the kept ones or instead of the rarest."""
        return len(kept) < self.capacity or self.counts[key] > RATIO * self.counts[self.rarest(kept)] + 1

    def rarest(self, kept: Collection[Key]) -> Key:
        """Return the least frequent size; the first one if there are several."""
        return min(kept, key=self.counts.__getitem__)
