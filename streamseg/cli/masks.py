"""The options --mask, a picture or the own car as the network finds it, and --together, cameras of one vehicle."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        raise ValueError(f"--mask {BONNET} is found in the frames of segment: give a picture here, --mask FILE.")
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
    from streamseg.stream.bonnet import describe_bonnet, find_bonnet

    masks: dict[str, Mask | None] = {}
    for source in sources:
        text = given.get(source.name, "")
        if text != BONNET:
            masks[source.name] = read_mask_option(text)
            continue
        mask = find_bonnet(to_engine(settings.model), settings.classes, source, settings.size)
        masks[source.name] = mask
        say(describe_bonnet(source.name, mask))
    return masks


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
