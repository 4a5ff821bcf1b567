"""The pieces that every network here is built from: checked options, a convolution with batch norm, and a resize."""

from torch import Tensor, nn
from torch.nn import functional as F


def check_choice(option: str, given: object, known: tuple[object, ...]) -> None:
    """Raise a ValueError that lists the known values, if an option is none of them."""
    if given not in known:
        raise ValueError(f"{option} is {given!r:.80}; choose one of: {', '.join(map(repr, known))}.")


def check_count(option: str, given: object) -> None:
    """Raise a ValueError if an option is not a whole number from 1 up."""
    if type(given) is not int or given < 1:
        raise ValueError(f"{option} is {given!r:.80}; expected a whole number, 1 or more.")


def conv(inputs: int, outputs: int, kernel: int, relu: bool = True) -> nn.Sequential:
    """A convolution that keeps the size, batch norm, and ReLU unless told otherwise."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    initialise(convolution)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *([nn.ReLU()] if relu else []))


def initialise(convolution: nn.Conv2d) -> None:
    """Start a convolution outside the encoder as the authors do: normal, gain 1, by the inputs."""
    nn.init.kaiming_normal_(convolution.weight, a=1)


def resize(x: Tensor, like: Tensor) -> Tensor:
    """Bilinear resize to another map's height and width."""
    # align_corners=False agrees with every export target
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)
