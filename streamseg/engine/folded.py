"""FANet and FANet+ with batch norm and pixel normalisation folded into the convolutions: the same in fewer steps.

Shapes: B batch, K classes, H x W the frame, h x w the map of Res-1, D key channels, C channels of the stages with
attention, concatenated.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from streamseg.engine import kernels
from streamseg.engine.convolutions import FusedConv, Int8Conv, Map, RangeObserver, to_float
from streamseg.engine.folding import AttentionWeights, Folder, ResidualBlock, fuse, pair
from streamseg.engine.graphs import SideStream
from streamseg.engine.stem import Int8Stem, Stem, stem_on_squares
from streamseg.models.encoder import ResNet
from streamseg.models.fanet import FANet, average_mask, join_contexts
from streamseg.models.fanet_plus import FANetPlus, shrunk_size


class View(NamedTuple):
    """What the contexts of a batch are made of."""

    mask: Tensor | None
    """The unmasked share of each pixel (B, H, W), fp32; None for 1."""
    shares: Tensor | None
    """The share of each frame (B,) in the context that all of them attend to; None for contexts of their own."""


WHOLE_VIEW = View(None, None)
"""Each frame attends to all of itself, and to nothing else."""


class Folded(ABC):
    """The stem, the encoder and the attentions of a network, folded, in a given precision."""

    attentions: Sequence[AttentionWeights | None]
    """The attention of each stage, if it has one."""
    smooths: Sequence[FusedConv]
    """The 3x3 convolutions of the decoder."""
    classify: FusedConv

    def __init__(self, model: FANet, folder: Folder):
        """
        Args:
            model: In fp64.
        """
        encoder = model.encoder
        assert isinstance(encoder, ResNet)
        stem, bias = fuse(encoder.conv1, encoder.bn1)
        weight, bias = stem.weight / model.std, folder.convert(bias)
        self.precision = folder.precision
        self.classes = model.classes
        self.key_channels = model.key_channels
        self.channels = sum(attend.context_shape[1] for attend in model.attentions)
        self.mean = model.mean.flatten().float()
        self.stem = Stem(folder.conv(folder.convert(weight), bias, 2), self.mean)
        self.square_stem = folder.conv(folder.convert(stem_on_squares(weight)), bias)
        self.pools = list(encoder.pool)[1:]
        self.stages = [
            folder.fold_stage(stage) for stage in (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4)
        ]
        self.side, self.branches = SideStream(model.mean.device), SideStream(model.mean.device)

    def scores(
        self,
        frame: Tensor,
        past: Tensor,
        scale: Tensor,
        context: Tensor,
        unfolded: Tensor | None = None,
        view: View = WHOLE_VIEW,
        beside: Callable[[], None] | None = None,
        mirrored: Tensor | None = None,
    ) -> Tensor:
        """Return the scores (B, K, h, w) of frames (B, 3, H, W), bytes.

        Args:
            past: Sum of the contexts of the earlier frames in the window (B, D, C), fp32; zeros for none.
            scale: Factor for the sum of context and past (B,), fp32.
            context: Receives the context of the frames (B, D, C), fp32.
            unfolded: On a GPU, the buffer for the input of the stem; see kernels.unfold_frame.
            view: What the contexts are made of.
            beside: Starts other work in another CUDA stream; called when Res-2 is computed, because the small maps
                after it leave a part of the GPU free.
            mirrored: On a GPU, 1 for frames that are mirrored first, so that their scores are mirrored too, or else 0,
                (B,).
        """
        maps = self.encode(self.run_stem(frame, unfolded, mirrored))
        if beside is not None:
            maps = call_after_res2(maps, beside)
        return self.decode(self.attend(maps, past, scale, context, view))

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the image that the encoder gets of a frame."""
        return height, width

    def run_stem(self, frame: Tensor, unfolded: Tensor | None, mirrored: Tensor | None = None) -> Map:
        """Apply Conv-0 and the pooling after it."""
        size = self.image_size(frame.shape[2], frame.shape[3])
        if unfolded is None:
            return self.stem.run(frame, size)
        kernels.unfold_frame(frame, self.mean, unfolded, size, mirrored)
        return kernels.stem_convolution(unfolded, self.square_stem.weight, self.square_stem.bias)

    def encode(self, x: Map) -> Iterator[Tensor]:
        """Yield the encoder's maps of Res-1 … Res-4."""
        for pool, blocks in zip(self.pools, self.stages, strict=True):
            x = reduce_map(pool, x)
            for block in blocks:
                shortcut = x if block.shortcut is None else self.side.run(partial(block.shortcut.linear, x))
                y = block.first.relu(x)
                if block.shortcut is not None:
                    self.side.join()
                x = block.second.add_relu(y, shortcut)
            yield to_float(x)

    def attend(
        self, maps: Iterable[Tensor], past: Tensor, scale: Tensor, context: Tensor, view: View = WHOLE_VIEW
    ) -> list[Tensor]:
        """Return the four maps for the decoder; each is computed in parallel to the encoder's next stage."""
        inputs, attended, start = list[Tensor](), list[Tensor](), 0
        for stage, x in enumerate(maps):
            part = slice(start, start := start + (0 if self.attentions[stage] is None else x.shape[1]))
            work = partial(self.run_branch, stage, x, past[..., part], scale, context[..., part], view)
            # nothing runs in parallel to the last one
            attended.append(work() if stage == 3 else self.branches.run(work))
            inputs.append(x)  # keeps the memory while the side stream reads it
        self.branches.join()
        return attended

    def run_branch(self, stage: int, x: Tensor, past: Tensor, scale: Tensor, context: Tensor, view: View) -> Tensor:
        """Return the map of one stage after attention, if the stage has it."""
        weights = self.attentions[stage]
        if weights is None:
            return x
        pixels = None if view.mask is None else average_mask(view.mask, x)
        total = kernels.gather_context(x, weights.weight, weights.bias, past, scale, context, self.key_channels, pixels)
        if view.shares is not None:
            context.copy_(join_contexts(context, view.shares))
            total = ((context + past) * scale.view(-1, 1, 1)).to(x.dtype)
        return kernels.attend(x, total, *weights, self.key_channels)

    @abstractmethod
    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        """Merge the four maps from deep to shallow and return the scores."""


