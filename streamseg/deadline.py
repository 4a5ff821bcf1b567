"""Labels in time: frames are seen smaller if need be, and larger again when there is time.

A size is (height, width); times are seconds.
"""

import math
import threading

from streamseg.layers import SMALLEST

LEAST = 0.2
"""The smallest that frames become, as a share of each side."""
POOR = 0.5
"""The share of each side below which labels are poor: of the samples 79 to 96 % of the labels are still the same at a
half (the weights that ship), and 57 to 91 % at the smallest."""


class Deadline:
    """Chooses the size of the next frames by how long those before took; any thread may call it.

    Without a deadline frames keep their size.
    """

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        self.lock = threading.Lock()
        self.scale = 1.0
        """What the sides of the next frame are multiplied by."""
        self.late = 0
        """Frames whose labels came after the deadline."""
        self.out_of_reach = 0
        """Those of them that were as small as frames become."""

    def took(self, seconds: float, scale: float) -> None:
        """The labels of a frame that was seen at a scale took so long."""
        if self.seconds is None:
            return
        # time goes with the pixels; what a frame of an older, larger size took says what size would have been right
        right = scale * math.sqrt(0.8 * self.seconds / max(seconds, 1e-6))
        with self.lock:
            self.late += seconds > self.seconds
            self.out_of_reach += seconds > self.seconds and scale == LEAST
            if seconds > 0.9 * self.seconds:
                self.scale = max(LEAST, min(self.scale, right))
            elif seconds < 0.7 * self.seconds:
                self.scale = min(1.0, max(self.scale, min(right, 1.03 * self.scale)))


def smaller(size: tuple[int, int], scale: float) -> tuple[int, int]:
    """A height and width times a scale; sides of multiples of 32, so that few sizes occur, but none larger."""
    if scale == 1.0:
        return size
    height, width = (min(side, max(SMALLEST, round(side * scale / SMALLEST) * SMALLEST)) for side in size)
    return height, width
