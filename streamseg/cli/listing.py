"""The verb weights: which weights are bundled."""

from collections.abc import Mapping
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from streamseg.cli.messages import check_figures, has_colours, loading, open_messages, write_figures
from streamseg.cli.options import Json, Quiet
from streamseg.models.bundled import BUNDLED_WEIGHTS, DEFAULT, BundledWeights


def weights(*, json: Json = None, quiet: Quiet = False) -> int:
    """List the bundled weights: their names, classes, data and licences.

    Args:
        json: A file for the list; - for standard output.
        quiet: Print only warnings and errors.

    Examples:
        streamseg weights
        streamseg weights --json -
    """
    check_figures(json)
    with loading(quiet):
        found = [describe_bundled(name, about) for name, about in BUNDLED_WEIGHTS.items()]
    messages = open_messages(quiet, json)
    bold = has_colours(messages)
    width = min(get_terminal_size().columns, 100)
    print("\n\n".join(format_bundled(each, width, bold) for each in found), file=messages)
    print(f"\nuse one by its name: streamseg segment photo.jpg --weights {found[-1]['name']}", file=messages)
    write_figures(json, {"default": DEFAULT, "weights": found}, messages)
    return 0


def describe_bundled(name: str, about: BundledWeights) -> dict[str, Any]:
    """Return all that is known of bundled weights, as JSON values."""
    from streamseg.models import checkpoint

    description = checkpoint.describe(about.file)
    return {
        "name": name,
        "default": name == DEFAULT,
        "about": about.about,
        "network": description.network,
        "classes": list(description.classes.names),
        "window": description.window,
        "bytes": about.file.stat().st_size,
        "data": about.data,
        "licence": about.licence,
        "card": about.card,
        "source": description.source,
        "file": str(about.file),
    }


def format_bundled(found: Mapping[str, Any], width: int, bold: bool) -> str:
    """Format bundled weights for the terminal: a heading, and lines of at most a width with a word in front of each."""
    name = f"\x1b[1m{found['name']}\x1b[0m" if bold else found["name"]
    trained_on = "images" if found["window"] == 1 else f"clips of {found['window']} frames"
    rows = {
        "about": found["about"],
        "network": f"{found['network']}, {found['bytes'] / 1e6:.0f} MB, trained on {trained_on}",
        "classes": f"{len(found['classes'])}: {', '.join(found['classes'])}",
        "data": found["data"],
        "licence": found["licence"],
        "card": found["card"],
    }
    lines = [f"{name}, the default" if found["default"] else name]
    for word, text in rows.items():
        first, *others = wrap(text, max(width - 11, 20), break_on_hyphens=False)
        lines += [f"  {word:7}  {first}", *(f"{'':11}{line}" for line in others)]
    return "\n".join(lines)
