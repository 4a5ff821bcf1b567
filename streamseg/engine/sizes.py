"""Which sizes of frames are worth keeping ready: those that come often."""

from collections import Counter, deque
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

RECENT = 512
"""How many of the last frames count."""
RATIO = 3
"""How many times as often a size must come as the rarest of those that are kept, to take its place: where more sizes
come than are kept, and all of them alike, none is prepared again and again."""


class SizeCounter(Generic[Key]):
    """Counts the sizes of the last frames.

    Args:
        room: How many sizes are kept ready at a time.
    """

    def __init__(self, room: int):
        self.room = room
        self.recent: deque[Key] = deque()
        self.counts: Counter[Key] = Counter()

    def note(self, key: Key) -> None:
        """A frame of a size has come."""
        self.recent.append(key)
        self.counts[key] += 1
        if len(self.recent) > RECENT:
            oldest = self.recent.popleft()
            self.counts[oldest] -= 1
            if not self.counts[oldest]:
                del self.counts[oldest]

    def admits(self, key: Key, kept: Collection[Key]) -> bool:
        """Whether a size is worth a place among those that are kept."""
        return len(kept) < self.room or self.counts[key] > RATIO * self.counts[self.rarest(kept)] + 1

    def rarest(self, kept: Collection[Key]) -> Key:
        """The size that came least often; of several, the first."""
        return min(kept, key=self.counts.__getitem__)
