"""Write frames and labels as videos, with the audio of their source.

A frame is RGB, uint8, (3, H, W); a size is (height, width); times are in seconds from the first frame.
"""

import errno
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy

from streamseg.checks import check_rate, check_video_suffix
from streamseg.io.files import ClosedInTheEnd, written_whole
from streamseg.io.outputs import FrameOutput, OutputFiles, make_folders
from streamseg.io.pyav import (
    PLANE_CHANNELS,
    av,
    closed_on_error,
    colour_matrix_number,
    default_colour_matrix,
    new_reformatter,
    picture_arrays,
    plane_arrays,
    plane_views,
    require_av,
    time_base,
)
from streamseg.io.sources import DEFAULT_RATE, Source
from streamseg.io.video_streams import open_container
from streamseg.io.web import redact

if TYPE_CHECKING:
    from av import AudioStream, Packet, VideoFrame, VideoStream
    from av.container import InputContainer, OutputContainer
    from torch import Tensor

    from streamseg.io.codec_client import ProcessWriter
    from streamseg.io.images import Picture
    from streamseg.io.yuv import Yuv420


@dataclass(frozen=True)
class VideoFormat:
    """How a video is written."""

    container: str
    codecs: tuple[str, ...]
    """In order of preference; PyAV may be built without some."""
    audio_codec: str


VIDEO_FORMATS = {
    ".mp4": VideoFormat("mp4", ("libx264", "mpeg4"), "aac"),
    ".mov": VideoFormat("mov", ("libx264", "mpeg4"), "aac"),
    ".mkv": VideoFormat("matroska", ("libx264", "mpeg4"), "aac"),
    ".webm": VideoFormat("webm", ("libvpx-vp9",), "libopus"),
}
"""By the suffix of the file."""

LABEL_FORMAT = VideoFormat("matroska", ("ffv1",), "")

CODEC_OPTIONS = {
    # without B-frames packets are in the order of their times: every player starts at 0, and uneven times end where
    # they should; encoding takes 15 % less time for a larger file
    "libx264": {"crf": "18", "preset": "veryfast", "bf": "0"},
    "mpeg4": {"flags": "+qscale", "global_quality": str(3 * 118)},  # 118 for each step of the quantiser
    "libvpx-vp9": {"crf": "24", "deadline": "realtime", "cpu-used": "8", "row-mt": "1"},
    "ffv1": {"level": "3"},
}

LABEL_SLICES = 16
"""Parts of a large frame of labels that are encoded at once; FFmpeg's default is 4. Not by the number of cores, so that
the same labels make the same file. The file grows a little."""
LEAST_SLICED = 256
"""Height and width of a frame from which on it has so many parts."""

LIMITED_RANGE = 1
"""FFmpeg's number of the range of video."""


