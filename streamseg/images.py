"""Picture files: in as frames, out as frames and label maps.

A frame is RGB, uint8, (3, H, W). PIL, numpy and channels-last live here and nowhere else.
"""

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy
import torch
from PIL import ExifTags, Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from torch import Tensor

from streamseg.classes import Classes

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")
"""What names of pictures end in."""

OPENING = threading.Lock()

# of a picture with an EXIF orientation, to see it upright
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# the most pixels a side that these formats can hold
LIMITS = {".webp": 16383, ".jpg": 65500, ".jpeg": 65500}


def read_image(path: str | Path) -> Tensor:
    """A picture as a frame: upright, RGB, 8 bits, whatever the file holds; of an animation the first picture.

    Of 16 bits a pixel the upper 8 are taken. Fractions and 32 bits have no known range and are refused.
    """
    rgb = decode(Path(path), lambda picture: to_rgb(upright(picture)))
    # numpy copies: torch would open a team of threads in each thread that decodes
    return torch.from_numpy(numpy.array(numpy.asarray(rgb).transpose(2, 0, 1), order="C"))


def read_ids(path: Path) -> Tensor:
    """The ids (H, W), int32, of a label file: a picture of one channel, indexed, or of 16 bits; values as they are."""
    picture = decode(path, Image.Image.copy)
    if picture.mode not in ("1", "L", "P", "I") and not picture.mode.startswith("I;"):
        raise ValueError(
            f"{path} is a colour picture ({picture.mode}); ids expected: save labels as PNG of one channel, "
            "each pixel the number of its class."
        )
    return torch.from_numpy(numpy.array(picture).astype(numpy.int32))


def read_colour_codes(path: Path) -> Tensor:
    """The colours (H, W), int32, of a label file that shows classes as colours: each pixel is 0xrrggbb."""
    picture = decode(path, Image.Image.copy)
    if picture.mode not in ("RGB", "RGBA", "P"):
        raise ValueError(f"{path} is no colour picture ({picture.mode}); expected the classes' colours, not their ids.")
    red, green, blue = numpy.moveaxis(numpy.array(picture.convert("RGB")).astype(numpy.int32), 2, 0)
    return torch.from_numpy(red << 16 | green << 8 | blue)


def look_up(ids: Tensor, table: Tensor) -> tuple[Tensor, list[int]]:
    """Labels (H, W), uint8, of ids (H, W), int32, by a table of each id's label; and the ids whose label is below 0.

    Ids outside of the table, those below 0 too, get its last entry.
    """
    # numpy, for 1 to 2 ms: torch opens a team of threads in each thread that decodes, which took 78 ms
    numbers = ids.numpy()
    # read without a sign, an id below 0 is a large one
    labels = table.numpy().take(numbers.view(numpy.uint32), mode="clip")
    return torch.from_numpy(labels.astype(numpy.uint8)), numpy.unique(numbers[labels < 0]).tolist()


def decode(path: Path, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Open a picture and convert it; a file that is missing, damaged or no picture fails in one sentence."""
    if not path.exists():
        raise FileNotFoundError(f"No picture at {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a picture.")
    try:
        # a file, not its name: from a name PIL maps a raw TIFF into memory, and then turns it wrongly
        with path.open("rb") as file:
            # the filters of warnings belong to all threads
            with OPENING, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                picture = Image.open(file)
            picture.load()
            return convert(picture)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller first.") from None
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not a picture that can be read, such as PNG, JPEG, WebP or TIFF.") from None
    except PermissionError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        raise ValueError(
            f"{path} is damaged or cut short, or of a rare kind ({error}): get a whole copy, or save it as a plain PNG."
        ) from error


def upright(picture: Image.Image) -> Image.Image:
    """A picture as it was taken; EXIF that cannot be read tells nothing of how."""
    with OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            turn = TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
        except Exception:  # damaged EXIF can fail in any way
            turn = None
    return picture if turn is None else picture.transpose(turn)


def to_rgb(picture: Image.Image) -> Image.Image:
    """A picture in RGB, 8 bits; of 16 bits the upper 8, however dark it is."""
    # PIL gives the 16 bits of a PGM as 32
    if picture.mode == "F" or (picture.mode == "I" and picture.format != "PPM"):
        raise ValueError("its pixels are fractions or 32-bit numbers of unknown range")
    if picture.mode.startswith("I"):
        picture = Image.fromarray((numpy.asarray(picture) >> 8).astype(numpy.uint8))
    # a palette's transparency, which PIL would warn of; what is under it is shown
    picture.info.pop("transparency", None)
    return picture.convert("RGB")


def write_image(path: Path, frame: Tensor) -> None:
    """Write a frame as a picture, in the format that the suffix names."""
    check_suffix(path)
    limit = LIMITS.get(path.suffix.lower(), math.inf)
    _, height, width = frame.shape
    if max(height, width) > limit:
        raise ValueError(
            f"A picture of {height} x {width} pixels is too large for {path.suffix}, which holds up to {limit} a side: "
            "write a .png."
        )
    Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()).save(path)


def write_labels(path: Path, labels: Tensor, classes: Classes) -> None:
    """Write labels (H, W) as an indexed PNG: each pixel is its label, shown in its class's colour."""
    picture = Image.fromarray(labels.to(torch.uint8).cpu().numpy()).convert("P")
    palette = [part for colour in classes.colours for part in colour]
    # all 256 entries: with few, PIL would pack pixels into fewer bits, and 255 (no class) would become another label
    picture.putpalette(palette + [0] * (3 * 256 - len(palette)))
    picture.save(path, format="PNG")


def write_sheet(path: Path, frames: Sequence[Tensor], captions: Sequence[str]) -> None:
    """Write frames as one picture: rows of up to four, made small, each above its caption."""
    check_suffix(path)
    width, height, line = 320, 240, 20
    columns = min(4, len(frames))
    sheet = Image.new("RGB", (columns * width, -(-len(frames) // columns) * (height + line)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    for i, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        x, y = i % columns * width, i // columns * (height + line)
        small = ImageOps.contain(Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()), (width - 4, height - 4))
        sheet.paste(small, (x + (width - small.width) // 2, y + height - small.height))
        while pen.textlength(caption, font) > width - 8:  # the end of a name tells more than its start
            caption = "…" + caption[2:]
        pen.text((x + 4, y + height + 2), caption, fill="black", font=font)
    sheet.save(path)


def check_suffix(path: Path) -> None:
    """Raise a ValueError if no picture can be written under such a name."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} names no kind of picture that can be written: end it in one of {' '.join(SUFFIXES)}.")
