"""Picture files as arrays, without torch: what picture_process.py shares with images.py."""

import io
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import BinaryIO, TypeVar

import numpy
from PIL import ExifTags, Image, UnidentifiedImageError

Result = TypeVar("Result")

MAX_LARGE_PIXELS = 2**30
"""The limit that allow_large_pictures sets: 4 GB in memory."""

UPLOAD_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The formats that are accepted from clients: none of their decoders starts another program."""

PIL_LOCK = threading.Lock()
"""Held while warnings are filtered: the filters are global to the process."""

SIGNATURE = "streamseg"
"""The name of the software in the EXIF of a picture."""

# by EXIF orientation: how a picture becomes upright
EXIF_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def allow_large_pictures() -> None:
    """Raise PIL's limit on the size of pictures, a protection against attacks, for this whole process."""
    Image.MAX_IMAGE_PIXELS = MAX_LARGE_PIXELS


class UnknownFormatError(ValueError):
    """Uploaded data is no picture of an accepted format."""


class TooLargeError(ValueError):
    """A picture has more pixels than are allowed."""


def decode_upload(data: bytes, most: int) -> numpy.ndarray:
    """Return the pixels (3, H, W) of an uploaded picture, which need not lie side by side in memory.

    One with more than `most` pixels is refused before it is decoded.
    """
    check_upload(data, most)
    return decode_file(io.BytesIO(data), "The picture", to_pixels, UPLOAD_FORMATS)


def check_upload(data: bytes, most: int) -> None:
    """Raise an error if uploaded data is no picture, or one with more than `most` pixels."""
    try:
        with PIL_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=UPLOAD_FORMATS) as picture:
                pixels = picture.width * picture.height
    except UnidentifiedImageError:
        raise UnknownFormatError("The data is no picture: send a PNG, JPEG, WebP, GIF, BMP or TIFF.") from None
    except Image.DecompressionBombError:
        pixels = most + 1
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        raise ValueError(f"The picture is damaged ({error!s:.80}): send a whole copy.") from error
    if pixels > most:
        raise TooLargeError(f"The picture has more than {most:,} pixels: make it smaller first.")


def decode_file(
    file: BinaryIO, name: str, convert: Callable[[Image.Image], Result], formats: tuple[str, ...] | None = None
) -> Result:
    """Convert the picture in a file. Errors use the given name.

    Args:
        formats: The accepted formats; None for all that PIL knows.
    """
    try:
        with PIL_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(file, formats=formats)
        picture.load()
        return convert(picture)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller first, or segment it with "
            f"--tile, which takes up to {MAX_LARGE_PIXELS:,}."
        ) from None
    except UnidentifiedImageError:
        raise ValueError(f"{name} is not a picture that can be read, such as PNG, JPEG, WebP or TIFF.") from None
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        raise ValueError(
            f"{name} is damaged or cut short, or has a rare format ({error}): get a new copy, or save it as a PNG."
        ) from error


def upright(picture: Image.Image) -> Image.Image:
    """Return a picture rotated as its EXIF says; unreadable EXIF is ignored."""
    with PIL_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            turn = EXIF_TRANSPOSES.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
        except Exception:  # damaged EXIF can fail in any way
            turn = None
    return picture if turn is None else picture.transpose(turn)


def to_rgb(picture: Image.Image) -> Image.Image:
    """Return a picture in RGB, 8 bits; the upper 8 of 16 bits, however dark the result is."""
    # PIL returns the 16 bits of a PGM as 32
    if picture.mode == "F" or (picture.mode == "I" and picture.format != "PPM"):
        raise ValueError("its pixels are floats or 32-bit numbers of unknown range")
    if picture.mode.startswith("I"):
        picture = Image.fromarray((numpy.asarray(picture) >> 8).astype(numpy.uint8))
    # PIL would warn about the transparency of a palette; the colours under it are used
    picture.info.pop("transparency", None)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def to_pixels(picture: Image.Image) -> numpy.ndarray:
    """Return a picture as (3, H, W): upright, RGB, 8 bits."""
    return numpy.asarray(to_rgb(upright(picture))).transpose(2, 0, 1)


def encode_labels(labels: numpy.ndarray, colours: Sequence[Sequence[int]]) -> bytes:
    """Return labels (H, W), uint8, as an indexed PNG: each pixel is its label, shown in the colour of its class.

    Runs of equal numbers are all that is compressed: on seven samples of 720 x 1280, 2.4 to 4 times as fast as PIL, and
    5 to 19 % smaller.
    """
    height, width = labels.shape
    rows = numpy.zeros((height, 1 + width), numpy.uint8)  # each begins with the number of its filter
    rows[0, 1:] = labels[0]
    rows[1:, 0] = 2  # the difference to the row above
    numpy.subtract(labels[1:], labels[:-1], out=rows[1:, 1:])
    compressor = zlib.compressobj(1, memLevel=9, strategy=zlib.Z_RLE)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),  # 8 bits, indexed
        # all 256 entries: with fewer, readers may refuse 255 (no class)
        b"PLTE": bytes(part for colour in colours for part in colour).ljust(3 * 256, b"\0"),
        b"eXIf": signature().tobytes().removeprefix(b"Exif\0\0"),
        b"IDAT": compressor.compress(rows.data) + compressor.flush(),
        b"IEND": b"",
    }
    chunks = [
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(name)))
        for name, content in parts.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def signature() -> Image.Exif:
    """Return the EXIF that marks pictures as written by streamseg."""
    exif = Image.Exif()
    exif[ExifTags.Base.Software] = SIGNATURE
    return exif
