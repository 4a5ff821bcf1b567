"""Read video files, network streams and cameras as frames, and label videos as labels.

A frame is RGB, uint8, (3, H, W); a size is (height, width); times are in seconds from the first frame.
"""

import errno
import itertools
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, cast

from streamseg.checks import CutShort
from streamseg.io.checksums import damaged_file_error
from streamseg.io.containers import is_cut, matroska_is_damaged
from streamseg.io.hardware import fallback_note
from streamseg.io.planes import Orientation
from streamseg.io.pyav import (
    FULL_RANGE,
    UNDECLARED_MATRIX,
    av,
    closed_on_error,
    default_colour_matrix,
    new_reformatter,
    require_av,
    time_base,
    to_array,
    to_planes,
)
from streamseg.io.sources import Decoding
from streamseg.io.video_streams import declared_end, declared_frames, frame_rate, open_container, reading_error
from streamseg.io.web import redact

if TYPE_CHECKING:
    from av import Packet, VideoFrame, VideoStream
    from av.buffer import Buffer
    from av.container import InputContainer
    from torch import Tensor

    from streamseg.io.decoded_frame import DecodedFrame
    from streamseg.io.yuv import Yuv420

Pixels = TypeVar("Pixels")

MAX_PIXELS_PER_FRAME = 2**26
"""Twice as many as 8K has: a damaged file may ask for more than there is memory."""

MAX_FRAME_GAP = 3600.0
"""Seconds between two frames; more is a damaged timestamp, and too much for MP4."""

LIVE_THREADS = 2
"""Threads of the decoder of a live stream: frames have few slices, and hundreds of cameras may be open."""

UNDECODABLE_SECONDS = 60.0
"""After this time in which no packet of a live stream could be decoded it counts as lost: a stream is joined at any
moment, and cameras may take half a minute from key frame to key frame."""

# FFmpeg's number for a cover picture
ATTACHED_PICTURE = 0x400


