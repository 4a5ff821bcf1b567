"""Entry points of torch.hub: `torch.hub.load(REPOSITORY, "street")`.

A network takes images (B, 3, H, W), RGB, 0 to 255, and returns logits (B, K, H, W).
"""

import streamseg
from streamseg.models.bundled import BUNDLED_WEIGHTS, DEFAULT

dependencies = ["torch", "numpy", "PIL", "safetensors"]


def street() -> streamseg.FANet:
    """The bundled network for streets and roads: CamVid's 11 classes, lane marking and own car; for research."""
    return fanetplus18(pretrained="street")


def road() -> streamseg.FANet:
    """The bundled network for roads: road, lane marking, undrivable, movable, own car; commercial use is allowed."""
    return fanetplus18(pretrained="road")


def fanet18(pretrained: bool = False, classes: int = 19) -> streamseg.FANet:
    """FANet-18 with random weights; no weights are bundled for it."""
    _check_no_weights("fanet18", pretrained)
    return streamseg.fanet18(classes)


def fanet34(pretrained: bool = False, classes: int = 19) -> streamseg.FANet:
    """FANet-34 with random weights; no weights are bundled for it."""
    _check_no_weights("fanet34", pretrained)
    return streamseg.fanet34(classes)


def fanetplus18(pretrained: bool | str = False, classes: int | None = None) -> streamseg.FANet:
    """FANet+-18 with random weights for any number of classes (19 by default), or with bundled weights.

    Args:
        pretrained: Load bundled weights: the default ones, or those of a name that `streamseg weights` lists. Their
            classes are streamseg.describe(NAME).classes.
        classes: Number of classes of a network with random weights.
    """
    if not pretrained:
        return streamseg.fanetplus18(classes or 19)
    name = DEFAULT if pretrained is True else pretrained
    count = len(streamseg.describe(name).classes)
    if classes not in (None, count):
        raise ValueError(
            f"The weights {name!r} have {count} classes, got classes={classes}. Leave out pretrained to train."
        )
    model, _ = streamseg.load(name)
    return model


def fanetplus34(pretrained: bool = False, classes: int = 19) -> streamseg.FANetPlus:
    """FANet+-34 with random weights; no weights are bundled for it."""
    _check_no_weights("fanetplus34", pretrained)
    return streamseg.fanetplus34(classes)


def _check_no_weights(network: str, pretrained: bool) -> None:
    """Raise a ValueError if weights are asked for that are not bundled."""
    if pretrained:
        names = " and ".join(BUNDLED_WEIGHTS)
        raise ValueError(
            f"No weights are bundled for {network}: {names} are of fanetplus18; or train some with: streamseg train"
        )
