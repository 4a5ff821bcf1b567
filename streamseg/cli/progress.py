"""How far segment is, on the terminal."""

import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from streamseg.cli.messages import clear_line, print_error
from streamseg.cli.reports import list_largest_classes
from streamseg.io.outputs import Output
from streamseg.io.sources import Capture
from streamseg.stream import latency
from streamseg.stream.observer import PipelineObserver

if TYPE_CHECKING:
    from streamseg.deploy.archive import Report

SECONDS = 0.25
"""Time between updates of the progress line."""


class TerminalObserver(PipelineObserver):
    """Prints messages, written pictures and a progress line."""

    def __init__(self, meter: latency.Meter, classes: tuple[str, ...], messages: TextIO, quiet: bool):
        self.meter, self.classes, self.messages, self.quiet = meter, classes, messages, quiet
        self.total: Callable[[], int | None] = lambda: None
        """Returns how many frames there are, if known."""
        self.updated = monotonic()

    def message(self, sentence: str) -> None:
        print_error(sentence)

    def frame_written(self, capture: Capture, shares: list[float], files: Output) -> None:
        if files.are_pictures and files.paths and not self.quiet:
            clear_line()
            print(f"{capture.name}: {list_largest_classes(self.classes, shares)}", file=self.messages)
            print("  " + "  ".join(map(str, files.for_capture(capture).paths)), file=self.messages)

    def tick(self) -> None:
        if not self.quiet and sys.stderr.isatty() and monotonic() - self.updated > SECONDS:
            self.updated = monotonic()
            line = latency.format_progress(self.meter.summary(), self.total())
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def show_archive_progress(quiet: bool) -> Callable[["Report"], None]:
    """Return a function that prints how far a cluster is: often on a terminal, once a minute in a log."""
    from streamseg.deploy.archive import format_report

    updated = monotonic()

    def progress(report: "Report") -> None:
        nonlocal updated
        terminal = sys.stderr.isatty()
        if not quiet and monotonic() - updated > (SECONDS if terminal else 60):
            updated = monotonic()
            start, end = ("\r\x1b[K", "") if terminal else ("", "\n")
            print(f"{start}{format_report(report)}", end=end, file=sys.stderr, flush=True)

    return progress
