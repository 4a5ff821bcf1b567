"""Pictures and videos whose frames show their numbers, for tests of sources."""

from pathlib import Path

import av
import numpy
from PIL import Image

from streamseg.io.resolve import find_sources

HEIGHT, WIDTH = 48, 64


def shade(i):
    """A frame (H, W, 3) of one colour, which tells its number even after compression."""
    return numpy.full((HEIGHT, WIDTH, 3), (20 * i, 100, 255 - 20 * i), numpy.uint8)


def number(frame):
    """The number of a shade."""
    return round(frame[0].float().mean().item() / 20)


def paint(path, i=0, size=(WIDTH, HEIGHT)):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(shade(i)).resize(size).save(path)


def film(path, count=6, rate=25, movflags="faststart"):
    """A video of shades 0, 1, …, whose index comes first, so that it can be played as it arrives."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    options = {"movflags": movflags} if str(path).endswith(".mp4") else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=rate, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
        stream.options = {"qscale": "2"}
        for i in range(count):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade(i), format="rgb24")))
        container.mux(stream.encode(None))


def numbers(source):
    """The numbers of the shades that a source shows."""
    return [number(capture.frame) for capture in source.captures()]


def names(source):
    return [capture.name for capture in source.captures()]


def only(*arguments, **options):
    (source,) = find_sources(arguments, **options)
    return source


def damage(data, dice):
    """Return data with some bits flipped, or truncated, or both."""
    data = bytearray(data)
    for _ in range(dice.choice([0, 1, 3, 30])):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.3:
        del data[dice.randrange(len(data)) :]
    return bytes(data)
