"""Run-length encoding of masks as COCO has it, and annotations in COCO's format.

COCO counts the pixels of a mask column by column, in turn those outside and inside, beginning outside; a count of zero
comes first if the first pixel is inside. The counts become a string: from the fourth on, each is replaced by its
difference from the one before the last, and each number is written five bits at a time, the lowest first, as the
character with the code 48 + bits, and 32 more if bits follow.

Shapes: H height, W width.
"""

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from streamseg.regions.regions import Region
from streamseg.regions.spans import Ints

OFFSET, MORE, SIGN = 48, 0x20, 0x10


def encode_rle(mask: NDArray[numpy.bool_]) -> dict[str, Any]:
    """Return a mask (H, W) in COCO's compressed run-length encoding: {"size": [H, W], "counts": "…"}."""
    mask = numpy.asarray(mask)
    if mask.ndim != 2:
        raise ValueError(f"The mask has the shape {mask.shape}; expected (H, W).")
    flat = numpy.concatenate([[False], mask.astype(bool).T.reshape(-1)])
    changes = numpy.flatnonzero(flat[1:] != flat[:-1])
    counts = numpy.diff(changes, prepend=0, append=mask.size)
    return {"size": [*mask.shape], "counts": counts_to_string(counts)}


def decode_rle(rle: dict[str, Any]) -> NDArray[numpy.bool_]:
    """Return the mask (H, W) of a run-length encoding of COCO, with counts as a string, as bytes or as a list."""
    try:
        (height, width), counts = rle["size"], rle["counts"]
        if isinstance(counts, bytes):
            counts = counts.decode("ascii")
        numbers = numpy.asarray(string_to_counts(counts) if isinstance(counts, str) else counts, dtype=numpy.int64)
        right = numbers.ndim == 1 and (numbers >= 0).all() and numbers.sum() == height * width
    except (KeyError, TypeError, ValueError, OverflowError):
        right = False
    if not right:
        raise ValueError(
            f"{rle!r:.80} is no run-length encoding of COCO; expected size [H, W] and counts of H x W pixels."
        )
    inside = numpy.arange(len(numbers)) % 2 == 1
    return numpy.repeat(inside, numbers).reshape(width, height).T


def counts_to_string(counts: Sequence[int] | Ints) -> str:
    """Return counts as COCO's string."""
    given = numpy.asarray(counts, dtype=numpy.int64)
    numbers = numpy.concatenate([given[:3], given[3:] - given[1:-2]])
    characters = int(abs(numbers).max(initial=0)).bit_length() // 5 + 1
    rest = numbers[:, None] >> 5 * numpy.arange(characters)
    bits = rest & 0x1F
    # the highest bit that is written is the sign of the rest
    more = rest >> 5 != -(bits >> 4)
    written = numpy.roll(more, 1, axis=1)
    written[:, 0] = True
    codes = OFFSET + bits + MORE * more
    return codes[written].astype(numpy.uint8).tobytes().decode("ascii")


def string_to_counts(text: str) -> list[int]:
    """Return the counts of COCO's string."""
    counts: list[int] = []
    number = shift = 0
    for letter in text:
        bits = ord(letter) - OFFSET
        if not 0 <= bits < 2 * MORE:
            raise ValueError(f"{letter!r} is no character of COCO's counts.")
        number |= (bits & 0x1F) << shift
        shift += 5
        if not bits & MORE:
            if bits & SIGN:
                number -= 1 << shift
            counts.append(number + counts[-2] if len(counts) > 2 else number)
            number = shift = 0
    if shift:
        raise ValueError("COCO's counts end within a number.")
    return counts


def region_rle(region: Region) -> dict[str, Any]:
    """Return the run-length encoding of a region in its frame: that of its mask, computed from its spans.

    A large region has two million pixels and some thousand places where a column enters or leaves it.
    """
    height, width = region.size
    row, left, right = region.spans.T
    # the line between two rows crosses the region's edge where only one of the rows has a pixel; a number for each x
    # of each line, as x itself can be the width
    ends = numpy.concatenate([left, right]) + (width + 1) * numpy.tile(row, 2)
    ends = drop_pairs(numpy.concatenate([ends, ends + width + 1]))
    begin, length = ends[::2], ends[1::2] - ends[::2]
    crossing = numpy.arange(length.sum()) + numpy.repeat(begin - (numpy.cumsum(length) - length), length)
    y, x = numpy.divmod(crossing, width + 1)
    # the lower end of a column is the upper end of the next
    changes = drop_pairs(x * height + y)
    changes = changes[changes < height * width]
    return {
        "size": [height, width],
        "counts": counts_to_string(numpy.diff(changes, prepend=0, append=height * width)),
    }


def drop_pairs(numbers: Ints) -> Ints:
    """Return numbers in order, without those that occur twice; none occurs more often."""
    numbers = numpy.sort(numbers)
    alike = numbers[1:] == numbers[:-1]
    return numbers[~(numpy.append(alike, False) | numpy.append(False, alike))]
