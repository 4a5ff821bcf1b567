"""Bare decoding and encoding of video: the speed to which a pipeline on the same files is compared.

FFmpeg's frames go from the decoder to the encoder as they are. Codecs, settings and containers are those of `segment`;
decoder and encoder run in one thread each, beside the threads of the codecs, as in FFmpeg's own program.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, cycle, islice
from pathlib import Path

from torch import Tensor

from streamseg.io.pyav import av
from streamseg.io.video_reading import open_video
from streamseg.io.video_streams import open_container
from streamseg.io.video_writing import VideoWriter, open_label_writer, open_video_writer
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
        return VideoInfo(path.name, codec.name, codec.pix_fmt or "unknown", *video.size, float(video.rate))


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
    return encode(decode_in_thread(path), lambda size: open_video_writer(out, size, exact_rate(rate)))


def encode_labels(path: Path, labels: Sequence["av.VideoFrame"], out: Path, rate: float) -> int:
    """Decode a video, and encode ready labels, over and over, as `segment` encodes those of its frames."""
    maps = (ready for ready, _ in zip(cycle(labels), decode_in_thread(path), strict=False))
    return encode(maps, lambda size: open_label_writer(out, size, exact_rate(rate)))


def exact_rate(rate: float) -> Fraction:
    """Return a rate as the fraction that it was, such as 30000/1001."""
    return Fraction(rate).limit_denominator(1001)


def to_label_frames(labels: Iterable[Tensor]) -> list["av.VideoFrame"]:
    """Return labels (H, W) as frames that are ready to be encoded."""
    return [av.VideoFrame.from_ndarray(one.contiguous().numpy(), "gray") for one in labels]


def encode(frames: Iterable["av.VideoFrame"], open_writer: Callable[[tuple[int, int]], VideoWriter]) -> int:
    """Encode frames with the encoder of a writer; return their number.

    The frames go to the encoder as they are, and are converted only if it cannot take them.
    """
    iterator = iter(frames)
    first = next(iterator, None)
    if first is None:
        return 0
    count = 0
    with open_writer((first.height, first.width)) as writer:
        context = writer.stream.codec_context
        wanted = (context.pix_fmt, context.height, context.width)
        for frame in chain([first], iterator):
            if (frame.format.name, frame.height, frame.width) != wanted:
                frame = frame.reformat(context.width, context.height, context.pix_fmt)
            frame.pict_type = 0  # the encoder decides anew which frames are key frames
            frame.pts, frame.time_base = round(count * writer.step * writer.ticks), Fraction(1, writer.ticks)
            writer.mux(writer.stream.encode(frame))
            count += 1
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
