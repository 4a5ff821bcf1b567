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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from streamseg.checks import CutShort as CutShort, check_rate, check_video_suffix
from streamseg.io.checksums import damaged
from streamseg.io.containers import is_cut, matroska_is_damaged
from streamseg.io.files import written_whole
from streamseg.io.images import Picture, to_frame
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from av import AudioStream, Packet, VideoFrame, VideoStream
    from av.buffer import Buffer
    from av.container import InputContainer, OutputContainer
    from av.stream import Stream

try:
    import av
except ImportError:  # an extra: all that is no video works without it
    av = None  # type: ignore[assignment]

# of each plane of FFmpeg's formats its channel; planes are converted and copied in a third of the time of RGB pixels
CHANNELS = {"gbrp": (1, 2, 0), "gray": (0,), "rgb24": (0, 1, 2)}

# twice what 8K has: a damaged file may ask for more than there is memory
MOST_PIXELS = 2**26

# seconds between two frames; more is a damaged timestamp, and too much for MP4
LONGEST_PAUSE = 3600.0

# FFmpeg's numbers for what a video may say of its colours
UNSPECIFIED, BT709, BT601 = 2, 1, 6
LIMITED, FULL = 1, 2

ATTACHED_PICTURE = 0x400


@dataclass(frozen=True)
class VideoFormat:
    """How a video is written."""

    container: str
    codecs: tuple[str, ...]
    """The first that PyAV was built with is taken."""
    audio_codec: str


VIDEO_FORMATS = {
    ".mp4": VideoFormat("mp4", ("libx264", "mpeg4"), "aac"),
    ".mov": VideoFormat("mov", ("libx264", "mpeg4"), "aac"),
    ".mkv": VideoFormat("matroska", ("libx264", "mpeg4"), "aac"),
    ".webm": VideoFormat("webm", ("libvpx-vp9",), "libopus"),
}
"""By the suffix of the name to write to."""

LABELS = VideoFormat("matroska", ("ffv1",), "")

OPTIONS = {
    # without B-frames packets are in the order of their times: every player starts at 0, and uneven times end where
    # they should; encoding takes 15 % less time for a larger file
    "libx264": {"crf": "18", "preset": "veryfast", "bf": "0"},
    "mpeg4": {"flags": "+qscale", "global_quality": str(3 * 118)},  # 118 for each step of the quantiser
    "libvpx-vp9": {"crf": "24", "deadline": "realtime", "cpu-used": "8", "row-mt": "1"},
    "ffv1": {"level": "3"},
}


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
        self.length = stated_frames(stream) or round((container.duration or 0) / av.time_base * self.rate) or None
        """How many frames it has, as far as it says so, and at an even rate if it tells a time alone."""
        self.reformat = reformatter()
        self.fault: av.error.FFmpegError | None = None
        self.unreadable = 0
        self.end = self.end_of_all = 0.0
        decoded = self.decode()
        first = next(decoded, None)
        if first is None:
            raise explain(self.fault, name) if self.fault else ValueError(f"Not one frame of {name} can be read.")
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
            src_colorspace=colour_matrix(height) if stored.colorspace == UNSPECIFIED else None,
            # of no meaning for RGB, but PyAV 14 looks at the colours' matrix only if the two differ
            dst_colorspace="ITU601",
            src_color_range="JPEG" if stored.color_range == FULL else None,
        )

    def is_short(self) -> bool:
        """Whether less came than the file says that it holds."""
        place = self.container.name
        if place.startswith("file:") and is_cut(Path(place.removeprefix("file:"))):
            return True
        end, missing = stated_end(self.stream), 0.0
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
    channels = CHANNELS[frame.format.name]
    size = (frame.width, frame.height) if turn.transposed else (frame.height, frame.width)
    tensor = torch.empty(len(channels), *size, dtype=torch.uint8)
    # numpy copies: torch would open a team of threads in each thread that decodes
    array = tensor.numpy()
    for channel, pixels in zip(channels, planes(frame), strict=True):
        upright = pixels.T if turn.transposed else pixels
        array[channel] = upright.numpy()[:: turn.rows, :: turn.columns]
    return tensor


