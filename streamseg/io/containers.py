"""Detect video files that are cut short or damaged, by the structure of their containers."""

import os
import zlib
from pathlib import Path
from typing import BinaryIO

EBML, SEGMENT, CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
"""Ids of Matroska elements: the header, all that follows, and a group of frames."""
AFTER_FRAMES = (0x1C53BB6B, 0x1254C367, 0x1941A469, 0x1043A770, 0x114D9B74)
"""Elements that may follow the frames: Cues, Tags, Attachments, Chapters, SeekHead."""
LEVEL_1 = (*AFTER_FRAMES, CLUSTER, 0x1549A966, 0x1654AE6B)
"""All elements that a segment can hold: also Info and Tracks."""
VOID = 0xEC
CRC32 = b"\xbf\x84"
"""The first bytes of an element that holds a CRC-32 of its other bytes; FFmpeg writes one into each."""
SYNC_BYTE = 0x47
"""The first byte of each packet of an MPEG transport stream."""


def is_cut(path: Path) -> bool:
    """Return whether a Matroska, WebM, MP4, MOV, AVI or MPEG-TS file ends before the end of its last frame.

    False for other formats, and for files that do not declare their length.
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
    # packets of 188 bytes; on Blu-rays with 4 bytes of time before each, or with 16 for error correction after it
    for packet, first in ((188, 0), (192, 4), (204, 0)):
        if len(head) > first + 2 * packet and all(head[first + i * packet] == SYNC_BYTE for i in range(3)):
            return size % packet != 0
    return False


def matroska_is_cut(file: BinaryIO, size: int) -> bool:
    """Return whether frames are missing at the end of a Matroska or WebM file, which is a tree of elements."""
    end, clusters = None, False
    while file.tell() < size:
        element, length = read_number(file, marked=True), read_number(file)
        if element is None or length is None:
            return file.tell() >= size  # cut within a number, or not Matroska
        if element == SEGMENT:
            if length >= 0:
                end = file.tell() + length
                if end <= size:
                    return False
        elif element == CLUSTER and length < 0:  # of a live stream: its elements have lengths
            clusters = True
        elif length < 0:
            return False
        elif file.tell() + length > size:
            # after all frames: only indexes and texts are missing
            return not (clusters and element in AFTER_FRAMES)
        else:
            clusters = clusters or element == CLUSTER
            file.seek(length, os.SEEK_CUR)
    return end is not None


def matroska_is_damaged(path: Path) -> bool:
    """Return whether the checksums of a Matroska file do not match; False for files without them, or cut short."""
    size, summed = path.stat().st_size, set[bool]()
    with path.open("rb") as file:
        if read_number(file, marked=True) != EBML:
            return False
        file.seek(0)
        while file.tell() < size:
            element, length = read_number(file, marked=True), read_number(file)
            if element is None or length is None:
                return file.tell() < size
            if length < 0 or file.tell() + length > size:
                return False
            if element == SEGMENT:
                continue
            body = file.read(length)
            if element not in (EBML, VOID):
                summed.add(body.startswith(CRC32))
                if element not in LEVEL_1 or len(summed) > 1:
                    return True
                if body.startswith(CRC32) and int.from_bytes(body[2:6], "little") != zlib.crc32(body[6:]):
                    return True
    return False


def read_number(file: BinaryIO, *, marked: bool = False) -> int | None:
    """Read a number of EBML; -1 for an unknown length, None if there is no valid number.

    Args:
        marked: Whether to keep the bit that marks its length, as ids of elements do.
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
    """Return whether the frames or the index of an MP4 or MOV extend beyond the end of the file."""
    start = 0
    while start + 8 <= size:
        file.seek(start)
        head = file.read(16)
        length, kind = int.from_bytes(head[:4]), head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:16])
        elif not length:  # to the end
            return False
        # no box: some cameras append data of their own
        if length < 8 or not kind.isalnum():
            return False
        if start + length > size:
            return kind in (b"mdat", b"moov", b"moof")
        start += length
    return start < size


def avi_is_cut(file: BinaryIO, size: int) -> bool:
    """Return whether frames are missing at the end of an AVI, whose parts each have an index at their end."""
    start = 0
    while start + 12 <= size:
        length, kind = read_chunk(file, start)
        if kind != b"RIFF" or length in (0, 2**32 - 1):  # these lengths are left by programs that write to a pipe
            return False
        end, inside = start + 8 + length, start + 12
        while inside + 8 <= min(end, size):
            length, kind = read_chunk(file, inside)
            inside += 8 + length + length % 2
        if end > size:
            # cut within its index, or before it
            return not (kind == b"idx1" or (inside == size and kind == b"LIST" and file.read(4) == b"movi"))
        start = end + end % 2
    return False


def read_chunk(file: BinaryIO, start: int) -> tuple[int, bytes]:
    """Return the length and the id of the chunk at a position of an AVI."""
    file.seek(start)
    head = file.read(8)
    return int.from_bytes(head[4:8], "little"), head[:4]
