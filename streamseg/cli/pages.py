"""The pages of --help, drawn from the arguments that the parser knows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import get_args

from cyclopts import App, Argument

from streamseg.cli.parser import ABOUT, HELP_FLAGS, PROGRAM, VERBS, UsageError, make_app, unknown
from streamseg.train.config import RECIPES

WIDEST = 100
"""The most columns that a page takes; longer lines are hard to read."""
COLUMN = 20
"""The most columns for the left side of a table; longer entries get a line of their own."""
METAVARS = {int: "INT", float: "FLOAT", str: "NAME", Path: "FILE"}
ASCII = str.maketrans("─│╭╮╰╯", "-|++++")


@dataclass(frozen=True)
class HelpRow:
    """An entry of a page: what to type, and what it does."""

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: str = ""
    required: bool = False

    @property
    def typed(self) -> str:
        value = self.metavar or (f"{{{','.join(self.choices)}}}" if self.choices else "")
        return f"{', '.join(self.names)} {value}".strip()

    @property
    def sentence(self) -> str:
        """The help with what the option is if it is left out."""
        hint = "(required)" if self.required else f"(default: {self.default})" if self.default else ""
        return f"{self.help} {hint}".strip()


HELP = HelpRow(("-h", "--help"), "show this help message and exit")
VERSION = HelpRow(("--version",), "show the version and exit")


@dataclass(frozen=True)
class Page:
    """The help of the program, of a verb, or of a recipe."""

    usage: str
    about: str
    boxes: dict[str, list[HelpRow]]
    """Rows under their titles."""
    examples: list[str] = field(default_factory=list)

    def draw(self, coloured: bool, encoding: str) -> str:
        """Return the page as text that fits the terminal."""
        width = min(get_terminal_size().columns, WIDEST)
        rows = [row for box in self.boxes.values() for row in box]
        column = max((len(row.typed) for row in rows if len(row.typed) <= COLUMN), default=COLUMN)
        bold: Style = mark_bold if coloured else str
        dim: Style = mark_dim if coloured else str
        lines = [f"{bold('usage:')} {self.usage}", "", *wrap(self.about, width), ""]
        for title, box in self.boxes.items():
            lines += draw_box(title, box, column, width, bold, dim)
        lines += ["", bold("examples:"), *(f"  {example}" for example in self.examples)] if self.examples else []
        page = "\n".join(lines) + "\n"
        try:
            page.encode(encoding)
        except UnicodeEncodeError:
            page = page.translate(ASCII)
        return page


Style = Callable[[str], str]


def mark_bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def mark_dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m"


def draw_box(title: str, rows: list[HelpRow], column: int, width: int, bold: Style, dim: Style) -> list[str]:
    """Return the lines of a box with two columns: what to type, and what it does."""
    inner = width - 4
    lines = [dim(f"╭─ {title} {'─' * (width - len(title) - 5)}╮")]
    for row in rows:
        sentence = row.sentence.replace("(default: ", "(default:\xa0")  # so that no line ends there
        typed, text = wrap_choices(row.typed, inner), wrap(sentence, inner - column - 2, break_on_hyphens=False)
        if len(row.typed) <= column:
            pairs = list(zip_longest(typed, text, fillvalue=""))
        else:
            pairs = [*((line, "") for line in typed), *(("", line) for line in text)]
        for left, right in pairs:
            line = f"{left:{column}}  {right}".replace("\xa0", " ") if right else left
            lines.append(f"{dim('│')} {bold(left) if left else ''}{line[len(left) :]:{inner - len(left)}} {dim('│')}")
    return [*lines, dim(f"╰{'─' * (width - 2)}╯")]


def wrap_choices(typed: str, width: int) -> list[str]:
    """Break what to type after commas, if it is longer than a line."""
    if len(typed) <= width:
        return [typed]
    return [line.replace(", ", ",") for line in wrap(typed.replace(",", ", "), width, break_on_hyphens=False)]


def wants_help(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for help."""
    return not {*HELP_FLAGS}.isdisjoint(arguments) and "--" not in arguments


