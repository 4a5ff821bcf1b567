"""The parts that all networks share: input checks, pixel normalisation, convolutions with batch norm, resizes."""

import sys
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.checks import check_count

MIN_SIDE = 32
"""Minimum height and width of an image, whose map at 1/32 is then a single pixel."""


def check_image(image: Tensor) -> None:
    """Raise a ValueError if a network's input has a wrong type, shape or size."""
    if not isinstance(image, Tensor) or not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise ValueError(f"The image is a {describe_type(image)}; expected a tensor of bytes or floats in 0–255.")
    shape = tuple(image.shape)
    if len(shape) != 4 or shape[1] != 3:
        raise ValueError(f"The image's shape is {shape}; expected RGB, channels first: (B, 3, H, W).")
    if shape[2] < MIN_SIDE or shape[3] < MIN_SIDE:
        raise ValueError(f"The image is {shape[2]} x {shape[3]} pixels; the least is {MIN_SIDE} x {MIN_SIDE}.")
    check_range(image)


def check_range(image: Tensor) -> None:
    """Warn at the caller's line if floats are in 0–1. Images on a GPU are not checked, as that would block."""
    # under torch.export and torch.compile images have no values
    if type(image) is not Tensor or not image.is_floating_point() or image.device.type != "cpu" or not image.numel():
        return
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined] # missing in torch's stub
        return
    try:
        normalised = 0 < image.max().item() <= 1 and image.min().item() >= 0
    except RuntimeError:  # no values under torch.func either
        return
    if normalised:
        frame, level = sys._getframe(), 1
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("streamseg", "torch"):
            frame, level = frame.f_back, level + 1
        text = "The frame has values from 0 to 1; expected 0 to 255: multiply by 255."
        warnings.warn(text, UserWarning, stacklevel=level)


def describe_type(thing: object) -> str:
    """Return "tensor of DTYPE" or the name of the type, for an error message."""
    return f"tensor of {thing.dtype}" if isinstance(thing, Tensor) else type(thing).__name__


def init_network(network: nn.Module, classes: int) -> None:
    """Set the number of classes, and ImageNet's mean and std of pixels in 0–255 as buffers outside the weights."""
    check_count("classes", classes)
    network.classes = classes  # type: ignore[assignment] # every network declares it as an int
    network.register_buffer("mean", 255 * torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
    network.register_buffer("std", 255 * torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)


def normalise(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalise an image of bytes or floats in 0–255, in the network's precision."""
    return (image.to(mean.dtype) - mean) / std


def conv(
    inputs: int, outputs: int, kernel: int, relu: bool = True, *, stride: int = 1, dilation: int = 1
) -> nn.Sequential:
    """Build a convolution with batch norm and ReLU that keeps the size, or divides it by the stride."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
    initialise(convolution)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *([nn.ReLU()] if relu else []))


def initialise(convolution: nn.Conv2d) -> None:
    """Initialise a convolution outside the encoder as the authors do: normal, gain 1, fan-in."""
    nn.init.kaiming_normal_(convolution.weight, a=1)


def resize(x: Tensor, like: Tensor) -> Tensor:
    """Resize bilinearly to another map's height and width."""
    return resize_to(x, *like.shape[-2:])


def resize_to(x: Tensor, height: int, width: int) -> Tensor:
    """Resize bilinearly to a height and width.

    With gradients by two matrix products, whose backward pass is two matrix products too: that of F.interpolate uses
    atomic additions on a GPU, which made a whole training step ten times slower.
    """
    if x.requires_grad:
        return bilinear_matrix(x.shape[-2], height, x) @ x @ bilinear_matrix(x.shape[-1], width, x).T
    # align_corners=False is the same in every export target
    return F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)


def bilinear_matrix(inputs: int, outputs: int, like: Tensor) -> Tensor:
    """Return the matrix (outputs, inputs) that resizes a row bilinearly, in the precision of `like`."""
    eye = torch.eye(inputs, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    return F.interpolate(eye[None], size=outputs, mode="linear", align_corners=False)[0].T.to(like.dtype)


def resize_nearest(x: Tensor, like: Tensor) -> Tensor:
    """Resize to another map's height and width by repeating pixels."""
    return F.interpolate(x, size=like.shape[-2:], mode="nearest")


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column until height and width are multiples."""
    height, width = x.shape[-2:]
    return F.pad(x, (0, -width % multiple, 0, -height % multiple), mode="replicate")


def unpool(x: Tensor, indices: Tensor, size: torch.Size) -> Tensor:
    """Undo a max pooling: each value of (B, C, h, w) at the index of its maximum in (B, C, H, W), zeros elsewhere."""
    # a scatter, because torch's max_unpool2d is not deterministic on a GPU
    return x.new_zeros(size).flatten(2).scatter(2, indices.flatten(2), x.flatten(2)).view(size)