def planes(frame: "VideoFrame") -> Iterator[Tensor]:
    """The pixels (H, W) of each plane of a frame, or of each channel if it has but one, in its own memory."""
    height, width = frame.height, frame.width
    several = len(CHANNELS[frame.format.name]) // len(frame.planes)
    for plane in frame.planes:
        rows = torch.frombuffer(plane, dtype=torch.uint8).view(-1, plane.line_size)
        yield from rows[:height, : several * width].unflatten(1, (width, several)).unbind(2)


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
        if self.latest is not None and not 0 < seconds - self.latest < LONGEST_PAUSE:
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
    return start_reading(open_container(str(address), timeout), name or redact(str(address)), "AUTO")


def open_stream(address: str, *, timeout: float = 10.0) -> Video:
    """Open a live stream at an address, such as rtsp://host/name; its frames are given as soon as they are decoded.

    Args:
        timeout: Seconds within which it must answer, and after which it counts as gone.
    """
    # not FFmpeg's nobuffer, which throws away what was looked at: a stream's first whole picture
    options = {"analyzeduration": "1000000"}
    if address.lower().startswith("rtsp"):
        options["rtsp_transport"] = "tcp"
    return start_reading(open_container(address, timeout, options), redact(address), "SLICE")


def open_camera(name: str, *, timeout: float = 10.0) -> Video:
    """Open a camera: the first is 0; or a device, such as /dev/video0 on Linux, or a camera's name elsewhere."""
    check_av()
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
    return start_reading(container, f"Camera {name}", "SLICE")


def read_label_video(path: str | Path) -> Iterator[tuple[Tensor, float]]:
    """The labels (H, W) and times of a video that write_label_video wrote."""
    path = Path(path)
    if path.is_file() and matroska_is_damaged(path):
        raise damaged(path)
    with open_video(path) as video:
        codec = video.stream.codec_context.name
        for stored, seconds in video.timed():
            if (codec, stored.format.name) != ("ffv1", "gray"):
                raise ValueError(
                    f"{path} is no video of labels: it holds {codec} of {stored.format.name}, not of gray."
                )
            yield to_tensor(stored, Orientation())[0], seconds


def tells_its_length(address: str) -> bool:
    """Whether the video at an address says how long it is, as no live stream does."""
    try:
        with open_container(address, 10.0, {"analyzeduration": "1"}) as container:
            frames = sum(stream.frames for stream in container.streams.video)
            # of an MP4 in parts FFmpeg adds up those that it has seen
            return bool(container.duration and (frames or "mp4" not in container.format.name))
    except (OSError, ValueError):
        return False


def made_by_streamseg(path: Path) -> bool:
    """Whether a file is a video that was written here."""
    try:
        with open_container(str(path), 10.0) as container:
            return {key.lower(): text for key, text in container.metadata.items()}.get("comment") == "streamseg"
    except (OSError, ValueError):
        return False


def open_container(address: str, timeout: float, options: dict[str, str] | None = None) -> "InputContainer":
    """Open a file or an address; what is wrong with it is told in a sentence."""
    check_av()
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
        raise explain(error, redact(address)) from None


def start_reading(container: "InputContainer", name: str, threads: str) -> Video:
    """The video in a container; it is closed if there is none."""
    with closed_on_error(container):
        stream = container.streams.best("video")
        if not isinstance(stream, av.VideoStream) or getattr(stream, "disposition", 0) & ATTACHED_PICTURE:
            raise ValueError(f"{name} holds no video.")
        if stream.codec_context is None:
            raise ValueError(f"{name} holds video of a kind that cannot be decoded: convert it to MP4 first.")
        stream.codec_context.thread_type = threads
        stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}
        return Video(container, stream, name)


@contextmanager
def closed_on_error(container: "InputContainer | OutputContainer") -> Iterator[None]:
    """Close a container if something fails; by itself its file would stay open until Python looks for cycles."""
    try:
        yield
    except BaseException:
        container.close()
        raise


