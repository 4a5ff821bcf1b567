"""Convolutions as the fast path runs them: with all that can be folded into them, in floats or in bytes."""

import math
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine import kernels
from streamseg.engine.rounding import InputStatistics, round_weights
from streamseg.engine.scratch import PackedWeights, Scratch

LARGE = 5e9
"""From so many products on, a convolution is cuDNN's."""


class Int8Map(NamedTuple):
    """A map that is nowhere below zero: bytes times a scale."""

    values: Tensor
    scale: float


Map = Tensor | Int8Map


def to_float(x: Map) -> Tensor:
    """A map's numbers."""
    return x.values.float().mul_(x.scale) if isinstance(x, Int8Map) else x


def quantise(x: Tensor, scale: float) -> Int8Map:
    """A map as bytes of a scale; what is below zero or beyond the largest byte becomes that."""
    return Int8Map((x * (1 / scale)).round_().clamp_(0, 255).to(torch.uint8), scale)


@cache
def has_fused_convolutions() -> bool:
    """Whether this torch has oneDNN's convolutions with what follows them, which are no part of its documented API."""
    if not torch.backends.mkldnn.is_available():
        return False
    ops, conv = torch.ops.mkldnn, ([1, 1], [1, 1], [1, 1], 1)
    with torch.device("cpu"):
        x, weight, bias = torch.ones(1, 2, 3, 3), torch.ones(2, 2, 3, 3), torch.zeros(2)
        try:
            packed = ops._reorder_convolution_weight(weight, *conv, [1, 2, 3, 3])
            once = ops._convolution_pointwise(x, packed, bias, *conv, "relu", [], "")
            twice = ops._convolution_pointwise.binary(x, once, packed, bias, *conv, "add", 1.0, "none", [], "")
        except Exception:  # an operator that is gone, or that takes other arguments, can fail in any way
            return False
        expected = F.conv2d(x, weight, bias, 1, 1)
        return torch.allclose(once, expected) and torch.allclose(twice, 2 * expected)


@cache
def has_int8() -> bool:
    """Whether this torch has oneDNN's convolutions of bytes, which are no part of its documented API."""
    ops, conv = torch.ops.onednn, ([1, 1], [0, 0], [1, 1], 1)
    with torch.device("cpu"):
        x, weight = torch.ones(1, 4, 3, 3, dtype=torch.uint8), torch.ones(4, 4, 1, 1, dtype=torch.int8)
        scales, zeros = torch.ones(4), torch.zeros(4, dtype=torch.int64)
        out: tuple[object, ...] = (1.0, 0, torch.float32, "relu", [], "")
        try:
            packed = ops.qconv_prepack(weight, scales, 1.0, 0, *conv, [1, 4, 3, 3])
            found = ops.qconv2d_pointwise(x, 1.0, 0, packed, scales, zeros, None, *conv, *out)
        except Exception:  # an operator that is gone, or that takes other arguments, can fail in any way
            return False
        return torch.allclose(found, torch.full((1, 4, 3, 3), 4.0))


