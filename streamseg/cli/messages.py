"""Output of the command line: messages, progress, figures as JSON, and errors."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TextIO

from streamseg.io.files import check_writable, written_whole

STANDARD_OUTPUT = Path("-")
"""The file name that stands for standard output."""


def has_colours(stream: TextIO) -> bool:
    """Return whether to print colours: on a terminal, unless the user turned them off (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class NullStream(StringIO):
    """A stream that discards what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


def open_messages(quiet: bool, *results: Path | str | None) -> TextIO:
    """Return the stream for messages: standard output, or standard error if results go to standard output."""
    if quiet:
        logging.getLogger("streamseg").setLevel(logging.WARNING)
        return NullStream()
    return sys.stderr if STANDARD_OUTPUT in {Path(name) for name in results if name} else sys.stdout


def pick_progress(quiet: bool) -> Callable[[int, int], None]:
    """Return the function that reports progress."""
    return ignore_progress if quiet else show_progress


def ignore_progress(done: int, total: int) -> None:
    """Report nothing."""


def show_progress(done: int, total: int) -> None:
    """Show a counter, on a terminal only; it disappears at the end."""
    if sys.stderr.isatty():
        print("\r\x1b[K" if done == total else f"\r{done}/{total}", end="", file=sys.stderr, flush=True)


@contextmanager
def loading(quiet: bool) -> Iterator[None]:
    """Show on a terminal that the program is loading: importing torch alone takes seconds."""
    if not quiet and sys.stderr.isatty():
        print("Loading …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if not quiet:
            clear_line()


def clear_line() -> None:
    """Erase the progress line of the terminal."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def check_figures(path: Path | None) -> None:
    """Raise an error if the file for --json cannot be written."""
    if path and path != STANDARD_OUTPUT:
        check_writable(path)


def write_figures(path: Path | None, figures: object, messages: TextIO) -> None:
    """Write figures as JSON to a file or to standard output; do nothing without a path."""
    from json import dumps

    if path == STANDARD_OUTPUT:
        sys.stdout.write(dumps(figures, indent=2) + "\n")
    elif path:
        write_json(path, figures)
        print(path, file=messages)


def write_json(path: Path, figures: object) -> None:
    """Write figures as JSON to a file, whole or not at all."""
    from json import dumps

    with written_whole(path) as temporary:
        temporary.write_text(dumps(figures, indent=2) + "\n", encoding="utf-8")


def print_error(sentence: str) -> None:
    """Print an error or a warning as one line, whatever characters it holds."""
    line = "".join(letter if letter.isprintable() else " " for letter in sentence)
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    # with its end in one piece: threads that print at once do not share a line
    print(f"{clear}streamseg: {' '.join(line.split())}\n", end="", file=sys.stderr)


class ErrorHandler(logging.Handler):
    """Prints the log messages of the package."""

    def emit(self, record: logging.LogRecord) -> None:
        print_error(record.getMessage())


def debugging() -> bool:
    """Return whether errors are shown with a traceback, for a bug report: STREAMSEG_DEBUG=1."""
    return os.environ.get("STREAMSEG_DEBUG", "0") not in ("", "0")


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is full: Python's, or torch's on a GPU or the CPU."""
    from_torch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return from_torch or isinstance(error, MemoryError)
