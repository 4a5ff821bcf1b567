"""FANet with batch norm and pixel normalisation folded into its convolutions: the same scores in fewer steps.

Shapes: B batch, K classes, H x W the frame, h x w the map of Res-1, D key channels, C channels of Res-1 … Res-4
concatenated.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from streamseg.engine import kernels
from streamseg.engine.convolutions import (
    FusedConv,
    GpuConv,
    Int8Conv,
    Int8Map,
    Map,
    RangeObserver,
    WinogradConv,
    to_float,
)
from streamseg.engine.scratch import Scratch
from streamseg.models.attention import FastAttention
from streamseg.models.encoder import Block, ResNet
from streamseg.models.fanet import FANet

T = TypeVar("T")

STRIP = 32
"""Number of rows of the first convolution's map that a CPU computes at a time."""


class ResidualBlock(NamedTuple):
    """A block of the encoder."""

    first: FusedConv
    second: FusedConv
    shortcut: FusedConv | None


class AttentionWeights(NamedTuple):
    """The weights of a fast attention module, in the layout of kernels.attend."""

    weight: Tensor
    bias: Tensor
    out_weight: Tensor
    out_bias: Tensor


class SideStream:
    """A second CUDA stream, for work in parallel to what follows it; on the CPU everything runs in order."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __reduce__(self) -> tuple[type["SideStream"], tuple[torch.device]]:
        return SideStream, (self.device,)  # a copy gets another CUDA stream

    def run(self, work: Callable[[], T]) -> T:
        """Start work; its result may be used only after join()."""
        if self.stream is None:
            return work()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            return work()

    def join(self) -> None:
        """Make later work wait for all work that has been started."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


