"""What the command line says on the way, and when something is wrong."""

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
"""What stands for it as the name of a file."""


def has_colours(stream: TextIO) -> bool:
    """Whether a stream shows colours: a terminal does, unless its user wants none (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class NullStream(StringIO):
    """Takes words, and keeps none."""

    def write(self, text: str) -> int:
        return len(text)


def open_messages(quiet: bool, *results: Path | str | None) -> TextIO:
    """Where a verb says how it went: standard output, or standard error where results go there, or nowhere."""
    if quiet:
        logging.getLogger("streamseg").setLevel(logging.WARNING)
        return NullStream()
    return sys.stderr if STANDARD_OUTPUT in {Path(name) for name in results if name} else sys.stdout


def pick_progress(quiet: bool) -> Callable[[int, int], None]:
    """How a verb tells how far it is."""
    return ignore_progress if quiet else show_progress


def ignore_progress(done: int, total: int) -> None:
    """Say nothing."""


def show_progress(done: int, total: int) -> None:
    """One line that counts, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


@contextmanager
def loading(quiet: bool) -> Iterator[None]:
    """Say on a terminal that the program is loading, until that is done: torch alone takes seconds."""
    if not quiet and sys.stderr.isatty():
        print("Loading …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if not quiet:
            clear_line()


def clear_line() -> None:
    """Take the line that tells how far it is off the terminal."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def check_figures(path: Path | None) -> None:
    """Raise an error if figures could not be written to a file that was asked for."""
    if path and path != STANDARD_OUTPUT:
        check_writable(path)


def write_figures(path: Path | None, figures: object, words: TextIO) -> None:
    """Write figures as JSON, to a file or to standard output, if that was asked for."""
    from json import dumps

    text = dumps(figures, indent=2) + "\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
    elif path:
        with written_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print(path, file=words)


def print_error(sentence: str) -> None:
    """Print a complaint as one line, whatever is in it."""
    line = "".join(letter if letter.isprintable() else " " for letter in sentence)
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}streamseg: {' '.join(line.split())}", file=sys.stderr)


class ErrorHandler(logging.Handler):
    """Prints what the package has to say."""

    def emit(self, record: logging.LogRecord) -> None:
        print_error(record.getMessage())


def fail(sentence: str) -> None:
    """Complain, and exit with status 2."""
    print_error(sentence)
    sys.exit(2)


def debugging() -> bool:
    """Whether errors are shown with all that led to them, for the report of a bug: STREAMSEG_DEBUG=1."""
    return os.environ.get("STREAMSEG_DEBUG", "0") not in ("", "0")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full: Python's, or torch's of a GPU or of the CPU."""
    torchs = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return torchs or isinstance(error, MemoryError)
