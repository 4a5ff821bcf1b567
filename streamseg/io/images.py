"""Read and write picture files: frames and labels.

A frame is RGB, uint8, (3, H, W). Only this module, streamseg.io.pictures and streamseg.io.captions import PIL.
"""

import io
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeGuard

import numpy
import torch
from PIL import ExifTags, Image
from torch import Tensor

from streamseg.checks import check_suffix
from streamseg.classes import Classes
from streamseg.io import pictures
from streamseg.io.pictures import (
    PIL_LOCK,
    SIGNATURE,
    Result,
    UnknownFormatError,
    check_upload,
    decode_file,
    encode_labels,
    signature,
    to_pixels,
    to_rgb,
    upright,
)

Picture = str | Path | Image.Image | numpy.ndarray | Tensor
"""Anything that is accepted as a picture: a path, a PIL image, an array (H, W, 3), (H, W, 4) or (H, W), a frame."""

PilPicture = Image.Image

BMP_SIGNATURE = (6, b"sseg")
"""What marks a BMP, which has no EXIF: position and value of the header bytes that are free for applications."""

FAST_COMPRESSION = 1
"""The compression level for PNGs of photographs: an overlay of 720 x 1280 takes 47 to 61 ms instead of 212 to 299, and
the file is 7 to 10 % larger."""

MAX_SIDES = {".webp": 16383, ".jpg": 65500, ".jpeg": 65500}
"""The longest side, in pixels, that these formats can hold."""


def read_image(path: str | Path) -> Tensor:
    """Return a picture as a frame: upright, RGB, 8 bits; the first picture of an animation.

    The upper 8 of 16 bits are used. Floats and 32 bits have no known range and are refused.
    """
    return read_first(path)[0]


def read_first(path: str | Path) -> tuple[Tensor, bool]:
    """Return the frame of a picture, and whether the file holds more than one, as animations do."""
    return decode(Path(path), to_first_frame)


def read_downloaded(file: BinaryIO, name: str) -> tuple[Tensor, bool]:
    """Do the same as read_first for a downloaded picture; errors use the given name."""
    return decode_file(file, name, to_first_frame)


def decode_upload(data: bytes, most: int) -> Tensor:
    """Return the frame of an uploaded picture. One with more than `most` pixels is refused before it is decoded."""
    return torch.from_numpy(numpy.array(pictures.decode_upload(data, most), order="C"))


def decode_uploaded_ids(data: bytes, most: int) -> Tensor:
    """Return the ids (H, W), int32, of an uploaded label file, with the same limit."""
    check_upload(data, most)
    if not data.startswith(b"\x89PNG"):
        raise UnknownFormatError(
            "The labels' file is no PNG: send one in which each pixel is the number of its class, as /segment answers."
        )
    return to_label_ids(
        decode_file(io.BytesIO(data), "The labels' file", Image.Image.copy, ("PNG",)), "The labels' file"
    )


def to_first_frame(picture: Image.Image) -> tuple[Tensor, bool]:
    """Return the frame of a picture, and whether more follow in its file."""
    # numpy copies: torch would start a pool of threads in each thread that decodes
    frame = torch.from_numpy(numpy.array(to_pixels(picture), order="C"))
    with PIL_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # a phone's photo (MPO) holds a second view of the same picture, which does not count
            more = picture.format != "MPO" and getattr(picture, "is_animated", False)
        except Exception:  # the rest is damaged, but not needed
            more = True
    return frame, more


def is_picture(thing: object) -> TypeGuard[str | Path | Image.Image | numpy.ndarray]:
    """Return whether an object is a picture that to_frame converts, and not a frame yet."""
    return isinstance(thing, (str, Path, Image.Image, numpy.ndarray))


def to_frame(picture: Picture) -> Tensor:
    """Convert a picture to a frame. Arrays are RGB, channels last; the upper 8 of 16 bits are used."""
    if isinstance(picture, (str, Path)):
        return read_image(picture)
    if isinstance(picture, Tensor):
        if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[0] != 3 or 0 in picture.shape:
            raise ValueError(
                f"The picture is a tensor of {picture.dtype} and shape {tuple(picture.shape)}; "
                "expected a frame: RGB, torch.uint8, (3, H, W)."
            )
        return picture
    if isinstance(picture, Image.Image):
        try:
            turned = upright(picture)
            # a copy: to_rgb changes the picture's info
            copy = turned.copy()
            copy.format = turned.format
            picture = numpy.asarray(to_rgb(copy))
        except Exception as error:  # a file that is open but not read yet can fail in its decoder
            raise ValueError(f"The picture cannot be read or has a rare format ({error}).") from error
    if not isinstance(picture, numpy.ndarray):
        raise ValueError(
            f"The picture is a {type(picture).__name__}; "
            "expected a path, a PIL image, an array (H, W, 3) of uint8, or a frame."
        )
    if picture.dtype.kind == "u" and picture.dtype.itemsize == 2:
        picture = (picture >> 8).astype(numpy.uint8)
    if picture.dtype != numpy.uint8:
        hint = ", after multiplying by 255" if picture.dtype.kind == "f" and picture.size and picture.max() <= 1 else ""
        raise ValueError(f"The picture is an array of {picture.dtype}; expected bytes in 0–255: numpy.uint8{hint}.")
    if picture.ndim == 2:
        picture = numpy.stack([picture] * 3, axis=2)
    if picture.ndim != 3 or picture.shape[2] not in (3, 4) or 0 in picture.shape:
        raise ValueError(
            f"The picture is an array of shape {picture.shape}; expected RGB (H, W, 3), "
            "RGBA (H, W, 4), whose alpha is ignored, or grey (H, W)."
        )
    return torch.from_numpy(numpy.array(picture[:, :, :3].transpose(2, 0, 1), order="C"))