class Video:
    """A video being read: iterate over it, once, for its frames and their times.

    Frames are upright, and those of a file have the size of the first. Pixels that are not square are taken as square.
    Times strictly increase: where timestamps are missing or go back, they are computed from the rate. After the last
    frame of a damaged file CutShort is raised.
    """

    def __init__(
        self,
        container: "InputContainer",
        stream: "VideoStream",
        name: str,
        hardware: str = "",
        live: bool = False,
    ) -> None:
        """
        Args:
            live: Whether it is a camera or a network stream: it may change the size of its frames, and ends if none can
                be decoded for long.
        """
        self.container, self.stream, self.name, self.live = container, stream, name, live
        self.rate = frame_rate(stream)
        """Frames a second, on average."""
        self.has_audio = bool(container.streams.audio)
        self.length = declared_frames(stream) or round((container.duration or 0) / av.time_base * self.rate) or None
        """How many frames the file declares; if it declares a duration only, computed from the rate."""
        self.reformat = new_reformatter()
        self.converting = threading.Lock()
        """Held while a frame is converted: those of a live video by any thread."""
        self.known_format = ""
        """The pixel format that the last frame of a live video was converted from at once."""
        self.fault: av.error.FFmpegError | None = None
        self.unreadable = 0
        """How many packets could not be decoded."""
        self.end = self.end_of_all = 0.0
        """Where the packets of the video end, and those of video and audio."""
        self.frames = self.decode()
        """The stored frames; its last packet is freed before the container is closed."""
        first = next(self.frames, None)
        if first is None:
            raise (
                reading_error(self.fault, name)
                if self.fault
                else ValueError(f"{name} has no readable frame: give another file.")
            )
        self.decoded = itertools.chain([first], self.frames)
        self.note = fallback_note(name, hardware, first.format.name)
        """A sentence if a hardware decoder was wanted and there is none for this video."""
        self.measure(first)

    def measure(self, stored: "VideoFrame") -> None:
        """Take size and orientation of a frame as those of the next ones."""
        self.known_format = ""
        self.stored_size = (stored.height, stored.width)
        self.orientation = find_orientation(stored)
        self.size = self.stored_size[::-1] if self.orientation.transposed else self.stored_size
        """Height and width of each frame."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.frames.close()
        self.container.close()

    def __iter__(self) -> Iterator[tuple["Tensor", float]]:
        return self.read(self.to_frame)

    def pictures(self, decoding: Decoding) -> Iterator[tuple["Tensor | Yuv420 | DecodedFrame", float]]:
        """Yield frames and their times: planes, if they are asked for and the video has them, else RGB.

        The frames of a live video become RGB when they are needed, which those that are dropped never are.
        """

        def convert(stored: "VideoFrame") -> "Tensor | Yuv420":
            fits = (stored.height, stored.width) == self.stored_size
            planes = to_planes(stored, self.orientation, pinned=decoding.pinned) if fits else None
            return self.to_frame(stored) if planes is None else planes

        if decoding.planes:
            return self.read(convert)
        return self.read(self.to_decoded if self.live else self.to_frame)

    def read(self, convert: Callable[["VideoFrame"], Pixels]) -> Iterator[tuple[Pixels, float]]:
        """Yield the converted frames and their times; then raise CutShort if frames are missing or damaged."""
        clock, count, damaged, begun = FrameClock(self.rate, time_base(self.stream)), 0, 0, False
        for stored in self.decoded:
            if self.live and (stored.height, stored.width) != self.stored_size:
                self.measure(stored)
            yield convert(stored), clock.next_time(stored.pts)
            count += 1
            # frames before the first key frame of a recording are always incomplete
            begun = begun or bool(stored.key_frame)
            damaged += stored.is_corrupt and begun
        frames = f"{count} frame{'s' * (count != 1)}"
        if self.fault:
            silent = isinstance(self.fault, av.error.ExitError)
            reason = "it no longer answers" if silent else self.fault.strerror
            raise CutShort(f"{self.name} ended early, after {frames}: {reason}.")
        if self.is_short():
            raise CutShort(f"{self.name} is cut short: only {frames} could be read.")
        if self.unreadable or damaged:
            faults = f", {damaged} of them with faults" if damaged else ""
            lost = f", at least {self.unreadable} could not be decoded" if self.unreadable else ""
            raise CutShort(f"{self.name} is damaged: {frames} could be read{faults}{lost}.")

    def decode(self) -> Generator["VideoFrame", None, None]:
        """Yield the stored frames; packets that cannot be decoded are counted and skipped."""
        codec = self.stream.codec_context
        # a camera's packets are memory of its driver, which is gone when it is closed; frames may lie in them
        own = copy_packet if "v4l2" in self.container.format.name else None
        started, latest = False, time.monotonic()
        try:
            for packet in self.container.demux(self.stream, *self.container.streams.audio):
                if packet.dts is None and not packet.size:  # the end
                    break
                end = float(((packet.pts or 0) + (packet.duration or 0)) * time_base(packet.stream))
                self.end_of_all = max(self.end_of_all, end)
                if packet.stream is not self.stream:
                    continue
                self.end = max(self.end, end)
                damaged, frames = packet.is_corrupt, []
                try:
                    frames = codec.decode(own(packet) if own else packet)
                except av.error.FFmpegError:
                    damaged = True
                # a recording may start between key frames, and is not damaged before the first
                started = started or packet.is_keyframe
                self.unreadable += damaged and started
                yield from frames
                now = time.monotonic()
                if frames:
                    latest = now
                elif self.live and now - latest >= UNDECODABLE_SECONDS:
                    reason = f"no frame could be decoded for {UNDECODABLE_SECONDS:.0f} s"
                    self.fault = av.error.InvalidDataError(errno.EINVAL, reason)
                    break
        except av.error.FFmpegError as error:
            self.fault = error
        # each thread of the decoder may still hold a frame or an error
        for _ in range(256):
            try:
                yield from codec.decode(None)
            except av.error.EOFError:
                return
            except av.error.FFmpegError:
                self.unreadable += 1

    def to_frame(self, stored: "VideoFrame") -> "Tensor":
        """Convert a stored frame to RGB, upright."""
        return to_tensor(self.to_rgb(stored, self.stored_size), self.orientation)

    def to_decoded(self, stored: "VideoFrame") -> "DecodedFrame":
        """Return a stored frame that becomes RGB when it is needed, with the size and orientation of now."""
        from streamseg.io.decoded_frame import DecodedFrame  # with torch: the processes of codecs do without

        size, orientation = self.stored_size, self.orientation
        frame = DecodedFrame(self.size, lambda: to_tensor(self.to_rgb(stored, size), orientation))
        if stored.format.name != self.known_format:  # one that cannot be read is told of here, not by who needs it
            frame.to_rgb()
            self.known_format = stored.format.name
        return frame

    def to_rgb(self, stored: "VideoFrame", size: tuple[int, int]) -> "VideoFrame":
        """Convert a stored frame to RGB, in a height and width."""
        height, width = size
        try:
            with self.converting:
                return self.reformat(
                    stored,
                    width,
                    height,
                    # FFmpeg's fast conversion to planes, of 8 bits and an even height, does not write the columns
                    # behind the last multiple of 16; its others to interleaved RGB are up to ten steps off
                    "rgb24" if width % 16 and height % 2 == 0 and stored.format.components[0].bits == 8 else "gbrp",
                    src_colorspace=default_colour_matrix(height) if stored.colorspace == UNDECLARED_MATRIX else None,
                    # meaningless for RGB, but PyAV 14 uses the source's matrix only if the two differ
                    dst_colorspace="ITU601",
                    src_color_range="JPEG" if stored.color_range == FULL_RANGE else None,
                )
        except (av.error.FFmpegError, ValueError) as error:
            raise ValueError(f"{self.name} has a pixel format that cannot be read ({error}).") from None

    def is_short(self) -> bool:
        """Return whether the file holds less than it declares."""
        place = self.container.name
        if place.startswith("file:") and is_cut(Path(place.removeprefix("file:"))):
            return True
        end, missing = declared_end(self.stream), 0.0
        if end is not None:
            missing = end - self.end
        elif "matroska" in self.container.format.name:  # which has the total duration at its beginning
            missing = (self.container.duration or 0) / av.time_base - self.end_of_all
        return missing > 0.5 + 2 / self.rate


def copy_packet(packet: "Packet") -> "Packet":
    """Return a packet with memory of its own."""
    copy = av.Packet(bytes(cast("Buffer", packet)))
    copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
    return copy


def find_orientation(frame: "VideoFrame") -> Orientation:
    """Return the orientation that a frame's display matrix says: quarter turns and mirrors; others are ignored."""
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return Orientation()
    # a pixel at (x, y) is shown at (a x + c y, b x + d y), in units of 1 / 65536
    a, b, _, c, d, *_ = (round(part / 65536) for part in struct.unpack("=9i", bytes(cast("Buffer", data))))
    if a == d == 0 and b and c:
        return Orientation(True, 1 if b > 0 else -1, 1 if c > 0 else -1)
    if b == c == 0 and a and d:
        return Orientation(False, 1 if d > 0 else -1, 1 if a > 0 else -1)
    return Orientation()


