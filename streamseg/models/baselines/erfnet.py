"""ERFNet: residual blocks whose 3x3 convolutions are split into columns and rows.

E. Romera, J. M. Álvarez, L. M. Bergasa, R. Arroyo, "ERFNet: Efficient Residual Factorized ConvNet for Real-Time
Semantic Segmentation", 2018. Layers as in the authors' published code, where every convolution has a bias. Their head
for training the encoder alone (2,451 parameters) is not part of the network.

Difference: if the sides of an image are not multiples of 8, its last row and column are repeated, and the logits are
cropped.

Shapes: B batch, K classes, H height, W width.

Golden: 2,064,191 parameters and 26.604 GMACs at 512 x 1024 for 19 classes, 106.417 at 1024 x 2048: the 103 that the
FANet paper prints for 512 x 1024 belongs to the larger size.
"""

import torch
from torch import Tensor, nn

from streamseg.models.layers import check_image, init_network, normalise, pad_to_multiple


class ERFNet(nn.Module):
    """An encoder down to 1/8 and a decoder of two small steps; both of factorised blocks."""

    classes: int
    mean: Tensor
    std: Tensor
    name = "erfnet"
    deep_channels = (128,)

    def __init__(self, classes: int):
        super().__init__()
        init_network(self, classes)
        self.down = nn.Sequential(
            Down(3, 16),
            Down(16, 64),
            *(Factorised(64, dropout=0.03) for _ in range(5)),
            Down(64, 128),
            *(Factorised(128, dilation, dropout=0.3) for dilation in (2, 4, 8, 16, 2, 4, 8, 16)),
        )
        self.up = nn.Sequential(
            *(up(128, 64), Factorised(64), Factorised(64)),
            *(up(64, 16), Factorised(16), Factorised(16)),
        )
        self.classify = nn.ConvTranspose2d(16, classes, 2, stride=2)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return logits

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits (B, K, H, W), and the encoder's map, on which the authors train the encoder first."""
        check_image(image)
        x = self.down(pad_to_multiple(normalise(image, self.mean, self.std), 8))
        logits = self.classify(self.up(x))
        return logits[..., : image.shape[2], : image.shape[3]], (x,)


class Down(nn.Module):
    """A strided convolution concatenated with a pooling."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.convolve = nn.Conv2d(inputs, outputs - inputs, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.Sequential(norm(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([self.convolve(x), self.pool(x)], dim=1))


class Factorised(nn.Module):
    """The authors' non-bottleneck-1D: a residual block of two 3x3 convolutions, each a column and a row."""

    def __init__(self, channels: int, dilation: int = 1, dropout: float = 0.0):
        super().__init__()
        self.branch = nn.Sequential(
            *(column(channels), nn.ReLU(), row(channels), norm(channels), nn.ReLU()),
            *(column(channels, dilation), nn.ReLU(), row(channels, dilation), norm(channels), nn.Dropout2d(dropout)),
        )
        self.activate = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(x + self.branch(x))


def column(channels: int, dilation: int = 1) -> nn.Conv2d:
    """A convolution of 3x1 pixels."""
    return nn.Conv2d(channels, channels, (3, 1), padding=(dilation, 0), dilation=(dilation, 1))


def row(channels: int, dilation: int = 1) -> nn.Conv2d:
    """A convolution of 1x3 pixels."""
    return nn.Conv2d(channels, channels, (1, 3), padding=(0, dilation), dilation=(1, dilation))


def up(inputs: int, outputs: int) -> nn.Sequential:
    """Build a transposed convolution that doubles the size."""
    transposed = nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1)
    return nn.Sequential(transposed, norm(outputs), nn.ReLU())


def norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm with the authors' epsilon."""
    return nn.BatchNorm2d(channels, eps=1e-3)


def erfnet(classes: int = 19) -> ERFNet:
    """ERFNet: 71.5 % mIoU on Cityscapes val, 69.7 on test, at 512 x 1024."""
    return ERFNet(classes)
