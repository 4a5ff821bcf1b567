"""How long a video file says that it is, in bytes: whether its end is missing, by the structure of its container."""

import os
import zlib
from pathlib import Path
from typing import BinaryIO

EBML, SEGMENT, CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
"""Names of elements of Matroska: the beginning, all that follows, and frames."""
AFTER_FRAMES = (0x1C53BB6B, 0x1254C367, 0x1941A469, 0x1043A770, 0x114D9B74)
"""What may follow the frames: Cues, Tags, Attachments, Chapters, SeekHead."""
LEVEL_1 = (*AFTER_FRAMES, CLUSTER, 0x1549A966, 0x1654AE6B)
"""All that can be in a segment: also Info and Tracks."""
VOID = 0xEC
CRC32 = b"\xbf\x84"
"""How an element begins that holds a CRC-32 of its other bytes, as FFmpeg writes each."""
SYNC_BYTE = 0x47
"""The first byte of each packet of an MPEG transport stream."""


def is_cut(path: Path) -> bool:
    """Whether a Matroska, WebM, MP4, MOV, AVI or MPEG-TS file ends before its last frame, or within it.

    False for other kinds, and where a file does not say how long it is.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(512)
        file.seek(0)
        if head.startswith(EBML.to_bytes(4)):
            return matroska_is_cut(file, size)
        if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"styp"):
            return mp4_is_cut(file, size)
        if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
            return avi_is_cut(file, size)
    # packets of 188 bytes, with a time of 4 before each on Blu-rays, or with 16 for error correction behind
    for packet, first in ((188, 0), (192, 4), (204, 0)):
        if len(head) > first + 2 * packet and all(head[first + i * packet] == SYNC_BYTE for i in range(3)):
            return size % packet != 0
    return False


def matroska_is_cut(file: BinaryIO, size: int) -> bool:
    """Whether frames are missing at the end of a Matroska or WebM file, which is a tree of elements."""
    end, clusters = None, False
    while file.tell() < size:
        identity, length = read_number(file, marked=True), read_number(file)
        if identity is None or length is None:
            return file.tell() >= size  # in the middle of a number, or in what is no Matroska
        if identity == SEGMENT:
            if length >= 0:
                end = file.tell() + length
                if end <= size:
                    return False
        elif identity == CLUSTER and length < 0:  # of a live stream: what is inside has lengths
            clusters = True
        elif length < 0:
            return False
        elif file.tell() + length > size:
            # behind all frames only indexes and texts are missing
            return not (clusters and identity in AFTER_FRAMES)
        else:
            clusters = clusters or identity == CLUSTER
            file.seek(length, os.SEEK_CUR)
    return end is not None


def matroska_is_damaged(path: Path) -> bool:
    """Whether the checksums of a Matroska file do not match; False for one without, or cut, and for other files."""
    size, summed = path.stat().st_size, set[bool]()
    with path.open("rb") as file:
        if read_number(file, marked=True) != EBML:
            return False
        file.seek(0)
        while file.tell() < size:
            identity, length = read_number(file, marked=True), read_number(file)
            if identity is None or length is None:
                return file.tell() < size
            if length < 0 or file.tell() + length > size:
                return False
            if identity == SEGMENT:
                continue
            body = file.read(length)
            if identity not in (EBML, VOID):
                summed.add(body.startswith(CRC32))
                if identity not in LEVEL_1 or len(summed) > 1:
                    return True
                if body.startswith(CRC32) and int.from_bytes(body[2:6], "little") != zlib.crc32(body[6:]):
                    return True
    return False


def read_number(file: BinaryIO, *, marked: bool = False) -> int | None:
    """A number of EBML, -1 if it stands for an unknown length; None where there is none.

    Args:
        marked: Whether it keeps the bit that says how long it is, as the names of elements do.
    """
    first = file.read(1)
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    rest = file.read(more)
    if len(rest) < more:
        return None
    value = int.from_bytes(first + rest)
    bits = 7 * (more + 1)
    if marked:
        return value
    return -1 if value & (1 << bits) - 1 == (1 << bits) - 1 else value & (1 << bits) - 1


def mp4_is_cut(file: BinaryIO, size: int) -> bool:
    """Whether the pictures or their index in an MP4 or MOV reach beyond its end."""
    start = 0
    while start + 8 <= size:
        file.seek(start)
        head = file.read(16)
        length, kind = int.from_bytes(head[:4]), head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:16])
        elif not length:  # to the end
            return False
        # what some cameras put behind all boxes is none
        if length < 8 or not kind.isalnum():
            return False
        if start + length > size:
            return kind in (b"mdat", b"moov", b"moof")
        start += length
    return start < size


def avi_is_cut(file: BinaryIO, size: int) -> bool:
    """Whether frames are missing at the end of an AVI, which has one or more parts, each with an index at its end."""
    start = 0
    while start + 12 <= size:
        length, kind = read_chunk(file, start)
        if kind != b"RIFF" or length in (0, 2**32 - 1):  # the latter two from who could not go back to fill it in
            return False
        end, inside = start + 8 + length, start + 12
        while inside + 8 <= min(end, size):
            length, kind = read_chunk(file, inside)
            inside += 8 + length + length % 2
        if end > size:
            # within its index, or before it
            return not (kind == b"idx1" or (inside == size and kind == b"LIST" and file.read(4) == b"movi"))
        start = end + end % 2
    return False


def read_chunk(file: BinaryIO, start: int) -> tuple[int, bytes]:
    """The length and the name of what begins at a place in an AVI."""
    file.seek(start)
    head = file.read(8)
    return int.from_bytes(head[4:8], "little"), head[:4]
