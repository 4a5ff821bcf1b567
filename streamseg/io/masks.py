"""Masks: pixels of a camera that are ignored, such as the own car, letterboxes and burnt-in text.

What a mask hides is painted over with grey before the network sees it, left out of the contexts, and has no class: its
label is IGNORE, which no statistic counts.

Shapes: H height, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE
from streamseg.io.images import Picture, is_picture, read_image, to_frame

GREY = 114
"""What is painted over hidden pixels: the grey that training has outside of pictures."""

MAX_DISTORTION = 0.02
"""How much the proportions of a mask and of a frame may differ: rounding, not another camera."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Which pixels of a camera's frames are not ignored."""

    looked_at: Tensor
    """(H, W), bool, on the CPU."""
    name: str = "the mask"
    """What it is called in errors."""

    def __post_init__(self) -> None:
        x = self.looked_at
        if not isinstance(x, Tensor) or x.dtype != torch.bool or x.ndim != 2:
            raise ValueError(f"{self.name} is no tensor of bool (H, W), True for pixels that are not ignored.")
        if not x.any():
            raise ValueError(
                f"{self.name} is all black, so every pixel would be ignored: those below 128 are, others are kept."
            )

    @property
    def hides(self) -> bool:
        """Whether it hides any pixel."""
        return not bool(self.looked_at.all())

    def check_fits(self, height: int, width: int) -> None:
        """Raise a ValueError if frames have other proportions; a mask of the same proportions is resized."""
        rows, columns = self.looked_at.shape
        if not have_same_proportions((height, width), (rows, columns)):
            raise ValueError(
                f"{self.name} has {rows} x {columns} pixels and the frames {height} x {width}, which are other "
                "proportions: draw the mask on a frame of this camera."
            )

    def pixels(self, size: tuple[int, int], device: torch.device) -> Tensor:
        """Return which pixels are not ignored in frames of a size, (H, W), bool: the nearest ones of the mask."""
        return resize_mask(self, size, device, "nearest-exact")

    def shares(self, size: tuple[int, int], device: torch.device) -> Tensor:
        """Return the unmasked share of each pixel in frames of a size, (H, W), 0 to 1."""
        return resize_mask(self, size, device, "area")


def have_same_proportions(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two sizes, height and width, have the same proportions but for rounding."""
    return abs(one[0] * other[1] / (one[1] * other[0]) - 1) <= MAX_DISTORTION


@lru_cache(maxsize=64)  # one of each kind for the sizes of some cameras
def resize_mask(mask: Mask, size: tuple[int, int], device: torch.device, how: str) -> Tensor:
    """Return a mask at a size, on a device; it is kept for later frames."""
    with torch.inference_mode(False):
        resized = F.interpolate(mask.looked_at[None, None].float(), size, mode=how)[0, 0]
        return (resized.bool() if how == "nearest-exact" else resized).to(device)


def read_mask(path: str | Path) -> Mask:
    """Read a mask: a picture whose black pixels, or those darker than half, are ignored."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no mask at {path}: give a picture whose black pixels are ignored.")
    return Mask(read_image(path).float().mean(dim=0) >= 128, str(path))


def to_mask(given: "Mask | Picture | None") -> Mask | None:
    """Return a mask given as such, as a path, a picture or a tensor of bool (H, W); None if it hides nothing."""
    if given is None or isinstance(given, Mask):
        mask = given
    elif isinstance(given, (str, Path)):
        mask = read_mask(given)
    elif isinstance(given, Tensor) and given.dtype == torch.bool:
        mask = Mask(given.cpu())
    elif isinstance(given, Tensor) or is_picture(given):
        mask = Mask(to_frame(given).float().mean(dim=0).cpu() >= 128)
    else:
        raise ValueError(f"The mask is a {type(given).__name__}; expected a picture, whose black pixels are ignored.")
    return mask if mask is not None and mask.hides else None


def paint_over(frame: Tensor, mask: Mask | None) -> Tensor:
    """Return a frame (…, H, W) with grey where a mask hides it; a ValueError if the mask is of other proportions."""
    if mask is None:
        return frame
    height, width = frame.shape[-2:]
    mask.check_fits(height, width)
    return frame.masked_fill(~mask.pixels((height, width), frame.device), GREY)


def remove_labels(labels: Tensor, mask: Mask | None) -> Tensor:
    """Return labels (…, H, W) with IGNORE where a mask hides the frame."""
    if mask is None:
        return labels
    return labels.masked_fill(~mask.pixels((labels.shape[-2], labels.shape[-1]), labels.device), IGNORE)
