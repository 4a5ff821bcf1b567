"""The convolutions of the fast engine: fused with bias, shortcut and ReLU, in floats or in int8."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine import kernels
from streamseg.engine.kernels import backend
from streamseg.engine.rounding import InputStatistics, round_weights
from streamseg.engine.scratch import PackedWeights, Scratch

CUDNN_MACS = 5e9
"""Multiplications from which on cuDNN is faster than the Triton kernel."""


class Int8Map(NamedTuple):
    """A quantised map without negative values: bytes times a scale."""

    values: Tensor
    scale: float


Map = Tensor | Int8Map


def to_float(x: Map) -> Tensor:
    """Return a map in floats."""
    return x.values.float().mul_(x.scale) if isinstance(x, Int8Map) else x


def quantise(x: Tensor, scale: float) -> Int8Map:
    """Quantise a map to bytes of a scale, clamped to 0–255."""
    return Int8Map((x * (1 / scale)).round_().clamp_(0, 255).to(torch.uint8), scale)


@cache
def has_fused_convolutions() -> bool:
    """Return whether this torch has oneDNN's fused convolutions, which are not part of its documented API."""
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
    """Return whether this torch has oneDNN's int8 convolutions, which are not part of its documented API."""
    ops, conv = torch.ops.onednn, ([1, 1], [0, 0], [1, 1], 1)
    with torch.device("cpu"):
        x, weight = torch.ones(1, 4, 3, 3, dtype=torch.uint8), torch.ones(4, 4, 1, 1, dtype=torch.int8)
        scales, zeros = torch.ones(4), torch.zeros(4, dtype=torch.int64)
        out: tuple[object, ...] = (1.0, 0, torch.float32, "relu", [], "")
        try:
            packed = ops.qconv_prepack(weight, scales, 1.0, 0, *conv, [1, 4, 3, 3])
            y = ops.qconv2d_pointwise(x, 1.0, 0, packed, scales, zeros, None, *conv, *out)
        except Exception:  # an operator that is gone, or that takes other arguments, can fail in any way
            return False
        return torch.allclose(y, torch.full((1, 4, 3, 3), 4.0))


class FusedConv:
    """A convolution with its shortcut and ReLU, in one operator of oneDNN if torch has it."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 0):
        self.weight, self.bias = weight, bias
        self.stride, self.padding = [stride, stride], [padding, padding]
        self.packed = PackedWeights()
        """The weights in the layout that oneDNN uses for inputs of a shape."""

    def linear(self, x: Map) -> Tensor:
        """Return the convolution without ReLU."""
        return self.fused(to_float(x), "none")

    def relu(self, x: Map) -> Map:
        return self.fused(to_float(x), "relu")

    def relu_into(self, x: Map, out: Tensor) -> None:
        """Write the convolution with ReLU into some channels of a wider map."""
        out.copy_(to_float(self.relu(x)))

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        """Return the ReLU of the convolution plus a shortcut."""
        return self.fused(to_float(x), "relu", to_float(shortcut))

    def classify(self, x: Map, classifier: "FusedConv") -> Tensor:
        """Return the scores of a classifier after the convolution with ReLU."""
        return classifier.linear(self.relu(x))

    def fused(self, x: Tensor, activation: str, shortcut: Tensor | None = None) -> Tensor:
        if not has_fused_convolutions():
            y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding)
            y = y if shortcut is None else y.add_(shortcut)
            return y.relu_() if activation == "relu" else y
        conv, ops = (self.padding, self.stride, [1, 1], 1), torch.ops.mkldnn
        weight = self.packed.get(x.shape, lambda: ops._reorder_convolution_weight(self.weight, *conv, list(x.shape)))
        if shortcut is None:
            return ops._convolution_pointwise(x, weight, self.bias, *conv, activation, [], "")
        return ops._convolution_pointwise.binary(x, shortcut, weight, self.bias, *conv, "add", 1.0, activation, [], "")


class Selection(threading.local):
    """Whether cuDNN selects the algorithms of this thread's convolutions by measuring them."""

    measures = False


