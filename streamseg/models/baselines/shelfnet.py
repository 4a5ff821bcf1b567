"""ShelfNet-18: a ResNet-18 whose maps go up, down and up again through a decoder, an encoder and a decoder.

J. Zhuang, J. Yang, L. Gu, N. Dvornek, "ShelfNet for Fast Semantic Segmentation", 2019. Layers as in the authors'
published code of the real-time network: three levels, not the paper's four. Left out are a block that this code builds
but never calls (37,184 parameters) and the two auxiliary heads (243,328): their maps are in `outputs`.

Differences: resizes go to the size of the map that they are added to, so that images of any size work; the last one has
align_corners=False; and ReLU follows batch norm where the authors' memory-saving batch norm needs a leaky ReLU of slope
0.01.

Shapes: B batch, K classes, H height, W width.

Golden: 14,320,256 parameters and 98.707 GMACs at 1024 x 2048 for 19 classes (the FANet paper prints 95).
"""

from torch import Tensor, nn

from streamseg.models.baselines.bisenet import Refine
from streamseg.models.encoder import ResNet, resnet18
from streamseg.models.layers import (
    check_image,
    conv,
    init_network,
    initialise,
    normalise,
    resize,
    resize_nearest,
)


class ShelfNet(nn.Module):
    """Four columns over three levels: the encoder, up, down, up. Res-2, Res-3, Res-4 have 64, 128, 256 channels."""

    classes: int
    mean: Tensor
    std: Tensor
    deep_channels = (128, 256)

    def __init__(self, encoder: ResNet, classes: int):
        super().__init__()
        init_network(self, classes)
        self.name = f"shelfnet{encoder.depth}"
        self.encoder = encoder
        _, c2, c3, c4 = encoder.channels
        self.narrow2 = conv(c2, 64, 1)
        self.narrow3 = conv(c3, 128, 1)
        self.narrow4 = conv(c4, 256, 1)
        self.bottom = Shared(256)
        self.first3 = Up(256, 128)
        self.first2 = Up(128, 64)
        self.top = Shared(64)
        self.down2 = Shared(64)
        self.down3 = Shared(128)
        self.down4 = Shared(256)
        self.shrink2 = strided_conv(64, 128)
        self.shrink3 = strided_conv(128, 256)
        self.second3 = Up(256, 128)
        self.second2 = Up(128, 64)
        classifier = nn.Conv2d(64, classes, 3, padding=1, bias=False)
        initialise(classifier)
        self.classify = nn.Sequential(conv(64, 64, 3), classifier)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return resize(logits, image)

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits at 1/8 of the image, and the maps at 1/16 and 1/32 for auxiliary heads."""
        check_image(image)
        _, x2, x3, x4 = self.encoder(normalise(image, self.mean, self.std))
        x2, x3, x4 = self.narrow2(x2), self.narrow3(x3), self.narrow4(x4)

        x4 = self.bottom(x4)
        x3 = self.first3(x4, x3)
        x2 = self.first2(x3, x2)

        x2 = self.down2(self.top(x2) + x2)
        x3 = self.down3(self.shrink2(x2) + x3)
        x4 = self.down4(self.shrink3(x3))

        x3 = self.second3(x4, x3)
        x2 = self.second2(x3, x2)
        return self.classify(x2), (x3, x4)


class Shared(nn.Module):
    """The authors' S-block: a residual block that uses one convolution twice, each time with its own batch norm."""

    def __init__(self, channels: int):
        super().__init__()
        self.convolve = nn.Conv2d(channels, channels, 3, padding=1)
        initialise(self.convolve)
        self.norm1 = nn.BatchNorm2d(channels)
        self.norm2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout2d(0.1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.relu(self.norm1(self.convolve(x))))
        return self.relu(self.norm2(self.convolve(y)) + x)


class Up(nn.Module):
    """Add a deep map, refined and upsampled, to the map of the level above."""

    def __init__(self, deep: int, shallow: int):
        super().__init__()
        self.refine = Refine(deep, shallow)
        self.smooth = conv(shallow, shallow, 3)

    def forward(self, deep: Tensor, shallow: Tensor) -> Tensor:
        return self.smooth(resize_nearest(self.refine(deep), shallow) + shallow)


def strided_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Build a strided convolution to the next deeper level."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
    initialise(convolution)
    return nn.Sequential(convolution, nn.ReLU())


def shelfnet18(classes: int = 19) -> ShelfNet:
    """ShelfNet-18: 74.8 % mIoU on Cityscapes test."""
    return ShelfNet(resnet18("None"), classes)
