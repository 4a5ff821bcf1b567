"""Writes docs/options.md from what the command line says of itself: python docs/options.py"""

import io
import os
import re
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from textwrap import dedent
from unittest.mock import patch

from streamseg import cli
from streamseg.train.config import RECIPES

PAGE = Path(__file__).parent / "options.md"
MORE = {
    "segment": "[segment](segment.md)",
    "train": "[training](training.md)",
    "evaluate": "[results](results.md), [video](video.md)",
    "check": "[your own data](own-data.md)",
    "pack": "[training](training.md)",
    "reproduce": "[reproduce](reproduce.md)",
    "benchmark": "[performance](performance.md)",
    "export": "[deploy](deploy.md)",
    "serve": "[serve](serve.md)",
    "completion": "[the command line](command-line.md#completion)",
}
"""The page that tells more of a verb."""
HEAD = """# What are all the options?

This is what `streamseg VERB --help` says, in one place; `python docs/options.py` writes it, and a test keeps it true.
An option without a word for its value is a switch: `--labels` puts it on, `--no-labels` off.
"""


def ask(*arguments: str) -> str:
    """What the command line prints, on a terminal that breaks no line."""
    told = io.TextIOWrapper(io.BytesIO(), "utf-8")  # boxes are drawn where the encoding has the signs for it
    with (
        patch.object(sys, "argv", ["streamseg", *arguments]),
        patch.dict(os.environ, COLUMNS="2000"),
        redirect_stdout(told),
        suppress(SystemExit),
    ):
        cli.main()
    told.seek(0)
    return told.read()


def entries(told: str) -> list[tuple[str, str]]:
    """The names and options in a help text, each with its sentence."""
    found: list[tuple[str, str]] = []
    for box in re.findall(r"^╭─ (.*?)^╰", told, re.MULTILINE | re.DOTALL):
        names = box.startswith("positional")
        for line in re.findall(r"^│ (.*?) *│$", box, re.MULTILINE):
            if line.startswith("-") or (names and not line.startswith(" ")):
                option, _, sentence = line.partition("  ")
                found.append((option, sentence.strip()))
            elif found and line.startswith(" "):
                option, sentence = found.pop()
                found.append((option, f"{sentence} {line.strip()}".strip()))
    return [(option, sentence) for option, sentence in found if option != "-h, --help"]


def mark(sentence: str) -> str:
    """A sentence with its options in the letters of code."""
    return re.sub(r"(--\S*\w)", r"`\1`", sentence).replace("*", "\\*")


def row(option: str, sentence: str) -> tuple[str, str, str]:
    """An option, what it is, and what it is unless given."""
    option = re.sub(r"(--\S+), --no-.*", r"\1", option)
    option, _, choices = option.partition(" {")
    sentence, must, usual = re.fullmatch(r"(.*?)(?: \((required)\)| \(default: (.*)\))?", sentence).groups("")  # type: ignore[union-attr]
    if choices:
        option += " NAME"
        sentence += f" One of `{choices.removesuffix('}').replace(',', '`, `')}`."
    return f"`{option}`", mark(sentence), must or {"False": "off", "True": "on", "''": ""}.get(usual, usual)


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows as Markdown, the first of them the head."""
    head, *body = (f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body]) + "\n"


def rows_of_train() -> list[tuple[str, str, str]]:
    """The options that every recipe has; what they are unless given, where that is the same in all."""
    recipes = [[row(*entry) for entry in entries(ask("train", recipe, "--help"))] for recipe in RECIPES]
    return [
        alike[0] if len({*alike}) == 1 else (*alike[0][:2], "by the recipe") for alike in zip(*recipes, strict=True)
    ]


def write() -> str:
    """The page."""
    parts = [HEAD]
    for verb in re.findall(r"^│   • (\w+)", ask("--help"), re.MULTILINE):
        told, _, examples = ask(verb, "--help").partition("\nexamples:\n")
        rows = rows_of_train() if verb == "train" else [row(*entry) for entry in entries(told)]
        about, *_ = told.split("\n\n")[1:]
        parts.append(f"\n## {verb}\n\n{mark(about)}\n")
        if verb in MORE:
            parts.append(f"More: {MORE[verb]}.\n")
        if examples:
            parts.append(f"\n```sh\n{dedent(examples)}```\n")
        parts.append("\n" + table([("option", "what", "unless given"), *rows]))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(write(), encoding="utf-8")