def to_tensor(frame: "VideoFrame", orientation: Orientation) -> "Tensor":
    """Return the pixels of a frame as channels (C, H, W), upright."""
    import torch  # not above: the processes of codecs do without

    return torch.from_numpy(to_array(frame, orientation))


class FrameClock:
    """Computes times from timestamps. The times strictly increase, whatever the timestamps do."""

    def __init__(self, rate: Fraction, tick: Fraction) -> None:
        self.step, self.tick = float(1 / rate), tick
        self.latest: float | None = None
        self.origin: int | None = None
        self.origin_time = 0.0

    def next_time(self, timestamp: int | None) -> float:
        """Return the time of the next frame, in seconds from the first."""
        due = 0.0 if self.latest is None else self.latest + self.step
        if timestamp is None:
            self.latest = due
            return due
        if self.origin is None:
            self.origin, self.origin_time = timestamp, due
        seconds = self.origin_time + float((timestamp - self.origin) * self.tick)
        if self.latest is not None and not 0 < seconds - self.latest < MAX_FRAME_GAP:
            if -self.step < seconds - self.latest <= 0:
                # the same time twice: the next timestamps are right again
                seconds = self.latest + self.step / 4
            else:
                # the timestamps start anew
                self.origin, self.origin_time, seconds = timestamp, due, due
        self.latest = seconds
        return seconds


