"""Picture files: in as frames, out as frames and label maps.

A frame is RGB, uint8, (3, H, W). PIL, numpy and channels-last live here and nowhere else.
"""

import warnings
from pathlib import Path

import numpy
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from streamseg.classes import Classes


def read_image(path: str | Path) -> Tensor:
    """A picture as a frame: upright, RGB, 8 bits, whatever the file holds; of an animation the first picture."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"No picture at {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a picture.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                picture.load()
                rgb = ImageOps.exif_transpose(to_8_bits(picture)).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller first.") from None
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not a picture that can be read, such as PNG, JPEG, WebP or TIFF.") from None
    except PermissionError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        raise ValueError(f"{path} is damaged or cut short ({error}): get a whole copy of it.") from error
    return torch.from_numpy(numpy.array(rgb)).permute(2, 0, 1).contiguous()


def to_8_bits(picture: Image.Image) -> Image.Image:
    """A picture of 16 bits a pixel, which PIL would clip at 255, by its upper 8 bits; any other as it is."""
    if picture.mode == "F":
        raise ValueError("its pixels are fractions of unknown range")
    if not picture.mode.startswith("I"):
        return picture
    values = numpy.asarray(picture)
    eight = Image.fromarray((values >> 8 if values.max(initial=0) > 255 else values).clip(0, 255).astype(numpy.uint8))
    eight.info = picture.info
    return eight


def write_image(path: Path, frame: Tensor) -> None:
    """Write a frame as a picture, in the format that the suffix names."""
    check_suffix(path)
    Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()).save(path)


def write_labels(path: Path, labels: Tensor, classes: Classes) -> None:
    """Write labels (H, W) as an indexed PNG: each pixel is its label, shown in its class's colour."""
    picture = Image.fromarray(labels.to(torch.uint8).cpu().numpy()).convert("P")
    palette = [part for colour in classes.colours for part in colour]
    # all 256 entries: with few, PIL would pack pixels into fewer bits, and 255 (no class) would become another label
    picture.putpalette(palette + [0] * (3 * 256 - len(palette)))
    picture.save(path, format="PNG")


def check_suffix(path: Path) -> None:
    """Raise a ValueError if no picture can be written under such a name."""
    known = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")
    if path.suffix.lower() not in known:
        raise ValueError(f"{path} names no kind of picture that can be written: end it in one of {' '.join(known)}.")
