"""Picture files: in as frames, out as frames and label maps.

A frame is RGB, uint8, (3, H, W). PIL, numpy and channels-last live here and nowhere else.
"""

import contextlib
import io
import math
import threading
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeGuard, TypeVar, cast

import numpy
import torch
from PIL import ExifTags, Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from torch import Tensor

from streamseg.checks import check_suffix
from streamseg.classes import IGNORE, Classes

Result = TypeVar("Result")

Picture = str | Path | Image.Image | numpy.ndarray | Tensor
"""What can be taken for a picture: a file's path, a PIL picture, an array (H, W, 3), (H, W, 4) or (H, W), a frame."""

MAX_LARGE_PIXELS = 2**30
"""What allow_large_pictures allows: 4 GB in memory."""

UPLOAD_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The kinds of pictures that are taken from strangers: none of their decoders starts another program."""

PIL_LOCK = threading.Lock()

SIGNATURE = "streamseg"
"""The software that wrote a picture, in its EXIF."""
BMP_SIGNATURE = (6, b"sseg")
"""The same in a BMP, which has no EXIF: in the bytes of its header that are for the program that writes it."""

FAST_COMPRESSION = 1
"""How hard PNGs of photographs are compressed: an overlay of 720 x 1280 takes 47 to 61 ms instead of 212 to 299, for a
file that is 7 to 10 % larger. Of labels, which take 5 ms, it would be two thirds larger."""

# for names of classes that need other letters than English ones, which are all that PIL's own font has
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial.ttf", "Arial Unicode.ttf", "NotoSansCJK-Regular.ttc")

# of a picture with an EXIF orientation, to see it upright
EXIF_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# the most pixels a side that these formats can hold
MAX_SIDES = {".webp": 16383, ".jpg": 65500, ".jpeg": 65500}


def read_image(path: str | Path) -> Tensor:
    """A picture as a frame: upright, RGB, 8 bits, whatever the file holds; of an animation the first picture.

    Of 16 bits a pixel the upper 8 are taken. Fractions and 32 bits have no known range and are refused.
    """
    return read_first(path)[0]


def allow_large_pictures() -> None:
    """Read pictures in this process that else would be taken for an attack on its memory, up to MOST_PIXELS."""
    Image.MAX_IMAGE_PIXELS = MAX_LARGE_PIXELS


def read_first(path: str | Path) -> tuple[Tensor, bool]:
    """A picture as read_image gives it, and whether its file holds more of them, as animations do."""
    return decode(Path(path), to_first_frame)


def read_downloaded(file: BinaryIO, name: str) -> tuple[Tensor, bool]:
    """What read_first gives, of a picture that came from elsewhere; errors call it by the name."""
    return decode_file(file, name, to_first_frame)


class UnknownFormatError(ValueError):
    """What was sent is no picture of a known kind."""


class TooLargeError(ValueError):
    """A picture has more pixels than are allowed."""


def decode_upload(data: bytes, most: int) -> Tensor:
    """The frame of a picture that a stranger sent, unless it has too many pixels; those are not decoded."""
    try:
        with PIL_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=UPLOAD_FORMATS) as picture:
                pixels = picture.width * picture.height
    except UnidentifiedImageError:
        raise UnknownFormatError("What was sent is no picture: send a PNG, JPEG, WebP, GIF, BMP or TIFF.") from None
    except Image.DecompressionBombError:
        pixels = most + 1
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        raise ValueError(f"The picture is damaged ({error!s:.80}): send a whole copy.") from error
    if pixels > most:
        raise TooLargeError(f"The picture has more than {most:,} pixels: make it smaller first.")
    return decode_file(io.BytesIO(data), "The picture", to_first_frame, UPLOAD_FORMATS)[0]


def to_first_frame(picture: Image.Image) -> tuple[Tensor, bool]:
    """The frame of a picture, and whether more follow it in its file."""
    rgb = to_rgb(upright(picture))
    # numpy copies: torch would open a team of threads in each thread that decodes
    frame = torch.from_numpy(numpy.array(numpy.asarray(rgb).transpose(2, 0, 1), order="C"))
    with PIL_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # what else a telephone's photo holds (MPO) is another view of it, which nobody means
            more = picture.format != "MPO" and getattr(picture, "is_animated", False)
        except Exception:  # what follows is damaged, and not needed
            more = True
    return frame, more


def is_picture(thing: object) -> TypeGuard[str | Path | Image.Image | numpy.ndarray]:
    """Whether to_frame makes a frame of something that is none yet."""
    return isinstance(thing, (str, Path, Image.Image, numpy.ndarray))


def to_frame(picture: Picture) -> Tensor:
    """A picture of any kind as a frame. Arrays are RGB, colours last; of 16 bits the upper 8 are taken."""
    if isinstance(picture, (str, Path)):
        return read_image(picture)
    if isinstance(picture, Tensor):
        if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[0] != 3 or 0 in picture.shape:
            raise ValueError(
                f"The picture is a tensor of {picture.dtype} and shape {tuple(picture.shape)}; "
                "expected a frame: RGB, torch.uint8, colours first: (3, H, W)."
            )
        return picture
    if isinstance(picture, Image.Image):
        try:
            turned = upright(picture)
            # what to_rgb removes from a picture stays in the caller's
            twin = turned.copy()
            twin.format = turned.format
            picture = numpy.asarray(to_rgb(twin))
        except Exception as error:  # a file that is opened but not read yet can fail in its decoder
            raise ValueError(f"The picture cannot be read or is of a rare kind ({error}).") from error
    if not isinstance(picture, numpy.ndarray):
        raise ValueError(
            f"The picture is a {type(picture).__name__}; "
            "expected a path, a PIL picture, an array (H, W, 3) of bytes, or a frame."
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
            f"The picture is an array of shape {picture.shape}; expected RGB, colours last: (H, W, 3); "
            "or (H, W, 4), whose transparency is left out, or grey (H, W)."
        )
    return torch.from_numpy(numpy.array(picture[:, :, :3].transpose(2, 0, 1), order="C"))


def read_label_ids(path: Path) -> Tensor:
    """The ids (H, W), int32, of a label file: a picture of one channel, indexed, or of 16 bits; values as they are."""
    return to_label_ids(decode(path, Image.Image.copy), str(path))


def read_downloaded_label_ids(file: BinaryIO, name: str) -> Tensor:
    """What read_ids gives, of a label file that came from elsewhere; errors call it by the name."""
    return to_label_ids(decode_file(file, name, Image.Image.copy), name)


def to_label_ids(picture: Image.Image, name: str) -> Tensor:
    """The ids (H, W), int32, of a picture of them."""
    if picture.mode not in ("1", "L", "P", "I") and not picture.mode.startswith("I;"):
        raise ValueError(
            f"{name} is a colour picture ({picture.mode}); ids expected: save labels as PNG of one channel, "
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


def lookup_labels(ids: Tensor, table: Tensor) -> tuple[Tensor, list[int]]:
    """Labels (H, W), uint8, of ids (H, W), int32, by a table of each id's label; and the ids whose label is below 0.

    Ids outside of the table, those below 0 too, get its last entry.
    """
    # numpy, for 1 to 2 ms: torch opens a team of threads in each thread that decodes, which took 78 ms
    numbers = ids.numpy()
    # read without a sign, an id below 0 is a large one
    labels = table.numpy().take(numbers.view(numpy.uint32), mode="clip")
    return torch.from_numpy(labels.astype(numpy.uint8)), numpy.unique(numbers[labels < 0]).tolist()


def decode(path: Path, convert: Callable[[Image.Image], Result]) -> Result:
    """Open a picture and convert it; a file that is missing, damaged or no picture fails in one sentence."""
    if not path.exists():
        raise FileNotFoundError(f"No picture at {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a picture.")
    # a file, not its name: from a name PIL maps a raw TIFF into memory, and then turns it wrongly
    with path.open("rb") as file:
        return decode_file(file, str(path), convert)


def decode_file(
    file: BinaryIO, name: str, convert: Callable[[Image.Image], Result], formats: tuple[str, ...] | None = None
) -> Result:
    """Convert the picture in a file; one that is damaged or no picture fails in one sentence, which names it.

    Args:
        formats: The kinds of pictures that may be in it; None for all that PIL knows.
    """
    try:
        # the filters of warnings belong to all threads
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
            f"{name} is damaged or cut short, or of a rare kind ({error}): get a whole copy, or save it as a plain PNG."
        ) from error


def upright(picture: Image.Image) -> Image.Image:
    """A picture as it was taken; EXIF that cannot be read tells nothing of how."""
    with PIL_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            turn = EXIF_TRANSPOSES.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
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


def to_jpeg(frame: Tensor) -> bytes:
    """A frame as a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()).save(file, format="JPEG", quality=90)
    return file.getvalue()


