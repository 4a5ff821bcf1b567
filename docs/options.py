"""Write options.md from what the command line knows of itself: python docs/options.py"""

import re
from pathlib import Path

from streamseg.cli.pages import HELP, HelpRow, Page, find_page
from streamseg.cli.parser import VERBS
from streamseg.train.config import RECIPES

PAGE = Path(__file__).parent / "options.md"
MORE = {
    "segment": "[segment](segment.md)",
    "train": "[training](training.md)",
    "evaluate": "[results](results.md), [how steadiness is measured](steadiness-measured.md)",
    "check": "[your own data](own-data.md)",
    "convert": "[your own data](own-data.md#from-an-annotation-tool)",
    "prelabel": "[your own data](own-data.md#drafts-for-an-annotation-tool)",
    "pack": "[training](training.md)",
    "reproduce": "[reproduce](reproduce.md)",
    "benchmark": "[performance](performance.md)",
    "export": "[deploy](deploy.md)",
    "push": "[share weights](hub.md#publish)",
    "serve": "[serve](serve.md)",
    "warm": "[performance](performance.md#first-labels-at-once)",
    "weights": "[segment](segment.md#which-weights)",
    "completion": "[the command line](command-line.md#completion)",
}
"""The document with more about each verb."""
HEAD = """# What are all the options?

This page has what `streamseg VERB --help` prints. `python docs/options.py` writes it, and a test keeps it up to date.
An option without a value is a switch: `--labels` turns it on, `--no-labels` off.
"""


def mark(sentence: str) -> str:
    """Return a sentence with its options as code."""
    return re.sub(r"(--\S*\w)", r"`\1`", sentence).replace("*", "\\*")


def cells(row: HelpRow) -> tuple[str, str, str]:
    """Return the cells of an option: what to type, what it does, and its default."""
    short, long = ([name for name in row.names if name.startswith("--") == is_long] for is_long in (False, True))
    metavar = row.metavar or ("NAME" if row.choices else "")
    typed = ", ".join(f"`{name}`" for name in (" ".join([*long[:1], metavar]).strip(), *short))
    choices = f" One of `{'`, `'.join(row.choices)}`." if row.choices and not row.metavar else ""
    return typed, mark(row.help) + choices, "required" if row.required else row.default


def rows_of(page: Page) -> list[tuple[str, str, str]]:
    """Return the cells of the names and options of a page."""
    return [cells(row) for box in page.boxes.values() for row in box if row != HELP]


def rows_of_train() -> list[tuple[str, str, str]]:
    """Return the options of all recipes, with their defaults where all recipes agree."""
    recipes = [rows_of(find_page(["train", recipe])) for recipe in RECIPES]
    return [
        alike[0] if len({*alike}) == 1 else (*alike[0][:2], "by the recipe") for alike in zip(*recipes, strict=True)
    ]


def table(rows: list[tuple[str, ...]]) -> str:
    """Return rows as Markdown; the first is the head."""
    head, *body = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body]) + "\n"


def write() -> str:
    """Return the page."""
    parts = [HEAD]
    for verb in VERBS:
        page = find_page([verb])
        rows = rows_of_train() if verb == "train" else rows_of(page)
        parts.append(f"\n## {verb}\n\n{mark(page.about)}\nMore: {MORE[verb]}.\n")
        parts.append("\n```sh\n" + "".join(f"{example}\n" for example in page.examples) + "```\n")
        parts.append("\n" + table([("option", "what", "default"), *rows]))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(write(), encoding="utf-8")
