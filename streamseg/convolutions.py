"""Convolutions as the fast path runs them: with all that can be folded into them, in floats or in bytes."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg import kernels

LARGE = 5e9
"""From so many products on, a convolution is cuDNN's."""


class Bytes(NamedTuple):
    """A map that is nowhere below zero: bytes times a scale."""

    values: Tensor
    scale: float


Map = Tensor | Bytes


def to_float(x: Map) -> Tensor:
    """A map's numbers."""
    return x.values.float().mul_(x.scale) if isinstance(x, Bytes) else x


def to_bytes(x: Tensor, scale: float) -> Bytes:
    """A map as bytes of a scale; what is below zero or beyond the largest byte becomes that."""
    return Bytes((x * (1 / scale)).round_().clamp_(0, 255).to(torch.uint8), scale)


class Convolution:
    """A convolution whose ReLU and shortcut are done with it; on a GPU, in one step."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 0):
        self.weight, self.bias = weight, bias
        self.stride, self.padding = [stride, stride], [padding, padding]
        self.turns = torch.zeros(kernels.TILES, dtype=torch.int32, device=weight.device) if weight.is_cuda else None

    def plain(self, x: Map) -> Tensor:
        """Without a ReLU."""
        x = to_float(x)
        if x.is_cuda and self.weight.shape[2:] == (1, 1) and self.stride == [1, 1]:  # a product of matrices
            return F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
        if self.is_ours(x):
            return self.into(x, self.place(x), relu=False)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def relu(self, x: Map) -> Map:
        x = to_float(x)
        if self.is_ours(x):
            return self.into(x, self.place(x))
        if x.is_cuda:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, self.padding, [1, 1], 1)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding).relu_()

    def relu_into(self, x: Map, out: Tensor) -> None:
        """The ReLU, into some channels of a wider map."""
        if not isinstance(x, Bytes) and self.is_ours(x):
            self.into(x, out)
        else:
            out.copy_(to_float(self.relu(x)))

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        """The ReLU of a sum with a shortcut."""
        x, shortcut = to_float(x), to_float(shortcut)
        if self.is_ours(x):
            return self.into(x, torch.empty_like(shortcut), shortcut)
        if x.is_cuda:
            return torch.cudnn_convolution_add_relu(
                x, self.weight, shortcut, 1.0, self.bias, self.stride, self.padding, [1, 1], 1
            )
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding).add_(shortcut).relu_()

    def is_ours(self, x: Tensor) -> bool:
        """Whether our own kernel does it: on a GPU cuDNN is faster with large ones alone."""
        work = x[:, 0].numel() // self.stride[0] ** 2 * self.weight.numel()
        return kernels.use_triton(x) and work < LARGE

    def into(self, x: Tensor, out: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> Tensor:
        """By our own kernel, into a place."""
        stride, padding = self.stride[0], self.padding[0]
        assert self.turns is not None
        kernels.convolve(
            x, self.weight, self.bias, self.turns, out, stride=stride, padding=padding, shortcut=shortcut, relu=relu
        )
        return out

    def place(self, x: Tensor) -> Tensor:
        """Where what it makes of a map goes."""
        side, stride, padding = self.weight.shape[2], self.stride[0], self.padding[0]
        tall, wide = ((length + 2 * padding - side) // stride + 1 for length in x.shape[2:])
        return torch.empty(len(x), tall, wide, len(self.weight), dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)


class Measured(Convolution):
    """A convolution that notes the largest numbers that it takes and gives."""

    def __init__(self, original: Convolution):
        super().__init__(original.weight, original.bias, original.stride[0], original.padding[0])
        self.taken = self.given = 0.0

    def plain(self, x: Map) -> Tensor:
        return to_float(self.note(x, super().plain(x)))

    def relu(self, x: Map) -> Map:
        return self.note(x, super().relu(x))

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        return self.note(x, super().add_relu(x, shortcut))

    def note(self, taken: Map, given: Map) -> Map:
        self.taken = max(self.taken, to_float(taken).max().item())
        self.given = max(self.given, to_float(given).max().item())
        return given


class ByteConvolution(Convolution):
    """A convolution of bytes: int8 weights with a scale for each output, sums in int32 (oneDNN)."""

    def __init__(self, original: Convolution, taken: float, given: float | None):
        """
        Args:
            taken: The largest number that it takes, where those are no bytes yet.
            given: The largest number that it gives; None for results that are no bytes.
        """
        super().__init__(original.weight, original.bias, original.stride[0], original.padding[0])
        self.scales = (original.weight.abs().amax(dim=(1, 2, 3)) / 127).clamp(min=1e-12)
        self.weight = (original.weight / self.scales.view(-1, 1, 1, 1)).round().to(torch.int8)
        self.zeros = torch.zeros(len(self.weight), dtype=torch.int64)
        self.taken = max(taken, 1e-6) / 255
        self.given = None if given is None else max(given, 1e-6) / 255
        self.packed: tuple[torch.Size, Tensor] | None = None

    def plain(self, x: Map) -> Tensor:
        return self.run(x, self.bias, "none", None)

    def relu(self, x: Map) -> Map:
        found = self.run(x, self.bias, "relu", self.given)
        return found if self.given is None else Bytes(found, self.given)

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        found = self.run(x, self.bias, "none", None).add_(to_float(shortcut)).relu_()
        return found if self.given is None else to_bytes(found, self.given)

    def run(self, x: Map, bias: Tensor | None, after: str, scale: float | None) -> Tensor:
        """Bytes of a scale, or floats without one."""
        values, taken = x if isinstance(x, Bytes) else to_bytes(x, self.taken)
        conv = (self.stride, self.padding, [1, 1], 1)
        if self.packed is None or self.packed[0] != values.shape:
            weight = torch.ops.onednn.qconv_prepack(self.weight, self.scales, taken, 0, *conv, list(values.shape))
            self.packed = values.shape, weight
        out = (1.0, 0, torch.float32) if scale is None else (scale, 0, torch.uint8)
        return torch.ops.onednn.qconv2d_pointwise(
            values, taken, 0, self.packed[1], self.scales, self.zeros, bias, *conv, *out, after, [], ""
        )
