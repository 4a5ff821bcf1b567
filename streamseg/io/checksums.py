"""Checksums inside the files that streamseg writes, so that damaged files are detected.

A file holds the SHA-256 of its own bytes, computed with zeros in place of the checksum. Other programs see a line of
text in the metadata and read the file as before. SHA-256 takes 15 to 35 ms for the 26 MB of a FANet-18.
"""

import hashlib
import re
import threading
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
    """Raise a ValueError if a file does not match its checksum; older files have none."""
    ahead = None if others else CHECKED_AHEAD.pop(path, None)
    if ahead and ahead.state == file_state(path):
        ahead.result()
    else:
        check_bytes(path, path.read_bytes(), others)


CHECKED_AHEAD: dict[Path, "CheckThread"] = {}
"""Checks that have been started for the next check_checksum of a file."""


def check_ahead(path: Path) -> None:
    """Start to check a file that is about to be opened, in a thread."""
    CHECKED_AHEAD[path] = CheckThread(path)
    CHECKED_AHEAD[path].start()


def file_state(path: Path) -> tuple[int, int] | None:
    """Return the size of a file and the time of its last change; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class CheckThread(threading.Thread):
    """Checks a file."""

    def __init__(self, path: Path):
        super().__init__(name="check weights", daemon=True)
        self.path, self.state = path, file_state(path)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            check_bytes(self.path, self.path.read_bytes())
        except Exception as error:  # result raises it
            self.error = error

    def result(self) -> None:
        """Wait for the end; raise the error."""
        self.join()
        if self.error:
            raise self.error


def check_bytes(path: Path | str, data: bytes, others: tuple[Path, ...] = ()) -> None:
    """Raise a ValueError if the bytes of a file do not match its checksum."""
    start = data.rfind(PREFIX.encode())
    if start >= 0 and data[start : start + len(BLANK_CHECKSUM)] != digest(data, start, others):
        raise damaged_file_error(path)


def digest(data: bytes, start: int, others: tuple[Path, ...]) -> bytes:
    """Return the checksum of a file, given where its checksum begins, in the form in which the file holds it."""
    view = memoryview(data)
    sha256 = hashlib.sha256(view[:start])
    sha256.update(BLANK_CHECKSUM.encode())
    sha256.update(view[start + len(BLANK_CHECKSUM) :])
    for other in others:
        sha256.update(other.read_bytes())
    return f"{PREFIX}{sha256.hexdigest()}".encode()


def pop_checksum(path: Path | str, entry: dict[str, Any]) -> None:
    """Remove the checksum, if there is one, from a file's metadata; raise an error if it is damaged.

    check_checksum finds complete checksums only: a damaged one must not pass for an older file.
    """
    if "checksum" in entry and not re.fullmatch(f"{PREFIX}[0-9a-f]{{64}}", str(entry.pop("checksum"))):
        raise damaged_file_error(path)


def check_zip(path: Path) -> None:
    """Raise a ValueError if the checksums inside a zip file do not match. torch's files are zip files."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            # torch does not compress; compressed parts, which a hostile file could inflate, are skipped
            stored = [part for part in archive.infolist() if part.compress_type == zipfile.ZIP_STORED]
            if sum(part.file_size for part in stored) > path.stat().st_size:
                raise zipfile.BadZipFile("parts that overlap")
            for part in stored:
                with archive.open(part) as file:
                    while file.read(2**20):
                        pass
    except PermissionError:
        raise
    # a damaged directory can cause any of these
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError):
        raise damaged_file_error(path) from None


def damaged_file_error(path: Path | str) -> ValueError:
    return ValueError(f"{path} is damaged (its checksum does not match): copy or download it again.")
