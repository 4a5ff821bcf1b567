"""Videos that processes of their own decode and encode (codec_process.py), with the interface of those in this one.

A process is kept for the next video. It ends with this one, and so does the memory that both share, which has no name
in the system: nothing can be left behind.
"""

import atexit
import builtins
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from streamseg import checks
from streamseg.io.codec_process import LABELS, PLANES, RGB, SLOTS, Slots
from streamseg.io.planes import ColourMatrix, Orientation, PlaneFormat
from streamseg.io.sources import Decoding
from streamseg.io.yuv import Yuv420, empty_yuv, with_format

if TYPE_CHECKING:
    import numpy

MAX_IDLE = 16
"""Processes that are kept for the next videos: as many as decode and encode the files that are read at once."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Of numpy, which only copies; codecs have threads of their own."""

END_SECONDS = 2.0
"""How long a process has to end by itself."""


class ProcessDied(OSError):  # noqa: N818 (told as any OSError)
    """A process has ended in the middle of its job."""


def are_possible() -> bool:
    """Return whether codecs can run in processes here: on Linux, which has memory without a name, by Python itself."""
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    return hasattr(os, "memfd_create") and is_python


class CodecProcess:
    """A process that decodes or encodes one video after the other."""

    def __init__(self) -> None:
        path = os.pathsep.join(part or str(Path.cwd()) for part in sys.path)
        self.file = os.memfd_create("streamseg")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streamseg.io.codec_process", str(self.file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(self.file,),
                start_new_session=True,  # a Ctrl-C in the terminal must not end it while it starts
                env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **ONE_THREAD},
            )
        except BaseException:
            os.close(self.file)
            raise

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def start_job(self, kind: str, job: dict[str, Any]) -> None:
        """Send a job; its names of files are relative to the folder that is the current one now."""
        with suppress(OSError):  # a folder that was deleted
            job = job | {"folder": str(Path.cwd())}
        self.send({kind: job})

    def send(self, message: dict[str, Any]) -> None:
        """Send a line; what became of a process that has gone is told by its answer."""
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def answer(self, name: str) -> dict[str, Any]:
        """Wait for a line; raise the error that it tells of, after which the process waits for the next job.

        Args:
            name: The video, for the message if the process has died.
        """
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            status = self.process.wait()
            hint = (
                ": is there enough memory?" if status == -signal.SIGKILL else "; STREAMSEG_CODECS=threads does without."
            )
            raise ProcessDied(f"{name}: the process of its codec ended with status {status}{hint}")
        message = json.loads(line)
        if "error" in message:
            raise to_error(message)
        return message

    def end(self) -> None:
        """End the process, and free the memory."""
        process = self.process
        assert process.stdin
        assert process.stdout
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        os.close(self.file)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the process so far; it is alive."""
        # after the name, which may hold anything, from the third field on
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.end()


class Idle:
    """Processes that wait for the next video."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.processes: list[CodecProcess] = []

    def take(self) -> CodecProcess:
        """Return a process that waits, or a new one."""
        with self.lock:
            while self.processes:
                process = self.processes.pop()
                if process.alive:
                    return process
                process.end()
        return CodecProcess()

    def give_back(self, process: CodecProcess) -> None:
        """Keep a process that has finished its job."""
        with self.lock:
            if len(self.processes) < MAX_IDLE and process.alive:
                self.processes.append(process)
                return
        process.end()

    def start(self, count: int) -> None:
        """Start processes ahead, until a number of them waits."""
        for _ in range(min(count, MAX_IDLE) - len(self.processes)):
            self.give_back(CodecProcess())

    def end(self) -> None:
        """End all that wait."""
        with self.lock:
            processes, self.processes = self.processes, []
        for process in processes:
            process.process.stdin.close()  # type: ignore[union-attr]  # all at once, then wait for each
        for process in processes:
            process.end()


IDLE = Idle()
atexit.register(IDLE.end)


def to_error(message: dict[str, Any]) -> Exception:
    """Return the error that a message of a process tells of."""
    kind = getattr(checks, message["error"], None) or getattr(builtins, message["error"], None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):  # one of FFmpeg's
        kind = OSError if message["errno"] else ValueError
    if message["errno"] and issubclass(kind, OSError):
        return kind(message["errno"], message["strerror"])
    return kind(message["text"])


