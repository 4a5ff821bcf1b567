"""The format of pictures of YUV 4:2:0. It needs no torch, which processes of codecs do not import.

Shapes: H x W the picture as it is stored, h x w its chroma: half of each, rounded up.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class ColourMatrix(NamedTuple):
    """The weights of red and blue in the luma of a colour space."""

    red: float
    blue: float

    @property
    def green(self) -> float:
        return 1 - self.red - self.blue


BT601, BT709, BT2020 = ColourMatrix(0.299, 0.114), ColourMatrix(0.2126, 0.0722), ColourMatrix(0.2627, 0.0593)


def default_matrix(height: int) -> ColourMatrix:
    """Return the colour matrix that players assume for a video that does not declare one."""
    return BT709 if height > 576 else BT601


@dataclass(frozen=True)
class Orientation:
    """How a stored picture becomes upright: transpose it, then take rows and columns forwards (1) or backwards (-1)."""

    transposed: bool = False
    rows: int = 1
    columns: int = 1

    def turn(self, frame: "Tensor") -> "Tensor":
        """Return a frame (C, H, W) upright; one that is upright already is returned unchanged."""
        if self.transposed:
            frame = frame.transpose(1, 2)
        backwards = [axis for axis, step in ((1, self.rows), (2, self.columns)) if step < 0]
        return (frame.flip(backwards) if backwards else frame).contiguous()


UPRIGHT = Orientation()


@dataclass(frozen=True)
class PlaneFormat:
    """How the planes of a picture are stored."""

    size: tuple[int, int]
    """H and W."""
    bits: int = 8
    matrix: ColourMatrix = BT601
    full_range: bool = False
    """Whether luma fills its range; otherwise black is 16 and white 235, of 8 bits."""
    orientation: Orientation = UPRIGHT

    @property
    def count(self) -> int:
        """How many values all planes have."""
        height, width = chroma_size(self.size)
        return self.size[0] * self.size[1] + 2 * height * width


def chroma_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return h and w of a picture's chroma."""
    return (size[0] + 1) // 2, (size[1] + 1) // 2
