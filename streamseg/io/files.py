"""Write files whole or not at all, and close them."""

import os
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

UNFINISHED = ".streamseg-"
"""The prefix of files that are being written, or were when their process was killed."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary file to write to. At the end it is renamed to the path; after an error it is removed.

    The temporary file is in the same folder, so that renaming is atomic, and has the same suffix, by which libraries
    choose a format. A link is followed, and an existing file passes on its permissions.
    """
    target = check_writable(path)
    temporary = target.with_name(f"{UNFINISHED}{uuid.uuid4().hex}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
        mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
        try:
            yield temporary
            temporary.chmod(mode)  # a library may have replaced the file
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        # the system's message about a full disk, a missing permission, …: name the path, not the temporary file
        if error.errno and error.filename in (None, str(temporary)):
            raise type(error)(f"Could not write {path}: {error.strerror}.") from error
        raise


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary folder to write to. At the end it is renamed to the path; after an error it is removed."""
    check_new_folder(path)
    temporary = path.parent / f"{UNFINISHED}{uuid.uuid4().hex}"
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rmdir()
        temporary.rename(path)
    except OSError as error:
        if error.errno and (error.filename is None or str(error.filename).startswith(str(temporary))):
            raise type(error)(f"Could not write {path}: {error.strerror}.") from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new_folder(path: Path) -> None:
    """Raise an error if a folder cannot be written, because something is there or its own folder is missing."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file: give a new folder.")
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"{path} is not empty: give a new folder.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"No folder {path.parent} to write {path.name} into: create it first.")


def check_writable(path: Path) -> Path:
    """Return the file that a path leads to, through links; raise an error if none can be written there."""
    target = Path(os.path.realpath(path))
    for folder in (path.parent, target.parent):
        if folder.is_file():
            raise NotADirectoryError(f"{folder} is a file, not a folder: give another place to write {path.name}.")
        if not folder.is_dir():
            raise FileNotFoundError(f"No folder {folder} to write {path.name} into: create it first.")
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file to write.")
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is a device or a pipe: give the name of a file to write.")
    return target


class ClosedInTheEnd(ABC):
    """A writer that a with statement closes, after an error too: a video that was cut short can be played."""

    @abstractmethod
    def close(self) -> None:
        """Write the end of the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # the first of two errors says more
            with suppress(OSError):
                self.close()