class Folded:
    """The convolutions and attentions of a FANet, folded, in a given precision."""

    def __init__(self, model: FANet, precision: torch.dtype):
        model = copy.deepcopy(model).double()

        def convert(x: Tensor) -> Tensor:
            layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
            return x.detach().to(precision).contiguous(memory_format=layout)

        conv = GpuConv if model.mean.is_cuda else FusedConv

        def fold(convolution: nn.Module, norm: nn.Module) -> FusedConv:
            fused, bias = fuse(convolution, norm)
            return conv(convert(fused.weight), convert(bias), fused.stride[0], int(fused.padding[0]))

        def fold_block(block: nn.Module) -> ResidualBlock:
            assert isinstance(block, Block)
            shortcut = fold(*block.downsample) if isinstance(block.downsample, nn.Sequential) else None
            return ResidualBlock(fold(block.conv1, block.bn1), fold(block.conv2, block.bn2), shortcut)

        def fold_attention(module: object) -> AttentionWeights:
            assert isinstance(module, FastAttention)
            parts = [fuse(*pair(part)) for part in (module.query, module.key, module.value)]
            weight = torch.cat([part.weight.flatten(1) for part, _ in parts]).T
            out, out_bias = fuse(*pair(module.out))
            bias = torch.cat([bias for _, bias in parts])
            return AttentionWeights(convert(weight), convert(bias), convert(out.weight.flatten(1).T), convert(out_bias))

        encoder, (mix, classify) = model.encoder, model.classify
        assert isinstance(encoder, ResNet)
        assert isinstance(mix, nn.Sequential)
        assert isinstance(classify, nn.Conv2d)
        stem, bias = fuse(encoder.conv1, encoder.bn1)
        weight = stem.weight / model.std
        self.key_channels = model.key_channels
        self.channels = sum(encoder.channels)
        self.mean = model.mean.flatten().float()
        self.stem = conv(convert(weight), convert(bias), 2)
        self.padded = Scratch()
        self.square_stem = conv(convert(stem_on_squares(weight)), convert(bias))
        self.pools = list(encoder.pool)[1:]
        stages = (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4)
        self.stages = [[fold_block(block) for block in stage] for stage in stages]
        self.attentions = [fold_attention(module) for module in model.attentions]
        self.narrow4, self.narrow3 = fold(*pair(model.narrow4)), fold(*pair(model.narrow3))
        self.narrow2 = fold(*pair(model.narrow2))
        self.smooth3, self.smooth1 = fold(*pair(model.smooth3)), fold(*pair(model.smooth1))
        self.mix = fold(*pair(mix))
        if conv is FusedConv and precision == torch.float32:  # it has two fifths of all multiplications
            self.mix = WinogradConv(self.mix)
        # padded to a multiple of 8 channels for tensor cores; scores() drops the extra channels
        weight = F.pad(classify.weight, (0, 0, 0, 0, 0, 0, 0, -model.classes % 8))
        self.classes = model.classes
        self.classify = conv(convert(weight), convert(weight.new_zeros(len(weight))))
        self.side, self.attention_side = SideStream(model.mean.device), SideStream(model.mean.device)

    def scores(
        self, frame: Tensor, past: Tensor, scale: Tensor, context: Tensor, unfolded: Tensor | None = None
    ) -> Tensor:
        """Return the scores (B, K, h, w) of frames (B, 3, H, W), bytes.

        Args:
            past: Sum of the contexts of the earlier frames in the window (B, D, C), fp32; zeros for none.
            scale: Factor for the sum of context and past (B,), fp32.
            context: Receives the context of the frames (B, D, C), fp32.
            unfolded: On a GPU, the buffer for the input of the stem; see kernels.unfold_frame.
        """
        maps = self.encode(self.run_stem(frame, unfolded))
        return self.decode(self.attend(maps, past, scale, context))

    def run_stem(self, frame: Tensor, unfolded: Tensor | None) -> Map:
        """Apply Conv-0 and the pooling after it."""
        if unfolded is not None:
            kernels.unfold_frame(frame, self.mean, unfolded)
            return kernels.stem_convolution(unfolded, self.square_stem.weight, self.square_stem.bias)
        batch, _, height, width = frame.shape

        def allocate() -> list[Tensor]:
            return [torch.zeros(batch, height + 6, width + 6, 3, device=frame.device)]

        with self.padded.borrow(frame.shape, allocate) as (padded,):
            x = padded.permute(0, 3, 1, 2)
            torch.sub(frame, self.mean.view(1, 3, 1, 1), out=x[:, :, 3:-3, 3:-3])
            return pool_in_strips(
                (height + 1) // 2, lambda begin, end: self.stem.relu(x[:, :, 2 * begin : 2 * end + 5])
            )

    def encode(self, x: Map) -> Iterator[Tensor]:
        """Yield the encoder's maps of Res-1 … Res-4."""
        for pool, blocks in zip(self.pools, self.stages, strict=True):
            x = x if isinstance(pool, nn.Identity) else pool(to_float(x))
            for block in blocks:
                shortcut = x if block.shortcut is None else self.side.run(partial(block.shortcut.linear, x))
                y = block.first.relu(x)
                if block.shortcut is not None:
                    self.side.join()
                x = block.second.add_relu(y, shortcut)
            yield to_float(x)

    def attend(self, maps: Iterable[Tensor], past: Tensor, scale: Tensor, context: Tensor) -> list[Tensor]:
        """Return the four maps after attention, which runs in parallel to the encoder's next stage."""
        inputs, attended, start = list[Tensor](), list[Tensor](), 0
        for x, weights in zip(maps, self.attentions, strict=True):
            part = slice(start, start := start + x.shape[1])
            work = partial(self.attend_stage, x, weights, past[..., part], scale, context[..., part])
            # nothing runs in parallel to the last one
            attended.append(work() if len(attended) == 3 else self.attention_side.run(work))
            inputs.append(x)  # keeps the memory while the side stream reads it
        self.attention_side.join()
        return attended

    def attend_stage(
        self, x: Tensor, weights: AttentionWeights, past: Tensor, scale: Tensor, context: Tensor
    ) -> Tensor:
        """Return the map of one stage after attention."""
        total = kernels.gather_context(x, weights.weight, weights.bias, past, scale, context, self.key_channels)
        return kernels.attend(x, total, *weights, self.key_channels)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Merge the four maps from deep to shallow and return the scores."""
        x1, x2, x3, x4 = maps
        x3 = kernels.add_resized(x3, to_float(self.narrow4.relu(x4)))
        smooth3 = self.side.run(partial(self.smooth3.relu, x3))
        x2 = kernels.add_resized(x2, to_float(self.narrow3.relu(x3)))
        x1 = kernels.add_resized(x1, to_float(self.narrow2.relu(x2)))
        batch, _, height, width = x1.shape
        c1, c3 = len(self.smooth1.weight), len(self.smooth3.weight)
        x = torch.empty(batch, height, width, c3 + c1, dtype=x1.dtype, device=x1.device).permute(0, 3, 1, 2)
        self.smooth1.relu_into(x1, x[:, c3:])
        self.side.join()
        kernels.resize_into(x, to_float(smooth3))
        return self.classify.linear(self.mix.relu(x))[:, : self.classes]


class FoldedInt8(Folded):
    """The same with most convolutions in int8.

    The maps between blocks stay in fp32 and are quantised at the input of a convolution. The first block, where
    rounding shows most on flat surfaces such as the sky, and the classifier stay in fp32: both are small.
    """

    def __init__(self, original: Folded, frames: Sequence[Tensor]):
        """
        Args:
            original: The network in fp32.
            frames: Calibration frames, (B, 3, H, W) each.
        """
        vars(self).update(vars(original))
        observed = observe_ranges(original, frames)

        def convert(part: FusedConv, max_output: float | None = None) -> Int8Conv:
            assert isinstance(part, RangeObserver)
            return Int8Conv(part, part.max_input, max_output)

        def convert_block(block: ResidualBlock) -> ResidualBlock:
            first, second, shortcut = block
            assert isinstance(second, RangeObserver)
            return ResidualBlock(
                convert(first, second.max_input), convert(second), None if shortcut is None else convert(shortcut)
            )

        self.stages = [[convert_block(block) for block in blocks] for blocks in observed.stages]
        self.stages[0][0] = original.stages[0][0]
        self.smooth3, self.smooth1, self.mix = map(convert, (observed.smooth3, observed.smooth1, observed.mix))
        stem = convert(observed.stem)
        # the input is the raw pixels: the bias subtracts their mean
        weight = stem.weight * stem.scales.view(-1, 1, 1, 1)
        stem.bias = stem.bias - weight.sum(dim=(2, 3)) @ self.mean
        stem.weight, stem.stride = stem_on_squares(stem.weight)[:, :12], [1, 1]
        self.square_stem = stem

    def run_stem(self, frame: Tensor, unfolded: Tensor | None) -> Map:
        batch, _, height, width = frame.shape
        rows, columns = (height + 1) // 2, (width + 1) // 2
        # padded with the mean, as zero padding is in fp32, where the mean has been subtracted
        mean = self.mean.round().to(torch.uint8).view(1, 3, 1, 1)
        padded = mean.repeat(batch, 1, 2 * (rows + 3), 2 * (columns + 3))
        padded[:, :, 4 : 4 + height, 4 : 4 + width] = frame
        squares = kernels.squares(padded).contiguous(memory_format=torch.channels_last)
        return pool_in_strips(
            rows, lambda begin, end: self.square_stem.relu(Int8Map(squares[:, :, begin : end + 3], 1.0))
        )


def observe_ranges(folded: Folded, frames: Sequence[Tensor]) -> Folded:
    """Return a copy whose convolutions have observed the ranges of their inputs on frames (B, 3, H, W)."""
    observed = copy.copy(folded)
    observed.stem, observed.mix = RangeObserver(folded.stem), RangeObserver(folded.mix)
    observed.smooth3, observed.smooth1 = RangeObserver(folded.smooth3), RangeObserver(folded.smooth1)
    observed.stages = [
        [
            ResidualBlock(
                RangeObserver(block.first),
                RangeObserver(block.second),
                None if block.shortcut is None else RangeObserver(block.shortcut),
            )
            for block in blocks
        ]
        for blocks in folded.stages
    ]
    with torch.no_grad():
        for frame in frames:
            past = torch.zeros(len(frame), folded.key_channels, folded.channels)
            observed.scores(frame, past, torch.ones(len(frame)), torch.empty_like(past))
    return observed


def pair(layers: nn.Sequential) -> tuple[nn.Module, nn.Module]:
    """Return the convolution and the batch norm at the start of layers."""
    return layers[0], layers[1]


def fuse(convolution: nn.Module, norm: nn.Module) -> tuple[nn.Conv2d, Tensor]:
    """Fold batch norm into a convolution; return it and its bias."""
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    fused = fuse_conv_bn_eval(convolution, norm)
    assert fused.bias is not None
    return fused, fused.bias


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
