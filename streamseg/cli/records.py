"""Where the verbs write text about frames: files that appear when they are complete, standard output, addresses."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from streamseg.cli.messages import STANDARD_OUTPUT
from streamseg.io.files import written_whole
from streamseg.io.web import is_address

if TYPE_CHECKING:
    from streamseg.io.live_lines import LineSender


@contextmanager
def open_records(place: str, notify: Callable[[str], None]) -> Iterator["TextIO | LineSender | None"]:
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
        with open_text(Path(place)) as file:
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
