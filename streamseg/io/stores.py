"""Files on a disk, or at any address that fsspec knows, such as s3://bucket/folder; fsspec lives here alone.

It is an extra, imported where it is used: files on a disk are read and written without it.
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
    """The disk or store of an address, and the path in it."""
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
    """Whether a store is this machine's own file system."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(store, LocalFileSystem)


def list_files(store: "AbstractFileSystem", path: str, suffixes: tuple[str, ...]) -> dict[str, int]:
    """Files of some suffixes, and their sizes in bytes: the one at a path, those in a folder, or those of a pattern."""
    try:
        if not store.exists(path):
            entries = list(store.glob(path, detail=True).values())
        else:
            entries = store.ls(path, detail=True)
    except Exception as error:  # each kind of store has its own
        raise OSError(f"{path} cannot be listed ({short_error(error)}).") from error
    return {
        entry["name"]: entry["size"] or 0
        for entry in sorted(entries, key=lambda entry: entry["name"])
        if entry["type"] == "file"
        and PurePosixPath(entry["name"]).suffix.lower() in suffixes
        and UNFINISHED not in entry["name"]
    }


def folder_of_pattern(store: "AbstractFileSystem", path: str) -> str:
    """The folder that all files of a path or pattern lie in, whichever these are."""
    if store.isdir(path):
        return path
    parts = PurePosixPath(path).parts[:-1]
    known = takewhile(lambda part: not glob.has_magic(part), parts)
    return str(PurePosixPath(*known)) if not store.exists(path) else str(PurePosixPath(*parts))


@contextmanager
def local_copy(address: str) -> Iterator[Path]:
    """A file on this machine: the one at an address, or a copy of it that is removed afterwards.

    A ValueError says why there is none.
    """
    if not is_address(address):
        yield Path(address)
        return
    store, path = open_store(address)
    with TemporaryDirectory(prefix=UNFINISHED) as folder:
        copy = Path(folder) / PurePosixPath(path).name
        try:
            store.get_file(path, str(copy))
        except Exception as error:  # each kind of store has its own
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise OSError(f"There is no room for a copy of {redact(address)} in {folder}.") from error
            raise ValueError(f"{redact(address)} cannot be fetched ({short_error(error)}).") from error
        yield copy


@contextmanager
def write_folder(target: str, last: str) -> Iterator[Path]:
    """Give a folder to fill; at the end it lies in its place, and after an error there is nothing.

    On a disk all of it appears in one step; elsewhere file by file.

    Args:
        last: The name of the file that comes last.
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
        told = f"{error.strerror}." if error.strerror else str(error).replace(str(folder), redact(target))
        raise OSError(told if redact(target) in told else f"Could not write {redact(target)}: {told}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def upload(folder: Path, store: "AbstractFileSystem", path: str, last: str) -> None:
    """Copy the files of a folder to a store, one of them last."""
    try:
        for file in sorted(folder.iterdir(), key=lambda file: file.name == last):
            store.put_file(str(file), f"{path}/{file.name}")
    except Exception as error:  # each kind of store has its own
        raise OSError(f"{short_error(error)}.") from error


def read_text(address: str) -> str | None:
    """The text at an address; None if there is none."""
    try:
        if not is_address(address):
            file = Path(address)
            return file.read_text(encoding="utf-8") if file.is_file() else None
        store, path = open_store(address)
        return store.cat_file(path).decode() if store.isfile(path) else None
    except UnicodeDecodeError:
        raise ValueError(
            f"{redact(address)} is damaged, for it is not text in UTF-8: get a whole copy of it."
        ) from None


def read_range(address: str, start: int, size: int) -> bytes:
    """A part of a file."""
    try:
        if not is_address(address):
            with Path(address).open("rb") as file:
                file.seek(start)
                return file.read(size)
        store, path = open_store(address)
        return store.cat_file(path, start, start + size)
    except ImportError:
        raise
    except Exception as error:  # each kind of store has its own
        raise OSError(f"{redact(address)} cannot be read ({short_error(error)}).") from error


def write_text(address: str, text: str) -> None:
    """Write a text, whole or not at all; its folder is made."""
    store, path = (None, address) if not is_address(address) else open_store(address)
    if store is None or is_on_disk(store):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with written_whole(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    else:
        store.pipe_file(path, text.encode())
