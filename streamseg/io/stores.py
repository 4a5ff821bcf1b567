"""Read and write files on a disk or at an address that fsspec knows, such as s3://bucket/folder.

fsspec is optional and imported where it is used: local files are read and written without it.
"""

import errno
import glob
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING

from streamseg.io.files import UNFINISHED, written_whole
from streamseg.io.tensors import short_error
from streamseg.io.web import is_address, redact

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def open_store(address: str) -> tuple["AbstractFileSystem", str]:
    """Return the file system of an address, and the path in it."""
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError:
        raise ImportError(f"{redact(address)} needs fsspec: pip install 'streamseg[stores]'") from None
    try:
        store, path = url_to_fs(address)
    except ImportError as error:
        library = known_implementations[address.partition("://")[0].lower()]["class"].partition(".")[0]
        raise ImportError(f"{redact(address)} needs {library}: pip install {library}") from error
    except ValueError as error:
        raise ValueError(f"{redact(address)} cannot be reached: {error}.") from None
    return store, path.rstrip("/")


def is_on_disk(store: "AbstractFileSystem") -> bool:
    """Return whether a store is the local file system."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(store, LocalFileSystem)


def list_files(store: "AbstractFileSystem", path: str, suffixes: tuple[str, ...]) -> dict[str, int]:
    """Return the files with some suffixes at a path, in a folder or of a pattern, and their sizes in bytes."""
    try:
        if not store.exists(path):
            entries = list(store.glob(path, detail=True).values())
        else:
            entries = store.ls(path, detail=True)
    except Exception as error:  # each file system has errors of its own
        raise OSError(f"{path} cannot be listed ({short_error(error)}).") from error
    return {
        entry["name"]: entry["size"] or 0
        for entry in sorted(entries, key=lambda entry: entry["name"])
        if entry["type"] == "file"
        and PurePosixPath(entry["name"]).suffix.lower() in suffixes
        and UNFINISHED not in entry["name"]
    }


def folder_of_pattern(store: "AbstractFileSystem", path: str) -> str:
    """Return the folder of a path, or the fixed folder before the wildcards of a pattern."""
    if store.isdir(path):
        return path
    parts = PurePosixPath(path).parts[:-1]
    known = takewhile(lambda part: not glob.has_magic(part), parts)
    return str(PurePosixPath(*known)) if not store.exists(path) else str(PurePosixPath(*parts))


@contextmanager
def local_copy(address: str) -> Iterator[Path]:
    """Give a local file: the one at an address, or a copy of it that is removed afterwards.

    A ValueError says why it cannot be fetched.
    """
    if not is_address(address):
        yield Path(address)
        return
    store, path = open_store(address)
    with TemporaryDirectory(prefix=UNFINISHED) as folder:
        copy = Path(folder) / PurePosixPath(path).name
        try:
            store.get_file(path, str(copy))
        except Exception as error:  # each file system has errors of its own
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise OSError(f"The disk is too full for a copy of {redact(address)} in {folder}.") from error
            raise ValueError(f"{redact(address)} cannot be fetched ({short_error(error)}).") from error
        yield copy


@contextmanager
def write_folder(target: str, last: str) -> Iterator[Path]:
    """Give a folder to fill. At the end it is moved to the target; after an error nothing is left.

    On a disk it appears in one step, elsewhere file by file.

    Args:
        last: The name of the file to upload last.
    """
    store, path = open_store(target)
    on_disk = is_on_disk(store)
    beside = Path(path).parent if on_disk else Path(gettempdir())
    folder = beside / f"{UNFINISHED}{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True)
        yield folder
        if on_disk:
            folder.rename(path)
        else:
            upload(folder, store, path, last)
    except OSError as error:
        message = f"{error.strerror}." if error.strerror else str(error).replace(str(folder), redact(target))
        raise OSError(
            message if redact(target) in message else f"Could not write {redact(target)}: {message}"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def upload(folder: Path, store: "AbstractFileSystem", path: str, last: str) -> None:
    """Copy the files of a folder to a store, one of them last."""
    try:
        for file in sorted(folder.iterdir(), key=lambda file: file.name == last):
            store.put_file(str(file), f"{path}/{file.name}")
    except Exception as error:  # each file system has errors of its own
        raise OSError(f"{short_error(error)}.") from error


def read_text(address: str) -> str | None:
    """Return the text at an address; None if there is none."""
    try:
        if not is_address(address):
            file = Path(address)
            return file.read_text(encoding="utf-8") if file.is_file() else None
        store, path = open_store(address)
        return store.cat_file(path).decode() if store.isfile(path) else None
    except UnicodeDecodeError:
        raise ValueError(f"{redact(address)} is not text in UTF-8: it is damaged, get a new copy.") from None


def read_range(address: str, start: int, size: int) -> bytes:
    """Return a part of a file."""
    try:
        if not is_address(address):
            with Path(address).open("rb") as file:
                file.seek(start)
                return file.read(size)
        store, path = open_store(address)
        return store.cat_file(path, start, start + size)
    except ImportError:
        raise
    except Exception as error:  # each file system has errors of its own
        raise OSError(f"{redact(address)} cannot be read ({short_error(error)}).") from error


def write_text(address: str, text: str) -> None:
    """Write a text, whole or not at all. Its folder is made."""
    store, path = (None, address) if not is_address(address) else open_store(address)
    if store is None or is_on_disk(store):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with written_whole(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    else:
        store.pipe_file(path, text.encode())
