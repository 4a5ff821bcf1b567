"""Small videos, made with PyAV: any codec, rate and size, with sound, rotated or truncated."""

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import torch
from torch import Tensor

from streamseg.io.video_reading import open_video
from streamseg.io.video_writing import open_video_writer

NTSC = Fraction(30000, 1001)
REPRODUCIBLE = (96, 128)
"""A size of which x264 always writes the same bytes. At widths that are no multiple of 128 they depend on what was in
its memory before."""
UNEVEN = [0.0, 0.04, 0.1, 0.11, 0.3, 0.31, 0.5, 0.9, 1.0, 1.002, 1.5]

# a, b, c, d of the matrix in an MP4, which maps the pixel (x, y) to (a x + c y, b x + d y)
TURNS = {
    "upright": (1, 0, 0, 1),
    "a quarter clockwise": (0, 1, -1, 0),
    "half": (-1, 0, 0, -1),
    "a quarter anticlockwise": (0, -1, 1, 0),
    "mirrored": (-1, 0, 0, 1),
    "upside down": (1, 0, 0, -1),
    "transposed": (0, 1, 1, 0),
    "transposed and half": (0, -1, -1, 0),
}


def picture(i: int, size: tuple[int, int] = (48, 64)) -> Tensor:
    """Return frame i of a clip: red, green and blue corners, and a grey one that is 8 lighter with each frame."""
    height, width = size
    frame = torch.empty(3, height, width, dtype=torch.uint8)
    corners = [[(220, 40, 40), (40, 200, 40)], [(40, 40, 220), (8 * i % 256,) * 3]]
    for rows, line in zip((slice(0, height // 2), slice(height // 2, None)), corners, strict=True):
        for columns, colour in zip((slice(0, width // 2), slice(width // 2, None)), line, strict=True):
            frame[:, rows, columns] = torch.tensor(colour, dtype=torch.uint8)[:, None, None]
    return frame


def number(frame: Tensor) -> int:
    """Return i of picture(i), read from the pixels of a compressed frame."""
    return round(frame[:, -6:-2, -6:-2].float().mean().item() / 8)


def make_clip(
    path: Path,
    frames: int = 12,
    *,
    size: tuple[int, int] = (48, 64),
    rate: Fraction = Fraction(25),
    times: Sequence[float] | None = None,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    sound: str | None = None,
    sound_seconds: float | None = None,
    sound_start: float = 0.0,
) -> Path:
    """Write a video of picture(0), picture(1), …, at even or given times, with a tone if a sound codec is given."""
    height, width = size
    times = times or [float(i / rate) for i in range(frames)]
    options = {"movflags": "+faststart"} if path.suffix in (".mp4", ".mov") else {}
    with av.open(str(path), "w", container_options=options) as container:
        stream = container.add_stream(codec, rate=rate, options={"crf": "12"} if codec == "libx264" else {})
        stream.height, stream.width, stream.pix_fmt = height, width, pixels
        stream.codec_context.thread_count = 1  # so that every run writes the same bytes
        tick = 1 / rate if path.suffix == ".avi" else Fraction(1, 60000)  # AVI has even times only
        stream.codec_context.time_base = tick
        if sound:
            track = container.add_stream(sound, rate=48000)
            for frame in tone(times[-1] + float(1 / rate) if sound_seconds is None else sound_seconds, sound_start):
                container.mux(track.encode(frame))
            container.mux(track.encode(None))
        for i, seconds in enumerate(times):
            pixels_of = picture(i, size).permute(1, 2, 0).contiguous().numpy()
            frame = av.VideoFrame.from_ndarray(pixels_of, "rgb24")
            frame.pts, frame.time_base = round(seconds / tick), tick
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return path


def tone(seconds: float, start: float = 0.0):
    """Yield a 440 Hz tone in frames of 1024 samples."""
    for first in range(0, round(seconds * 48000), 1024):
        wave = [round(8000 * math.sin(2 * math.pi * 440 * (first + i) / 48000)) for i in range(1024)]
        frame = av.AudioFrame("s16", "mono", 1024)
        frame.planes[0].update(struct.pack("=1024h", *wave))
        frame.sample_rate, frame.pts, frame.time_base = 48000, first + round(start * 48000), Fraction(1, 48000)
        yield frame


def turn(path: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Write a rotation into the header of an MP4."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # the matrix is after 40 bytes of a track's header
    a, b, c, d = (65536 * part for part in matrix)
    struct.pack_into(">9i", data, at, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def cut(path: Path, part: float) -> Path:
    """Truncate a file to its first part."""
    data = path.read_bytes()
    path.write_bytes(data[: round(len(data) * part)])
    return path


def read(path):
    """The numbers of a video's frames, and their times."""
    with open_video(path) as video:
        pairs = [(number(frame), seconds) for frame, seconds in video]
    return [i for i, _ in pairs], [seconds for _, seconds in pairs]


def write(path, times, rate=NTSC, size=(48, 64), **options):
    with open_video_writer(path, size, rate, **options) as writer:
        for i, seconds in enumerate(times):
            writer.write(picture(i, size), seconds)
    return path


def even(frames, rate=NTSC):
    return [float(i / rate) for i in range(frames)]