class FoldedFANet(Folded):
    """A FANet, folded."""

    def __init__(self, model: FANet, folder: Folder):
        super().__init__(model, folder)
        self.attentions = [folder.fold_attention(module) for module in model.attentions]
        self.narrow4, self.narrow3 = folder.fold(*pair(model.narrow4)), folder.fold(*pair(model.narrow3))
        self.narrow2 = folder.fold(*pair(model.narrow2))
        mix, classify = model.classify
        self.smooths = [folder.fold(*pair(layers)) for layers in (model.smooth3, model.smooth1, mix)]
        self.classify = folder.fold_classifier(classify)

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        smooth3, smooth1, mix = self.smooths
        x1, x2, x3, x4 = maps
        x3 = kernels.add_resized(x3, to_float(self.narrow4.relu(x4)))
        deep = self.side.run(partial(smooth3.relu, x3))
        x2 = kernels.add_resized(x2, to_float(self.narrow3.relu(x3)))
        x1 = kernels.add_resized(x1, to_float(self.narrow2.relu(x2)))
        batch, _, height, width = x1.shape
        c1, c3 = len(smooth1.weight), len(smooth3.weight)
        x = torch.empty(batch, height, width, c3 + c1, dtype=x1.dtype, device=x1.device).permute(0, 3, 1, 2)
        smooth1.relu_into(x1, x[:, c3:])
        self.side.join()
        kernels.resize_into(x, to_float(deep))
        return self.classify.linear(mix.relu(x))[:, : self.classes]


