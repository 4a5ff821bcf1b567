"""PyAV, an optional dependency, and what reading and writing of video share.

A frame is RGB, uint8, (3, H, W); a size is (height, width).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy

from streamseg.io.planes import BT601, BT709, BT2020, Orientation, PlaneFormat, chroma_size, default_matrix

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer, OutputContainer
    from av.stream import Stream

    from streamseg.io.yuv import Yuv420

try:
    import av as av
except ImportError:  # needed for video only
    av = None  # type: ignore[assignment]

PLANE_CHANNELS = {"gbrp": (1, 2, 0), "gray": (0,), "rgb24": (0, 1, 2)}
"""The channel of each plane of FFmpeg's formats. Planes take a third of the time of interleaved RGB."""

YUV_BITS = {"yuv420p": 8, "yuvj420p": 8, "nv12": 8, "yuv420p10le": 10, "p010le": 10}
"""The bits of FFmpeg's YUV 4:2:0 formats; nv12 and p010le are those of hardware decoders."""

# FFmpeg's numbers of colour matrices, of an undeclared one, and of the full range of colours
COLOUR_MATRICES = {1: BT709, 5: BT601, 6: BT601, 9: BT2020, 10: BT2020}
UNDECLARED_MATRIX = 2
FULL_RANGE = 2


def require_av() -> None:
    """Raise an ImportError that says what to install, if PyAV is missing."""
    if av is None:
        raise ImportError("Reading and writing video needs PyAV: pip install 'streamseg[video]'")


@contextmanager
def closed_on_error(container: "InputContainer | OutputContainer") -> Iterator[None]:
    """Close a container if something fails; otherwise its file stays open until Python collects cycles."""
    try:
        yield
    except BaseException:
        container.close()
        raise


def time_base(stream: "Stream") -> Fraction:
    """Return the unit of a stream's timestamps in seconds."""
    return stream.time_base or Fraction(1, 1000)


def plane_views(frame: "VideoFrame") -> Iterator[numpy.ndarray]:
    """Yield the pixels (H, W) of each channel of a frame, in the frame's own memory."""
    height, width = frame.height, frame.width
    interleaved = len(PLANE_CHANNELS[frame.format.name]) // len(frame.planes)
    for rows in plane_arrays(frame):
        pixels = rows[:height, : interleaved * width].reshape(height, width, interleaved)
        yield from (pixels[:, :, channel] for channel in range(interleaved))


def new_reformatter() -> Callable[..., "VideoFrame"]:
    """Return a function that converts the frames of one video. It takes names of colours, which all versions know."""
    return av.video.reformatter.VideoReformatter().reformat


def default_colour_matrix(height: int) -> str:
    """Return FFmpeg's name of the colour matrix of a video that does not declare one."""
    return "ITU709" if default_matrix(height) == BT709 else "ITU601"


def colour_matrix_number(height: int) -> int:
    """Return FFmpeg's number of the same matrix."""
    return 1 if default_matrix(height) == BT709 else 6


def find_planes(frame: "VideoFrame", orientation: Orientation) -> PlaneFormat | None:
    """Return the format of a frame's planes if it is YUV 4:2:0 in a known colour space, else None."""
    kind, declared = frame.format.name, frame.colorspace != UNDECLARED_MATRIX
    matrix = COLOUR_MATRICES.get(frame.colorspace) if declared else default_matrix(frame.height)
    if kind not in YUV_BITS or matrix is None:
        return None
    full_range = kind == "yuvj420p" or frame.color_range == FULL_RANGE
    return PlaneFormat((frame.height, frame.width), YUV_BITS[kind], matrix, full_range, orientation)


def copy_planes(frame: "VideoFrame", size: tuple[int, int], pixels: numpy.ndarray) -> None:
    """Copy a frame's planes into unsigned values (H W + 2 h w,)."""
    kind = frame.format.name
    first, *others = plane_arrays(frame, pixels.dtype.name)
    if len(others) == 1:  # both chroma values of a pixel side by side
        others = [others[0][:, 0::2], others[0][:, 1::2]]
    for target, values in zip(picture_arrays(pixels, size), (first, *others), strict=True):
        height, width = target.shape
        # 10 bits may be in the upper ones of 16
        target[:] = values[:height, :width] >> 6 if kind == "p010le" else values[:height, :width]


def to_planes(frame: "VideoFrame", orientation: Orientation, *, pinned: bool) -> "Yuv420 | None":
    """Return a copy of a frame's planes if it is YUV 4:2:0 in a colour space that yuv.py knows, else None."""
    from streamseg.io.yuv import empty_yuv, with_format

    planes = find_planes(frame, orientation)
    if planes is None:
        return None
    pixels = empty_yuv(planes.size, planes.bits, pinned=pinned)
    copy_planes(frame, planes.size, pixels.numpy().view(f"uint{8 * pixels.itemsize}"))
    return with_format(pixels, planes)


def to_array(frame: "VideoFrame", orientation: Orientation) -> numpy.ndarray:
    """Return the pixels of a frame as channels (C, H, W), upright."""
    channels = PLANE_CHANNELS[frame.format.name]
    size = (frame.width, frame.height) if orientation.transposed else (frame.height, frame.width)
    array = numpy.empty((len(channels), *size), numpy.uint8)
    for channel, pixels in zip(channels, plane_views(frame), strict=True):
        upright = pixels.T if orientation.transposed else pixels
        array[channel] = upright[:: orientation.rows, :: orientation.columns]
    return array


# numpy, not torch, which would start a pool of threads in each thread that decodes or encodes, and which gives up
# Python's lock in every call, however short: with many threads, getting it back takes longer than the call


def plane_arrays(frame: "VideoFrame", kind: str = "uint8") -> list[numpy.ndarray]:
    """Return the rows (H, line) of each plane of a frame, in its own memory; lines may be longer than the frame."""
    return [
        numpy.frombuffer(memoryview(plane), dtype=kind).reshape(-1, plane.line_size // numpy.dtype(kind).itemsize)
        for plane in frame.planes
    ]


def picture_arrays(pixels: numpy.ndarray, size: tuple[int, int]) -> list[numpy.ndarray]:
    """Return the luma (H, W) and the two chroma planes (h, w) of a picture of a size, in its own memory."""
    height, width = size
    chroma = pixels[height * width :].reshape(2, *chroma_size(size))
    return [pixels[: height * width].reshape(height, width), *chroma]
