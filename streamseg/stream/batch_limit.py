"""How many frames share a batch: as many as wait, within a limit of frames, pixels and time.

A batch waits for nothing: while the network is busy, frames of other streams arrive and form the next batch; when it is
idle, a frame that waited for company would only be older. So batches are as large as the load requires. Each frame
of a live source waits for the batch before it and then for its own, which is why a batch is limited in time: where a
larger one takes longer in proportion, as on a CPU, streams take turns instead, each with its newest frame. On a GPU the
network itself, which labels frames while the fast engine is prepared, takes about as long for many as for one: then the
time is no limit.

Sizes are (height, width) of the network input, times are seconds.
"""

from streamseg.stream.label_frames import MAX_PIXELS

MAX_BATCH = 16
"""The largest number of frames in a batch, each of another source."""
MAX_BATCH_PIXELS = 8 * MAX_PIXELS
"""The largest number of pixels in a batch: 16 frames of 720 x 1280, or 8 of 1024 x 2048."""
BATCH_SECONDS = 0.05
"""How long a batch with frames of live sources should take; half of the deadline, if there is one."""
KEPT_SIZES = 256
"""Of how many network input sizes the time is known: pictures of a server may have any."""


def floor_power_of_two(count: int) -> int:
    """Return the largest power of two up to a count: on a GPU each batch size needs a CUDA graph, and few are kept."""
    return 2 ** (count.bit_length() - 1)


class BatchLimit:
    """The largest batch of each network input size, by the time that the last batch of that size took."""

    def __init__(self, budget: float, max_frames: int = MAX_BATCH, max_pixels: int = MAX_BATCH_PIXELS):
        """
        Args:
            budget: How long a batch should take; infinite for files, which wait for the network.
            max_frames: The largest number of frames in a batch, however fast it is.
            max_pixels: The same of their pixels; a batch of one frame may have more.
        """
        self.budget, self.max_frames, self.max_pixels = budget, max_frames, max_pixels
        self.frame_seconds: dict[tuple[int, int], float] = {}
        """The share of a frame in the time of the last batch of a size."""

    def most_frames(self, size: tuple[int, int]) -> int:
        """Return how many frames of a size may share a batch, however long it takes."""
        return max(1, min(self.max_frames, self.max_pixels // (size[0] * size[1])))

    def frames(self, size: tuple[int, int]) -> int:
        """Return how many frames of a size may share a batch; one, while it is unknown how long it takes."""
        most = self.most_frames(size)
        seconds = self.frame_seconds.get(size, self.budget)
        return most if most * seconds <= self.budget else max(1, int(self.budget / seconds))

    def record(self, size: tuple[int, int], frames: int, seconds: float) -> None:
        """Take the time of a batch. One that was slow by chance is corrected by the next, which is then smaller."""
        self.frame_seconds.pop(size, None)
        if len(self.frame_seconds) == KEPT_SIZES:
            del self.frame_seconds[next(iter(self.frame_seconds))]  # the size that has not come for longest
        self.frame_seconds[size] = seconds / frames