def write_labels(path: Path | BinaryIO, labels: Tensor, classes: Classes) -> None:
    """Write labels (H, W) as an indexed PNG: each pixel is its label, shown in its class's colour."""
    picture = Image.fromarray(labels.to(torch.uint8).cpu().numpy()).convert("P")
    palette = [part for colour in classes.colours for part in colour]
    # all 256 entries: with few, PIL would pack pixels into fewer bits, and 255 (no class) would become another label
    picture.putpalette(palette + [0] * (3 * 256 - len(palette)))
    picture.save(path, format="PNG", exif=signature())


def signature() -> Image.Exif:
    """What marks pictures as streamseg's own; those without EXIF leave it out."""
    exif = Image.Exif()
    exif[ExifTags.Base.Software] = SIGNATURE
    return exif


def picture_made_by_streamseg(path: Path) -> bool:
    """Whether a file is a picture that streamseg wrote, as far as it tells."""
    try:
        if path.suffix.lower() == ".bmp":
            place, mark = BMP_SIGNATURE
            with path.open("rb") as file:
                return file.read(place + len(mark))[place:] == mark
        with PIL_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with path.open("rb") as file, Image.open(file) as picture:
                # not the PNG reader's own, which decodes the whole picture to look for EXIF behind it; ours is before
                exif = Image.Image.getexif(picture)
        return exif.get(ExifTags.Base.Software) == SIGNATURE
    except Exception:  # a file that is missing or no picture, or whose EXIF is damaged, which can fail in any way
        return False