SELECTION = Selection()
FLAGS_LOCK = threading.Lock()
"""Held while torch's flags for cuDNN, which all threads share, are changed."""


@contextmanager
def measure_algorithms() -> Iterator[None]:
    """Let cuDNN select the algorithms of the fast engine's convolutions by measuring them, in this thread."""
    SELECTION.measures = True
    try:
        yield
    finally:
        SELECTION.measures = False


@contextmanager
def cudnn_flags() -> Iterator[None]:
    """Set cuDNN's flags for a convolution.

    They are set for one convolution at a time: those that another thread starts meanwhile, such as the eager network's,
    would be measured too, which takes much longer than to run them.
    """
    if not SELECTION.measures:
        yield
        return
    with FLAGS_LOCK, torch.backends.cudnn.flags(enabled=True, benchmark=True):
        yield


class GpuConv(FusedConv):
    """A convolution on a GPU: by the Triton kernel or, where that is faster, by cuDNN."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int = 1, padding: int = 0):
        super().__init__(weight, bias, stride, padding)
        self.counters = torch.zeros(kernels.MAX_TILES, dtype=torch.int32, device=weight.device)

    def linear(self, x: Map) -> Tensor:
        x = to_float(x)
        if self.weight.shape[2:] == (1, 1) and self.stride == [1, 1]:  # a matrix product
            return F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
        if self.uses_triton(x):
            return self.run_triton(x, self.allocate_output(x), relu=False)
        with cudnn_flags():
            return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def relu(self, x: Map) -> Map:
        x = to_float(x)
        if self.uses_triton(x):
            return self.run_triton(x, self.allocate_output(x))
        with cudnn_flags():
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, self.padding, [1, 1], 1)

    def relu_into(self, x: Map, out: Tensor) -> None:
        x = to_float(x)
        if self.uses_triton(x):
            self.run_triton(x, out)
        else:
            super().relu_into(x, out)

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        x, shortcut = to_float(x), to_float(shortcut)
        if self.uses_triton(x):
            return self.run_triton(x, torch.empty_like(shortcut), shortcut)
        conv = (self.bias, self.stride, self.padding, [1, 1], 1)
        with cudnn_flags():
            return torch.cudnn_convolution_add_relu(x, self.weight, shortcut, 1.0, *conv)

    def classify(self, x: Map, classifier: FusedConv) -> Tensor:
        x, outputs = to_float(x), len(self.weight)
        if self.stride == [1, 1] and backend.fits_tensor_cores(outputs) and outputs <= 64 and self.uses_triton(x):
            weights = (self.weight, self.bias, classifier.weight, classifier.bias)
            return kernels.convolve_and_classify(x, *weights, padding=self.padding[0])
        return super().classify(x, classifier)

    def uses_triton(self, x: Tensor) -> bool:
        """Return whether the Triton kernel runs this convolution; cuDNN is faster for large ones."""
        macs = x[:, 0].numel() // self.stride[0] ** 2 * self.weight.numel()
        return kernels.use_triton(x) and macs < CUDNN_MACS

    def run_triton(self, x: Tensor, out: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> Tensor:
        """Run the Triton kernel and return `out`, which it fills."""
        kernels.convolve(
            x,
            self.weight,
            self.bias,
            self.counters,
            out,
            stride=self.stride[0],
            padding=self.padding[0],
            shortcut=shortcut,
            relu=relu,
        )
        return out

    def allocate_output(self, x: Tensor) -> Tensor:
        """Allocate the output of the convolution of a map."""
        side, stride, padding = self.weight.shape[2], self.stride[0], self.padding[0]
        height, width = ((length + 2 * padding - side) // stride + 1 for length in x.shape[2:])
        return torch.empty(len(x), height, width, len(self.weight), dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)


class WinogradConv(FusedConv):
    """A 3x3 convolution of stride 1 on the CPU in fp32 by Winograd's F(4x4, 3x3): a quarter of the multiplications.

    Squares of 6x6 inputs and the weights are transformed, so that 36 multiplications replace 144, and the products are
    transformed back to squares of 4x4 outputs.
    """

    def __init__(self, original: FusedConv, scratch: Scratch):
        """
        Args:
            scratch: May be shared with other convolutions of maps of the same size.
        """
        super().__init__(original.weight, original.bias, 1, 1)
        weight = WEIGHT_TRANSFORM @ (self.weight.double().permute(1, 0, 2, 3) @ WEIGHT_TRANSFORM.T)
        self.transformed = weight.permute(2, 3, 0, 1).flatten(0, 1).float().contiguous()
        self.scratch = scratch

    def fused(self, x: Tensor, activation: str, shortcut: Tensor | None = None) -> Tensor:
        _, inputs, height, width = x.shape
        outputs, rows, columns = len(self.weight), -(-height // 4), -(-width // 4)  # of squares
        rows_at_once = min(rows, max(1, MAX_SQUARES // columns))

        def allocate() -> list[Tensor]:
            squares = rows_at_once * columns
            sizes = (36 * squares * inputs,) * 2 + (36 * squares * outputs, 24 * squares * outputs)
            padded = torch.zeros(4 * rows + 2, 4 * columns + 2, inputs, device="cpu")
            return [padded, *(torch.empty(size, device="cpu") for size in sizes)]

        with self.scratch.borrow(x.shape, allocate) as buffers:  # allocation would take longer than the products
            y = self.convolve_map(x, rows_at_once, buffers)
        y = y[:, :height, :width].contiguous().add_(self.bias).permute(0, 3, 1, 2)
        y = y if shortcut is None else y.add_(shortcut)
        return y.relu_() if activation == "relu" else y

    def convolve_map(self, x: Tensor, rows_at_once: int, buffers: list[Tensor]) -> Tensor:
        """Return the outputs (B, H, W, N) of a map, in whole squares, a few rows of squares at a time."""
        batch, inputs, height, width = x.shape
        outputs, rows, columns = len(self.weight), -(-height // 4), -(-width // 4)  # of squares
        padded, *scratch = buffers
        y = torch.empty(batch, 4 * rows, 4 * columns, outputs, device=x.device)
        row, column, _ = padded.stride()
        for i in range(batch):
            padded[1 : height + 1, 1 : width + 1] = x[i].permute(1, 2, 0)
            for first in range(0, rows, rows_at_once):
                count = min(rows_at_once, rows - first)
                shape = (6, 6, count, columns, inputs)
                squares = padded.as_strided(shape, (row, column, 4 * row, 4 * column, 1), 4 * first * row)
                part = y[i].view(rows, 4, columns, 4, outputs)[first : first + count]
                part.copy_(self.convolve_squares(squares, scratch).permute(2, 0, 3, 1, 4))
        return y

    def convolve_squares(self, squares: Tensor, scratch: list[Tensor]) -> Tensor:
        """Return squares of outputs (4, 4, n, m, N) of squares of inputs (6, 6, n, m, C)."""
        _, _, rows, columns, inputs = squares.shape
        count, outputs = rows * columns, len(self.weight)

        def buffer(i: int, *shape: int) -> Tensor:
            return scratch[i][: math.prod(shape)].view(shape)

        x = buffer(0, *squares.shape).copy_(squares)
        down = torch.mm(INPUT_TRANSFORM, x.view(6, -1), out=buffer(1, 6, 6 * count * inputs))
        across = torch.matmul(INPUT_TRANSFORM, down.view(6, 6, -1), out=buffer(0, 6, 6, count * inputs))
        products = torch.bmm(across.view(36, count, inputs), self.transformed, out=buffer(2, 36, count, outputs))
        down = torch.mm(OUTPUT_TRANSFORM, products.view(6, -1), out=buffer(3, 4, 6 * count * outputs))
        across = torch.matmul(OUTPUT_TRANSFORM, down.view(4, 6, -1), out=buffer(2, 4, 4, count * outputs))
        return across.view(4, 4, rows, columns, outputs)


INPUT_TRANSFORM = torch.tensor(
    [
        [4.0, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    device="cpu",  # this module may be imported while another default device is set
)
WEIGHT_TRANSFORM = torch.tensor(
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
OUTPUT_TRANSFORM = torch.tensor(
    [[1.0, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], device="cpu"
)

MAX_SQUARES = 512
"""Number of squares that Winograd's convolution takes at a time, so that they stay in the cache."""