def explain(error: "av.error.FFmpegError", name: str) -> Exception:
    """What an error on reading means, in a sentence."""
    if isinstance(error, av.error.ExitError | av.error.TimeoutError):
        return TimeoutError(f"{name} did not answer in time.")
    if isinstance(error, PermissionError):
        return PermissionError(f"{name} may not be read: {error.strerror}.")
    if is_address(name) and not isinstance(error, av.error.InvalidDataError):
        return OSError(f"{name} cannot be read: {error.strerror}.")
    return ValueError(f"{name} is not a video that can be read, such as MP4, MKV, WebM or AVI ({error.strerror}).")


def check_av() -> None:
    if av is None:
        raise ImportError("Reading and writing video needs PyAV: pip install 'streamseg[video]'")


def time_base(stream: "Stream") -> Fraction:
    return stream.time_base or Fraction(1, 1000)


def frame_rate(stream: "VideoStream") -> Fraction:
    """Frames a second, on average, or what is most common where nothing credible is said of it."""
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and 0 < rate <= 1000:
            return rate
    return Fraction(25)


def stated_frames(stream: "VideoStream") -> int:
    """How many frames a file says that it holds; 0 if it does not say, as an AVI by who could not go back to count."""
    return stream.frames if stream.frames < 2**30 else 0


def stated_end(stream: "VideoStream") -> float | None:
    """The time at which a file says that its video ends; None if it does not say, or FFmpeg only estimates it."""
    if stated_frames(stream) and stream.duration:
        return float(((stream.start_time or 0) + stream.duration) * time_base(stream))
    match = re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", ""))  # what Matroska has
    return 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3]) if match else None


def reformatter() -> Callable[..., "VideoFrame"]:
    """A function that converts frames of one video; its arguments are names of colours, as all versions know them."""
    return av.video.reformatter.VideoReformatter().reformat


def colour_matrix(height: int) -> str:
    """How players take the colours of a video that says nothing about them."""
    return "ITU709" if height > 576 else "ITU601"


