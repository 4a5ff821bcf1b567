"""An image network of this package in the parts that video methods keep, warp or skip.

    image ──shallow──▶ x1, x2 ──deep──▶ x3 ──merge──▶ features ──head──▶ logits

The shallow part is the encoder up to Res-2, the deep part the rest of it with what the decoder makes of Res-3 and
Res-4. The features are the last map of the decoder, before the last ReLU: to warp and to mix them is cheap, and the
head is little more than a 1x1 convolution. The parts one after the other are exactly the network.

Shapes: B batch, K classes, C channels of the features, H height, W width, h x w the map of Res-1.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from streamseg.models.baselines.swiftnet import SwiftNet
from streamseg.models.encoder import Block, ResNet
from streamseg.models.fanet import FANet
from streamseg.models.fanet_plus import FANetPlus, shrink
from streamseg.models.layers import normalise, resize


class Shallow(NamedTuple):
    """The result of the shallow part."""

    x1: Tensor
    """Res-1 as the decoder takes it."""
    x2: Tensor
    """Res-2 as the decoder takes it."""
    out: Tensor
    """Res-2 as Res-3 takes it, (B, 128, h / 2, w / 2)."""


class Backbone(nn.Module, ABC):
    """An image network in parts; split() builds it.

    Attributes:
        classes: Number of classes.
        channels: Channels of the features.
        deep_channels: Channels of the deep part's map.
    """

    classes: int
    channels: int
    deep_channels: int
    shallow_channels = 128
    """Channels of the shallow part's Res-2 map."""

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of an image on its own: exactly those of the network."""
        return resize(self.head(self.features(image)), image)

    def features(self, image: Tensor) -> Tensor:
        """Return the features (B, C, h, w) of RGB images (B, 3, H, W)."""
        shallow = self.shallow(image)
        return self.merge(shallow, self.deep(shallow))

    @abstractmethod
    def shallow(self, image: Tensor) -> Shallow:
        """Return the maps of Res-1 and Res-2."""

    @abstractmethod
    def deep(self, shallow: Shallow) -> Tensor:
        """Return the map that the decoder makes of Res-3 and Res-4, at the size of Res-3."""

    @abstractmethod
    def merge(self, shallow: Shallow, deep: Tensor) -> Tensor:
        """Return the features (B, C, h, w) of a shallow and a deep map, which may be of different frames."""

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Return the logits (B, K, h, w) of features."""


class SwiftNetBackbone(Backbone):
    """SwiftNet: the features are at 1/4 of the image."""

    channels = 128
    deep_channels = 128

    def __init__(self, network: SwiftNet):
        super().__init__()
        self.classes = network.classes
        self.network = network

    def shallow(self, image: Tensor) -> Shallow:
        network = self.network
        x = network.encoder.stem(normalise(image, network.mean, network.std))
        x1 = sum_before_relu(network.encoder.layer1, x)
        x2 = sum_before_relu(network.encoder.layer2, x1.relu())
        return Shallow(x1, x2, x2.relu())

    def deep(self, shallow: Shallow) -> Tensor:
        network = self.network
        x3 = sum_before_relu(network.encoder.layer3, shallow.out)
        x4 = sum_before_relu(network.encoder.layer4, x3.relu())
        return network.up3(network.pool(x4), x3)

    def merge(self, shallow: Shallow, deep: Tensor) -> Tensor:
        return self.network.up1(self.network.up2(deep, shallow.x2), shallow.x1)

    def head(self, features: Tensor) -> Tensor:
        return self.network.classify(features)


