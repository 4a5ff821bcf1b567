"""Where the verbs write text about frames: files, standard output, addresses."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import TextIOWrapper, UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

from streamseg.cli.messages import STANDARD_OUTPUT
from streamseg.io.files import check_writable, written_whole
from streamseg.io.line_thread import LineThread, LineWriter
from streamseg.io.web import is_address

if TYPE_CHECKING:
    from streamseg.io.live_lines import LineSender


TextOpener: TypeAlias = Callable[[Path], AbstractContextManager[LineWriter]]
"""Opens a file for text, or standard output for -."""


@contextmanager
def open_records(
    place: str, notify: Callable[[str], None], open_file: TextOpener
) -> Iterator["LineWriter | LineSender | None"]:
    """Open a file for lines of JSON, an address, or standard output for -; None for an empty name."""
    if not place:
        yield None
    elif is_address(place):
        from streamseg.io.live_lines import LineSender

        lines = LineSender(place, "--json", notify)
        try:
            yield lines
            lines.sender.close()
        finally:
            lines.sender.abort()
    else:
        with open_file(Path(place)) as file:
            yield file


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a file for text, which appears when it is complete; or standard output."""
    if path == STANDARD_OUTPUT:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # a reader gets each line at once
        yield sys.stdout
    else:
        with written_whole(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            yield file


@contextmanager
def open_live_text(path: Path, notify: Callable[[str], None]) -> Iterator[LineWriter]:
    """Open a file for text that others read while it is written; or standard output. A slow reader holds up nobody.

    What the file held before stays until the first line is written. After an error the lines so far stay. A file that
    got no line and was not there before is removed.

    Args:
        notify: Receives a sentence if lines are dropped.
    """
    if path == STANDARD_OUTPUT:
        with LineThread(StandardOutput(), "Standard output", notify) as lines:
            yield lines
        return
    target = check_writable(path)
    existed = target.exists()
    with write_errors(path):
        file = LiveTextFile(target, path)
    lines = LineThread(file, str(path), notify)
    try:
        with lines:
            yield lines
    finally:
        try:
            if not lines.hangs:  # or it would be waited for
                file.close()
        finally:
            if not existed and target.exists() and not target.stat().st_size:
                target.unlink()


class StandardOutput:
    """Standard output without Python's buffer, which would wait at the end of the program for a reader who hangs."""

    def write(self, text: str) -> None:
        with write_errors("standard output"):
            sys.stdout.flush()
            try:
                number = sys.stdout.fileno()
            except UnsupportedOperation:  # it is in memory
                sys.stdout.write(text)
                return
            data = text.encode()
            while data:
                data = data[os.write(number, data) :]


class LiveTextFile(TextIOWrapper):
    """A text file that writes each line at once. The first one replaces what the file held.

    Args:
        path: The file that is opened.
        shown: Its name in errors, which is that of a link to it.
    """

    def __init__(self, path: Path, shown: Path):
        super().__init__(path.open("ab"), encoding="utf-8", line_buffering=True)
        self.shown, self.begun = shown, False

    def write(self, text: str) -> int:
        with write_errors(self.shown):
            if not self.begun:
                self.truncate(0)
                self.begun = True
            return super().write(text)

    def close(self) -> None:
        with write_errors(self.shown):
            super().close()


@contextmanager
def write_errors(place: Path | str) -> Iterator[None]:
    """Turn an error of the system, such as a full disk, into a sentence that names the place."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"Could not write {place}: {error.strerror}.") from error
