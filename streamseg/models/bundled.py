"""The bundled weights, by name, and how names become files.

Standard library only, so that help and completion can list them at once.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from streamseg.io.hub import download_weights, is_hub_address

FOLDER = Path(__file__).parents[1] / "weights"


@dataclass(frozen=True)
class BundledWeights:
    """Weights that are installed with the package."""

    file: Path
    about: str
    """What they are for, in one line."""
    data: str
    """What they were trained on."""
    licence: str
    """What they may be used for, and whose data they were trained on, in a sentence."""
    card: str
    """The document with their metrics and limits."""


BUNDLED_WEIGHTS = {
    "street": BundledWeights(
        FOLDER / "street.safetensors",
        about="Streets and roads, day and night, seen from a car: CamVid's 11 classes, lane markings, the own car.",
        data="CamVid (468 frames of one town) and comma10k (1,867 frames of 201 dashcams)",
        licence="For research: CamVid's pages grant no commercial use.",
        card="docs/model-card-street.md",
    ),
    "road": BundledWeights(
        FOLDER / "road.safetensors",
        about="Roads, day and night, seen from a car: road, lane marking, undrivable, movable, my car.",
        data="comma10k: 1,867 frames of 201 dashcams",
        licence="Data under the MIT licence, Copyright (c) 2020, Comma.ai, Inc.: commercial use is allowed.",
        card="docs/model-card-road.md",
    ),
}
"""The weights that can be given by name."""

DEFAULT = "street"
"""The weights that are used if none are given."""


def find_weights(given: str | Path | None = None) -> Path:
    """Return the file of weights that were given by name, as a path, or not at all.

    A file of that name comes before bundled weights; a path that does not exist is returned too, if it has a suffix or
    a folder. Weights of the Hugging Face Hub, hf:USER/NAME, are downloaded. Raises a FileNotFoundError for any other
    word.
    """
    if given is None:
        return BUNDLED_WEIGHTS[DEFAULT].file
    if is_hub_address(given):
        return download_weights(given)
    name, path = str(given), Path(given)
    if name in BUNDLED_WEIGHTS and not path.is_file():
        return BUNDLED_WEIGHTS[name].file
    if path.suffix or path.name != name or path.exists():
        return path
    near = get_close_matches(name.lower(), BUNDLED_WEIGHTS, 1)
    known = f"did you mean {near[0]!r}? Known:" if near else "known are"
    raise FileNotFoundError(
        f"No weights are called {name!r:.80}: {known} {', '.join(BUNDLED_WEIGHTS)}; or give a file, or hf:USER/NAME."
    )


def is_bundled(given: str | Path | None) -> bool:
    """Return whether weights are bundled ones, given by name or not at all."""
    return given is None or (not is_hub_address(given) and find_weights(given) != Path(given))
