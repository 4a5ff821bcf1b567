"""Video files, network streams and cameras: in as frames, out as frames and label maps.

A frame is RGB, uint8, (3, H, W); a size is (height, width); times are in seconds from the first frame. PyAV lives here
and nowhere else.
"""

import errno
import itertools
import re
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from streamseg.checks import CutShort as CutShort
from streamseg.io.checksums import damaged_file_error
from streamseg.io.containers import is_cut, matroska_is_damaged
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from av import VideoFrame, VideoStream
    from av.buffer import Buffer
    from av.container import InputContainer

from streamseg.io.pyav import (
    PLANE_CHANNELS,
    av,
    closed_on_error,
    default_colour_matrix,
    new_reformatter,
    plane_views,
    require_av,
    time_base,
)

# FFmpeg's numbers for what a video may say of its colours
UNSPECIFIED, BT709, BT601 = 2, 1, 6
LIMITED, FULL = 1, 2

# twice what 8K has: a damaged file may ask for more than there is memory
MAX_PIXELS_PER_FRAME = 2**26

# seconds between two frames; more is a damaged timestamp, and too much for MP4
MAX_FRAME_GAP = 3600.0

ATTACHED_PICTURE = 0x400


class Video:
    """A video being read: iterate over it, once, for its frames and their times.

    Frames are upright, and all of the size of the first; pixels that are not square are taken as if they were. Times
    strictly increase: where timestamps are missing or go back, they are made up from the rate. After the last frame of
    a file that is damaged CutShort is raised.
    """

    def __init__(self, container: "InputContainer", stream: "VideoStream", name: str) -> None:
        self.container, self.stream, self.name = container, stream, name
        self.rate = frame_rate(stream)
        """Frames a second, on average."""
        self.has_audio = bool(container.streams.audio)
        self.length = declared_frames(stream) or round((container.duration or 0) / av.time_base * self.rate) or None
        """How many frames it has, as far as it says so, and at an even rate if it tells a time alone."""
        self.reformat = new_reformatter()
        self.fault: av.error.FFmpegError | None = None
        self.unreadable = 0
        self.end = self.end_of_all = 0.0
        decoded = self.decode()
        first = next(decoded, None)
        if first is None:
            raise reading_error(self.fault, name) if self.fault else ValueError(f"Not one frame of {name} can be read.")
        self.decoded = itertools.chain([first], decoded)
        self.stored_size = (first.height, first.width)
        self.turn = find_orientation(first)
        self.size = self.stored_size[::-1] if self.turn.transposed else self.stored_size
        """Height and width of each frame."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.container.close()

    def __iter__(self) -> Iterator[tuple[Tensor, float]]:
        for stored, seconds in self.timed():
            try:
                frame = to_tensor(self.to_rgb(stored), self.turn)
            except (av.error.FFmpegError, ValueError) as error:
                raise ValueError(f"{self.name} has pixels of a kind that cannot be read ({error}).") from None
            yield frame, seconds

    def timed(self) -> Iterator[tuple["VideoFrame", float]]:
        """The frames as they are stored, and their times; then CutShort, if there should have been more."""
        clock, count, faulty, begun = FrameClock(self.rate, time_base(self.stream)), 0, 0, False
        for stored in self.decoded:
            yield stored, clock.tell(stored.pts)
            count += 1
            # before its first picture that stands alone a recording shows what it can
            begun = begun or bool(stored.key_frame)
            faulty += stored.is_corrupt and begun
        frames = f"{count} frame{'s' * (count != 1)}"
        if self.fault:
            silent = isinstance(self.fault, av.error.ExitError)
            reason = "it no longer answers" if silent else self.fault.strerror
            raise CutShort(f"{self.name} ended early, after {frames}: {reason}.")
        if self.is_short():
            raise CutShort(f"{self.name} is cut short: only {frames} could be read.")
        if self.unreadable or faulty:
            faults = f", {faulty} of them with faults" if faulty else ""
            lost = f", at least {self.unreadable} could not be decoded" if self.unreadable else ""
            raise CutShort(f"{self.name} is damaged: {frames} could be read{faults}{lost}.")

    def decode(self) -> Iterator["VideoFrame"]:
        """The frames as they are stored; what cannot be decoded is counted and left out."""
        codec = self.stream.codec_context
        started = False
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
                    frames = codec.decode(packet)
                except av.error.FFmpegError:
                    damaged = True
                # a recording may start between pictures that stand alone, and has to find its first
                started = started or packet.is_keyframe
                self.unreadable += damaged and started
                yield from frames
        except av.error.FFmpegError as error:
            self.fault = error
        # each thread of the decoder may still hold a frame, or what is wrong with one
        for _ in range(256):
            try:
                yield from codec.decode(None)
            except av.error.EOFError:
                return
            except av.error.FFmpegError:
                self.unreadable += 1

    def to_rgb(self, stored: "VideoFrame") -> "VideoFrame":
        """A frame as green, blue and red, in the first frame's size."""
        height, width = self.stored_size
        return self.reformat(
            stored,
            width,
            height,
            # FFmpeg's way to planes leaves the columns behind the last 16 as it finds them
            "rgb24" if width % 16 else "gbrp",
            src_colorspace=default_colour_matrix(height) if stored.colorspace == UNSPECIFIED else None,
            # of no meaning for RGB, but PyAV 14 looks at the colours' matrix only if the two differ
            dst_colorspace="ITU601",
            src_color_range="JPEG" if stored.color_range == FULL else None,
        )

    def is_short(self) -> bool:
        """Whether less came than the file says that it holds."""
        place = self.container.name
        if place.startswith("file:") and is_cut(Path(place.removeprefix("file:"))):
            return True
        end, missing = declared_end(self.stream), 0.0
        if end is not None:
            missing = end - self.end
        elif "matroska" in self.container.format.name:  # where the whole's length stands at its beginning
            missing = (self.container.duration or 0) / av.time_base - self.end_of_all
        return missing > 0.5 + 2 / self.rate


