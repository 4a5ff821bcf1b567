"""The command line: a verb is a function, its options are its signature.

Heavy imports happen inside the verbs, so that help is instant.
"""

import logging
import os
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import tyro

import streamseg
from streamseg.cli import pages
from streamseg.cli.completion import completions, options_of
from streamseg.cli.deploying import export, serve
from streamseg.cli.measuring import benchmark, evaluate, reproduce
from streamseg.cli.options import Quiet
from streamseg.cli.say import ErrorHandler, debugging, fail, has_colours, out_of_memory
from streamseg.cli.segmenting import segment
from streamseg.cli.training import check, pack, train
from streamseg.train.config import RECIPES


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.arg(metavar="SHELL")], /) -> None:
    """Print what makes a shell complete verbs and options.

    Args:
        shell: bash, zsh or fish.

    Examples:
        source <(streamseg completion bash)
        source <(streamseg completion zsh)
        streamseg completion fish > ~/.config/fish/completions/streamseg.fish
    """
    print(completions(shell, VERBS), end="")


VERBS: dict[str, Callable[..., None]] = {
    verb.__name__: verb
    for verb in (segment, train, evaluate, check, pack, reproduce, benchmark, export, serve, completion)
}
for verb in VERBS.values():
    verb.__doc__ = pages.unbroken(verb.__doc__)

WORDS = tyro.constructors.ConstructorRegistry()
"""How the help calls the values of options, where they have no word of their own: NAME, not STR."""


@WORDS.primitive_rule
def name_text(kind: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[str] | None:
    if kind.type is not str:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME",
        instance_from_str=lambda given: given[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value],
    )


CLUSTER = re.compile(r"local|auto|(ray://)?[\w.-]+:\d+")
"""What the address of a Ray cluster looks like."""


def names_first(arguments: Sequence[str], verb: Callable[..., None] = segment) -> list[str]:
    """The command line of a verb with its names before its options; behind one of them tyro takes no name."""
    if "--" in arguments:
        return list(arguments)
    parameters = signature(verb).parameters.items()
    switches = {name for name, parameter in parameters if parameter.annotation in (bool, Quiet)}
    lists = {name for name, parameter in parameters if is_list(parameter.annotation)}
    names, options = [], []
    left = deque(arguments)
    while left:
        argument = left.popleft()
        if argument == "-" or not argument.startswith("-"):
            names.append(argument)
            continue
        options.append(argument)
        option = argument.removeprefix("--").removeprefix("no-").replace("-", "_")
        if argument.startswith("--") and "=" not in argument and option not in switches and left:
            options.append(left.popleft())  # its value
            while option in lists and left and not left[0].startswith("-"):
                options.append(left.popleft())
    return [*names, *options]


def is_list(annotation: object) -> bool:
    """Whether an option takes all values that follow it."""
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return get_origin(kind) is tuple


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


def check_choices(arguments: Sequence[str]) -> None:
    """Exit with a sentence if a command line has a verb, a recipe or an option that there is not."""
    verb = "".join(arguments[:1])
    if not verb:
        fail("Give a verb, such as segment: streamseg --help has the list.")
    refuse("There is no verb", verb, [*VERBS, "--help", "--version", "-h"], "streamseg")
    if verb == "train" and not pages.wants_help(arguments):
        recipe = "".join(arguments[1:2])
        if not recipe or recipe.startswith("-"):
            fail("Give a recipe behind train, such as folder-18: streamseg train --help has the list.")
        refuse("There is no recipe", recipe, list(RECIPES), "streamseg train")
    if verb in VERBS and "--" not in arguments:
        known = ["--help", *options_of(VERBS[verb])]
        for argument in arguments:
            option = argument.partition("=")[0].replace("_", "-")
            if option.startswith("--"):
                refuse(f"{verb} has no option", option, known, program_of(arguments))


def refuse(complaint: str, given: str, choices: Sequence[str], program: str) -> None:
    """Exit with a sentence if what is given is no choice; one that comes near is named."""
    if given not in choices:
        near = get_close_matches(given, choices, 1, cutoff=0.75)
        meant = f"did you mean {near[0]}? " if near else ""
        fail(f"{complaint} {given!r:.80}: {meant}{program} --help has the list.")


def run(arguments: Sequence[str]) -> None:
    """Let tyro read a command line, and run its verb; or print a page of help."""
    tyro._experimental_options["ansi_codes"] = False
    terminal, box = sys.stderr, StringIO()

    def heard(verb: Callable[..., None]) -> Callable[..., None]:
        """A verb whose words go to the terminal again."""

        @wraps(verb)
        def call(*values: object, **options: object) -> None:
            terminal.write(box.getvalue())  # no complaint, for it has come to the verb: a warning
            box.truncate(0)
            with redirect_stderr(terminal):
                verb(*values, **options)

        return call

    try:
        with redirect_stderr(box):
            tyro.extras.subcommand_cli_from_dict(
                {name: heard(verb) for name, verb in VERBS.items()},
                prog="streamseg",
                description=pages.description(pages.ABOUT),
                args=arguments,
                registry=WORDS,
            )
    except SystemExit:
        if box.getvalue():
            fail(pages.complaint(box.getvalue(), program_of(arguments)))
        raise


def program_of(arguments: Sequence[str]) -> str:
    """The part of a command line that has a page of help of its own."""
    words = 2 if arguments[0] == "train" and {*arguments[1:2]} & {*RECIPES} else 1
    return " ".join(["streamseg", *arguments[:words]])


def show_page(arguments: Sequence[str]) -> None:
    """Print the page of help that a command line asks for."""
    page = pages.Page(sys.stdout)
    verb = VERBS.get(arguments[0])
    try:
        with redirect_stdout(page):
            run(arguments)
    finally:
        if page.getvalue():
            docstring, choice = (verb.__doc__ or "", "RECIPE") if verb else (pages.ABOUT, "VERB")
            shown = pages.finish(page.getvalue(), docstring, choice)
            print(pages.colour(shown) if has_colours(sys.stdout) else shown, end="")


def main() -> None:
    """Run the command line. Exit status: 0 done, 1 done but something is wrong, 2 not done, 128 + n signal n."""
    warnings.filterwarnings("ignore", module="PIL")  # of damaged pictures, which get a sentence
    for name in ("stdout", "stderr"):  # one that was closed is as good as one that nobody reads
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that lacks a letter gets a question mark
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    logger = logging.getLogger("streamseg")
    logger.addHandler(ErrorHandler())
    logger.setLevel(logging.INFO)
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"streamseg {streamseg.__version__}")
        return
    check_choices(arguments)
    if arguments[0] in ("segment", "evaluate"):
        arguments = complete_ray(arguments)
    if arguments[0] in VERBS and arguments[0] != "train":  # whose names may stand behind options
        arguments = [arguments[0], *names_first(arguments[1:], VERBS[arguments[0]])]
    try:
        if pages.wants_help(arguments):
            show_page(arguments)
        else:
            run(arguments)
    except BrokenPipeError:  # what reads our output has seen enough, and needs nothing that is left for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError, ImportError) as error:
        if debugging():
            raise
        fail(str(error))
    except (RuntimeError, MemoryError) as error:
        if debugging() or not out_of_memory(error):
            raise
        fail("There is not enough memory for pictures of this size: make them smaller, or give --device cpu.")
    except KeyboardInterrupt:
        sys.exit(130)
