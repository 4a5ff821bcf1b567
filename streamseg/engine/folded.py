"""FANet with batch norm and the pixels' statistics folded into its convolutions: the same scores in fewer steps.

Shapes: B batch, K classes, H x W the frame, h x w the map of Res-1, D key channels, C channels of Res-1 … Res-4 side by
side.
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
from streamseg.models.encoder import Block
from streamseg.models.fanet import FANet

T = TypeVar("T")

STRIP = 32
"""How many rows of the first convolution's map a CPU makes at a time."""


class Residual(NamedTuple):
    """A block of the encoder."""

    first: FusedConv
    second: FusedConv
    shortcut: FusedConv | None


class Attention(NamedTuple):
    """The weights of a fast attention module, as kernels.attend takes them."""

    weight: Tensor
    bias: Tensor
    out_weight: Tensor
    out_bias: Tensor


class SideStream:
    """A second queue of a GPU's, for work beside what follows it; on the CPU all work is done in order."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __reduce__(self) -> tuple[type["SideStream"], tuple[torch.device]]:
        return SideStream, (self.device,)  # a copy has a queue of its own

    def run(self, work: Callable[[], T]) -> T:
        """Begin work now; it must not be used before it has been joined."""
        if self.stream is None:
            return work()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            return work()

    def join(self) -> None:
        """Let what follows wait for all that has begun."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


