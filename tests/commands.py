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


def complaint(monkeypatch, capsys, *arguments):
    """Run a command line that fails, and return its one line of error."""
    return error_line(capsys, run(monkeypatch, *arguments))


def error_line(capsys, status):
    """Return the one line of error of a command that ended with status 2."""
    shown = capsys.readouterr().err
    assert status == 2
    assert shown.startswith("streamseg: ")
    assert shown.count("\n") == 1
    assert shown.removesuffix("\n").isprintable()
    return shown


def failing(error):
    """Return a function that raises an error, whatever it is called with."""

    def fail(*_, **__):
        raise error

    return fail
