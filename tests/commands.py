"""The command line, run in the process of a test."""

import sys

from streamseg import cli


def run(monkeypatch, *arguments):
    """Run it, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["streamseg", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0
