"""Checksums inside the files that we write: a file that was damaged on its way is told, and not used.

A file holds the SHA-256 of its own bytes, computed with zeros in the checksum's place. Other programs see a line of
text in the metadata and read the file as before. SHA-256 takes 15 to 35 ms for the 26 MB of a FANet-18.
"""

import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any

PREFIX = "streamseg-sha256:"
BLANK_CHECKSUM = PREFIX + 64 * "0"
"""What a writer puts into the metadata, under the name "checksum", for write_checksum to fill in."""


def write_checksum(path: Path, *others: Path) -> None:
    """Replace the blank in a file's metadata by the checksum of the file and of others that belong to it."""
    data = path.read_bytes()
    start = data.rfind(BLANK_CHECKSUM.encode())
    if start < 0:
        raise ValueError(f"{path} has no place for its checksum.")
    with path.open("r+b") as file:
        file.seek(start)
        file.write(digest(data, start, others))


def check_checksum(path: Path, *others: Path) -> None:
    """Raise a ValueError unless a file that holds a checksum is as it was written; older files hold none."""
    check_bytes(path, path.read_bytes(), others)


def check_bytes(path: Path | str, data: bytes, others: tuple[Path, ...] = ()) -> None:
    """Raise a ValueError unless the bytes of a file that holds a checksum are as they were written."""
    start = data.rfind(PREFIX.encode())
    if start >= 0 and data[start : start + len(BLANK_CHECKSUM)] != digest(data, start, others):
        raise damaged_file_error(path)


def digest(data: bytes, start: int, others: tuple[Path, ...]) -> bytes:
    """The checksum of a file whose own checksum begins at a place, in the form in which it stands there."""
    view = memoryview(data)
    found = hashlib.sha256(view[:start])
    found.update(BLANK_CHECKSUM.encode())
    found.update(view[start + len(BLANK_CHECKSUM) :])
    for other in others:
        found.update(other.read_bytes())
    return f"{PREFIX}{found.hexdigest()}".encode()


def pop_checksum(path: Path | str, entry: dict[str, Any]) -> bool:
    """Remove the checksum from what a file says of itself; whether there was one. A damaged one is an error.

    check_checksum finds only a checksum that is whole: one that is not must not pass for an older file.
    """
    if "checksum" not in entry:
        return False
    if not re.fullmatch(f"{PREFIX}[0-9a-f]{{64}}", str(entry.pop("checksum"))):
        raise damaged_file_error(path)
    return True


def check_pinned(path: Path, expected: str) -> None:
    """Raise a ValueError unless the SHA-256 of a whole file is the expected one."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise damaged_file_error(path)


def check_zip(path: Path) -> None:
    """Raise a ValueError if a zip file's own checksums do not match; torch's files are such, but it does not look."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            # torch compresses nothing; what a hostile file would unfold to is not looked at
            stored = [part for part in archive.infolist() if part.compress_type == zipfile.ZIP_STORED]
            if sum(part.file_size for part in stored) > path.stat().st_size:
                raise zipfile.BadZipFile("parts that overlap")
            for part in stored:
                with archive.open(part) as file:
                    while file.read(2**20):
                        pass
    except PermissionError:
        raise
    # what a damaged directory leads to differs with the damage
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError):
        raise damaged_file_error(path) from None


def damaged_file_error(path: Path | str) -> ValueError:
    return ValueError(f"{path} is damaged (its checksum does not match): copy or download it again.")
