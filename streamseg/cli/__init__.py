"""The command line: a verb is a function, and its options are its parameters.

Heavy imports happen inside the verbs, so that help is instant.
"""

import atexit
import logging
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

import streamseg
from streamseg.cli.benchmarking import benchmark
from streamseg.cli.completion import completion
from streamseg.cli.converting import convert
from streamseg.cli.deploying import export
from streamseg.cli.listing import weights
from streamseg.cli.measuring import evaluate, reproduce
from streamseg.cli.messages import ErrorHandler, debugging, has_colours, out_of_memory, print_error
from streamseg.cli.pages import find_page, wants_help
from streamseg.cli.parser import VERBS, UsageError, complete_ray, parse
from streamseg.cli.prelabelling import prelabel
from streamseg.cli.segmenting import segment
from streamseg.cli.serving import serve
from streamseg.cli.training import check, pack, train
from streamseg.cli.warming import warm
from streamseg.early import set_environment

__all__ = [
    "VERBS",
    "benchmark",
    "check",
    "complete_ray",
    "completion",
    "convert",
    "evaluate",
    "export",
    "main",
    "pack",
    "prelabel",
    "reproduce",
    "run",
    "run_program",
    "segment",
    "serve",
    "train",
    "warm",
    "weights",
]


def main() -> None:
    """Run the command line. Exit status: 0 done, 1 done but something is wrong, 2 not done, 128 + n signal n."""
    warnings.filterwarnings("ignore", module="PIL")  # about damaged pictures, for which we print our own error
    for name in ("stdout", "stderr"):  # a closed stream is replaced
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):  # characters that the terminal lacks become question marks
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    logger = logging.getLogger("streamseg")
    logger.addHandler(ErrorHandler())
    logger.setLevel(logging.INFO)
    arguments = sys.argv[1:]
    set_environment(arguments)
    status = run(arguments)
    if status or wants_help(arguments):
        sys.exit(status)


def run_program() -> None:
    """Run the command line as the console program, and exit without waiting for daemon threads.

    A reader that waits in FFmpeg for a camera while Python shuts down can abort the process, which changes its exit
    status.
    """
    status: object = 0
    try:
        main()
    except SystemExit as end:
        status = end.code
    if not isinstance(status, int) or not any(thread.daemon for thread in threading.enumerate()):
        sys.exit(status)  # type: ignore[arg-type] # as SystemExit had it
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status; print errors as one sentence."""
    try:
        if arguments == ["--version"]:
            print(f"streamseg {streamseg.__version__}")
            return 0
        if wants_help(arguments):
            print(find_page(arguments).draw(has_colours(sys.stdout), sys.stdout.encoding), end="")
            return 0
        return parse(arguments)()
    except BrokenPipeError:  # the reader of our output has closed it and needs nothing more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        print_error(str(error))
    except (ValueError, OSError, ImportError) as error:
        if debugging():
            raise
        print_error(str(error))
    except (RuntimeError, MemoryError) as error:
        if debugging() or not out_of_memory(error):
            raise
        print_error("There is not enough memory for pictures of this size: make them smaller, or give --device cpu.")
    except KeyboardInterrupt:
        return 130
    return 2
