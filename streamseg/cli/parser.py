"""Parses a command line into a verb and its values; every error is one sentence.

cyclopts raises an exception for each kind of error, and `explain` words it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, Argument, ArgumentCollection, CycloptsError, Parameter
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from streamseg.cli.benchmarking import benchmark
from streamseg.cli.completion import completion
from streamseg.cli.converting import convert
from streamseg.cli.deploying import export
from streamseg.cli.listing import weights
from streamseg.cli.measuring import evaluate, reproduce
from streamseg.cli.messages import print_error
from streamseg.cli.prelabelling import prelabel
from streamseg.cli.pushing import push
from streamseg.cli.segmenting import segment
from streamseg.cli.serving import serve
from streamseg.cli.training import check, pack, recipe_command, train
from streamseg.cli.warming import warm
from streamseg.train.config import OLD_NAMES, RECIPES

PROGRAM = "streamseg"
ABOUT = """Real-time semantic segmentation of images and video.

Examples:
    streamseg segment photo.jpg
    streamseg segment drive.mp4 labelled.mp4 --legend
    streamseg segment --help
"""
"""What the help of the program itself says."""
VERBS: dict[str, Callable[..., int]] = {
    verb.__name__: verb
    for verb in (
        segment,
        train,
        evaluate,
        check,
        convert,
        prelabel,
        pack,
        reproduce,
        benchmark,
        export,
        push,
        serve,
        warm,
        weights,
        completion,
    )
}
OLD_OPTIONS = {"train": {old.replace("_", "-"): new.replace("_", "-") for old, new in OLD_NAMES.items()}}
"""Former names of options, by verb: they still work, with a note."""
CLUSTER = re.compile(r"local|auto|(ray://)?[\w.-]+:\d+")
"""The address of a Ray cluster."""
DASH = "\0"
"""Stands for a lone - while cyclopts parses, which would take it for an option; no argument can hold a NUL."""
LISTS = ("--scales", "--splits", "--teachers", "--teacher-scales")
"""Options that take all values that follow them."""
HELP_FLAGS = ("-h", "--help")
EVERY_OPTION = Parameter(allow_repeating=True, negative_iterable=())
"""The last of repeated options counts; a list has no --empty- form."""


class UsageError(ValueError):
    """An invalid command line; the message says what to do."""


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """Return the call that a command line asks for, or raise a UsageError."""
    if not arguments:
        raise UsageError("Give a verb, such as segment: streamseg --help has the list.")
    verb = arguments[0]
    if verb == "train" and (len(arguments) == 1 or arguments[1].startswith("-")):
        raise UsageError("Give a recipe after train, such as folder-18: streamseg train --help has the list.")
    given = close_lists(rename_old_options(arguments))
    if verb in ("segment", "evaluate", "serve"):
        given = complete_ray(given)
    try:
        command, bound, _ = make_app(arguments[1:2]).parse_args([DASH if word == "-" else word for word in given])
    except CycloptsError as error:
        raise UsageError(explain(error, arguments)) from None
    return partial(command, *bound.args, **bound.kwargs)


def make_app(recipes: Iterable[str] = RECIPES) -> App:
    """Return the verbs as cyclopts needs them; making the options of all recipes would slow down every start."""
    app = App(
        PROGRAM,
        help=ABOUT,
        help_flags=HELP_FLAGS,
        version_flags=(),
        config=check_words,
        exit_on_error=False,
        print_error=False,
    )
    for name, verb in VERBS.items():
        if verb is not train:
            app.command(verb, name=name, default_parameter=EVERY_OPTION)
    training = App("train", help=train.__doc__)
    for name in recipes:
        if name in RECIPES:
            command, about = recipe_command(RECIPES[name].config), RECIPES[name].about
            training.command(command, name=name, help=about, default_parameter=EVERY_OPTION)
    app.command(training)
    return app


def options_of(arguments: ArgumentCollection) -> list[Argument]:
    """Return the options among the arguments of a verb."""
    return [argument for argument in arguments if argument.show and argument.field_info.is_keyword]


def rename_old_options(arguments: Sequence[str]) -> list[str]:
    """Replace former names of options by the present ones, and tell the user."""
    renamed = []
    for argument in arguments:
        found = re.fullmatch(r"--(no-)?([\w-]+)(=.*)?", argument, re.DOTALL)
        old = found[2].replace("_", "-") if found else ""
        new = OLD_OPTIONS.get(arguments[0], {}).get(old)
        if found and new:
            print_error(f"--{old} is now called --{new}.")
            argument = f"--{found[1] or ''}{new}{found[3] or ''}"
        renamed.append(argument)
    return renamed


def close_lists(arguments: list[str]) -> list[str]:
    """Move options such as --scales=1 to the end, where they take no value but their own."""
    closed = [word for word in arguments if word.startswith(tuple(f"{option}=" for option in LISTS))]
    if not closed or "--" in arguments:
        return arguments
    return [*(word for word in arguments if word not in closed), *closed]


def complete_ray(arguments: Sequence[str]) -> list[str]:
    """Add what --ray implies: this machine if no address follows and, for segment, labels instead of an overlay."""
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


def check_words(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Validate and fix the tokens of each argument; cyclopts calls this before it converts them."""
    for argument in arguments:
        # where an option that takes several values is repeated, the last one counts, as with all options
        first = max((place for place, token in enumerate(argument.tokens) if token.index == 0), default=0)
        if not argument.field_info.is_positional and not collects(argument):
            del argument.tokens[:first]
        for place, token in enumerate(argument.tokens):
            if token.value == DASH:
                argument.tokens[place] = token = token.evolve(value="-")
            # cyclopts would round 3.5 to 4
            if kinds_of(argument.hint) == {int} and not re.fullmatch(r"[+-]?\d+(_\d+)*", token.value):
                raise CoercionError(argument=argument, token=token, target_type=int)
    missing = [argument for argument in arguments if argument.required and argument.show and not argument.has_tokens]
    if missing:  # cyclopts would name the first one only
        raise MissingArgumentError(argument=missing[0], msg=" and ".join(name_of(argument) for argument in missing))


