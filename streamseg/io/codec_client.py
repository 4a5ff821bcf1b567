"""Videos that processes of their own decode and encode (codec_process.py), with the interface of those in this one."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from streamseg.io.codec_pool import IDLE, CodecProcess, ProcessDied, read_job
from streamseg.io.codec_slots import LABELS, PLANES, RGB, SLOTS, Slots
from streamseg.io.files import ClosedInTheEnd
from streamseg.io.planes import ColourMatrix, Orientation, PlaneFormat
from streamseg.io.sources import Decoding
from streamseg.io.yuv import Yuv420, empty_yuv, with_format

if TYPE_CHECKING:
    import numpy


class ProcessVideo:
    """A video that a process decodes: iterate over its pictures, once."""

    def __init__(self, address: str, name: str, decoding: Decoding) -> None:
        self.name, self.finished = name, False
        self.process = IDLE.start_job("read", read_job(address, name, decoding.hardware, decoding.planes))
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

    def is_ready(self, seconds: float) -> bool:
        """Return whether the next picture, or what there is instead, has come; wait for some seconds at most."""
        return self.process.has_answered(seconds)

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


class ProcessWriter(ClosedInTheEnd):
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
        job = {"path": str(path), "size": size, "rate": [rate.numerator, rate.denominator], "labels": labels}
        self.process = IDLE.start_job("write", job | {"audio_from": None if audio_from is None else str(audio_from)})
        opened = self.answer()
        try:
            self.slots = Slots(self.process.file, opened["opened"])
        except BaseException:
            self.process.kill()
            raise

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
        """Add a frame (3, H, W) on the CPU, as RGB or the planes of to_yuv, or labels (H, W); times must increase."""
        if tuple(frame.shape[-2:]) != self.size:
            height, width = self.size
            raise ValueError(f"A frame of {tuple(frame.shape)} does not fit a video of {height} x {width} pixels.")
        if not self.free:
            self.free.append(self.answer()["free"])
        slot = self.free.pop()
        is_planes = isinstance(frame, Yuv420)
        pixels: numpy.ndarray = (frame.pixels if isinstance(frame, Yuv420) else frame).numpy()
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