class FusedConv:
    """A convolution whose ReLU and shortcut are done with it, in one step of oneDNN's, where that is there."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 0):
        self.weight, self.bias = weight, bias
        self.stride, self.padding = [stride, stride], [padding, padding]
        self.packed = PackedWeights()
        """The weights as oneDNN wants them for inputs of a shape."""

    def plain(self, x: Map) -> Tensor:
        """Without a ReLU."""
        return self.fused(to_float(x), "none")

    def relu(self, x: Map) -> Map:
        return self.fused(to_float(x), "relu")

    def relu_into(self, x: Map, out: Tensor) -> None:
        """The ReLU, into some channels of a wider map."""
        out.copy_(to_float(self.relu(x)))

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        """The ReLU of a sum with a shortcut."""
        return self.fused(to_float(x), "relu", to_float(shortcut))

    def fused(self, x: Tensor, after: str, shortcut: Tensor | None = None) -> Tensor:
        if not has_fused_convolutions():
            y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding)
            y = y if shortcut is None else y.add_(shortcut)
            return y.relu_() if after == "relu" else y
        conv, ops = (self.padding, self.stride, [1, 1], 1), torch.ops.mkldnn
        weight = self.packed.get(x.shape, lambda: ops._reorder_convolution_weight(self.weight, *conv, list(x.shape)))
        if shortcut is None:
            return ops._convolution_pointwise(x, weight, self.bias, *conv, after, [], "")
        return ops._convolution_pointwise.binary(x, shortcut, weight, self.bias, *conv, "add", 1.0, after, [], "")


class GpuConv(FusedConv):
    """A convolution on a GPU: by our own kernel or, where that is faster, by cuDNN."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 0):
        super().__init__(weight, bias, stride, padding)
        self.turns = torch.zeros(kernels.TILES, dtype=torch.int32, device=weight.device)

    def plain(self, x: Map) -> Tensor:
        x = to_float(x)
        if self.weight.shape[2:] == (1, 1) and self.stride == [1, 1]:  # a product of matrices
            return F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
        if self.is_ours(x):
            return self.into(x, self.place(x), relu=False)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def relu(self, x: Map) -> Map:
        x = to_float(x)
        if self.is_ours(x):
            return self.into(x, self.place(x))
        return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, self.padding, [1, 1], 1)

    def relu_into(self, x: Map, out: Tensor) -> None:
        x = to_float(x)
        if self.is_ours(x):
            self.into(x, out)
        else:
            super().relu_into(x, out)

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        x, shortcut = to_float(x), to_float(shortcut)
        if self.is_ours(x):
            return self.into(x, torch.empty_like(shortcut), shortcut)
        conv = (self.bias, self.stride, self.padding, [1, 1], 1)
        return torch.cudnn_convolution_add_relu(x, self.weight, shortcut, 1.0, *conv)

    def is_ours(self, x: Tensor) -> bool:
        """Whether our own kernel does it: cuDNN is faster with large ones alone."""
        work = x[:, 0].numel() // self.stride[0] ** 2 * self.weight.numel()
        return kernels.use_triton(x) and work < LARGE

    def into(self, x: Tensor, out: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> Tensor:
        """By our own kernel, into a place."""
        how = partial(kernels.convolve, stride=self.stride[0], padding=self.padding[0], shortcut=shortcut, relu=relu)
        how(x, self.weight, self.bias, self.turns, out)
        return out

    def place(self, x: Tensor) -> Tensor:
        """Where what it makes of a map goes."""
        side, stride, padding = self.weight.shape[2], self.stride[0], self.padding[0]
        tall, wide = ((length + 2 * padding - side) // stride + 1 for length in x.shape[2:])
        return torch.empty(len(x), tall, wide, len(self.weight), dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)


class WinogradConv(FusedConv):
    """A 3x3 convolution of stride 1 that multiplies a quarter as often: by Winograd's F(4x4, 3x3), of fp32 on the CPU.

    Squares of 6x6 inputs and the weights are transformed, so that 36 products take the place of 144, and transformed
    back to squares of 4x4 outputs.
    """

    def __init__(self, original: FusedConv):
        super().__init__(original.weight, original.bias, 1, 1)
        weight = FOR_WEIGHTS @ (self.weight.double().permute(1, 0, 2, 3) @ FOR_WEIGHTS.T)
        self.transformed = weight.permute(2, 3, 0, 1).flatten(0, 1).float().contiguous()
        self.scratch = Scratch()

    def relu(self, x: Map) -> Map:
        x = to_float(x)
        _, inputs, height, width = x.shape
        outputs, tall, wide = len(self.weight), -(-height // 4), -(-width // 4)
        squares = min(tall, max(1, SQUARES // wide)) * wide  # so many at a time

        def make() -> list[Tensor]:
            sizes = (36 * squares * inputs,) * 2 + (36 * squares * outputs, 24 * squares * outputs)
            padded = torch.zeros(4 * tall + 2, 4 * wide + 2, inputs, device="cpu")
            return [padded, *(torch.empty(size, device="cpu") for size in sizes)]

        with self.scratch.borrow(x.shape, make) as places:  # new memory would take longer than the products
            found = self.convolve_all(x, squares // wide, places)
        found = found[:, :height, :width].contiguous()
        return found.add_(self.bias).relu_().permute(0, 3, 1, 2)

    def convolve_all(self, x: Tensor, step: int, places: list[Tensor]) -> Tensor:
        """Whole squares of outputs (B, H, W, N) of a map, so many rows of squares at a time."""
        batch, inputs, height, width = x.shape
        outputs, tall, wide = len(self.weight), -(-height // 4), -(-width // 4)
        padded, *scratch = places
        found = torch.empty(batch, 4 * tall, 4 * wide, outputs, device=x.device)
        row, column, _ = padded.stride()
        for i in range(batch):
            padded[1 : height + 1, 1 : width + 1] = x[i].permute(1, 2, 0)
            for first in range(0, tall, step):
                rows = min(step, tall - first)
                shape = (6, 6, rows, wide, inputs)
                seen = padded.as_strided(shape, (row, column, 4 * row, 4 * column, 1), 4 * first * row)
                part = found[i].view(tall, 4, wide, 4, outputs)[first : first + rows]
                part.copy_(self.convolve(seen, scratch).permute(2, 0, 3, 1, 4))
        return found

    def convolve(self, squares: Tensor, scratch: list[Tensor]) -> Tensor:
        """Squares of outputs (4, 4, n, m, N) of squares of inputs (6, 6, n, m, C)."""
        _, _, rows, wide, inputs = squares.shape
        number, outputs = rows * wide, len(self.weight)

        def place(which: int, *shape: int) -> Tensor:
            return scratch[which][: math.prod(shape)].view(shape)

        seen = place(0, *squares.shape).copy_(squares)
        down = torch.mm(FOR_INPUTS, seen.view(6, -1), out=place(1, 6, 6 * number * inputs))
        across = torch.matmul(FOR_INPUTS, down.view(6, 6, -1), out=place(0, 6, 6, number * inputs))
        products = torch.bmm(across.view(36, number, inputs), self.transformed, out=place(2, 36, number, outputs))
        down = torch.mm(FOR_OUTPUTS, products.view(6, -1), out=place(3, 4, 6 * number * outputs))
        across = torch.matmul(FOR_OUTPUTS, down.view(4, 6, -1), out=place(2, 4, 4, number * outputs))
        return across.view(4, 4, rows, wide, outputs)


FOR_INPUTS = torch.tensor(
    [
        [4.0, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    device="cpu",  # this module may be imported under another default
)
FOR_WEIGHTS = torch.tensor(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    dtype=torch.float64,
    device="cpu",
)
FOR_OUTPUTS = torch.tensor(
    [[1.0, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], device="cpu"
)

SQUARES = 512
"""How many squares Winograd's convolution takes at a time, so that they stay near the processor."""


class RangeObserver(FusedConv):
    """A convolution that notes the largest numbers that it takes and gives, and the statistics of its inputs."""

    def __init__(self, original: FusedConv):
        super().__init__(original.weight, original.bias, original.stride[0], original.padding[0])
        self.taken = self.given = 0.0
        self.inputs = InputStatistics(original.weight, original.stride[0], original.padding[0])

    def plain(self, x: Map) -> Tensor:
        return to_float(self.note(x, super().plain(x)))

    def relu(self, x: Map) -> Map:
        return self.note(x, super().relu(x))

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        return self.note(x, super().add_relu(x, shortcut))

    def note(self, taken: Map, given: Map) -> Map:
        self.taken = max(self.taken, to_float(taken).max().item())
        self.given = max(self.given, to_float(given).max().item())
        self.inputs.add(to_float(taken))
        return given


class Int8Conv(FusedConv):
    """A convolution of bytes: 7-bit weights with a scale for each output, sums in int32 (oneDNN)."""

    def __init__(self, original: FusedConv, taken: float, given: float | None):
        """
        Args:
            original: One that is Measured has its weights rounded as its inputs need it.
            taken: The largest number that it takes, where those are no bytes yet.
            given: The largest number that it gives; None for results that are no bytes.
        """
        super().__init__(original.weight, original.bias, original.stride[0], original.padding[0])
        inputs = original.inputs if isinstance(original, RangeObserver) else None
        self.weight, self.scales, correction = round_weights(original.weight, inputs)
        self.bias = original.bias + correction
        self.zeros = torch.zeros(len(self.weight), dtype=torch.int64)
        self.taken = max(taken, 1e-6) / 255
        self.given = None if given is None else max(given, 1e-6) / 255

    def plain(self, x: Map) -> Tensor:
        return self.run(x, self.bias, "none", None)

    def relu(self, x: Map) -> Map:
        found = self.run(x, self.bias, "relu", self.given)
        return found if self.given is None else Int8Map(found, self.given)

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        found = self.run(x, self.bias, "none", None).add_(to_float(shortcut)).relu_()
        return found if self.given is None else quantise(found, self.given)

    def run(self, x: Map, bias: Tensor | None, after: str, scale: float | None) -> Tensor:
        """Bytes of a scale, or floats without one."""
        values, taken = x if isinstance(x, Int8Map) else quantise(x, self.taken)
        conv = (self.stride, self.padding, [1, 1], 1)
        prepack, shape = torch.ops.onednn.qconv_prepack, values.shape
        packed = self.packed.get(
            (shape, taken), lambda: prepack(self.weight, self.scales, taken, 0, *conv, list(shape))
        )
        out = (1.0, 0, torch.float32) if scale is None else (scale, 0, torch.uint8)
        return torch.ops.onednn.qconv2d_pointwise(
            values, taken, 0, packed, self.scales, self.zeros, bias, *conv, *out, after, [], ""
        )
