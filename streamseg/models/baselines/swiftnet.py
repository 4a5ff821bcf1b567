"""SwiftNetRN-18: a ResNet-18, spatial pyramid pooling, and a light decoder up to 1/4 of the image.

M. Oršić, I. Krešo, P. Bevandić, S. Šegvić, "In Defense of Pre-trained ImageNet Architectures for Real-time Semantic
Segmentation of Road-driving Images", 2019. Layers as in the authors' published code, single scale: the decoder takes
each stage's sum before its last ReLU, and its layers are batch norm, ReLU, convolution, in this order.

Difference: pixels are normalised by ImageNet's mean and std, as everywhere in this package, instead of Cityscapes'. The
FANet paper times a copy with a 3x3 head, without batch norm and without the last resize (106.116 GMACs; it prints 106).

Shapes: B batch, K classes, H height, W width.

Golden: 11,797,071 parameters and 103.566 GMACs at 1024 x 2048 for 19 classes.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.encoder import Block, ResNet, resnet18
from streamseg.models.layers import check_image, init_network, initialise, normalise, resize


class SwiftNet(nn.Module):
    """The deepest map is pooled, then upsampled and added to each shallower one in turn."""

    classes: int
    mean: Tensor
    std: Tensor
    deep_channels = ()

    def __init__(self, encoder: ResNet, classes: int):
        super().__init__()
        init_network(self, classes)
        self.name = f"swiftnet{encoder.depth}"
        self.encoder = encoder
        c1, c2, c3, c4 = encoder.channels
        self.pool = PyramidPooling(c4, 128)
        self.up3 = Up(c3)
        self.up2 = Up(c2)
        self.up1 = Up(c1)
        self.classify = preactivated_conv(128, classes, 1, bias=True)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return resize(logits, image)

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits at 1/4 of the image, and no maps for auxiliary heads."""
        check_image(image)
        x1, x2, x3, x4 = sums_before_relu(self.encoder, normalise(image, self.mean, self.std))
        x = self.pool(x4)
        x = self.up3(x, x3)
        x = self.up2(x, x2)
        x = self.up1(x, x1)
        return self.classify(x), ()


class PyramidPooling(nn.Module):
    """Concatenates a map with its averages over grids of 8, 4 and 2 rows of nearly square cells."""

    rows = (8, 4, 2)

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        # the momentum of the authors' code
        self.narrow = preactivated_conv(inputs, outputs, 1, momentum=0.005)
        self.levels = nn.ModuleList(preactivated_conv(outputs, outputs // 3, 1, momentum=0.005) for _ in self.rows)
        self.fuse = preactivated_conv(outputs + 3 * (outputs // 3), outputs, 1, momentum=0.005)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(x)
        height, width = x.shape[-2:]
        levels = [x]
        for rows, level in zip(self.rows, self.levels, strict=True):
            columns = max(1, round(rows * width / height))
            levels.append(resize(level(F.adaptive_avg_pool2d(x, (rows, columns))), x))
        return self.fuse(torch.cat(levels, dim=1))


class Up(nn.Module):
    """Adds the decoder's map, upsampled, to one of the encoder's."""

    def __init__(self, skip: int):
        super().__init__()
        self.narrow = preactivated_conv(skip, 128, 1)
        self.blend = preactivated_conv(128, 128, 3)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.blend(resize(x, skip) + self.narrow(skip))


def preactivated_conv(
    inputs: int, outputs: int, kernel: int, *, momentum: float = 0.1, bias: bool = False
) -> nn.Sequential:
    """Build a convolution with batch norm and ReLU in front of it."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)
    initialise(convolution)
    return nn.Sequential(nn.BatchNorm2d(inputs, momentum=momentum), nn.ReLU(), convolution)


def sums_before_relu(encoder: ResNet, x: Tensor) -> list[Tensor]:
    """Return the encoder's four maps before their last ReLU."""
    x = encoder.stem(x)
    maps = []
    for stage in (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4):
        for block in cast("Iterable[Block]", stage):
            total = block.add(x)
            x = block.relu(total)
        maps.append(total)
    return maps


def swiftnet18(classes: int = 19) -> SwiftNet:
    """SwiftNetRN-18: 75.4 % mIoU on Cityscapes val, 75.5 on test."""
    return SwiftNet(resnet18("None"), classes)
