"""The command line: a verb is a function, its options are its signature.

Heavy imports happen inside the verbs, so that help is instant.
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from inspect import signature
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

import tyro

import streamseg
from streamseg.cli.deploying import export, serve
from streamseg.cli.measuring import benchmark, evaluate, reproduce
from streamseg.cli.say import Complaints, fail, out_of_memory
from streamseg.cli.segmenting import segment
from streamseg.cli.training import check, pack, train

CLUSTER = re.compile(r"local|auto|(ray://)?[\w.-]+:\d+")
"""What the address of a Ray cluster looks like."""


def names_first(arguments: Sequence[str], verb: Callable[..., None] = segment) -> list[str]:
    """The command line of a verb with its names before its options; behind one of them tyro takes no name."""
    if "--" in arguments:
        return list(arguments)
    switches = {name for name, parameter in signature(verb).parameters.items() if parameter.annotation is bool}
    names, options = [], []
    left = iter(arguments)
    for argument in left:
        if argument == "-" or not argument.startswith("-"):
            names.append(argument)
            continue
        options.append(argument)
        option = argument.removeprefix("--").removeprefix("no-").replace("-", "_")
        if argument.startswith("--") and "=" not in argument and option not in switches:
            options += islice(left, 1)  # its value
    return [*names, *options]


def complete_ray(arguments: Sequence[str]) -> list[str]:
    """The command line with all that --ray stands for: this machine, if no address follows; labels, and no overlay."""
    completed = list(arguments)
    if "--ray" in arguments:
        place = completed.index("--ray") + 1
        if not CLUSTER.fullmatch("".join(completed[place : place + 1])):
            completed.insert(place, "local")
    asked = any(argument.partition("=")[0] == "--ray" for argument in arguments)
    if asked and arguments[0] == "segment":
        for option, usual in (("overlay", "--no-overlay"), ("labels", "--labels")):
            if not {f"--{option}", f"--no-{option}"} & {*arguments}:
                completed.append(usual)
    return completed


def main() -> None:
    """Run the command line. Exit status: 0 done, 1 a check found errors, 2 wrong input, 128 + n stopped by signal n."""
    warnings.filterwarnings("ignore", module="PIL")  # of damaged pictures, which get a sentence
    for name in ("stdout", "stderr"):  # one that was closed is as good as one that nobody reads
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that lacks a letter gets a question mark
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    logger = logging.getLogger("streamseg")
    logger.addHandler(Complaints())
    logger.setLevel(logging.INFO)
    arguments = sys.argv[1:]
    if arguments[:1] in (["segment"], ["evaluate"]):
        arguments = complete_ray(arguments)
    for verb in (segment, export, pack, serve):  # whose names may stand behind options
        if arguments[:1] == [verb.__name__]:
            arguments = [verb.__name__, *names_first(arguments[1:], verb)]
    if arguments == ["--version"]:
        print(f"streamseg {streamseg.__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            {
                "segment": segment,
                "train": train,
                "evaluate": evaluate,
                "check": check,
                "pack": pack,
                "reproduce": reproduce,
                "benchmark": benchmark,
                "export": export,
                "serve": serve,
            },
            prog="streamseg",
            description="Real-time semantic segmentation of images and video. The version: streamseg --version",
            args=arguments,
        )
    except BrokenPipeError:  # what reads our output has seen enough, and needs nothing that is left for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError, ImportError) as error:
        fail(str(error))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        fail("There is not enough memory for pictures of this size: make them smaller, or give --device cpu.")
    except KeyboardInterrupt:
        sys.exit(130)