class VideoWriter:
    """A video being written, in a with statement; what was written before an error is playable as well.

    Errors are OSErrors of the system's number, words and file name.
    """

    def __init__(
        self,
        path: Path,
        kind: VideoFormat,
        size: tuple[int, int],
        rate: Fraction,
        pixels: str,
        add_audio: "Callable[[OutputContainer, VideoFormat], Iterator[AudioPacket]] | None" = None,
    ) -> None:
        check_av()
        self.path, self.size, self.pixels = path, size, pixels
        rate = rate.limit_denominator(1_000_000)
        self.step = float(1 / rate)
        # finer than a millisecond, and frames of an even rate last whole ticks; MPEG-4 allows 65535
        self.ticks = rate.numerator * (65535 // rate.numerator) or 60000
        self.tick = -1
        self.seconds = 0.0
        self.reformat = reformatter()
        self.audio: Iterator[AudioPacket] = iter(())
        self.closed = False
        with self.telling():
            # without a random number, so that the same frames make the same file
            options = {"fflags": "+bitexact"}
            if kind.container in ("mp4", "mov"):
                options["movflags"] = "+faststart"
            self.container = av.open(f"file:{path}", "w", format=kind.container, container_options=options)
            with closed_on_error(self.container):
                self.container.metadata["comment"] = "streamseg"
                self.stream = self.add_stream(kind, rate)
                if add_audio:
                    self.audio = add_audio(self.container, kind)
                # now, so that what is wrong with the path is told at once
                self.container.start_encoding()
        self.sound = self.next_sound()

    def add_stream(self, kind: VideoFormat, rate: Fraction) -> "VideoStream":
        """The stream of frames, with its codec."""
        codec = next((codec for codec in kind.codecs if codec in av.codecs_available), None)
        if codec is None:
            raise ValueError(f"This PyAV was built without {kind.codecs[-1]}, which {self.path} needs: write an .mp4.")
        height, width = self.size
        stream = cast("VideoStream", self.container.add_stream(codec, rate=rate, options=OPTIONS[codec]))
        context = stream.codec_context
        context.time_base = stream.time_base = Fraction(1, self.ticks)
        context.thread_type = "AUTO"
        context.bit_rate = 0  # the options say how good it is to be
        if self.pixels == "gray":
            context.height, context.width, context.pix_fmt = height, width, "gray"
        else:
            context.height, context.width, context.pix_fmt = height + height % 2, width + width % 2, "yuv420p"
            context.colorspace = BT709 if colour_matrix(height) == "ITU709" else BT601
            context.color_primaries = context.color_trc = context.colorspace
            context.color_range = LIMITED
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # of two errors the first tells more
            with suppress(OSError):
                self.close()

    def write(self, frame: Tensor, seconds: float) -> None:
        """Add a frame (3, H, W), or labels (H, W), shown from a time on: in seconds from the first, and increasing."""
        if frame.shape[-2:] != self.size:
            height, width = self.size
            raise ValueError(f"A frame of {tuple(frame.shape)} does not fit a video of {height} x {width} pixels.")
        picture = self.fill(frame.cpu().reshape(-1, *self.size))
        self.tick = max(round(seconds * self.ticks), self.tick + 1)
        self.seconds = self.tick / self.ticks
        picture.pts, picture.time_base = self.tick, Fraction(1, self.ticks)
        with self.telling():
            self.mux(self.stream.encode(picture))
            self.mux_audio(self.seconds)

    def close(self) -> None:
        """Write what is still on its way, and the end."""
        if self.closed:
            return
        self.closed = True
        with self.telling():
            try:
                self.mux(self.stream.encode(None))
                if self.tick >= 0:
                    self.mux_audio(self.seconds + self.step)
            finally:
                self.audio, self.sound = iter(()), None
                self.container.close()

    def fill(self, channels: Tensor) -> "VideoFrame":
        """Channels (C, H, W) as a frame for the encoder; an odd size grows by repeating the edge."""
        height, width = self.size
        context = self.stream.codec_context
        picture = av.VideoFrame(context.width, context.height, self.pixels)
        for channel, pixels in zip(CHANNELS[self.pixels], planes(picture), strict=True):
            # numpy copies: torch would open a team of threads in each thread that encodes
            array = pixels.numpy()
            array[:height, :width] = channels[channel].numpy()
            array[:height, width:] = array[:height, width - 1 : width]
            array[height:] = array[height - 1]
        if self.pixels == "gray":
            return picture
        return self.reformat(picture, format="yuv420p", dst_colorspace=colour_matrix(height))

    def mux(self, packets: "list[Packet]") -> None:
        """Add encoded frames to the file."""
        for packet in packets:
            # players show the last frame for as long as it says
            packet.duration = round(self.step * self.ticks)
            self.container.mux(packet)

    def mux_audio(self, until: float) -> None:
        """Add the sound that ends by a time; where it is damaged it ends."""
        while self.sound and self.sound.end <= until + 1e-6:
            try:
                self.container.mux(self.sound.packet)
            except av.error.FFmpegError as error:
                if not isinstance(error, ValueError):  # the disk's fault, not the packet's
                    raise
                self.audio = iter(())
            self.sound = self.next_sound()

    def next_sound(self) -> "AudioPacket | None":
        try:
            return next(self.audio, None)
        except (av.error.FFmpegError, ValueError):
            return None

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Turn FFmpeg's errors into the system's."""
        try:
            yield
        except av.error.FFmpegError as error:
            number = error.errno if error.errno in errno.errorcode else errno.EIO
            raise OSError(number, error.strerror, str(self.path)) from error


def write_video(
    path: Path, size: tuple[int, int], rate: Fraction, *, audio_from: str | Path | None = None
) -> VideoWriter:
    """Start to write a video of frames (3, H, W), of the kind that the suffix names; an odd size grows to an even one.

    Args:
        rate: Frames a second, on average; when each is shown is told with it.
        audio_from: The file or address whose sound to keep, as far as the frames go.
    """
    check_av()
    check_video_suffix(path)
    kind = VIDEO_FORMATS[path.suffix.lower()]
    if audio_from is not None:
        # sound that is missing, damaged or of a rare kind costs the sound, not the video
        with suppress(OSError, ValueError):
            source, stream = open_audio(str(audio_from))
            with closed_on_error(source):
                with suppress(OSError, ValueError):
                    return VideoWriter(path, kind, size, rate, "gbrp", partial(copy_audio, source, stream))
                return VideoWriter(path, kind, size, rate, "gbrp", partial(encode_audio, source, stream))
    return VideoWriter(path, kind, size, rate, "gbrp")


def write_frames(path: str | Path, frames: Iterable[Picture], rate: Fraction | float) -> None:
    """Write frames (3, H, W), all of one size, as a video; what is there under its name is replaced once it is whole.

    Args:
        frames: They may be pictures of any kind that segment takes, such as arrays (H, W, 3).
        rate: Frames a second.
    """
    check_rate(rate)
    rate, tensors, path = Fraction(rate), map(to_frame, frames), Path(path)
    check_video_suffix(path)
    first = next(tensors, None)
    if first is None:
        raise ValueError(f"There is no frame to write to {path}.")
    _, height, width = first.shape
    with written_whole(path) as temporary, write_video(temporary, (height, width), rate) as writer:
        for i, frame in enumerate(itertools.chain([first], tensors)):
            writer.write(frame, float(i / rate))


def write_label_video(path: Path, size: tuple[int, int], rate: Fraction) -> VideoWriter:
    """Start to write a video of labels (H, W), as grey pixels in an .mkv, that holds them exactly."""
    if path.suffix.lower() != ".mkv":
        raise ValueError(f"{path} names no kind of video that holds labels exactly: end it in .mkv.")
    return VideoWriter(path, LABELS, size, rate, "gray")


@dataclass(frozen=True)
class AudioPacket:
    """A packet of audio, and the time at which it ends."""

    packet: "Packet"
    end: float


def copy_audio(
    source: "InputContainer", stream: "AudioStream", output: "OutputContainer", kind: VideoFormat
) -> Iterator[AudioPacket]:
    """The sound of a source as it is; a ValueError if the output does not take it."""
    if kind.container == "mp4" and stream.codec_context.name.startswith("pcm"):
        raise ValueError("Few players take raw samples in MP4.")
    track = output.add_stream_from_template(stream)

    def packets() -> "Iterator[Packet]":
        for packet in source.demux(stream):
            packet.stream = track
            yield packet

    return time_sounds(source, packets())


def encode_audio(
    source: "InputContainer", stream: "AudioStream", output: "OutputContainer", kind: VideoFormat
) -> Iterator[AudioPacket]:
    """The sound of a source, encoded anew."""
    track = cast("AudioStream", output.add_stream(kind.audio_codec, rate=48000, bit_rate=160_000))

    def packets() -> "Iterator[Packet]":
        for frame in source.decode(stream):
            yield from track.encode(frame)
        yield from track.encode(None)

    return time_sounds(source, packets())


def open_audio(address: str) -> "tuple[InputContainer, AudioStream]":
    """A source and its sound; a ValueError if it has none."""
    source = open_container(address, 10.0)
    with closed_on_error(source):
        stream = source.streams.best("audio")
        if not isinstance(stream, av.AudioStream) or stream.codec_context is None:
            raise ValueError(f"{redact(address)} has no sound that can be decoded.")
        return source, stream


def time_sounds(source: "InputContainer", packets: "Iterator[Packet]") -> Iterator[AudioPacket]:
    """Packets on the clock of the source's video, from its first frame on; those out of order are left out."""
    video = source.streams.best("video")
    start = (video.start_time or 0) * time_base(video) if video else Fraction(0)
    latest = -1
    with source:
        for packet in packets:
            if packet.pts is None or packet.dts is None:
                continue
            ticks = round(start / packet.time_base)
            packet.pts, packet.dts = packet.pts - ticks, packet.dts - ticks
            if packet.pts >= 0 and packet.dts > latest:
                latest = packet.dts
                yield AudioPacket(packet, float((packet.pts + (packet.duration or 0)) * packet.time_base))
