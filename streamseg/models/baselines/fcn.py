"""FCN-16s and FCN-8s: a fully convolutional VGG16 whose scores are upsampled and added to those of shallower layers.

E. Shelhamer, J. Long, T. Darrell, "Fully Convolutional Networks for Semantic Segmentation", 2017. Layers as in the
authors' published networks: 100 pixels of padding, poolings that round up, and fixed crops that undo both. Upsampling
is bilinear and fixed there too, so it is done channel by channel here: the same numbers, for 182 classes with a fifth
fewer MACs. The scores are initialised with zeros, as there.

The FANet paper prints the accuracy of FCN-16s; the two cost nearly the same.

Shapes: B batch, K classes, H height, W width.

Golden at 640 x 640 for 182 classes: FCN-16s 135,288,844 parameters and 269.539 GMACs, FCN-8s 135,198,754 and 270.075;
FCN-8s for 19 classes 134,358,489 and 1098.8 at 1024 x 2048.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.baselines.vgg import init_he, vgg16
from streamseg.models.layers import check_image, init_network, normalise


class FCN(nn.Module):
    """The scores of the last layer plus those of the fourth and, in FCN-8s, the third pooling, upsampled.

    Args:
        offsets: Offsets of the crops that align the scores of the fourth, and the third, pooling with deeper ones.
        margin: Offset of the crop that aligns the upsampled scores with the image.
    """

    classes: int
    mean: Tensor
    std: Tensor
    deep_channels = ()

    def __init__(self, classes: int, offsets: tuple[int, ...], margin: int):
        super().__init__()
        init_network(self, classes)
        stride = 2 ** (5 - len(offsets))
        self.name = f"fcn{stride}s"
        self.margin = margin
        self.trunk = Trunk()
        self.score = zero_conv(4096, classes)
        joins = zip((512, 256), offsets, strict=False)
        self.joins = nn.ModuleList(Join(channels, classes, offset) for channels, offset in joins)
        self.up = bilinear_upsampling(classes, stride)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return logits

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits (B, K, H, W), and no maps for auxiliary heads."""
        check_image(image)
        x3, x4, x7 = self.trunk(normalise(image, self.mean, self.std))
        x = self.score(x7)
        for join, shallow in zip(self.joins, (x4, x3), strict=False):
            x = join(x, shallow)
        return crop(self.up(x), self.margin, image), ()


class Join(nn.Module):
    """Scores, upsampled by 2, plus those of a shallower pooling."""

    def __init__(self, channels: int, classes: int, offset: int):
        super().__init__()
        self.offset = offset
        self.up = bilinear_upsampling(classes, 2)
        self.score = zero_conv(channels, classes)

    def forward(self, x: Tensor, shallow: Tensor) -> Tensor:
        x = self.up(x)
        return x + crop(self.score(shallow), self.offset, x)


class Trunk(nn.Module):
    """VGG16 with its fully connected layers as convolutions: the maps of poolings 3 and 4, and of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = vgg16()
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        fc6, fc7 = nn.Conv2d(512, 4096, 7), nn.Conv2d(4096, 4096, 1)
        init_he(fc6)
        init_he(fc7)
        self.full = nn.Sequential(fc6, nn.ReLU(), nn.Dropout(0.5), fc7, nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # with the padding of the first convolution 100 in all: fc6 needs 7 pixels even on a small image's last map
        x = F.pad(x, (99, 99, 99, 99))
        maps = []
        for layers in self.groups:
            x = self.pool(layers(x))
            maps.append(x)
        return maps[2], maps[3], self.full(x)


def zero_conv(inputs: int, classes: int) -> nn.Conv2d:
    """Build a 1x1 convolution that is initialised with zeros."""
    convolution = nn.Conv2d(inputs, classes, 1)
    for parameter in convolution.parameters():
        nn.init.zeros_(parameter)
    return convolution


def bilinear_upsampling(classes: int, factor: int) -> nn.ConvTranspose2d:
    """Build bilinear upsampling as a transposed convolution that is not trained; `crop` removes its border."""
    transposed = nn.ConvTranspose2d(classes, classes, 2 * factor, stride=factor, groups=classes, bias=False)
    tent = 1 - (torch.arange(2 * factor) - (factor - 0.5)).abs() / factor
    with torch.no_grad():
        transposed.weight.copy_(tent[:, None] * tent)
    return transposed.requires_grad_(False)


def crop(x: Tensor, offset: int, like: Tensor) -> Tensor:
    """Crop a map to the height and width of `like`, from the same offset in both directions."""
    height, width = like.shape[-2:]
    return x[..., offset : offset + height, offset : offset + width]


def fcn16s(classes: int = 19) -> FCN:
    """FCN-16s: 22.7 % mIoU on COCO-Stuff."""
    return FCN(classes, offsets=(5,), margin=27)


def fcn8s(classes: int = 19) -> FCN:
    """FCN-8s: 27.2 % mIoU on COCO-Stuff in that data set's own table."""
    return FCN(classes, offsets=(5, 9), margin=31)