class Folded:
    """A FANet's convolutions and attentions, folded, in a precision."""

    def __init__(self, model: FANet, precision: torch.dtype):
        model = copy.deepcopy(model).double()

        def ready(x: Tensor) -> Tensor:
            layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
            return x.detach().to(precision).contiguous(memory_format=layout)

        make = GpuConv if model.mean.is_cuda else FusedConv

        def fold(convolution: nn.Module, norm: nn.Module) -> FusedConv:
            fused, bias = fuse(convolution, norm)
            return make(ready(fused.weight), ready(bias), fused.stride[0], int(fused.padding[0]))

        def fold_block(block: nn.Module) -> Residual:
            assert isinstance(block, Block)
            shortcut = fold(*block.downsample) if isinstance(block.downsample, nn.Sequential) else None
            return Residual(fold(block.conv1, block.bn1), fold(block.conv2, block.bn2), shortcut)

        def fold_attention(module: nn.Module) -> Attention:
            assert isinstance(module, FastAttention)
            parts = [fuse(*pair(part)) for part in (module.query, module.key, module.value)]
            weight = torch.cat([part.weight.flatten(1) for part, _ in parts]).T
            out, out_bias = fuse(*pair(module.out))
            bias = torch.cat([bias for _, bias in parts])
            return Attention(ready(weight), ready(bias), ready(out.weight.flatten(1).T), ready(out_bias))

        encoder, (mix, classify) = model.encoder, model.classify
        assert isinstance(mix, nn.Sequential)
        assert isinstance(classify, nn.Conv2d)
        stem, bias = fuse(encoder.conv1, encoder.bn1)
        weight = stem.weight / model.std
        self.keys = model.key_channels
        self.channels = sum(encoder.channels)
        self.mean = model.mean.flatten().float()
        self.stem = make(ready(weight), ready(bias), 2)
        self.padded = Scratch()
        self.square_stem = make(ready(stem_on_squares(weight)), ready(bias))
        self.pools = list(encoder.pool)[1:]
        stages = (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4)
        self.stages = [[fold_block(block) for block in stage] for stage in stages]
        self.attentions = [fold_attention(module) for module in model.attentions]
        self.narrow4, self.narrow3 = fold(*pair(model.narrow4)), fold(*pair(model.narrow3))
        self.narrow2 = fold(*pair(model.narrow2))
        self.smooth3, self.smooth1 = fold(*pair(model.smooth3)), fold(*pair(model.smooth1))
        self.mix = fold(*pair(mix))
        if make is FusedConv and precision == torch.float32:  # two fifths of all products are here
            self.mix = WinogradConv(self.mix)
        # tensor cores like channels in eights; the rest are scores of no class
        weight = F.pad(classify.weight, (0, 0, 0, 0, 0, 0, 0, -model.classes % 8))
        self.classes = model.classes
        self.classify = make(ready(weight), ready(weight.new_zeros(len(weight))))
        self.side, self.attention_side = SideStream(model.mean.device), SideStream(model.mean.device)

    def scores(
        self, frame: Tensor, past: Tensor, scale: Tensor, context: Tensor, unfolded: Tensor | None = None
    ) -> Tensor:
        """Scores (B, K, h, w) of frames (B, 3, H, W), bytes.

        Args:
            past: The sum of the contexts of the earlier frames in the window (B, D, C), fp32; zeros for none.
            scale: What past and own context together are multiplied by (B,), fp32.
            context: (B, D, C), fp32: where the frames' own is written.
            unfolded: On a GPU, the place for the stem's input; see kernels.unfold_frame.
        """
        maps = self.encode(self.run_stem(frame, unfolded))
        return self.decode(self.attend(maps, past, scale, context))

    def run_stem(self, frame: Tensor, unfolded: Tensor | None) -> Map:
        """Conv-0 and the pooling after it."""
        if unfolded is not None:
            kernels.unfold_frame(frame, self.mean, unfolded)
            return kernels.stem_convolution(unfolded, self.square_stem.weight, self.square_stem.bias)
        return self.stem_in_strips(frame)

    def stem_in_strips(self, frame: Tensor) -> Tensor:
        """The same, a few rows at a time: the map before the pooling, the largest of all, stays near the processor."""
        batch, _, height, width = frame.shape

        def make() -> list[Tensor]:
            return [torch.zeros(batch, height + 6, width + 6, 3, device=frame.device)]

        with self.padded.borrow(frame.shape, make) as (padded,):
            x = padded.permute(0, 3, 1, 2)
            torch.sub(frame, self.mean.view(1, 3, 1, 1), out=x[:, :, 3:-3, 3:-3])
            return pool_in_strips(
                (height + 1) // 2, lambda begin, end: self.stem.relu(x[:, :, 2 * begin : 2 * end + 5])
            )

    def encode(self, x: Map) -> Iterator[Tensor]:
        """The encoder's maps of Res-1 … Res-4, one after the other."""
        for pool, blocks in zip(self.pools, self.stages, strict=True):
            x = x if isinstance(pool, nn.Identity) else pool(to_float(x))
            for block in blocks:
                shortcut = x if block.shortcut is None else self.side.run(partial(block.shortcut.plain, x))
                y = block.first.relu(x)
                if block.shortcut is not None:
                    self.side.join()
                x = block.second.add_relu(y, shortcut)
            yield to_float(x)

    def attend(self, maps: Iterable[Tensor], past: Tensor, scale: Tensor, context: Tensor) -> list[Tensor]:
        """The four maps after attention, which begins when a map is there, beside the making of the next."""
        given, attended, place = list[Tensor](), list[Tensor](), 0
        for x, attention in zip(maps, self.attentions, strict=True):
            part = slice(place, place := place + x.shape[1])
            work = partial(self.attend_one, x, attention, past[..., part], scale, context[..., part])
            # the last one is waited for at once
            attended.append(work() if len(attended) == 3 else self.attention_side.run(work))
            given.append(x)  # it is still being read when the next one is made
        self.attention_side.join()
        return attended

    def attend_one(self, x: Tensor, attention: Attention, past: Tensor, scale: Tensor, context: Tensor) -> Tensor:
        weight, bias, *_ = attention
        total = kernels.gather_context(x, weight, bias, past, scale, context, self.keys)
        return kernels.attend(x, total, *attention, self.keys)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Scores of the four maps, merged from deep to shallow."""
        x1, x2, x3, x4 = maps
        x3 = kernels.add_resized(x3, to_float(self.narrow4.relu(x4)))
        smooth3 = self.side.run(partial(self.smooth3.relu, x3))
        x2 = kernels.add_resized(x2, to_float(self.narrow3.relu(x3)))
        x1 = kernels.add_resized(x1, to_float(self.narrow2.relu(x2)))
        batch, _, height, width = x1.shape
        own, other = len(self.smooth1.weight), len(self.smooth3.weight)
        x = torch.empty(batch, height, width, other + own, dtype=x1.dtype, device=x1.device).permute(0, 3, 1, 2)
        self.smooth1.relu_into(x1, x[:, other:])
        self.side.join()
        kernels.resize_into(x, to_float(smooth3))
        return self.classify.plain(self.mix.relu(x))[:, : self.classes]


class FoldedInt8(Folded):
    """The same with most convolutions in bytes.

    The maps between blocks stay floats, and are made bytes where a convolution takes them. The first block, which sees
    most of what rounding would do to flat surfaces such as the sky, and the classifier stay in fp32: they are small.
    """

    def __init__(self, original: Folded, frames: Sequence[Tensor]):
        """
        Args:
            original: In fp32.
            frames: (B, 3, H, W) each: what tells the ranges of the numbers.
        """
        vars(self).update(vars(original))
        measured = observe_ranges(original, frames)

        def convert(part: FusedConv, given: float | None = None) -> Int8Conv:
            assert isinstance(part, RangeObserver)
            return Int8Conv(part, part.taken, given)

        def convert_block(block: Residual) -> Residual:
            first, second, shortcut = block
            assert isinstance(second, RangeObserver)
            return Residual(
                convert(first, second.taken), convert(second), None if shortcut is None else convert(shortcut)
            )

        self.stages = [[convert_block(block) for block in blocks] for blocks in measured.stages]
        self.stages[0][0] = original.stages[0][0]
        self.smooth3, self.smooth1, self.mix = map(convert, (measured.smooth3, measured.smooth1, measured.mix))
        stem = convert(measured.stem)
        # pixels come as they are, and the bias takes the mean off
        weight = stem.weight * stem.scales.view(-1, 1, 1, 1)
        stem.bias = stem.bias - weight.sum(dim=(2, 3)) @ self.mean
        stem.weight, stem.stride = stem_on_squares(stem.weight)[:, :12], [1, 1]
        self.square_stem = stem

    def run_stem(self, frame: Tensor, unfolded: Tensor | None) -> Map:
        batch, _, height, width = frame.shape
        tall, wide = (height + 1) // 2, (width + 1) // 2
        # around the frame is the mean, as in floats, where the mean has been taken off
        around = self.mean.round().to(torch.uint8).view(1, 3, 1, 1)
        padded = around.repeat(batch, 1, 2 * (tall + 3), 2 * (wide + 3))
        padded[:, :, 4 : 4 + height, 4 : 4 + width] = frame
        squares = kernels.squares(padded).contiguous(memory_format=torch.channels_last)
        return pool_in_strips(
            tall, lambda begin, end: self.square_stem.relu(Int8Map(squares[:, :, begin : end + 3], 1.0))
        )


def observe_ranges(folded: Folded, frames: Sequence[Tensor]) -> Folded:
    """A twin whose convolutions have noted the largest numbers that they take and give for frames (B, 3, H, W)."""
    twin = copy.copy(folded)
    twin.stem, twin.mix = RangeObserver(folded.stem), RangeObserver(folded.mix)
    twin.smooth3, twin.smooth1 = RangeObserver(folded.smooth3), RangeObserver(folded.smooth1)
    twin.stages = [
        [
            Residual(
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
            nothing = torch.zeros(len(frame), folded.keys, folded.channels)
            twin.scores(frame, nothing, torch.ones(len(frame)), torch.empty_like(nothing))
    return twin


def pair(layers: nn.Sequential) -> tuple[nn.Module, nn.Module]:
    """The convolution and the batch norm that layers begin with."""
    return layers[0], layers[1]


def fuse(convolution: nn.Module, norm: nn.Module) -> tuple[nn.Conv2d, Tensor]:
    """A convolution with batch norm folded into it, and its bias."""
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    fused = fuse_conv_bn_eval(convolution, norm)
    assert fused.bias is not None
    return fused, fused.bias


def stem_on_squares(weight: Tensor) -> Tensor:
    """The weights (N, 3, 7, 7) of a convolution of stride 2 for squares of 2x2 pixels, (N, 16, 4, 4)."""
    weight = F.pad(weight, (1, 0, 1, 0)).unflatten(3, (4, 2)).unflatten(2, (4, 2))
    return F.pad(weight.permute(0, 3, 5, 1, 2, 4).flatten(1, 3), (0, 0, 0, 0, 0, 4))


def pool_in_strips(tall: int, make_rows: Callable[[int, int], Map]) -> Tensor:
    """The largest of 3x3 pixels, every second one, of a map that is made a few rows at a time.

    Args:
        tall: How many rows the map has.
        make_rows: Makes the rows from one up to another.
    """
    parts = []
    for top in range(0, tall, STRIP):
        begin, end = max(0, top - 1), min(top + STRIP, tall)
        found = to_float(make_rows(begin, end))
        if top and (end - begin) % 2 == 0:  # the last strip misses a row below
            found = F.pad(found, (0, 0, 0, 1))
        # the row above is there, but for the first strip
        parts.append(F.max_pool2d(found, 3, stride=2, padding=(0 if top else 1, 1)))
    return torch.cat(parts, dim=2)