def find_page(arguments: Sequence[str]) -> Page:
    """Return the page that a command line asks for, or raise a UsageError if it holds an unknown word."""
    words = [word for word in arguments if word not in HELP_FLAGS]
    if not words or words == ["--version"]:
        return program_page()
    verb = words[0]
    if verb not in VERBS:
        raise UsageError(unknown("There is no verb", verb, [*VERBS, *HELP_FLAGS, "--version"], PROGRAM))
    recipe = words[1] if verb == "train" and len(words) > 1 and not words[1].startswith("-") else ""
    if recipe and recipe not in RECIPES:
        raise UsageError(unknown("There is no recipe", recipe, list(RECIPES), f"{PROGRAM} train"))
    page = recipe_page(recipe) if recipe else train_page() if verb == "train" else verb_page(verb)
    known = [name for box in page.boxes.values() for row in box for name in row.names]
    for word in words[1:]:
        option = word.partition("=")[0].replace("_", "-")
        if option.startswith("--") and option not in known:
            program = " ".join(filter(None, (PROGRAM, verb, recipe)))
            raise UsageError(unknown(f"{verb} has no option", option, known, program))
    return page


def program_page() -> Page:
    """Return the page of the program itself."""
    about, examples = read_docstring(ABOUT)
    verbs = [HelpRow((name,), read_docstring(verb.__doc__)[0]) for name, verb in VERBS.items()]
    return Page(f"{PROGRAM} [-h] VERB", about, {"options": [HELP, VERSION], "verbs": verbs}, examples)


def train_page() -> Page:
    """Return the page of train, which lists the recipes."""
    about, examples = read_docstring(VERBS["train"].__doc__)
    recipes = [HelpRow((name,), recipe.about) for name, recipe in RECIPES.items()]
    return Page(f"{PROGRAM} train [-h] RECIPE", about, {"options": [HELP], "recipes": recipes}, examples)


def recipe_page(recipe: str) -> Page:
    """Return the page of a recipe."""
    examples = read_docstring(VERBS["train"].__doc__)[1]
    rows = list_rows(make_app([recipe])["train"][recipe])
    return Page(f"{PROGRAM} train {recipe} [-h] [OPTIONS]", RECIPES[recipe].about, {"options": [HELP, *rows]}, examples)


def verb_page(verb: str) -> Page:
    """Return the page of a verb."""
    about, examples = read_docstring(VERBS[verb].__doc__)
    rows = list_rows(make_app([])[verb])
    names = [row for row in rows if not row.names]
    options = [row for row in rows if row.names]
    usage = " ".join([PROGRAM, verb, "[-h]", *(["[OPTIONS]"] if options else []), *(row.metavar for row in names)])
    boxes = {"positional arguments": names} if names else {}
    return Page(usage, about, {**boxes, "options": [HELP, *options]}, examples)


def list_rows(app: App) -> list[HelpRow]:
    """Return a row for each argument of a verb: positional ones first, which have a metavar and no name."""
    arguments = app.assemble_argument_collection(parse_docstring=True)
    return [make_row(argument) for argument in arguments if argument.show]


def make_row(argument: Argument) -> HelpRow:
    """Return the row of an argument."""
    parameter, hint = argument.parameter, argument.resolved_hint
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not ...]
    choices = argument.get_choices() or ()
    metavar = parameter.metavar or ""
    if not metavar and not choices and hint is not bool:
        metavar = " ".join(METAVARS[kind] for kind in kinds)
    positional = argument.field_info.is_positional
    return HelpRow(
        names=() if positional else tuple(sorted(argument.names, key=len)),
        help=" ".join((parameter.help or "").split()),
        metavar=metavar,
        choices=choices,
        default=describe_default(argument),
        required=re.sub(r"\[.*?\]", "", metavar).strip() != "" if positional else argument.required,
    )


def describe_default(argument: Argument) -> str:
    """Return the default of an argument in words."""
    if isinstance(argument.parameter.show_default, str):
        return argument.parameter.show_default
    default = argument.field_info.default
    if argument.required or default is argument.field_info.empty:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def read_docstring(docstring: str | None) -> tuple[str, list[str]]:
    """Return the first sentence of a docstring, and its examples."""
    about, _, rest = cleandoc(docstring or "").partition("\n\n")
    examples = re.search(r"^Examples:\n((?:    .*\n?)+)", rest, re.MULTILINE)
    return " ".join(about.split()), [line.strip() for line in examples[1].splitlines()] if examples else []