def render_legend(classes: Classes, numbers: Sequence[int], height: int, width: int | None = None) -> Tensor:
    """The colours and names of classes, given by number, light on dark: a panel (3, h, w) for a picture of that size.

    It takes up to half of the height, and half of the width where that is given: text gets smaller, then, and what has
    no room in the smallest is only counted.
    """
    entries = [(*readable(classes.names[i]), classes.colours[i]) for i in numbers if i != IGNORE]
    if not entries:
        return torch.zeros(3, 0, 0, dtype=torch.uint8)
    large = max(11, round(min(height, width or height) / 38))
    small = max(10, round(0.6 * large))
    trials = [(size, len(entries)) for size in range(large, small, -1)]
    trials += [(small, count) for count in range(len(entries), 0, -1)]
    # of lengths the unit is the size of the text: lines take 1.5, margins 0.7, squares 0.95 and the gap behind them 0.5
    lengths = [max(4.5, font.getlength(name) / font.size) for name, font, _ in entries]
    for size, count in trials:
        lines = min(len(entries), count + 1)
        most = max(1, int((height / 2 / size - 1.4) / 1.5))
        rows = math.ceil(lines / math.ceil(lines / most))
        columns = [max(lengths[i : i + rows]) + 2.85 for i in range(0, lines, rows)]
        if width is None or size * sum(columns) <= width / 2:
            break

    # drawn large and made small: fonts draw small text on whole pixels, which closes the gaps between words
    unit = 4 * size
    panel = Image.new("RGB", (round(sum(columns) * size) * 4, round((1.5 * rows + 1.4) * size) * 4), "#16181c")
    pen = ImageDraw.Draw(panel)
    places = [(sum(columns[: i // rows]) + 0.7, 1.5 * (i % rows) + 1.45) for i in range(lines)]
    for (x, y), (name, font, colour) in zip(places, entries[:count], strict=False):
        # on whole pixels of the result; the rim is for classes as dark as the panel
        square = [round(side * size) * 4 for side in (x, y - 0.475, x + 0.95, y + 0.475)]
        square[2:] = square[2] - 1, square[3] - 1
        pen.rectangle(square, colour, outline="#a0a4aa", width=4 * max(1, size // 14))
        pen.text((unit * (x + 1.45), unit * y), name, "#f2f3f5", font.font_variant(size=unit), anchor="lm")
    if count < lines:
        x, y = places[-1]
        more = f"and {len(entries) - count} more"
        pen.text((unit * x, unit * y), more, "#a0a4aa", ImageFont.load_default(unit), anchor="lm")
    return torch.from_numpy(numpy.array(panel.reduce(4))).permute(2, 0, 1).contiguous()


def readable(name: str) -> tuple[str, ImageFont.FreeTypeFont]:
    """A name of at most a few words, and a font that has its letters; English letters where this machine has none."""
    font = cast(ImageFont.FreeTypeFont, ImageFont.load_default(48))
    if not name.isascii():
        for file in FONTS:
            with contextlib.suppress(OSError):
                other = ImageFont.truetype(file, 48)
                # a font draws all letters alike that it lacks
                lacking = bytes(other.getmask("\U0010ffff"))
                if all(letter == " " or bytes(other.getmask(letter)) != lacking for letter in name):
                    font = other
                    break
        else:
            letters = (letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
            name = "".join(letters).encode("ascii", "replace").decode()
    shown = name
    while font.getlength(shown) > 14 * font.size:
        name = name[:-1]
        shown = name.rstrip() + "…"
    return shown, font


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
