"""What tyro prints, as we show it.

The pages of --help, with a shorter first line, the version among the options, and examples at the end; and errors, each
as a sentence.
"""

import re
from collections.abc import Sequence
from inspect import cleandoc
from io import StringIO
from itertools import takewhile
from typing import TextIO

ABOUT = """Real-time semantic segmentation of images and video.

Examples:
    streamseg segment photo.jpg
    streamseg segment drive.mp4 labelled.mp4 --legend
    streamseg segment --help
"""
"""What the page of the program itself says."""
HELP, VERSION = ("-h, --help", "show this help message and exit"), ("--version", "show the version and exit")


class Page(StringIO):
    """Keeps what is printed, in the letters that a stream has."""

    def __init__(self, stream: TextIO):
        super().__init__()
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override] # by which tyro chooses the signs of its boxes
        return self.stream.encoding


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for a page."""
    return not {"-h", "--help"}.isdisjoint(arguments) and "--" not in arguments


def unbroken(docstring: str | None) -> str:
    """A docstring with each of its arguments on one line, however long: tyro would keep the breaks of the source."""
    return re.sub(r"\n {8}(?=\S)", " ", cleandoc(docstring or ""))


def description(docstring: str) -> str:
    """What a docstring says before its examples."""
    return docstring.partition("\n\nExamples:")[0]


def finish(page: str, docstring: str, choice: str) -> str:
    """A page of tyro's, made ready to be shown.

    Args:
        docstring: Whose examples end the page.
        choice: The word for what the first line would else list, such as VERB.
    """
    usage, _, rest = page.partition("\n")
    usage = re.sub(r"\{[\w,-]+\}", choice, usage)
    usage, several = re.subn(r" \[[\w -]+ OPTIONS\]| \[--[^\]]*\]| --\S+ \S+", "", usage)
    if several:
        usage = usage.replace("[-h]", "[-h] [OPTIONS]")
    title = f"{choice.lower()}s"
    rest = rest.replace("─ subcommands ─", f"─ {title} ─" + "─" * (len("subcommands") - len(title)))
    rest = re.sub(r"^│ \(required\) +│\n", "", rest, flags=re.MULTILINE)
    if docstring == ABOUT:
        row = re.search(r".*show this help message and exit.*\n", rest)
        if row:
            version = row[0]
            for old, new in zip(HELP, VERSION, strict=True):
                version = version.replace(old, f"{new:{len(old)}}")
            rest = rest.replace(row[0], row[0] + version)
    examples = re.sub(r"^ +", "  ", docstring.partition("Examples:\n")[2].rstrip(), flags=re.MULTILINE)
    return f"{usage}\n{rest}\nexamples:\n{examples}\n"


def complaint(box: str, program: str) -> str:
    """What a box of tyro's complains of, as a sentence.

    Args:
        program: What was run, such as "streamseg train camvid-18".
    """
    head, *lines = box.splitlines()
    rows = [line.removeprefix("│").removesuffix("│")[1:].rstrip() for line in lines]
    if not box.startswith("╭"):  # in ASCII there is a rule below the title, and a space for each side
        rows = [line[2:].rstrip() for line in lines[1:]]
    first = [*takewhile(lambda row: {*row} - {*"─-╯"}, rows)]  # up to a rule
    said, more = " ".join(first), f"{program} --help tells more."
    if "Required" in head:
        missing = [row.strip() for row in first if re.match(r" {4}\S", row)]
        return f"{program} needs {' and '.join(missing)}: {more}"
    wrong = re.match(r"Error parsing (--\S+):", said)
    if wrong:
        words = next((row.split()[1:] for row in rows if row.strip().startswith(f"{wrong[1]} ")), [])
        given = " ".join(one or other for one, other in re.findall(r"'([^']*)'|\"([^\"]*)\"", said))
        whole = "literal for int()" in " ".join(rows) or {*words} == {"INT"}
        several = len(words) if {*words} <= {"INT", "FLOAT"} else 1  # a word of ours is one value
        expected = "numbers" if "..." in words else count(several, "whole number" if whole else "number")
        return f"{wrong[1]} is {given[:80]!r}; expected {expected}."
    absent = re.match(r"Missing value for argument '(\S+)'. Expected (\d+)", said)
    if absent:
        return f"{absent[1]} needs {count(int(absent[2]), 'value')}: {more}"
    choice = re.match(r"invalid choice (.*) for argument '(\S+)'. Expected one of \((.*?),?\)", said)
    if choice:
        return f"{choice[2]} is {choice[1]:.80}; choose one of: {choice[3]}."
    unused = re.match(r"Unrecognized options: (.*)", said)
    return f"{program} has no use for {unused[1]!r:.80}: {more}" if unused else f"{said.strip('. ')}: {more}"


def count(number: int, thing: str) -> str:
    return f"a {thing}" if number == 1 else f"{number} {thing}s"


def colour(page: str) -> str:
    """A page for a terminal: what can be typed is bold, and the boxes are dim."""
    page = re.sub(r"^(usage|examples):", bold, page, flags=re.MULTILINE)
    page = re.sub(r"(?<=^│ )(-\S.*?|[A-Z.\[\] ]{3,}?)(?=  | │)", bold, page, flags=re.MULTILINE)
    page = re.sub(r"(?<=^│   • )\S+", bold, page, flags=re.MULTILINE)
    return re.sub("[─│╭╮╰╯]+", lambda found: f"\x1b[2m{found[0]}\x1b[0m", page)


def bold(found: re.Match[str]) -> str:
    return f"\x1b[1m{found[0]}\x1b[0m"
