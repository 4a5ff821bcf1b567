"""The folder in which Triton keeps compiled kernels between runs."""

import atexit
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def kernel_folder() -> Path:
    """Return the folder of the kernels that Triton has compiled."""
    given = os.environ.get("TRITON_CACHE_DIR")
    home = Path(os.environ.get("TRITON_HOME") or os.path.expanduser("~"))  # noqa: PTH111 (Path.home() fails without one)
    return Path(given) if given else home / ".triton" / "cache"


def make_kernel_folder() -> None:
    """Make sure that Triton can write its kernels; to a temporary folder, if it cannot keep them.

    Without a place to write to, such as in a container with a read-only disk, Triton compiles nothing. The kernels that
    are there already are copied.
    """
    folder = kernel_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        reason = error.strerror
    temporary = tempfile.mkdtemp(prefix="streamseg-kernels-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    if folder.is_dir():
        with suppress(OSError):  # what cannot be read is compiled again
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = temporary
    logging.getLogger("streamseg").warning(
        "New kernels cannot be kept in %s (%s), so that each run compiles them again: set TRITON_CACHE_DIR to a folder "
        "that can be written.",
        folder,
        reason,
    )
