"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; at the end it becomes the path, and after an error it is removed.

    The temporary file lies in the same folder, so that the renaming is one step, and keeps the suffix, which libraries
    choose a format by.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"No folder {path.parent} to write {path.name} into: create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file to write.")
    handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~umask())  # mkstemp keeps others out
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def umask() -> int:
    """The process's mask of file permissions, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