@dataclass(frozen=True)
class Orientation:
    """How a stored picture becomes upright: rows and columns swapped, then taken forwards (1) or backwards (-1)."""

    transposed: bool = False
    rows: int = 1
    columns: int = 1


def find_orientation(frame: "VideoFrame") -> Orientation:
    """What the matrix that comes with a frame makes of it: quarter turns and mirrors; other angles are ignored."""
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


def to_tensor(frame: "VideoFrame", turn: Orientation) -> Tensor:
    """The pixels of a frame as channels (C, H, W)."""
    channels = PLANE_CHANNELS[frame.format.name]
    size = (frame.width, frame.height) if turn.transposed else (frame.height, frame.width)
    tensor = torch.empty(len(channels), *size, dtype=torch.uint8)
    # numpy copies: torch would open a team of threads in each thread that decodes
    array = tensor.numpy()
    for channel, pixels in zip(channels, plane_views(frame), strict=True):
        upright = pixels.T if turn.transposed else pixels
        array[channel] = upright.numpy()[:: turn.rows, :: turn.columns]
    return tensor


class FrameClock:
    """Times from timestamps, which strictly increase, whatever the timestamps do."""

    def __init__(self, rate: Fraction, tick: Fraction) -> None:
        self.step, self.tick = float(1 / rate), tick
        self.latest: float | None = None
        self.origin: int | None = None
        self.origin_time = 0.0

    def tell(self, timestamp: int | None) -> float:
        """The time of the next frame, in seconds from the first."""
        due = 0.0 if self.latest is None else self.latest + self.step
        if timestamp is None:
            self.latest = due
            return due
        if self.origin is None:
            self.origin, self.origin_time = timestamp, due
        seconds = self.origin_time + float((timestamp - self.origin) * self.tick)
        if self.latest is not None and not 0 < seconds - self.latest < MAX_FRAME_GAP:
            if -self.step < seconds - self.latest <= 0:
                # the same time twice: what follows is right again
                seconds = self.latest + self.step / 4
            else:
                # another count has begun
                self.origin, self.origin_time, seconds = timestamp, due, due
        self.latest = seconds
        return seconds


def open_video(address: str | Path, *, name: str = "", timeout: float = 10.0) -> Video:
    """Open a video in a file, or at an address such as https://host/name.mp4.

    Args:
        name: What errors call it, if not by its address.
        timeout: Seconds within which a server must answer.
    """
    return open_video_stream(open_container(str(address), timeout), name or redact(str(address)), "AUTO")


def open_stream(address: str, *, timeout: float = 10.0) -> Video:
    """Open a live stream at an address, such as rtsp://host/name; its frames are given as soon as they are decoded.

    Args:
        timeout: Seconds within which it must answer, and after which it counts as gone.
    """
    # not FFmpeg's nobuffer, which throws away what was looked at: a stream's first whole picture
    options = {"analyzeduration": "1000000"}
    if address.lower().startswith("rtsp"):
        options["rtsp_transport"] = "tcp"
    return open_video_stream(open_container(address, timeout, options), redact(address), "SLICE")


def open_camera(name: str, *, timeout: float = 10.0) -> Video:
    """Open a camera: the first is 0; or a device, such as /dev/video0 on Linux, or a camera's name elsewhere."""
    require_av()
    options: dict[str, str] = {}
    if sys.platform == "linux":
        format, device = "v4l2", f"/dev/video{name}" if name.isdigit() else name
    elif sys.platform == "darwin":
        # left to itself it asks for a rate that few cameras have
        format, device, options = "avfoundation", name, {"framerate": "30"}
    elif name.isdigit():
        format, device = "vfwcap", name
    else:
        format, device = "dshow", f"video={name}"
    try:
        container = av.open(device, format=format, container_options=options, timeout=timeout)
    except av.error.FFmpegError as error:
        reasons = {
            errno.ENOENT: f"No camera {name} here: plug one in, or give another number.",
            errno.ENODEV: f"No camera {name} here: plug one in, or give another number.",
            errno.EBUSY: f"Camera {name} is in use: close the program that uses it.",
            errno.EACCES: f"Camera {name} may not be used: ask for the right to, on Linux by joining the group video.",
        }
        message = reasons.get(error.errno or 0, f"Camera {name} cannot be used: {error.strerror}.")
        raise (FileNotFoundError if message.startswith("No ") else OSError)(message) from None
    except ValueError:
        raise OSError(f"Camera {name} cannot be used: this PyAV was built without cameras.") from None
    return open_video_stream(container, f"Camera {name}", "SLICE")