def collects(argument: Argument) -> bool:
    """Return whether an option is repeated for several values, such as --size of warm."""
    _, any_number = argument.token_count()
    return any_number and not argument.parameter.consume_multiple


def name_of(argument: Argument) -> str:
    """Return what to type for an argument: OUT, or --data DIR."""
    metavar = argument.parameter.metavar or ""
    return metavar if argument.field_info.is_positional else f"{argument.name} {metavar}".rstrip()


def kinds_of(hint: Any) -> set[Any]:
    """Return the types of the single values that an option takes: {int} for int | None and tuple[int, int]."""
    if get_origin(hint) is Literal:
        return {Literal}
    inner = [kind for kind in get_args(hint) if kind not in (type(None), ...)]
    return set().union(*map(kinds_of, inner)) if inner else {hint}


def explain(error: CycloptsError, arguments: Sequence[str]) -> str:
    """Return an error of cyclopts as a sentence.

    Args:
        arguments: The command line, from the verb on.
    """
    program, argument = program_of(arguments), error.argument
    more = f"see {program} --help."
    unused = [word.replace(DASH, "-") for word in error.unused_tokens or ()]
    if isinstance(error, UnknownCommandError):
        if error.command_chain:
            return unknown("There is no recipe", unused[0], list(RECIPES), f"{PROGRAM} train")
        return unknown("There is no verb", unused[0], [*VERBS, *HELP_FLAGS, "--version"], PROGRAM)
    mistyped = next((word for word in unused if word.startswith("-") and word != "-"), "")
    if isinstance(error, UnknownOptionError):
        return unknown_option(error, error.token.keyword or error.token.value, arguments)
    if isinstance(error, UnusedCliTokensError):
        return f"{program} does not take {', '.join(unused)!r:.80}: {more}"
    if isinstance(error, MissingArgumentError) and argument:
        if not error.msg:
            values = argument.token_count()[0]
            return f"{error.keyword or argument.name} needs {'a value' if values == 1 else f'{values} values'}: {more}"
        return unknown_option(error, mistyped, arguments) if mistyped else f"{program} needs {error.msg}: {more}"
    if isinstance(error, CoercionError) and argument and error.token:
        name = error.token.keyword or (argument.parameter.metavar or argument.name).lower()
        given = " ".join(token.value for token in argument.tokens) or error.token.value
        choices = argument.get_choices()
        if choices:
            return f"{name} is {given!r:.80}; choose one of: {', '.join(map(repr, choices))}."
        return f"{name} is {given[:80]!r}; expected {expected_values(argument)}."
    return f"{' '.join(str(error).split()).strip('. ')}: {more}"


def unknown_option(error: CycloptsError, given: str, arguments: Sequence[str]) -> str:
    """Return the sentence about an option that a verb does not have."""
    options = options_of(error.app.assemble_argument_collection()) if error.app else []
    known = ["--help", *(name for option in options for name in option.names)]
    return unknown(f"{arguments[0]} has no option", given.partition("=")[0], known, program_of(arguments))


def expected_values(argument: Argument) -> str:
    """Return what an option expects: a number, 2 whole numbers, numbers."""
    if argument.hint is bool:
        return "no value"
    number = "whole number" if kinds_of(argument.hint) == {int} else "number"
    values, any_number = argument.token_count()
    if any_number:
        return f"{number}s"
    return f"a {number}" if values == 1 else f"{values} {number}s"


def unknown(complaint: str, given: str, choices: Sequence[str], program: str) -> str:
    """Return the sentence about a word that is no choice, with the choice that is close to it, if any."""
    near = get_close_matches(given, [choice for choice in choices if choice != given], 1, cutoff=0.75)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{complaint} {given!r:.80}: {meant}{program} --help has the list."


def program_of(arguments: Sequence[str]) -> str:
    """Return the part of a command line that has its own help."""
    words = 2 if arguments[0] == "train" and {*arguments[1:2]} & {*RECIPES} else 1
    return " ".join([PROGRAM, *arguments[:words]])
