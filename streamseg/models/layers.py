"""The pieces that every network here is built from: checked inputs, a convolution with batch norm, and resizes."""

import sys
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIN_SIDE = 32
"""The least height and width of an image: its map at 1/32 is then a single pixel."""


def check_image(image: Tensor) -> None:
    """Raise a ValueError that says what is wrong with a network's input, if anything is."""
    if not isinstance(image, Tensor) or not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise ValueError(f"The image is a {describe_type(image)}; expected a tensor of bytes or floats in 0–255.")
    shape = tuple(image.shape)
    if len(shape) != 4 or shape[1] != 3:
        raise ValueError(f"The image's shape is {shape}; expected RGB, channels first: (B, 3, H, W).")
    if shape[2] < MIN_SIDE or shape[3] < MIN_SIDE:
        raise ValueError(f"The image is {shape[2]} x {shape[3]} pixels; the least is {MIN_SIDE} x {MIN_SIDE}.")
    check_range(image)


def check_range(image: Tensor) -> None:
    """Warn, at the line that called streamseg, of floats that are in 0–1; those on a GPU are not waited for."""
    # while a network is exported or compiled, images have no values
    if type(image) is not Tensor or not image.is_floating_point() or image.device.type != "cpu" or not image.numel():
        return
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined] # public all the same
        return
    try:
        evident = 0 < image.max().item() <= 1 and image.min().item() >= 0
    except RuntimeError:  # nor have they under torch.func
        return
    if evident:
        frame, level = sys._getframe(), 1
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("streamseg", "torch"):
            frame, level = frame.f_back, level + 1
        text = "The frame has values from 0 to 1; expected 0 to 255: multiply by 255."
        warnings.warn(text, UserWarning, stacklevel=level)


def describe_type(thing: object) -> str:
    """What a tensor's numbers are, or what something else is, for an error's sentence."""
    return f"tensor of {thing.dtype}" if isinstance(thing, Tensor) else type(thing).__name__


def add_pixel_statistics(network: nn.Module) -> None:
    """Give a network ImageNet's mean and std, for pixels in 0–255, as buffers that are not part of its weights."""
    network.register_buffer("mean", 255 * torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
    network.register_buffer("std", 255 * torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)


def normalise(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """An image of bytes or floats in 0–255 as a network's first layer takes it, in the network's precision."""
    return (image.to(mean.dtype) - mean) / std


def conv(
    inputs: int, outputs: int, kernel: int, relu: bool = True, *, stride: int = 1, dilation: int = 1
) -> nn.Sequential:
    """A convolution that keeps the size, or divides it by the stride; batch norm; and ReLU unless told otherwise."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
    initialise(convolution)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *([nn.ReLU()] if relu else []))


def initialise(convolution: nn.Conv2d) -> None:
    """Start a convolution outside the encoder as the authors do: normal, gain 1, by the inputs."""
    nn.init.kaiming_normal_(convolution.weight, a=1)


def resize(x: Tensor, like: Tensor) -> Tensor:
    """Bilinear resize to another map's height and width."""
    return resize_to(x, *like.shape[-2:])


def resize_to(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear resize to a height and width.

    Where a gradient is wanted, as two matrix products, whose gradient is two matrix products as well: that of
    F.interpolate adds with atomics on a GPU, and made a whole training step ten times slower.
    """
    if x.requires_grad:
        return bilinear_matrix(x.shape[-2], height, x) @ x @ bilinear_matrix(x.shape[-1], width, x).T
    # align_corners=False agrees with every export target
    return F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)


def bilinear_matrix(inputs: int, outputs: int, like: Tensor) -> Tensor:
    """The matrix (outputs, inputs) that resizes a row bilinearly, in another tensor's precision."""
    eye = torch.eye(inputs, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    return F.interpolate(eye[None], size=outputs, mode="linear", align_corners=False)[0].T.to(like.dtype)


def resize_nearest(x: Tensor, like: Tensor) -> Tensor:
    """Resize to another map's height and width by repeating pixels."""
    return F.interpolate(x, size=like.shape[-2:], mode="nearest")


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column until height and width can be divided."""
    height, width = x.shape[-2:]
    return F.pad(x, (0, -width % multiple, 0, -height % multiple), mode="replicate")


def unpool(x: Tensor, places: Tensor, size: torch.Size) -> Tensor:
    """A pooled map back at its size (B, C, H, W): each value where its maximum was found, and zeros elsewhere."""
    # a scatter, since torch's own max_unpool2d has no deterministic form on a GPU
    return x.new_zeros(size).flatten(2).scatter(2, places.flatten(2), x.flatten(2)).view(size)
