"""The options --mask, a picture or the own car as the network finds it, and --together, cameras of one vehicle."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamseg.classes import Classes
    from streamseg.engine.engine import Engine
    from streamseg.io.masks import Mask
    from streamseg.io.sources import Source
    from streamseg.stream.settings import LabelSettings

BONNET = "bonnet"
"""What --mask is for the own car."""
MAX_TOGETHER = 8
"""The most videos that are read at once; cameras of one vehicle need all of them."""


def check_mask_file(given: str, bonnet: bool = True) -> None:
    """Raise an error if --mask names no file. It imports no torch.

    Args:
        bonnet: Whether it may be the own car instead.
    """
    if given == BONNET and not bonnet:
        raise ValueError(f"--mask {BONNET} is for segment and evaluate --video: give a picture here, --mask FILE.")
    if given and given != BONNET and not Path(given).is_file():
        either = f", or {BONNET}" if bonnet else ""
        raise FileNotFoundError(f"There is no mask at {given}: give a picture whose black pixels are ignored{either}.")


def read_mask_option(given: str) -> "Mask | None":
    """Return the mask of --mask FILE; None for no mask, and for the own car."""
    from streamseg.io.masks import to_mask

    return to_mask(given) if given and given != BONNET else None


def find_masks(
    given: dict[str, str], sources: Sequence["Source"], settings: "LabelSettings", say: Callable[[str], None]
) -> dict[str, "Mask | None"]:
    """Return the mask of each source by its name, of what --mask or a fleet file says of it.

    Args:
        given: By the name of the source: a file, bonnet, or nothing.
    """
    from streamseg.engine.engine import to_engine

    engine = to_engine(settings.model)
    return {
        source.name: find_mask(given.get(source.name, ""), source, engine, settings.classes, settings.size, say)
        for source in sources
    }


def find_mask(
    given: str,
    source: "Source",
    engine: "Engine",
    classes: "Classes",
    size: tuple[int, int] | None,
    say: Callable[[str], None],
) -> "Mask | None":
    """Return the mask of a source: a file, or the own car; None for no mask, and without an own car.

    Args:
        size: Height and width of the network input.
        say: Receives a sentence about the own car.
    """
    from streamseg.stream.bonnet import describe_bonnet, find_bonnet

    if given != BONNET:
        return read_mask_option(given)
    mask = find_bonnet(engine, classes, source, size)
    say(describe_bonnet(source.name, mask))
    return mask


def check_cameras(sources: Sequence["Source"]) -> None:
    """Raise a ValueError if sources cannot be cameras of one vehicle, whose frames come at the same time."""
    still = next((source.name for source in sources if not source.moving), None)
    if still:
        raise ValueError(
            f"--together is for videos and cameras, frame by frame, and {still} is none: use streamseg.label_together "
            "in Python for pictures."
        )
    if len(sources) < 2:
        raise ValueError("--together needs two or more cameras: give their names before OUT, or leave it out.")
    files = sum(not source.live for source in sources)
    if files > MAX_TOGETHER:
        raise ValueError(f"--together reads up to {MAX_TOGETHER} videos at once, and {files} were given: give fewer.")
