"""Frames of OpenCV: arrays (H, W, 3) of bytes, blue, green and red."""

from typing import TYPE_CHECKING

from torch import Tensor

from streamseg.io.images import to_frame

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


def from_bgr(array: "NDArray[numpy.uint8]") -> Tensor:
    """Return an array of OpenCV, BGR (H, W, 3) or BGRA (H, W, 4) or grey (H, W), as a frame: RGB, uint8, (3, H, W)."""
    if not hasattr(array, "__array_interface__") or not hasattr(array, "ndim"):
        hint = " Did the camera or the file end?" if array is None else ""
        raise ValueError(f"The picture is a {type(array).__name__}; expected an array of OpenCV, (H, W, 3).{hint}")
    return to_frame(array).flip(0)


def to_bgr(frame: Tensor) -> "NDArray[numpy.uint8]":
    """Return a frame, RGB (3, H, W), such as overlay returns, as an array for OpenCV: BGR, uint8, (H, W, 3)."""
    return to_frame(frame).flip(0).permute(1, 2, 0).contiguous().cpu().numpy()