class ProcessVideo:
    """A video that a process decodes: iterate over its pictures, once."""

    def __init__(self, address: str, name: str, decoding: Decoding) -> None:
        self.name, self.finished = name, False
        self.process = IDLE.take()
        job = {"address": address, "name": name, "hardware": decoding.hardware, "planes": decoding.planes}
        self.process.start_job("read", job)
        opened = self.answer()
        try:
            self.slots = Slots(self.process.file, opened["opened"])
        except BaseException:
            self.close()
            raise
        self.rate = Fraction(*opened["rate"])
        self.length: int | None = opened["length"]
        self.note: str = opened["note"]
        self.orientation = Orientation(*opened["orientation"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pictures(self, decoding: Decoding) -> Iterator[tuple[Tensor | Yuv420, float]]:
        """Yield frames and their times: planes, if they were asked for and the video has them, else RGB."""
        while "end" not in (message := self.answer()):
            pixels = self.copy(message, decoding.pinned)
            self.process.send({"free": message["frame"]})
            yield pixels, message["seconds"]
        self.end(IDLE.give_back)

    def answer(self) -> dict[str, Any]:
        """Wait for an answer; an error ends the job."""
        try:
            return self.process.answer(self.name)
        except ProcessDied:
            self.end(CodecProcess.end)
            raise
        except Exception:
            self.end(IDLE.give_back)
            raise

    def copy(self, message: dict[str, Any], pinned: bool) -> Tensor | Yuv420:
        """Return a copy of the frame in a slot."""
        slot, shape = message["frame"], tuple(message["shape"])
        if message["kind"] == RGB:
            frame = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
            frame.numpy().reshape(-1)[:] = self.slots.array(slot, frame.numel())
            return frame
        matrix = ColourMatrix(*message["matrix"])
        planes = PlaneFormat((shape[0], shape[1]), message["bits"], matrix, message["full_range"], self.orientation)
        pixels = empty_yuv(planes.size, planes.bits, pinned=pinned)
        pixels.numpy()[:] = self.slots.array(slot, planes.count, "uint8" if planes.bits == 8 else "int16")
        return with_format(pixels, planes)

    def close(self) -> None:
        """Give up what was not read."""
        self.end(CodecProcess.kill)

    def end(self, leave: Callable[[CodecProcess], None]) -> None:
        """Part with the process, once."""
        if not self.finished:
            self.finished = True
            leave(self.process)


class ProcessWriter:
    """A video that a process encodes, in a with statement; as VideoWriter."""

    def __init__(
        self,
        path: Path,
        size: tuple[int, int],
        rate: Fraction,
        *,
        labels: bool,
        audio_from: str | Path | None = None,
        name: str = "",
    ) -> None:
        """Start a video.

        Args:
            name: The file that was asked for, for messages, if the path is a temporary one.
        """
        self.path, self.size, self.closed = path, size, False
        self.name = name or str(path)
        self.free = list(range(SLOTS))
        self.process = IDLE.take()
        job = {"path": str(path), "size": size, "rate": [rate.numerator, rate.denominator], "labels": labels}
        self.process.start_job("write", job | {"audio_from": None if audio_from is None else str(audio_from)})
        opened = self.answer()
        try:
            self.slots = Slots(self.process.file, opened["opened"])
        except BaseException:
            self.process.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # the first of two errors says more
            with suppress(OSError):
                self.close()

    def answer(self) -> dict[str, Any]:
        """Wait for an answer. After an error the process is ended."""
        try:
            return self.process.answer(self.name)
        except BaseException as error:
            self.closed = True
            self.process.kill()
            if isinstance(error, OSError) and error.errno:
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            raise

    def write(self, frame: Tensor | Yuv420, seconds: float) -> None:
        """Add a frame (3, H, W), as RGB or as the planes of to_yuv, or labels (H, W); times must increase."""
        if tuple(frame.shape[-2:]) != self.size:
            height, width = self.size
            raise ValueError(f"A frame of {tuple(frame.shape)} does not fit a video of {height} x {width} pixels.")
        if not self.free:
            self.free.append(self.answer()["free"])
        slot = self.free.pop()
        is_planes = isinstance(frame, Yuv420)
        pixels: numpy.ndarray = (frame.pixels if isinstance(frame, Yuv420) else frame.cpu()).numpy()
        self.slots.array(slot, pixels.size)[:] = pixels.reshape(-1)
        shape = frame.size if isinstance(frame, Yuv420) else frame.shape
        kind = PLANES if is_planes else LABELS if pixels.ndim == 2 else RGB
        self.process.send({"frame": slot, "kind": kind, "seconds": seconds, "shape": list(shape)})

    def close(self) -> None:
        """Write the frames that the encoder still holds, and the end of the file."""
        if self.closed:
            return
        self.process.send({"close": True})
        while "end" not in self.answer():
            pass
        self.closed = True
        IDLE.give_back(self.process)