def open_video(address: str | Path, *, name: str = "", timeout: float = 10.0, hardware: str = "") -> Video:
    """Open a video in a file, or at an address such as https://host/name.mp4.

    Args:
        name: The name in error messages; by default the address.
        timeout: Seconds within which a server must answer.
        hardware: A hardware decoder, such as cuda, or auto; a video that it cannot decode is decoded on the CPU.
    """
    container = open_container(str(address), timeout, hardware=hardware)
    return open_video_stream(container, name or redact(str(address)), "AUTO", hardware)


def open_stream(address: str, *, timeout: float = 10.0, hardware: str = "") -> Video:
    """Open a live stream, such as rtsp://host/name; frames are returned as soon as they are decoded.

    Args:
        timeout: Seconds within which it must answer, and after which a silent stream counts as gone.
        hardware: As of open_video.
    """
    # not FFmpeg's nobuffer, which drops what was analysed: the first key frame of a stream
    options = {"analyzeduration": "1000000"}
    if address.lower().startswith("rtsp"):
        options["rtsp_transport"] = "tcp"
    container = open_container(address, timeout, options, hardware)
    return open_video_stream(container, redact(address), "SLICE", hardware)


def open_camera(name: str, *, timeout: float = 10.0) -> Video:
    """Open a camera by its number from 0, by its device (/dev/video0) on Linux, or by its name elsewhere."""
    require_av()
    options: dict[str, str] = {}
    if sys.platform == "linux":
        format, device = "v4l2", f"/dev/video{name}" if name.isdigit() else name
    elif sys.platform == "darwin":
        # the default rate is one that few cameras have
        format, device, options = "avfoundation", name, {"framerate": "30"}
    elif name.isdigit():
        format, device = "vfwcap", name
    else:
        format, device = "dshow", f"video={name}"
    try:
        container = av.open(device, format=format, container_options=options, timeout=timeout)
    except av.error.FFmpegError as error:
        missing = f"No camera {name} here: plug one in, or give another number."
        reasons = {
            errno.ENOENT: missing,
            errno.ENODEV: missing,
            errno.EBUSY: f"Camera {name} is in use: close the program that uses it.",
            errno.EACCES: f"No permission to use camera {name}: on Linux, join the group video.",
        }
        message = reasons.get(error.errno or 0, f"Camera {name} cannot be used: {error.strerror}.")
        raise (FileNotFoundError if message == missing else OSError)(message) from None
    except ValueError:
        raise OSError(f"Camera {name} cannot be used: this PyAV was built without cameras.") from None
    return open_video_stream(container, f"Camera {name}", "SLICE")


def read_label_video(path: str | Path) -> Iterator[tuple["Tensor", float]]:
    """Yield the labels (H, W) and times of a lossless label video."""
    path = Path(path)
    if path.is_file() and matroska_is_damaged(path):
        raise damaged_file_error(path)
    with open_video(path) as video:
        codec = video.stream.codec_context.name

        def to_labels(stored: "VideoFrame") -> "Tensor":
            if (codec, stored.format.name) != ("ffv1", "gray"):
                raise ValueError(f"{path} is no video of labels: it holds {codec} of {stored.format.name}, not gray.")
            return to_tensor(stored, Orientation())[0]

        yield from video.read(to_labels)


def open_video_stream(container: "InputContainer", name: str, threads: str, hardware: str = "") -> Video:
    """Return the video in a container, which is closed if there is none."""
    with closed_on_error(container):
        stream = container.streams.best("video")
        if not isinstance(stream, av.VideoStream) or getattr(stream, "disposition", 0) & ATTACHED_PICTURE:
            raise ValueError(f"{name} holds no video: give another file.")
        if stream.codec_context is None:
            raise ValueError(f"{name} has a video codec that cannot be decoded: convert it to MP4 first.")
        stream.codec_context.thread_type = threads
        live = threads == "SLICE"
        if live:
            stream.codec_context.thread_count = LIVE_THREADS
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS_PER_FRAME)}
        return Video(container, stream, name, hardware, live)
