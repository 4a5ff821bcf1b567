"""Run the command line in the process of a test."""

import sys

from streamseg import cli


def run(monkeypatch, *arguments):
    """Run a command and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["streamseg", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def complaint(monkeypatch, capsys, *arguments):
    """Run a command that must fail, and return its one-line error."""
    assert run(monkeypatch, *arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("streamseg: ")
    assert shown.count("\n") == 1
    assert shown.removesuffix("\n").isprintable()
    return shown
