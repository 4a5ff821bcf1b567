"""Videos to measure with: a camera that pans over a picture with noise and passing boxes, or the frames of a clip.

python benchmarks/scene.py OUT.mp4 [--size 720x1280] [--frames 600] [--clip CLIP]
"""

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import av
import torch
from torch import Tensor
from torch.nn.functional import interpolate

import streamseg
from streamseg.cli.options import parse_size

PICTURE = Path(__file__).parent.parent / "samples" / "suburb-1.jpg"
SIZE = partial(parse_size, "--size")
"""Reads an argument such as 720x1280."""
RATE = 30
NOISE = 3.0
"""Standard deviation of a camera's noise, in pixel values from 0 to 255."""
DISTINCT = 100
"""Frames of a video that differ."""
MARGIN = 1.25
"""How much larger than a frame the picture is that the camera pans over."""


def moving_scene(size: tuple[int, int], frames: int) -> Iterator[Tensor]:
    """Yield frames (3, H, W) with detail, motion and noise, the same in every run."""
    height, width = size
    picture = resize(streamseg.read_image(PICTURE), (round(MARGIN * height), round(MARGIN * width))).to(torch.int16)
    dice = torch.Generator().manual_seed(0)
    # another part of it for each frame: new noise would take longer than to encode it
    noise = (NOISE * torch.randn(picture.shape, generator=dice)).round().to(torch.int16)
    box = picture[:, : height // 4, : width // 6].flip(2)
    room = picture.shape[1] - height, picture.shape[2] - width
    for i in range(frames):
        top, left = (bounce(3 * i + k, space) for k, space in zip((0, 7), room, strict=True))
        y, x = (step * i % (space + 1) for step, space in zip((31, 57), room, strict=True))
        view = picture[:, top : top + height, left : left + width] + noise[:, y : y + height, x : x + width]
        column = (9 * i) % (width - box.shape[2])
        view[:, height // 2 : height // 2 + box.shape[1], column : column + box.shape[2]] = box
        yield view.clamp(0, 255).to(torch.uint8)


def clip_frames(clip: Path, size: tuple[int, int], frames: int) -> Iterator[Tensor]:
    """Yield the frames of a clip at a size, from its start again where it is too short."""
    endless = itertools.chain.from_iterable(streamseg.read_frames(clip) for _ in itertools.count())
    for frame in itertools.islice(endless, frames):
        yield resize(frame, size)


def make_video(
    path: Path, size: tuple[int, int], frames: int, clip: Path | None = None, distinct: int = DISTINCT
) -> Path:
    """Write a video of a size, whose first frames come over and over: they are encoded once, which takes longest."""
    count = min(frames, distinct)
    pictures = clip_frames(clip, size, count) if clip else moving_scene(size, count)
    with tempfile.TemporaryDirectory() as folder:
        short = path if count == frames else Path(folder) / path.name
        streamseg.write_frames(short, pictures, RATE)
        if count < frames:
            repeat_video(short, path, frames, count)
    return path


def repeat_video(video: Path, path: Path, frames: int, count: int) -> None:
    """Copy a video over and over, without decoding it, until there are a number of frames; it begins with a key frame.

    Args:
        count: How many frames the video has.
    """
    with av.open(str(path), "w") as output:
        track = None
        for start in range(0, frames, count):
            with av.open(str(video)) as source:
                stream = source.streams.video[0]
                track = track or output.add_stream_from_template(stream)
                for packet in itertools.islice(source.demux(stream), min(count, frames - start)):
                    shift = round(start / RATE / packet.time_base)
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = track
                    output.mux(packet)


def resize(frame: Tensor, size: tuple[int, int]) -> Tensor:
    if frame.shape[1:] == size:
        return frame
    return interpolate(frame[None].float(), size, mode="bilinear", antialias=True)[0].round().to(torch.uint8)


def bounce(place: int, room: int) -> int:
    """Return a place that goes forwards and backwards between 0 and room."""
    place %= max(1, 2 * room)
    return min(place, 2 * room - place)


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=SIZE, default=(720, 1280), help="height and width, such as 1080x1920")
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--clip", type=Path, help="take its frames instead of the moving picture")
    options = parser.parse_args()
    print(make_video(options.out, options.size, options.frames, options.clip))


if __name__ == "__main__":
    main()