class RangeObserver(FusedConv):
    """A convolution that records the maxima of its inputs and outputs, and statistics of its inputs."""

    def __init__(self, original: FusedConv):
        super().__init__(original.weight, original.bias, original.stride[0], original.padding[0])
        self.max_input = self.max_output = 0.0
        self.inputs = InputStatistics(original.weight, original.stride[0], original.padding[0])

    def linear(self, x: Map) -> Tensor:
        return to_float(self.observe(x, super().linear(x)))

    def relu(self, x: Map) -> Map:
        return self.observe(x, super().relu(x))

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        return self.observe(x, super().add_relu(x, shortcut))

    def observe(self, x: Map, y: Map) -> Map:
        self.max_input = max(self.max_input, to_float(x).max().item())
        self.max_output = max(self.max_output, to_float(y).max().item())
        self.inputs.add(to_float(x))
        return y


class Int8Conv(FusedConv):
    """An int8 convolution: 7-bit weights with a scale for each output, accumulated in int32 (oneDNN)."""

    def __init__(self, original: FusedConv, max_input: float, max_output: float | None):
        """
        Args:
            original: The weights of a RangeObserver are rounded with the statistics of its inputs.
            max_input: The largest input, for inputs in floats.
            max_output: The largest output; None for outputs in floats.
        """
        super().__init__(original.weight, original.bias, original.stride[0], original.padding[0])
        inputs = original.inputs if isinstance(original, RangeObserver) else None
        self.weight, self.scales, correction = round_weights(original.weight, inputs)
        self.bias = original.bias + correction
        self.zeros = torch.zeros(len(self.weight), dtype=torch.int64)
        self.input_scale = max(max_input, 1e-6) / 255
        self.output_scale = None if max_output is None else max(max_output, 1e-6) / 255

    def linear(self, x: Map) -> Tensor:
        return self.run(x, "none", None)

    def relu(self, x: Map) -> Map:
        y = self.run(x, "relu", self.output_scale)
        return y if self.output_scale is None else Int8Map(y, self.output_scale)

    def add_relu(self, x: Map, shortcut: Map) -> Map:
        y = self.run(x, "none", None).add_(to_float(shortcut)).relu_()
        return y if self.output_scale is None else quantise(y, self.output_scale)

    def run(self, x: Map, activation: str, output_scale: float | None) -> Tensor:
        """Return the convolution in bytes of a scale, or in floats without one."""
        values, scale = x if isinstance(x, Int8Map) else quantise(x, self.input_scale)
        conv = (self.stride, self.padding, [1, 1], 1)
        prepack, shape = torch.ops.onednn.qconv_prepack, values.shape
        packed = self.packed.get(
            (shape, scale), lambda: prepack(self.weight, self.scales, scale, 0, *conv, list(shape))
        )
        out = (1.0, 0, torch.float32) if output_scale is None else (output_scale, 0, torch.uint8)
        return torch.ops.onednn.qconv2d_pointwise(
            values, scale, 0, packed, self.scales, self.zeros, self.bias, *conv, *out, activation, [], ""
        )
