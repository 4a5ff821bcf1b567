"""Video files, network streams and cameras: in as frames, out as frames and label maps.

A frame is RGB, uint8, (3, H, W); a size is (height, width); times are in seconds from the first frame. PyAV lives here
and nowhere else.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streamseg.checks import CutShort as CutShort

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer, OutputContainer
    from av.stream import Stream

try:
    import av as av
except ImportError:  # an extra: all that is no video works without it
    av = None  # type: ignore[assignment]


# of each plane of FFmpeg's formats its channel; planes are converted and copied in a third of the time of RGB pixels
PLANE_CHANNELS = {"gbrp": (1, 2, 0), "gray": (0,), "rgb24": (0, 1, 2)}


def require_av() -> None:
    if av is None:
        raise ImportError("Reading and writing video needs PyAV: pip install 'streamseg[video]'")


@contextmanager
def closed_on_error(container: "InputContainer | OutputContainer") -> Iterator[None]:
    """Close a container if something fails; by itself its file would stay open until Python looks for cycles."""
    try:
        yield
    except BaseException:
        container.close()
        raise


def time_base(stream: "Stream") -> Fraction:
    return stream.time_base or Fraction(1, 1000)


def plane_views(frame: "VideoFrame") -> Iterator[Tensor]:
    """The pixels (H, W) of each plane of a frame, or of each channel if it has but one, in its own memory."""
    height, width = frame.height, frame.width
    several = len(PLANE_CHANNELS[frame.format.name]) // len(frame.planes)
    for plane in frame.planes:
        rows = torch.frombuffer(plane, dtype=torch.uint8).view(-1, plane.line_size)
        yield from rows[:height, : several * width].unflatten(1, (width, several)).unbind(2)


def new_reformatter() -> Callable[..., "VideoFrame"]:
    """A function that converts frames of one video; its arguments are names of colours, as all versions know them."""
    return av.video.reformatter.VideoReformatter().reformat


def default_colour_matrix(height: int) -> str:
    """How players take the colours of a video that says nothing about them."""
    return "ITU709" if height > 576 else "ITU601"