def read_label_video(path: str | Path) -> Iterator[tuple[Tensor, float]]:
    """The labels (H, W) and times of a video that write_label_video wrote."""
    path = Path(path)
    if path.is_file() and matroska_is_damaged(path):
        raise damaged_file_error(path)
    with open_video(path) as video:
        codec = video.stream.codec_context.name
        for stored, seconds in video.timed():
            if (codec, stored.format.name) != ("ffv1", "gray"):
                raise ValueError(
                    f"{path} is no video of labels: it holds {codec} of {stored.format.name}, not of gray."
                )
            yield to_tensor(stored, Orientation())[0], seconds


def has_known_length(address: str) -> bool:
    """Whether the video at an address says how long it is, as no live stream does."""
    try:
        with open_container(address, 10.0, {"analyzeduration": "1"}) as container:
            frames = sum(stream.frames for stream in container.streams.video)
            # of an MP4 in parts FFmpeg adds up those that it has seen
            return bool(container.duration and (frames or "mp4" not in container.format.name))
    except (OSError, ValueError):
        return False


def video_made_by_streamseg(path: Path) -> bool:
    """Whether a file is a video that was written here."""
    try:
        with open_container(str(path), 10.0) as container:
            return {key.lower(): text for key, text in container.metadata.items()}.get("comment") == "streamseg"
    except (OSError, ValueError):
        return False


def open_container(address: str, timeout: float, options: dict[str, str] | None = None) -> "InputContainer":
    """Open a file or an address; what is wrong with it is told in a sentence."""
    require_av()
    options = dict(options or {})
    location = address
    if not is_address(address):
        path = Path(address)
        if not path.exists():
            raise FileNotFoundError(f"No video at {path}.")
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder: give a video.")
        if not path.is_file():
            raise ValueError(f"{path} is a device, a pipe or the like: give a video.")
        # a playlist that calls itself a video may not reach for anything else
        location, options["protocol_whitelist"] = f"file:{address}", "file"
    began = time.monotonic()
    try:
        # as options of the streams, too, PyAV 14 crashes on streams that appear late
        return av.open(location, container_options=options, metadata_errors="replace", timeout=timeout)
    except av.error.FFmpegError as error:
        # some protocols make something else of it
        if time.monotonic() - began >= timeout:
            raise TimeoutError(f"{redact(address)} did not answer in time.") from None
        raise reading_error(error, redact(address)) from None


def open_video_stream(container: "InputContainer", name: str, threads: str) -> Video:
    """The video in a container; it is closed if there is none."""
    with closed_on_error(container):
        stream = container.streams.best("video")
        if not isinstance(stream, av.VideoStream) or getattr(stream, "disposition", 0) & ATTACHED_PICTURE:
            raise ValueError(f"{name} holds no video.")
        if stream.codec_context is None:
            raise ValueError(f"{name} holds video of a kind that cannot be decoded: convert it to MP4 first.")
        stream.codec_context.thread_type = threads
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS_PER_FRAME)}
        return Video(container, stream, name)


def reading_error(error: "av.error.FFmpegError", name: str) -> Exception:
    """What an error on reading means, in a sentence."""
    if isinstance(error, av.error.ExitError | av.error.TimeoutError):
        return TimeoutError(f"{name} did not answer in time.")
    if isinstance(error, PermissionError):
        return PermissionError(f"{name} may not be read: {error.strerror}.")
    if is_address(name) and not isinstance(error, av.error.InvalidDataError):
        return OSError(f"{name} cannot be read: {error.strerror}.")
    return ValueError(f"{name} is not a video that can be read, such as MP4, MKV, WebM or AVI ({error.strerror}).")


def frame_rate(stream: "VideoStream") -> Fraction:
    """Frames a second, on average, or what is most common where nothing credible is said of it."""
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and 0 < rate <= 1000:
            return rate
    return Fraction(25)


def declared_frames(stream: "VideoStream") -> int:
    """How many frames a file says that it holds; 0 if it does not say, as an AVI by who could not go back to count."""
    return stream.frames if stream.frames < 2**30 else 0


def declared_end(stream: "VideoStream") -> float | None:
    """The time at which a file says that its video ends; None if it does not say, or FFmpeg only estimates it."""
    if declared_frames(stream) and stream.duration:
        return float(((stream.start_time or 0) + stream.duration) * time_base(stream))
    match = re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", ""))  # what Matroska has
    return 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3]) if match else None
