"""Folds batch norm into the convolutions of a network, and converts them to a precision.

Shapes: C channels, D key channels, L levels of the pyramid, N channels of each.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from streamseg.engine.convolutions import FusedConv, GpuConv, WinogradConv
from streamseg.engine.scratch import Scratch
from streamseg.models.attention import FastAttention
from streamseg.models.encoder import Block
from streamseg.models.fanet_plus import PyramidPooling

WINOGRAD_CHANNELS = (128, 256)
"""Channels of the 3x3 convolutions that Winograd's algorithm makes faster on a CPU; others take as long or longer."""


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


class PyramidWeights(NamedTuple):
    """The weights of pyramid pooling after its first convolution, in the layout of kernels.pool_pyramid."""

    level_weight: Tensor
    level_bias: Tensor
    fuse_weight: Tensor
    own_weight: Tensor
    bias: Tensor


class Folder:
    """Folds the layers of a network, given in fp64, for a device and in a precision."""

    def __init__(self, device: torch.device, precision: torch.dtype):
        self.device, self.precision = device, precision
        self.conv = GpuConv if device.type == "cuda" else FusedConv

    def convert(self, x: Tensor) -> Tensor:
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        return x.detach().to(self.precision).contiguous(memory_format=layout)

    def fold(self, convolution: nn.Module, norm: nn.Module, scratch: Scratch | None = None) -> FusedConv:
        """Fold a convolution and its batch norm.

        Args:
            scratch: Memory for Winograd's algorithm, shared by convolutions of maps of one size.
        """
        fused, bias = fuse(convolution, norm)
        stride, padding = fused.stride[0], int(fused.padding[0])
        folded = self.conv(self.convert(fused.weight), self.convert(bias), stride, padding)
        on_cpu = self.conv is FusedConv and self.precision == torch.float32
        fits = fused.kernel_size == (3, 3) and stride == 1 and fused.in_channels in WINOGRAD_CHANNELS
        return WinogradConv(folded, scratch or Scratch()) if on_cpu and fits else folded

    def fold_stage(self, blocks: nn.Module) -> list[ResidualBlock]:
        """Fold the blocks of one of the encoder's stages."""
        scratch, folded = Scratch(), []
        for block in blocks.children():
            assert isinstance(block, Block)
            shortcut = self.fold(*pair(block.downsample)) if isinstance(block.downsample, nn.Sequential) else None
            first, second = self.fold(block.conv1, block.bn1, scratch), self.fold(block.conv2, block.bn2, scratch)
            folded.append(ResidualBlock(first, second, shortcut))
        return folded

    def fold_attention(self, module: object) -> AttentionWeights:
        assert isinstance(module, FastAttention)
        parts = [fuse(*pair(part)) for part in (module.query, module.key, module.value)]
        weight = torch.cat([part.weight.flatten(1) for part, _ in parts]).T
        bias = torch.cat([bias for _, bias in parts])
        out, out_bias = fuse(*pair(module.out))
        out_weight = out.weight.flatten(1).T
        return AttentionWeights(*map(self.convert, (weight, bias, out_weight, out_bias)))

    def fold_pyramid(self, module: PyramidPooling) -> PyramidWeights:
        levels = [fuse(*pair(level)) for level in module.levels if isinstance(level, nn.Sequential)]
        fused, bias = fuse(*pair(module.fuse))
        level_weight = torch.stack([level.weight.flatten(1).T for level, _ in levels])  # (L, C, N)
        level_bias = torch.stack([bias for _, bias in levels])
        _, inputs, outputs = level_weight.shape
        own, *rest = fused.weight.flatten(1).T.split([inputs, *[outputs] * len(levels)])
        return PyramidWeights(*map(self.convert, (level_weight, level_bias, torch.stack(rest), own, bias)))

    def fold_classifier(self, classifier: nn.Module) -> FusedConv:
        """Convert the classifier, padded to a multiple of 8 classes for tensor cores."""
        assert isinstance(classifier, nn.Conv2d)
        classes = classifier.out_channels
        bias = classifier.weight.new_zeros(classes) if classifier.bias is None else classifier.bias
        weight = F.pad(classifier.weight, (0, 0, 0, 0, 0, 0, 0, -classes % 8))
        return self.conv(self.convert(weight), self.convert(F.pad(bias, (0, -classes % 8))))


def pair(layers: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return the convolution and the batch norm at the start of layers."""
    assert isinstance(layers, nn.Sequential)
    return layers[0], layers[1]


def fuse(convolution: nn.Module, norm: nn.Module) -> tuple[nn.Conv2d, Tensor]:
    """Fold batch norm into a convolution; return it and its bias."""
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    fused = fuse_conv_bn_eval(convolution, norm)
    assert fused.bias is not None
    return fused, fused.bias
