"""PyAV, an optional dependency, and what reading and writing of video share.

A frame is RGB, uint8, (3, H, W); a size is (height, width).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer, OutputContainer
    from av.stream import Stream

try:
    import av as av
except ImportError:  # needed for video only
    av = None  # type: ignore[assignment]

PLANE_CHANNELS = {"gbrp": (1, 2, 0), "gray": (0,), "rgb24": (0, 1, 2)}
"""The channel of each plane of FFmpeg's formats. Planes take a third of the time of interleaved RGB."""


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


def plane_views(frame: "VideoFrame") -> Iterator[Tensor]:
    """Yield the pixels (H, W) of each channel of a frame, in the frame's own memory."""
    height, width = frame.height, frame.width
    interleaved = len(PLANE_CHANNELS[frame.format.name]) // len(frame.planes)
    for plane in frame.planes:
        rows = torch.frombuffer(plane, dtype=torch.uint8).view(-1, plane.line_size)
        yield from rows[:height, : interleaved * width].unflatten(1, (width, interleaved)).unbind(2)


def new_reformatter() -> Callable[..., "VideoFrame"]:
    """Return a function that converts the frames of one video. It takes names of colours, which all versions know."""
    return av.video.reformatter.VideoReformatter().reformat


def default_colour_matrix(height: int) -> str:
    """Return the colour matrix that players assume for a video that does not declare one."""
    return "ITU709" if height > 576 else "ITU601"
