"""Text in pictures: legends, captions, and sheets of small copies with captions."""

import contextlib
import math
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from streamseg.checks import check_suffix
from streamseg.classes import IGNORE, Classes

# for class names with other than English letters, which PIL's own font lacks
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial.ttf", "Arial Unicode.ttf", "NotoSansCJK-Regular.ttc")


def render_legend(classes: Classes, numbers: Sequence[int], height: int, width: int | None = None) -> Tensor:
    """Return a panel (3, h, w) with the colours and names of classes, light on dark, for a picture of a size.

    It takes up to half of the height, and of the width if given: the text shrinks, and classes that do not fit at the
    smallest size are only counted.
    """
    entries = [(*readable(classes.names[i]), classes.colours[i]) for i in numbers if i != IGNORE]
    if not entries:
        return torch.zeros(3, 0, 0, dtype=torch.uint8)
    large = max(11, round(min(height, width or height) / 38))
    small = max(10, round(0.6 * large))
    trials = [(size, len(entries)) for size in range(large, small, -1)]
    trials += [(small, count) for count in range(len(entries), 0, -1)]
    # lengths in units of the text size: a line takes 1.5, margins 0.7, a square 0.95 and the gap after it 0.5
    lengths = [max(4.5, font.getlength(name) / font.size) for name, font, _ in entries]
    for size, count in trials:
        lines = min(len(entries), count + 1)
        most = max(1, int((height / 2 / size - 1.4) / 1.5))
        rows = math.ceil(lines / math.ceil(lines / most))
        columns = [max(lengths[i : i + rows]) + 2.85 for i in range(0, lines, rows)]
        if width is None or size * sum(columns) <= width / 2:
            break

    # drawn at four times the size, then reduced: small text is drawn on whole pixels, which closes gaps between words
    unit = 4 * size
    panel = Image.new("RGB", (round(sum(columns) * size) * 4, round((1.5 * rows + 1.4) * size) * 4), "#16181c")
    pen = ImageDraw.Draw(panel)
    places = [(sum(columns[: i // rows]) + 0.7, 1.5 * (i % rows) + 1.45) for i in range(lines)]
    for (x, y), (name, font, colour) in zip(places, entries[:count], strict=False):
        # on whole pixels of the result; with an outline, for classes as dark as the panel
        square = [round(side * size) * 4 for side in (x, y - 0.475, x + 0.95, y + 0.475)]
        square[2:] = square[2] - 1, square[3] - 1
        pen.rectangle(square, colour, outline="#a0a4aa", width=4 * max(1, size // 14))
        pen.text((unit * (x + 1.45), unit * y), name, "#f2f3f5", font.font_variant(size=unit), anchor="lm")
    if count < lines:
        x, y = places[-1]
        more = f"and {len(entries) - count} more"
        pen.text((unit * x, unit * y), more, "#a0a4aa", ImageFont.load_default(unit), anchor="lm")
    return torch.from_numpy(numpy.array(panel.reduce(4))).permute(2, 0, 1).contiguous()


@lru_cache(maxsize=64)
def render_caption(text: str, size: int) -> Tensor:
    """Return a panel (3, h, w) with a line of text, light on dark, of a height in pixels."""
    shown, font = readable(text, 40)
    font = font.font_variant(size=size)
    panel = Image.new("RGB", (math.ceil(font.getlength(shown)) + size, round(1.4 * size)), "#16181c")
    ImageDraw.Draw(panel).text((size / 2, panel.height / 2), shown, "#f2f3f5", font, anchor="lm")
    with torch.inference_mode(False):  # it is kept for later calls, which may be outside of inference mode
        return torch.from_numpy(numpy.array(panel)).permute(2, 0, 1).contiguous()


def readable(name: str, most: float = 14) -> tuple[str, ImageFont.FreeTypeFont]:
    """Return a shortened name, and a font that has its letters; without such a font, the name in English letters.

    Args:
        most: The longest name, in units of the text size.
    """
    font = cast(ImageFont.FreeTypeFont, ImageFont.load_default(48))
    if not name.isascii():
        for file in FONTS:
            with contextlib.suppress(OSError):
                other = ImageFont.truetype(file, 48)
                # a font draws all missing letters alike
                missing = bytes(other.getmask("\U0010ffff"))
                if all(letter == " " or bytes(other.getmask(letter)) != missing for letter in name):
                    font = other
                    break
        else:
            letters = (letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
            name = "".join(letters).encode("ascii", "replace").decode()
    shown = name
    while font.getlength(shown) > most * font.size:
        name = name[:-1]
        shown = name.rstrip() + "…"
    return shown, font


def write_sheet(path: Path, frames: Sequence[Tensor], captions: Sequence[str]) -> None:
    """Write small copies of frames as one picture: rows of up to four, each above its caption."""
    check_suffix(path)
    width, height, line = 320, 240, 20
    columns = min(4, len(frames))
    sheet = Image.new("RGB", (columns * width, -(-len(frames) // columns) * (height + line)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    for i, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        x, y = i % columns * width, i // columns * (height + line)
        small = ImageOps.contain(Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()), (width - 4, height - 4))
        sheet.paste(small, (x + (width - small.width) // 2, y + height - small.height))
        while pen.textlength(caption, font) > width - 8:  # the end of a name says more than its start
            caption = "…" + caption[2:]
        pen.text((x + 4, y + height + 2), caption, fill="black", font=font)
    sheet.save(path)
