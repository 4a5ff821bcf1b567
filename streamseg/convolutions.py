"""Convolutions as the fast path runs them: with all that can be folded into them, in floats or in bytes."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


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
    """A convolution whose ReLU and shortcut are done with it; on a GPU, in one step (cuDNN)."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 0):
        self.weight, self.bias = weight, bias
        self.stride, self.padding = [stride, stride], [padding, padding]

    def plain(self, x: Map) -> Tensor:
        """Without the bias."""
        return F.conv2d(to_float(x), self.weight, None, self.stride, self.padding)

    def relu(self, x: Map) -> Map:
        x = to_float(x)
        if x.is_cuda:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, self.padding, [1, 1], 1)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding).relu_()

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        """The ReLU of a sum with a shortcut."""
        x, shortcut = to_float(x), to_float(shortcut)
        if x.is_cuda:
            return torch.cudnn_convolution_add_relu(
                x, self.weight, shortcut, 1.0, self.bias, self.stride, self.padding, [1, 1], 1
            )
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding).add_(shortcut).relu_()


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
        return self.run(x, None, "none", None)

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
