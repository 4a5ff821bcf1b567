"""What the command line says on the way, and when something is wrong."""

import logging
import sys


def show_progress(done: int, total: int) -> None:
    """One line that counts, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def clear_line() -> None:
    """Take the line that tells how far it is off the terminal."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def complain(sentence: str) -> None:
    """Print a complaint as one line, whatever is in it."""
    line = "".join(letter if letter.isprintable() else " " for letter in sentence)
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}streamseg: {' '.join(line.split())}", file=sys.stderr)


class Complaints(logging.Handler):
    """Prints what the package has to say."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def fail(sentence: str) -> None:
    """Complain, and exit with status 2."""
    complain(sentence)
    sys.exit(2)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full: Python's, or torch's of a GPU or of the CPU."""
    torchs = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return torchs or isinstance(error, MemoryError)