class VideoWriter(ClosedInTheEnd):
    """A video being written, in a with statement. What was written before an error is playable.

    FFmpeg's errors become OSErrors with an error number, a message and the file name.
    """

    def __init__(
        self,
        path: Path,
        video_format: VideoFormat,
        size: tuple[int, int],
        rate: Fraction,
        pixels: str,
        add_audio: "Callable[[OutputContainer, VideoFormat], Iterator[AudioPacket]] | None" = None,
    ) -> None:
        require_av()
        self.path, self.size, self.pixels = path, size, pixels
        rate = rate.limit_denominator(1_000_000)
        self.step = float(1 / rate)
        # finer than a millisecond, and frames of an even rate last whole ticks; MPEG-4 allows 65535
        self.ticks = rate.numerator * (65535 // rate.numerator) or 60000
        self.tick = -1
        self.seconds = 0.0
        self.reformat = new_reformatter()
        self.audio: Iterator[AudioPacket] = iter(())
        self.closed = False
        with self.system_errors():
            # no random numbers in the file: the same frames make the same file
            options = {"fflags": "+bitexact"}
            if video_format.container in ("mp4", "mov"):
                options["movflags"] = "+faststart"
            self.container = av.open(f"file:{path}", "w", format=video_format.container, container_options=options)
            with closed_on_error(self.container):
                self.container.metadata["comment"] = "streamseg"
                self.stream = self.add_stream(video_format, rate)
                if add_audio:
                    self.audio = add_audio(self.container, video_format)
                # now, so that a bad path fails at once
                self.container.start_encoding()
        self.audio_packet = self.next_audio()

    def add_stream(self, video_format: VideoFormat, rate: Fraction) -> "VideoStream":
        """Add the stream of frames to the container."""
        codec = next((codec for codec in video_format.codecs if codec in av.codecs_available), None)
        if codec is None:
            raise ValueError(
                f"This PyAV was built without {video_format.codecs[-1]}, which {self.path} needs: write an .mp4."
            )
        height, width = self.size
        options = dict(CODEC_OPTIONS[codec])
        if codec == "ffv1" and min(height, width) >= LEAST_SLICED:
            options["slices"] = str(LABEL_SLICES)
        stream = cast("VideoStream", self.container.add_stream(codec, rate=rate, options=options))
        context = stream.codec_context
        context.time_base = stream.time_base = Fraction(1, self.ticks)
        context.thread_type = "AUTO"
        context.bit_rate = 0  # the options set the quality
        if self.pixels == "gray":
            context.height, context.width, context.pix_fmt = height, width, "gray"
        else:
            context.height, context.width, context.pix_fmt = height + height % 2, width + width % 2, "yuv420p"
            context.colorspace = colour_matrix_number(height)
            context.color_primaries = context.color_trc = context.colorspace
            context.color_range = LIMITED_RANGE
        return stream

    def write(self, frame: "Tensor | Yuv420", seconds: float) -> None:
        """Add a frame (3, H, W), as RGB or as the planes of to_yuv, or labels (H, W); times must increase."""
        from streamseg.io.yuv import Yuv420  # not above: the processes of codecs do without torch

        self.check_size(frame.shape)
        if isinstance(frame, Yuv420):
            self.encode(planes_to_video_frame(frame.pixels.numpy(), frame.size), seconds)
        else:
            self.encode(self.to_video_frame(frame.cpu().reshape(-1, *self.size).numpy()), seconds)

    def check_size(self, shape: Sequence[int]) -> None:
        """Raise a ValueError if a frame of a shape does not fit the video."""
        if tuple(shape[-2:]) != self.size:
            height, width = self.size
            raise ValueError(f"A frame of {tuple(shape)} does not fit a video of {height} x {width} pixels.")

    def encode(self, picture: "VideoFrame", seconds: float) -> None:
        """Add a frame as it goes to the encoder."""
        self.tick = max(round(seconds * self.ticks), self.tick + 1)
        self.seconds = self.tick / self.ticks
        picture.pts, picture.time_base = self.tick, Fraction(1, self.ticks)
        with self.system_errors():
            self.mux(self.stream.encode(picture))
            self.mux_audio(self.seconds)

    def close(self) -> None:
        """Write the frames that the encoder still holds, and the end of the file."""
        if self.closed:
            return
        self.closed = True
        with self.system_errors():
            try:
                self.mux(self.stream.encode(None))
                if self.tick >= 0:
                    self.mux_audio(self.seconds + self.step)
            finally:
                self.audio, self.audio_packet = iter(()), None
                self.container.close()

    def to_video_frame(self, channels: numpy.ndarray) -> "VideoFrame":
        """Return channels (C, H, W) as a frame for the encoder; an odd size is padded with the last row or column."""
        height, width = self.size
        context = self.stream.codec_context
        picture = av.VideoFrame(context.width, context.height, self.pixels)
        if self.pixels == "gray" and (context.width, context.height) == (width, height):  # labels: one plane
            (rows,) = plane_arrays(picture)
            rows[:height, :width] = channels[0]
            return picture
        for channel, pixels in zip(PLANE_CHANNELS[self.pixels], plane_views(picture), strict=True):
            pixels[:height, :width] = channels[channel]
            pixels[:height, width:] = pixels[:height, width - 1 : width]
            pixels[height:] = pixels[height - 1]
        if self.pixels == "gray":
            return picture
        return self.reformat(picture, format="yuv420p", dst_colorspace=default_colour_matrix(height))

    def mux(self, packets: "list[Packet]") -> None:
        """Add encoded frames to the file."""
        for packet in packets:
            # players show the last frame for this long
            packet.duration = round(self.step * self.ticks)
            self.container.mux(packet)

    def mux_audio(self, until: float) -> None:
        """Add the audio that ends by a time. It ends where it is damaged."""
        while self.audio_packet and self.audio_packet.end <= until + 1e-6:
            try:
                self.container.mux(self.audio_packet.packet)
            except av.error.FFmpegError as error:
                if not isinstance(error, ValueError):  # a fault of the disk, not of the packet
                    raise
                self.audio = iter(())
            self.audio_packet = self.next_audio()

    def next_audio(self) -> "AudioPacket | None":
        try:
            return next(self.audio, None)
        except (av.error.FFmpegError, ValueError):
            return None

    @contextmanager
    def system_errors(self) -> Iterator[None]:
        """Turn FFmpeg's errors into OSErrors."""
        try:
            yield
        except av.error.FFmpegError as error:
            number = error.errno if error.errno in errno.errorcode else errno.EIO
            raise OSError(number, error.strerror, str(self.path)) from error


def planes_to_video_frame(pixels: numpy.ndarray, size: tuple[int, int]) -> "VideoFrame":
    """Return planes of 8 bits (H W + 2 h w,) as a frame for the encoder."""
    height, width = size
    frame = av.VideoFrame(width, height, "yuv420p")
    for rows, values in zip(plane_arrays(frame), picture_arrays(pixels, size), strict=True):
        rows[: values.shape[0], : values.shape[1]] = values
    return frame


def open_video_writer(
    path: Path, size: tuple[int, int], rate: Fraction, *, audio_from: str | Path | None = None
) -> VideoWriter:
    """Start a video of frames (3, H, W), in the format of the path's suffix; an odd size is padded to an even one.

    Args:
        rate: Frames a second, on average; the time of each is given with it.
        audio_from: The file or address whose audio to keep, up to the last frame.
    """
    require_av()
    check_video_suffix(path)
    video_format = VIDEO_FORMATS[path.suffix.lower()]
    if audio_from is not None:
        # audio that is missing, damaged or in a rare format is dropped; the video is written without it
        with suppress(OSError, ValueError):
            source, stream = open_audio(str(audio_from))
            with closed_on_error(source):
                with suppress(OSError, ValueError):
                    return VideoWriter(path, video_format, size, rate, "gbrp", partial(copy_audio, source, stream))
                return VideoWriter(path, video_format, size, rate, "gbrp", partial(encode_audio, source, stream))
    return VideoWriter(path, video_format, size, rate, "gbrp")


def open_label_writer(path: Path, size: tuple[int, int], rate: Fraction) -> VideoWriter:
    """Start a lossless video of labels (H, W), as grey pixels in an .mkv."""
    if path.suffix.lower() != ".mkv":
        raise ValueError(f"{path} is no lossless video for labels: end it in .mkv.")
    return VideoWriter(path, LABEL_FORMAT, size, rate, "gray")


def write_frames(path: str | Path, frames: "Iterable[Picture]", rate: Fraction | float) -> None:
    """Write frames (3, H, W), all of one size, as a video. An existing file is replaced once the new one is whole.

    Args:
        frames: Frames, or anything that segment takes, such as arrays (H, W, 3).
        rate: Frames a second.
    """
    from streamseg.io.images import to_frame

    check_rate(rate)
    rate, tensors, path = Fraction(rate), map(to_frame, frames), Path(path)
    check_video_suffix(path)
    first = next(tensors, None)
    if first is None:
        raise ValueError(f"There is no frame to write to {path}.")
    _, height, width = first.shape
    with written_whole(path) as temporary, open_video_writer(temporary, (height, width), rate) as writer:
        for i, frame in enumerate(itertools.chain([first], tensors)):
            writer.write(frame, float(i / rate))


@contextmanager
def open_videos(files: OutputFiles, source: Source, process: bool = False) -> Iterator[Callable[[FrameOutput], None]]:
    """Give a function that writes the frames of a source to its videos: overlay, labels, confidence and colours.

    The videos appear together at the end, and not at all after an error.

    Args:
        process: Whether a process of its own encodes each of them.
    """
    # the writers are closed first: all videos are finished before the first gets its name
    with ExitStack() as renames, ExitStack() as closes:
        writers: dict[str, VideoWriter | ProcessWriter] = {}
        start = 0.0

        def write_frame(frame: FrameOutput) -> None:
            nonlocal start
            parts = {
                "overlay": frame.overlay,
                "labels": frame.labels,
                "confidence": frame.confidence,
                "colours": frame.colours,
            }
            if not writers:  # the first frame has the size, and of a live source it may not be at 0
                start, rate = frame.capture.seconds, source.rate or DEFAULT_RATE
                make_folders(files)
                for part, pixels in parts.items():
                    path = getattr(files, part)
                    if path is None or pixels is None:
                        continue
                    temporary, size = renames.enter_context(written_whole(path)), (*pixels.shape[-2:],)
                    audio = source.audio_from if part == "overlay" else None
                    opened = open_part(temporary, path, size, rate, part, audio, process)
                    writers[part] = opened
                    closes.enter_context(opened)
            for part, writer in writers.items():
                pixels = parts[part]
                assert pixels is not None
                writer.write(pixels, frame.capture.seconds - start)

        yield write_frame


def open_part(
    path: Path, final: Path, size: tuple[int, int], rate: Fraction, part: str, audio_from: str | None, process: bool
) -> "VideoWriter | ProcessWriter":
    """Start the video of a part of the output, in this process or another.

    Args:
        final: The path that it will be moved to.
    """
    is_grey = part in ("labels", "confidence")
    if process:
        from streamseg.io.codec_client import ProcessWriter

        return ProcessWriter(path, size, rate, labels=is_grey, audio_from=audio_from, name=str(final))
    if is_grey:
        return open_label_writer(path, size, rate)
    return open_video_writer(path, size, rate, audio_from=audio_from)


@dataclass(frozen=True)
class AudioPacket:
    """A packet of audio, and the time at which it ends."""

    packet: "Packet"
    end: float


def copy_audio(
    source: "InputContainer", stream: "AudioStream", output: "OutputContainer", video_format: VideoFormat
) -> Iterator[AudioPacket]:
    """Copy the audio of a source without encoding; a ValueError if the output does not take it."""
    if video_format.container == "mp4" and stream.codec_context.name.startswith("pcm"):
        raise ValueError("Few players take raw samples in MP4.")
    track = output.add_stream_from_template(stream)

    def packets() -> "Iterator[Packet]":
        for packet in source.demux(stream):
            packet.stream = track
            yield packet

    return shift_audio(source, packets())


def encode_audio(
    source: "InputContainer", stream: "AudioStream", output: "OutputContainer", video_format: VideoFormat
) -> Iterator[AudioPacket]:
    """Decode the audio of a source and encode it for the output."""
    track = cast("AudioStream", output.add_stream(video_format.audio_codec, rate=48000, bit_rate=160_000))

    def packets() -> "Iterator[Packet]":
        for frame in source.decode(stream):
            yield from track.encode(frame)
        yield from track.encode(None)

    return shift_audio(source, packets())


def open_audio(address: str) -> "tuple[InputContainer, AudioStream]":
    """Open a source for its audio; a ValueError if it has none."""
    source = open_container(address, 10.0)
    with closed_on_error(source):
        stream = source.streams.best("audio")
        if not isinstance(stream, av.AudioStream) or stream.codec_context is None:
            raise ValueError(f"{redact(address)} has no audio that can be decoded.")
        return source, stream


def shift_audio(source: "InputContainer", packets: "Iterator[Packet]") -> Iterator[AudioPacket]:
    """Shift packets so that 0 is the first frame of the source's video; drop those out of order."""
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
