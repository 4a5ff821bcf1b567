"""ENet: a very small network of bottlenecks, most of them at 1/8 of the image.

A. Paszke, A. Chaurasia, S. Kim, E. Culurciello, "ENet: A Deep Neural Network Architecture for Real-Time Semantic
Segmentation", 2016. Where the paper and the authors' published code differ we follow the code, not the later ports: a
bottleneck is a quarter as wide as its output, PReLU has a slope for each channel, the two asymmetric convolutions
follow each other directly, and the expansion has no activation.

Difference: if the sides of an image are not multiples of 8, its last row and column are repeated, and the logits are
cropped.

Shapes: B batch, K classes, H height, W width.

Golden: 364,311 parameters and 3.922 GMACs at 512 x 1024 for 19 classes; 363,791 and 5.082 at 720 x 960 for 11.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.layers import check_image, init_network, normalise, pad_to_multiple, unpool


class ENet(nn.Module):
    """Three stages of the encoder, at 1/4, 1/8 and 1/8, and two of the decoder, at 1/4 and 1/2."""

    classes: int
    mean: Tensor
    std: Tensor
    name = "enet"
    deep_channels = (128,)

    def __init__(self, classes: int):
        super().__init__()
        init_network(self, classes)
        self.initial = Initial()
        self.down1 = Down(3 + 13, 64, dropout=0.01)
        self.stage1 = nn.Sequential(*(Encode(64, square(16), dropout=0.01) for _ in range(4)))
        self.down2 = Down(64, 128, dropout=0.1)
        self.stage2 = eight_bottlenecks()
        self.stage3 = eight_bottlenecks()
        self.up4 = Up(128, 64)
        self.stage4 = nn.Sequential(Decode(64), Decode(64))
        self.up5 = Up(64, 16)
        self.stage5 = Decode(16)
        self.classify = nn.ConvTranspose2d(16, classes, 2, stride=2)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return logits

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits (B, K, H, W), and the encoder's map, on which the authors train the encoder first."""
        check_image(image)
        x0 = self.initial(pad_to_multiple(normalise(image, self.mean, self.std), 8))
        x1, indices1 = self.down1(x0)
        x1 = self.stage1(x1)
        x2, indices2 = self.down2(x1)
        x2 = self.stage3(self.stage2(x2))
        x = self.stage4(self.up4(x2, indices2, x1))
        x = self.stage5(self.up5(x, indices1, x0))
        return self.classify(x)[..., : image.shape[2], : image.shape[3]], (x2,)


class Initial(nn.Module):
    """A strided convolution concatenated with a pooling of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(3, 13, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.Sequential(norm(16), nn.PReLU(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([self.convolve(x), self.pool(x)], dim=1))


class Encode(nn.Module):
    """A bottleneck of the encoder."""

    def __init__(self, channels: int, middle: nn.Module, dropout: float = 0.1):
        super().__init__()
        reduce = nn.Conv2d(channels, channels // 4, 1, bias=False)
        self.branch = encoder_branch(reduce, middle, channels, dropout)
        self.activate = nn.PReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(x + self.branch(x))


class Down(nn.Module):
    """A bottleneck that halves the size; it also returns the indices of its max pooling."""

    def __init__(self, inputs: int, outputs: int, dropout: float):
        super().__init__()
        self.extra = outputs - inputs
        reduce = nn.Conv2d(inputs, outputs // 4, 2, stride=2, bias=False)
        self.branch = encoder_branch(reduce, square(outputs // 4), outputs, dropout)
        self.activate = nn.PReLU(outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pooled, indices = F.max_pool2d_with_indices(x, (2, 2))
        pooled = F.pad(pooled, (0, 0, 0, 0, 0, self.extra))  # channels of zeros
        return self.activate(pooled + self.branch(x)), indices


class Decode(nn.Module):
    """A bottleneck of the decoder: with ReLU, and without dropout."""

    def __init__(self, channels: int):
        super().__init__()
        self.branch = decoder_branch(channels, square(channels // 4), channels)
        self.activate = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(x + self.branch(x))


class Up(nn.Module):
    """A bottleneck that doubles the size, with the indices of the pooling that halved it."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        middle = nn.ConvTranspose2d(outputs // 4, outputs // 4, 3, stride=2, padding=1, output_padding=1)
        self.narrow = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), norm(outputs))
        self.branch = decoder_branch(inputs, middle, outputs)
        self.activate = nn.ReLU()

    def forward(self, x: Tensor, indices: Tensor, pooled: Tensor) -> Tensor:
        return self.activate(unpool(self.narrow(x), indices, pooled.shape) + self.branch(x))


def encoder_branch(reduce: nn.Conv2d, middle: nn.Module, outputs: int, dropout: float) -> nn.Sequential:
    """Build the residual branch of a bottleneck of the encoder."""
    width = outputs // 4
    return nn.Sequential(
        *(reduce, norm(width), nn.PReLU(width)),
        *(middle, norm(width), nn.PReLU(width)),
        *(nn.Conv2d(width, outputs, 1, bias=False), norm(outputs), nn.Dropout2d(dropout)),
    )


def decoder_branch(inputs: int, middle: nn.Module, outputs: int) -> nn.Sequential:
    """Build the residual branch of a bottleneck of the decoder."""
    width = outputs // 4
    return nn.Sequential(
        *(nn.Conv2d(inputs, width, 1, bias=False), norm(width), nn.ReLU()),
        *(middle, norm(width), nn.ReLU()),
        *(nn.Conv2d(width, outputs, 1, bias=False), norm(outputs)),
    )


def eight_bottlenecks() -> nn.Sequential:
    """Build the bottlenecks that the second and the third stage have in common."""
    middles = [square(32), square(32, 2), asymmetric(32), square(32, 4)]
    middles += [square(32), square(32, 8), asymmetric(32), square(32, 16)]
    return nn.Sequential(*(Encode(128, middle) for middle in middles))


def square(channels: int, dilation: int = 1) -> nn.Module:
    """Build a 3x3 convolution, the usual middle of a bottleneck."""
    return nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)


def asymmetric(channels: int) -> nn.Module:
    """Build a 5x5 convolution as a row and a column."""
    row = nn.Conv2d(channels, channels, (1, 5), padding=(0, 2), bias=False)
    return nn.Sequential(row, nn.Conv2d(channels, channels, (5, 1), padding=(2, 0)))


def norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm with the authors' epsilon."""
    return nn.BatchNorm2d(channels, eps=1e-3)


def enet(classes: int = 19) -> ENet:
    """ENet: 51.3 % mIoU on CamVid test."""
    return ENet(classes)
