"""Bare decoding and encoding of video: the speed to which a pipeline on the same files is compared.

FFmpeg's frames go from the decoder to the encoder as they are. The codecs and their settings are those of `segment`;
decoder and encoder run in one thread each, beside the threads of the codecs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path
from typing import cast

from torch import Tensor

from streamseg.io.pyav import av
from streamseg.io.video_reading import open_container, open_video
from streamseg.io.video_writing import CODEC_OPTIONS, LABEL_FORMAT, VIDEO_FORMATS
from streamseg.parallel.threads import BoundedQueue, GroupStopped, ThreadGroup

QUEUE_SIZE = 8
"""Frames that may wait between decoder and encoder."""


@dataclass(frozen=True)
class VideoInfo:
    """What a video holds."""

    name: str
    codec: str
    pixels: str
    """FFmpeg's name of the pixel format."""
    height: int
    width: int
    rate: float
    """Frames a second."""


def describe_video(path: Path) -> VideoInfo:
    """Return what a video holds; an error if it cannot be read."""
    with open_video(path) as video:
        codec = video.stream.codec_context
        return VideoInfo(
            path.name, codec.name, codec.pix_fmt or "unknown", *video.size, float(round(Fraction(video.rate), 3))
        )


def decode(path: Path) -> Iterator["av.VideoFrame"]:
    """Yield the frames of a video as they are stored."""
    with open_container(str(path), 10.0) as container:
        stream = container.streams.best("video")
        assert isinstance(stream, av.VideoStream)
        stream.codec_context.thread_type = "AUTO"
        try:
            yield from container.decode(stream)
        except av.error.FFmpegError as error:
            raise ValueError(f"{path.name} is damaged ({error.strerror}): give another video.") from None


def count_frames(path: Path) -> int:
    """Decode a video, and return how many frames it has."""
    return sum(1 for _ in decode(path))


def decode_in_thread(path: Path) -> Iterator["av.VideoFrame"]:
    """Yield the frames of a video, which another thread decodes."""
    group = ThreadGroup()
    queue: BoundedQueue[av.VideoFrame] = BoundedQueue(group, QUEUE_SIZE)

    def work() -> None:
        for frame in decode(path):
            if not queue.put(frame):
                break
        queue.close()

    thread = group.start(f"decode {path.name}", work)
    try:
        yield from queue
    except GroupStopped:
        assert group.failure
        raise group.failure from None
    finally:
        queue.close()
        thread.join()


def transcode(path: Path, out: Path, rate: float) -> int:
    """Decode a video and encode it as `segment` encodes an overlay; return the number of frames."""
    formats = VIDEO_FORMATS[out.suffix]
    codec = next(codec for codec in formats.codecs if codec in av.codecs_available)
    return encode(decode_in_thread(path), out, formats.container, codec, "yuv420p", rate)


def encode_labels(path: Path, labels: Sequence["av.VideoFrame"], out: Path, rate: float) -> int:
    """Decode a video, and encode ready labels, over and over, as `segment` encodes those of its frames."""
    maps = (ready for ready, _ in zip(cycle(labels), decode_in_thread(path), strict=False))
    return encode(maps, out, LABEL_FORMAT.container, LABEL_FORMAT.codecs[0], "gray", rate)


def to_label_frames(labels: Iterable[Tensor]) -> list["av.VideoFrame"]:
    """Return labels (H, W) as frames that are ready to be encoded."""
    return [av.VideoFrame.from_ndarray(one.contiguous().numpy(), "gray") for one in labels]


def encode(frames: Iterable["av.VideoFrame"], out: Path, container: str, codec: str, pixels: str, rate: float) -> int:
    """Encode frames, which are converted only if the encoder cannot take them; return their number."""
    exact = Fraction(rate).limit_denominator(1001)
    count, stream = 0, None
    with av.open(f"file:{out}", "w", format=container) as output:
        for frame in frames:
            # 4:2:0 has half as many rows and columns of colour
            even = 1 if pixels == "gray" else 2
            height, width = (side + side % even for side in (frame.height, frame.width))
            if stream is None:
                stream = cast("av.VideoStream", output.add_stream(codec, rate=exact, options=CODEC_OPTIONS[codec]))
                context = stream.codec_context
                context.height, context.width, context.pix_fmt = height, width, pixels
                context.time_base, context.thread_type, context.bit_rate = 1 / exact, "AUTO", 0
            if (frame.format.name, frame.height, frame.width) != (pixels, height, width):
                frame = frame.reformat(width, height, pixels)
            # the encoder decides anew which frames are key frames
            frame.pict_type, frame.pts, frame.time_base = 0, count, 1 / exact
            output.mux(stream.encode(frame))
            count += 1
        if stream is not None:
            output.mux(stream.encode(None))
    return count


def copy_start(path: Path, out: Path, frames: int) -> None:
    """Copy the first frames of a video without decoding them, to a Matroska file."""
    with open_container(str(path), 10.0) as source, av.open(f"file:{out}", "w", format="matroska") as output:
        stream = source.streams.best("video")
        assert isinstance(stream, av.VideoStream)
        track = output.add_stream_from_template(stream)
        try:
            for packet in islice(source.demux(stream), frames):
                if packet.dts is None and not packet.size:  # the end
                    break
                if packet.pts is None:  # as in AVI
                    packet.pts = packet.dts
                packet.stream = track
                output.mux(packet)
        except av.error.FFmpegError as error:
            raise ValueError(
                f"{path.name} cannot be cut to {frames} frames ({error.strerror}): convert it to MP4 first."
            ) from None
