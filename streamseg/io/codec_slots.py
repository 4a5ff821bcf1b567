"""The memory that a process of codecs (codec_process.py) shares with the process that started it.

Without PyAV, which only the former needs.
"""

import mmap
import os

import numpy

SLOTS = 4
"""Frames that may be on their way at once."""
PLANES, RGB, LABELS = "planes", "rgb", "labels"
"""What a slot holds."""


class Slots:
    """The shared memory, as slots of a number of bytes each; a larger frame makes it larger."""

    def __init__(self, file: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        size = SLOTS * slot_bytes
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self.memory = numpy.frombuffer(mmap.mmap(file, size), numpy.uint8)

    def array(self, slot: int, count: int, kind: str = "uint8") -> numpy.ndarray:
        """Return the first values of a slot."""
        begin = slot * self.slot_bytes
        return self.memory[begin : begin + count * numpy.dtype(kind).itemsize].view(kind)
