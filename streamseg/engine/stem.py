"""The first convolution and its pooling on the CPU, from a frame's bytes, in fp32 and in int8.

Shapes: B batch, H x W the frame, N channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine import kernels
from streamseg.engine.convolutions import FusedConv, Int8Conv, Int8Map, Map, RangeObserver, to_float
from streamseg.engine.scratch import Scratch

STRIP = 32
"""Number of rows of the first convolution's map that a CPU computes at a time."""

Size = tuple[int, int]


class Stem:
    """Conv-0 and the pooling after it, in fp32."""

    def __init__(self, convolution: FusedConv, mean: Tensor):
        """
        Args:
            convolution: Of 7x7 and stride 2, without padding.
            mean: Mean of the pixels, (3,).
        """
        self.convolution, self.mean = convolution, mean
        self.padded = Scratch()

    def run(self, frame: Tensor, size: Size) -> Map:
        """Return the first map (B, N, H/4, W/4) of frames (B, 3, …), bytes, resized to H x W."""
        batch, (height, width) = len(frame), size

        def allocate() -> list[Tensor]:
            return [torch.zeros(batch, height + 6, width + 6, 3, device=frame.device)]

        with self.padded.borrow(torch.Size((batch, height, width)), allocate) as (padded,):
            x = padded.permute(0, 3, 1, 2)
            pixels = frame if frame.shape[2:] == size else kernels.resize_frame(frame.float(), size)
            torch.sub(pixels, self.mean.view(1, 3, 1, 1), out=x[:, :, 3:-3, 3:-3])
            return pool_in_strips(
                (height + 1) // 2, lambda begin, end: self.convolution.relu(x[:, :, 2 * begin : 2 * end + 5])
            )


class Int8Stem(Stem):
    """The same in int8, over squares of 2x2 pixels."""

    def __init__(self, observed: RangeObserver, mean: Tensor):
        convolution = Int8Conv(observed, observed.max_input, None)
        # the input is the raw pixels: the bias subtracts their mean
        weight = convolution.weight * convolution.scales.view(-1, 1, 1, 1)
        convolution.bias = convolution.bias - weight.sum(dim=(2, 3)) @ mean
        convolution.weight, convolution.stride = stem_on_squares(convolution.weight)[:, :12], [1, 1]
        super().__init__(convolution, mean)

    def run(self, frame: Tensor, size: Size) -> Map:
        batch, (height, width) = len(frame), size
        rows, columns = (height + 1) // 2, (width + 1) // 2
        # padded with the mean, as zero padding is in fp32, where the mean has been subtracted
        mean = self.mean.round().to(torch.uint8).view(1, 3, 1, 1)
        padded = mean.repeat(batch, 1, 2 * (rows + 3), 2 * (columns + 3))
        padded[:, :, 4 : 4 + height, 4 : 4 + width] = kernels.resize_frame(frame, size)
        squares = kernels.squares(padded).contiguous(memory_format=torch.channels_last)
        return pool_in_strips(
            rows, lambda begin, end: self.convolution.relu(Int8Map(squares[:, :, begin : end + 3], 1.0))
        )


def stem_on_squares(weight: Tensor) -> Tensor:
    """Rearrange the weights (N, 3, 7, 7) of a convolution of stride 2 for squares of 2x2 pixels, (N, 16, 4, 4)."""
    weight = F.pad(weight, (1, 0, 1, 0)).unflatten(3, (4, 2)).unflatten(2, (4, 2))
    return F.pad(weight.permute(0, 3, 5, 1, 2, 4).flatten(1, 3), (0, 0, 0, 0, 0, 4))


def pool_in_strips(rows: int, compute_rows: Callable[[int, int], Map]) -> Tensor:
    """Max-pool (3x3, stride 2) a map that is computed a few rows at a time, so that they stay in the CPU's cache.

    Args:
        rows: Number of rows of the map.
        compute_rows: Computes the rows of a range.
    """
    parts = []
    for top in range(0, rows, STRIP):
        begin, end = max(0, top - 1), min(top + STRIP, rows)
        strip = to_float(compute_rows(begin, end))
        if top and (end - begin) % 2 == 0:  # the last strip lacks a row below
            strip = F.pad(strip, (0, 0, 0, 1))
        # the first strip lacks the row above
        parts.append(F.max_pool2d(strip, 3, stride=2, padding=(0 if top else 1, 1)))
    return torch.cat(parts, dim=2)
