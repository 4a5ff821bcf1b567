"""A process that encodes frames as H.264 and sends them to an address.

It is a process of its own because PyAV holds Python's lock while FFmpeg connects: in a thread, a server that does not
answer would stop the network. A process that hangs can also be ended. It imports nothing but PyAV, to start at once.

Standard input: a line of JSON (address, format, options, size, planes, rate, FFmpeg's name and number of the colour
matrix), then for each frame its time in ticks (8 bytes) and its planes: of gbrp R, G and B (3 x H x W bytes), of
yuv420p luma and chroma (H x W x 3 / 2 bytes, of even sides). Standard output: a line `open`, `sent` for each frame,
`done` at the end, or `error` with the reason.
"""

import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video import VideoStream

try:
    import av
except ImportError:  # needed for video only; who starts this process says so
    av = None  # type: ignore[assignment]

TICKS = 90_000
"""Ticks of a second, as in RTP and in transport streams."""
MAX_OPEN_SECONDS = 20
"""After this time a process that still connects ends, even if the one that started it has gone."""
CHANNELS = (1, 2, 0)
"""The channel of each plane of FFmpeg's gbrp."""
LIMITED_RANGE = 1
"""FFmpeg's number of the range of video."""


def main() -> None:
    """Send the frames of standard input."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a Ctrl-C is for the process that started this one, and closes the pipe
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else may write between the answers
    frames = sys.stdin.buffer
    try:
        send_frames(json.loads(frames.readline()), frames, answers.write)
        answers.write("done\n")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        answers.write(f"error {' '.join(reason.split())}\n")


def send_frames(header: dict[str, Any], frames: BinaryIO, answer: Callable[[str], object]) -> None:
    """Connect, and send each frame."""
    height, width = header["size"]
    tick = Fraction(1, TICKS)
    if header["planes"] == "yuv420p":
        size, to_picture = height * width * 3 // 2, partial(yuv_to_picture, height=height, width=width)
    else:
        size = 3 * height * width
        to_picture = partial(rgb_to_picture, height=height, width=width, matrix=header["matrix"])
    if hasattr(signal, "alarm"):
        signal.alarm(MAX_OPEN_SECONDS)
    container = av.open(header["address"], "w", format=header["format"], container_options=header["options"])
    try:
        stream = add_stream(container, height, width, Fraction(*header["rate"]), header["matrix_number"])
        container.start_encoding()
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        answer("open\n")
        while len(time := frames.read(8)) == 8:
            planes = frames.read(size)
            if len(planes) < size:
                break
            picture = to_picture(planes)
            picture.pts, picture.time_base = struct.unpack("<q", time)[0], tick
            for packet in stream.encode(picture):
                container.mux(packet)
            answer("sent\n")
        for packet in stream.encode(None):
            container.mux(packet)
    finally:
        container.close()


def add_stream(container: "OutputContainer", height: int, width: int, rate: Fraction, matrix: int) -> "VideoStream":
    """Add a stream of H.264 without delay, with a key frame a second for those who join."""
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    options = {"g": str(max(1, round(rate))), "bf": "0"}
    if codec == "libx264":
        options |= {"preset": "veryfast", "tune": "zerolatency", "crf": "23"}
    stream = cast("VideoStream", container.add_stream(codec, rate=rate, options=options))
    context = stream.codec_context
    context.width, context.height, context.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
    context.time_base = stream.time_base = Fraction(1, TICKS)
    context.colorspace = context.color_primaries = context.color_trc = matrix
    context.color_range = LIMITED_RANGE
    return stream


def rgb_to_picture(planes: bytes, height: int, width: int, matrix: str) -> "av.VideoFrame":
    """Return planes R, G, B as a frame for the encoder; an odd size is padded with the last row or column."""
    picture = av.VideoFrame(width + width % 2, height + height % 2, "gbrp")
    for channel, plane in zip(CHANNELS, picture.planes, strict=True):
        pixels, step = memoryview(cast("Any", plane)).cast("B"), plane.line_size
        for row in range(picture.height):
            begin = (channel * height + min(row, height - 1)) * width
            line = planes[begin : begin + width]
            pixels[row * step : row * step + picture.width] = line + line[-1:] * (width % 2)
    return picture.reformat(format="yuv420p", dst_colorspace=matrix)


def yuv_to_picture(planes: bytes, height: int, width: int) -> "av.VideoFrame":
    """Return luma and chroma of even sides as a frame for the encoder."""
    picture, begin = av.VideoFrame(width, height, "yuv420p"), 0
    for half, plane in zip((1, 2, 2), picture.planes, strict=True):
        pixels, step = memoryview(cast("Any", plane)).cast("B"), plane.line_size
        for row in range(height // half):
            pixels[row * step : row * step + width // half] = planes[begin : begin + width // half]
            begin += width // half
    return picture


if __name__ == "__main__":
    main()
