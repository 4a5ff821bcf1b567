"""A process that decodes uploaded pictures, and encodes labels, for the server that started it (serve/codecs.py).

Only one thread of a process runs Python at a time. Codecs in processes of their own never wait for the thread that
answers requests, nor it for them. It imports PIL and numpy, not torch, to start at once.

Pictures and labels lie in slots of memory that all processes share; each job and each answer is a message of JSON:

    {"slot", "decode": bytes, "most": pixels}    the picture's file is in the slot  ──▶  {"shape": [3, H, W]}
    {"slot", "encode": [H, W], "colours": [...]}  the labels are in the slot        ──▶  {"bytes": of the PNG}
    {"slot", "compress": [H, W]}                                                    ──▶  {"bytes": for zlib}

The result is in the second part of the slot. An error is {"error": name, "text"}. The socket ends with the server.
"""

import json
import mmap
import os
import signal
import socket
import sys
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy

from streamseg.io import pictures

Message = dict[str, Any]

MESSAGE_BYTES = 2**16
"""More than any message has."""


@dataclass(frozen=True)
class SlotLayout:
    """The two parts of a slot, in bytes."""

    given: int
    """For a picture's file, or labels."""
    result: int
    """For a frame, or a file."""

    @property
    def total(self) -> int:
        return self.given + self.result

    @staticmethod
    def of(most_bytes: int, most_pixels: int) -> "SlotLayout":
        """Return the layout for files and pictures of at most these sizes."""
        # incompressible labels become a little larger than they are, which 3 bytes a pixel have room for
        sizes = max(most_bytes, most_pixels), 3 * most_pixels + 2**16
        # slots are mapped one by one, which takes whole pages
        return SlotLayout(*(-(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY for size in sizes))


class SlotMemory:
    """The shared memory, as slots that are mapped when they are first used. Only pages that are written take memory."""

    def __init__(self, file: int, layout: SlotLayout) -> None:
        self.file, self.layout = file, layout
        self.mapped: dict[int, mmap.mmap] = {}

    def map(self, slot: int) -> mmap.mmap:
        """Return a slot; the file grows if it is a new one."""
        if slot not in self.mapped:
            begin, total = slot * self.layout.total, self.layout.total
            if os.fstat(self.file).st_size < begin + total:
                os.ftruncate(self.file, begin + total)
            self.mapped[slot] = mmap.mmap(self.file, total, offset=begin)
        return self.mapped[slot]

    def given(self, slot: int, count: int) -> numpy.ndarray:
        """Return the first bytes of a slot's first part."""
        return numpy.frombuffer(self.map(slot), numpy.uint8, count)

    def result(self, slot: int, count: int) -> numpy.ndarray:
        """Return the first bytes of its second part."""
        return numpy.frombuffer(self.map(slot), numpy.uint8, count, self.layout.given)

    def put(self, slot: int, data: bytes | numpy.ndarray) -> int:
        """Write the first part of a slot; return how many bytes it takes."""
        values = numpy.frombuffer(data, numpy.uint8) if isinstance(data, bytes) else data
        self.given(slot, values.size).reshape(values.shape)[:] = values
        return values.size

    def discard(self, slot: int) -> None:
        """Give the memory of a slot back to the system; it is zero when it is used again."""
        self.map(slot).madvise(mmap.MADV_REMOVE)


@dataclass(frozen=True)
class Jobs:
    """Does the jobs of messages."""

    memory: SlotMemory

    @cached_property
    def kinds(self) -> dict[str, Any]:
        return {"decode": self.decode, "encode": self.encode, "compress": self.compress}

    def answer(self, job: Message) -> Message:
        """Do a job; return the answer."""
        kind = next(kind for kind in self.kinds if kind in job)
        try:
            done: Message = self.kinds[kind](job)
        except Exception as error:
            return {"error": type(error).__name__, "text": str(error)[:1000]}
        return done

    def decode(self, job: Message) -> Message:
        pixels = pictures.decode_upload(self.memory.given(job["slot"], job["decode"]).tobytes(), job["most"])
        self.memory.result(job["slot"], pixels.size).reshape(pixels.shape)[:] = pixels
        return {"shape": pixels.shape}

    def encode(self, job: Message) -> Message:
        return self.put(job, pictures.encode_labels(self.labels(job, "encode"), job["colours"]))

    def compress(self, job: Message) -> Message:
        return self.put(job, zlib.compress(self.labels(job, "compress").data, 1))

    def labels(self, job: Message, kind: str) -> numpy.ndarray:
        height, width = job[kind]
        return self.memory.given(job["slot"], height * width).reshape(height, width)

    def put(self, job: Message, data: bytes) -> Message:
        self.memory.result(job["slot"], len(data))[:] = numpy.frombuffer(data, numpy.uint8)
        return {"bytes": len(data)}


def main() -> None:
    """Do jobs until the socket ends."""
    # signals are for the server, which answers its requests and then closes the socket
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    file, connection_file, given, result = map(int, sys.argv[1:])
    pictures.allow_large_pictures()  # the server has limits of its own
    jobs = Jobs(SlotMemory(file, SlotLayout(given, result)))
    with socket.socket(fileno=connection_file) as connection:
        connection.send(b"{}")  # ready
        while message := connection.recv(MESSAGE_BYTES):
            connection.send(json.dumps(jobs.answer(json.loads(message))).encode())


if __name__ == "__main__":
    main()
