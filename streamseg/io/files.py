"""Files that appear whole or not at all."""

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".streamseg-"
"""What the names of files begin with that are being written, or were when a process was killed."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; at the end it becomes the path, and after an error it is removed.

    The temporary file lies in the same folder, so that the renaming is one step, and keeps the suffix, which libraries
    choose a format by. A link is followed, and a file that was there hands its permissions on.
    """
    target = check_writable(path)
    temporary = target.with_name(f"{UNFINISHED}{uuid.uuid4().hex}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
        mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
        try:
            yield temporary
            temporary.chmod(mode)  # a library may have put a file of its own there
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        # the system's own words for a full disk, a folder that may not be written to, …: of the path, not the temporary
        if error.errno and error.filename in (None, str(temporary)):
            raise type(error)(f"Could not write {path}: {error.strerror}.") from error
        raise


def check_writable(path: Path) -> Path:
    """The file that a path leads to, through links; an error in a sentence if none can be written there."""
    target = Path(os.path.realpath(path))
    for folder in (path.parent, target.parent):
        if not folder.is_dir():
            raise FileNotFoundError(f"No folder {folder} to write {path.name} into: create it first.")
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file to write.")
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} is a device or a pipe: give the name of a file to write.")
    return target