class FANetBackbone(Backbone):
    """FANet, each frame on its own: the features are at 1/8 of the image."""

    channels = 256
    deep_channels = 256

    def __init__(self, network: FANet):
        super().__init__()
        self.classes = network.classes
        self.network = network
        check_resnet(network)

    def shallow(self, image: Tensor) -> Shallow:
        network = self.network
        x1, x2 = shallow_maps(cast("ResNet", network.encoder), normalise(image, network.mean, network.std))
        attended1, _ = network.attend1(x1)
        attended2, _ = network.attend2(x2)
        return Shallow(attended1, attended2, x2)

    def deep(self, shallow: Shallow) -> Tensor:
        network = self.network
        x3, x4 = attended_deep_maps(network, shallow.out)
        return x3 + resize(network.narrow4(x4), x3)

    def merge(self, shallow: Shallow, deep: Tensor) -> Tensor:
        network = self.network
        x2 = shallow.x2 + resize(network.narrow3(deep), shallow.x2)
        x1 = shallow.x1 + resize(network.narrow2(x2), shallow.x1)
        x = torch.cat([resize(network.smooth3(deep), x1), network.smooth1(x1)], dim=1)
        return without_relu(network.classify[0], x)

    def head(self, features: Tensor) -> Tensor:
        return self.network.classify[1](features.relu())


class FANetPlusBackbone(FANetBackbone):
    """FANet+, each frame on its own: the features are at 3/16 of the image."""

    network: FANetPlus
    channels = 64
    deep_channels = 128

    def shallow(self, image: Tensor) -> Shallow:
        network = self.network
        x1, x2 = shallow_maps(cast("ResNet", network.encoder), shrink(normalise(image, network.mean, network.std)))
        return Shallow(x1, x2, x2)

    def deep(self, shallow: Shallow) -> Tensor:
        network = self.network
        x3, x4 = attended_deep_maps(network, shallow.out)
        y3 = network.narrow3(x3)
        return network.smooth3(y3 + resize(network.pool(x4), y3))

    def merge(self, shallow: Shallow, deep: Tensor) -> Tensor:
        network = self.network
        y2 = network.narrow2(shallow.x2)
        y2 = network.smooth2(y2 + resize(deep, y2))
        y1 = network.narrow1(shallow.x1)
        return without_relu(network.smooth1, y1 + resize(network.blend1(y2), y1))

    def head(self, features: Tensor) -> Tensor:
        return self.network.classify(features.relu())


def split(network: nn.Module) -> Backbone:
    """Return an image network in parts, which share its weights; a ValueError if video methods cannot split it."""
    if isinstance(network, SwiftNet):
        return SwiftNetBackbone(network)
    if isinstance(network, FANetPlus):
        return FANetPlusBackbone(network)
    if isinstance(network, FANet):
        return FANetBackbone(network)
    raise ValueError(
        f"The backbone is a {type(network).__name__}; expected a network that video methods can split: "
        "swiftnet18, fanet18, fanet34, fanetplus18 or fanetplus34."
    )


def check_resnet(network: FANet) -> None:
    """Raise a ValueError if the encoder of a FANet has no stages that can be run one by one."""
    if not isinstance(network.encoder, ResNet):
        raise ValueError(
            f"The backbone's encoder is a {type(network.encoder).__name__}; expected a ResNet, such as fanet18()."
        )


def shallow_maps(encoder: ResNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps of Res-1 and Res-2 of normalised images."""
    x1 = encoder.layer1(encoder.pool[1](encoder.stem(x)))
    return x1, encoder.layer2(encoder.pool[2](x1))


def attended_deep_maps(network: FANet, x2: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps of Res-3 and Res-4 that follow from that of Res-2, after attention."""
    encoder = cast("ResNet", network.encoder)
    x3 = encoder.layer3(encoder.pool[3](x2))
    x4 = encoder.layer4(encoder.pool[4](x3))
    x3, _ = network.attend3(x3)
    x4, _ = network.attend4(x4)
    return x3, x4


def sum_before_relu(stage: nn.Module, x: Tensor) -> Tensor:
    """Return the map of a ResNet's stage before its last ReLU."""
    for block in cast("Iterable[Block]", stage):
        total = block.add(x)
        x = block.relu(total)
    return total


def without_relu(layers: nn.Module, x: Tensor) -> Tensor:
    """Apply a convolution and its batch norm, but not the ReLU behind them."""
    convolution, norm, _ = cast("Iterable[nn.Module]", layers)
    return norm(convolution(x))