class FoldedPlus(Folded):
    """A FANet+, folded. The maps for its decoder are already narrowed."""

    def __init__(self, model: FANetPlus, folder: Folder):
        super().__init__(model, folder)
        self.attentions = [None, None, *(folder.fold_attention(module) for module in model.attentions)]
        narrows = (model.narrow1, model.narrow2, model.narrow3, model.pool.narrow)
        self.narrows = [folder.fold(*pair(layers)) for layers in narrows]
        self.pyramid = folder.fold_pyramid(model.pool)
        self.smooths = [folder.fold(*pair(layers)) for layers in (model.smooth3, model.smooth2, model.smooth1)]
        self.blend1 = folder.fold(*pair(model.blend1))
        self.classify = folder.fold_classifier(model.classify)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        return shrunk_size(height, width)

    def run_branch(self, stage: int, x: Tensor, past: Tensor, scale: Tensor, context: Tensor, view: View) -> Tensor:
        attended = super().run_branch(stage, x, past, scale, context, view)
        return to_float(self.narrows[stage].relu(attended))

    def decode(self, maps: Sequence[Tensor]) -> Tensor:
        smooth3, smooth2, smooth1 = self.smooths
        x1, x2, x3, x4 = maps
        y3 = smooth3.relu(kernels.add_resized(x3, kernels.pool_pyramid(x4, *self.pyramid)))
        y2 = smooth2.relu(kernels.add_resized(x2, to_float(y3)))
        y1 = kernels.add_resized(x1, to_float(self.blend1.relu(y2)))
        return smooth1.classify(y1, self.classify)[:, : self.classes]


def call_after_res2(maps: Iterable[Tensor], start: Callable[[], None]) -> Iterator[Tensor]:
    """Yield the encoder's maps, and call a function when that of Res-2 is computed."""
    for stage, x in enumerate(maps, 1):
        if stage == 2:
            start()
        yield x


def reduce_map(pool: nn.Module, x: Map) -> Map:
    """Apply the pooling in front of a stage, if there is one."""
    if isinstance(pool, nn.Identity):
        return x
    return kernels.average_pairs(to_float(x)) if isinstance(pool, nn.AvgPool2d) else pool(to_float(x))


def fold_network(model: FANet, precision: torch.dtype) -> Folded:
    """Return the folded form of a network, which is not changed."""
    folder = Folder(model.mean.device, precision)
    model = copy.deepcopy(model).double()
    return FoldedPlus(model, folder) if isinstance(model, FANetPlus) else FoldedFANet(model, folder)


def to_int8(original: Folded, frames: Sequence[Tensor]) -> Folded:
    """Return a copy of a folded network in fp32 with most convolutions in int8.

    The maps between blocks stay in fp32 and are quantised at the input of a convolution. The first block, where
    rounding shows most on flat surfaces such as the sky, attention, and the decoder's 1x1 convolutions stay in fp32.

    Args:
        frames: Calibration frames, (B, 3, H, W) each.
    """
    observed, quantised = observe_ranges(original, frames), copy.copy(original)

    def convert(part: FusedConv, max_output: float | None = None) -> Int8Conv:
        assert isinstance(part, RangeObserver)
        return Int8Conv(part, part.max_input, max_output)

    def convert_block(block: ResidualBlock) -> ResidualBlock:
        first, second, shortcut = block
        assert isinstance(second, RangeObserver)
        return ResidualBlock(
            convert(first, second.max_input), convert(second), None if shortcut is None else convert(shortcut)
        )

    quantised.stages = [[convert_block(block) for block in blocks] for blocks in observed.stages]
    quantised.stages[0][0] = original.stages[0][0]
    quantised.smooths = [convert(part) for part in observed.smooths]
    assert isinstance(observed.stem.convolution, RangeObserver)
    quantised.stem = Int8Stem(observed.stem.convolution, original.mean)
    return quantised


def observe_ranges(folded: Folded, frames: Sequence[Tensor]) -> Folded:
    """Return a copy whose convolutions have observed the ranges of their inputs on frames (B, 3, H, W)."""
    observed = copy.copy(folded)
    observed.stem = Stem(RangeObserver(folded.stem.convolution), folded.mean)
    observed.smooths = [RangeObserver(part) for part in folded.smooths]
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