def read_label_ids(path: Path) -> Tensor:
    """Return the ids (H, W), int32, in a label file: a picture of one channel, indexed, or of 16 bits."""
    return to_label_ids(decode(path, Image.Image.copy), str(path))


def read_downloaded_label_ids(file: BinaryIO, name: str) -> Tensor:
    """Do the same as read_label_ids for a downloaded file; errors use the given name."""
    return to_label_ids(decode_file(file, name, Image.Image.copy), name)


def to_label_ids(picture: Image.Image, name: str) -> Tensor:
    """Return the ids (H, W), int32, in a picture."""
    if picture.mode not in ("1", "L", "P", "I") and not picture.mode.startswith("I;"):
        raise ValueError(
            f"{name} is a colour picture ({picture.mode}), expected ids: save labels as a PNG of one channel, "
            "each pixel the id of its class."
        )
    return torch.from_numpy(numpy.array(picture).astype(numpy.int32))


def read_colour_codes(path: Path) -> Tensor:
    """Return the colours (H, W), int32, 0xrrggbb, of a label file that shows classes as colours."""
    picture = decode(path, Image.Image.copy)
    if picture.mode not in ("RGB", "RGBA", "P"):
        raise ValueError(f"{path} is no colour picture ({picture.mode}); expected the classes' colours, not their ids.")
    red, green, blue = numpy.moveaxis(numpy.array(picture.convert("RGB")).astype(numpy.int32), 2, 0)
    return torch.from_numpy(red << 16 | green << 8 | blue)


def lookup_labels(ids: Tensor, table: Tensor) -> tuple[Tensor, list[int]]:
    """Return the labels (H, W), uint8, of ids (H, W), int32, by a table; and the ids whose label is negative.

    Ids outside of the table, and negative ones, get its last entry.
    """
    # numpy takes 1 to 2 ms; torch took 78, since it starts a pool of threads in each thread that decodes
    numbers = ids.numpy()
    # as unsigned numbers, negative ids are large
    labels = table.numpy().take(numbers.view(numpy.uint32), mode="clip")
    return torch.from_numpy(labels.astype(numpy.uint8)), numpy.unique(numbers[labels < 0]).tolist()


def decode(path: Path, convert: Callable[[Image.Image], Result]) -> Result:
    """Open a picture and convert it. Errors name the file."""
    if not path.exists():
        raise FileNotFoundError(f"No picture at {path}: check the path.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a picture.")
    # a file, not its name: given a name, PIL maps a raw TIFF into memory, and then rotates it wrongly
    with path.open("rb") as file:
        return decode_file(file, str(path), convert)


def write_image(path: Path, frame: Tensor) -> None:
    """Write a frame as a picture, in the format of the suffix."""
    check_suffix(path)
    limit = MAX_SIDES.get(path.suffix.lower(), math.inf)
    _, height, width = frame.shape
    if max(height, width) > limit:
        raise ValueError(
            f"A picture of {height} x {width} pixels is too large for {path.suffix}, which holds up to {limit} a side: "
            "write a .png."
        )
    Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()).save(path, exif=signature(), compress_level=FAST_COMPRESSION)
    if path.suffix.lower() == ".bmp":
        place, mark = BMP_SIGNATURE
        with path.open("r+b") as file:
            file.seek(place)
            file.write(mark)


def write_grey(path: Path, values: Tensor) -> None:
    """Write values (H, W), uint8, as a grey PNG."""
    picture = Image.fromarray(values.cpu().numpy())
    picture.save(path, format="PNG", exif=signature(), compress_level=FAST_COMPRESSION)


def to_pil(frame: Tensor) -> PilPicture:
    """Return a frame as a PIL picture."""
    return Image.fromarray(frame.permute(1, 2, 0).cpu().numpy())


def to_jpeg(frame: Tensor) -> bytes:
    """Return a frame as the bytes of a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()).save(file, format="JPEG", quality=90)
    return file.getvalue()


def write_labels(path: Path | BinaryIO, labels: Tensor, classes: Classes) -> None:
    """Write labels (H, W) as an indexed PNG: each pixel is its label, shown in the colour of its class."""
    data = encode_labels(labels.to(torch.uint8).cpu().numpy(), classes.colours)
    if isinstance(path, Path):
        path.write_bytes(data)
    else:
        path.write(data)


def picture_made_by_streamseg(path: Path) -> bool:
    """Return whether streamseg wrote a picture, by its EXIF or BMP header."""
    try:
        if path.suffix.lower() == ".bmp":
            place, mark = BMP_SIGNATURE
            with path.open("rb") as file:
                return file.read(place + len(mark))[place:] == mark
        with PIL_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with path.open("rb") as file, Image.open(file) as picture:
                # not the PNG reader's method, which decodes the whole picture to find EXIF after it; ours is before
                exif = Image.Image.getexif(picture)
        return exif.get(ExifTags.Base.Software) == SIGNATURE
    except Exception:  # a missing file, no picture, or damaged EXIF, which can fail in any way
        return False
