"""FCN-16s and FCN-8s: VGG16 made convolutional to its last layer, its scores enlarged and joined with shallower ones.

E. Shelhamer, J. Long, T. Darrell, "Fully Convolutional Networks for Semantic Segmentation", 2017. Layers as in the
authors' published networks: 100 pixels of padding, poolings that round up, and fixed crops that undo both. Enlarging is
bilinear and fixed there as well, so we do it channel by channel: the same numbers, for 182 classes with a fifth fewer
MACs. The scores start at zero, as there.

The FANet paper prints the accuracy of FCN-16s; the two cost nearly the same.

Shapes: B batch, K classes, H height, W width.

Golden at 640 x 640 for 182 classes: FCN-16s 135,288,844 parameters and 269.539 GMACs, FCN-8s 135,198,754 and 270.075;
FCN-8s for 19 classes 134,358,489 and 1098.8 at 1024 x 2048.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.checks import check_count
from streamseg.models.baselines.vgg import start, vgg16
from streamseg.models.layers import add_pixel_statistics, check_image, normalise


class FCN(nn.Module):
    """The scores of the last layer, joined with those of the fourth pooling, and maybe the third, and enlarged.

    Args:
        offsets: Where the scores of the fourth pooling, and of the third, are cut, so that they lie on those below.
        margin: Where the enlarged scores are cut, so that they lie on the image.
    """

    mean: Tensor
    std: Tensor
    deep_channels = ()

    def __init__(self, classes: int, offsets: tuple[int, ...], margin: int):
        super().__init__()
        check_count("classes", classes)
        stride = 2 ** (5 - len(offsets))
        self.name = f"fcn{stride}s"
        self.classes = classes
        self.margin = margin
        add_pixel_statistics(self)
        self.trunk = Trunk()
        self.score = score(4096, classes)
        joins = zip((512, 256), offsets, strict=False)
        self.joins = nn.ModuleList(Join(channels, classes, offset) for channels, offset in joins)
        self.up = enlarge(classes, stride)

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B, K, H, W) of an RGB image (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return logits

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits (B, K, H, W), and no maps for auxiliary heads."""
        check_image(image)
        x3, x4, x7 = self.trunk(normalise(image, self.mean, self.std))
        x = self.score(x7)
        for join, shallow in zip(self.joins, (x4, x3), strict=False):
            x = join(x, shallow)
        return crop(self.up(x), self.margin, image), ()


class Join(nn.Module):
    """Scores, enlarged twice, and those of a shallower pooling."""

    def __init__(self, channels: int, classes: int, offset: int):
        super().__init__()
        self.offset = offset
        self.up = enlarge(classes, 2)
        self.score = score(channels, classes)

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
        start(fc6)
        start(fc7)
        self.full = nn.Sequential(fc6, nn.ReLU(), nn.Dropout(0.5), fc7, nn.ReLU(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # the first convolution pads the hundredth: fc6 needs 7 pixels even of a small image's last map
        x = F.pad(x, (99, 99, 99, 99))
        maps = []
        for layers in self.groups:
            x = self.pool(layers(x))
            maps.append(x)
        return maps[2], maps[3], self.full(x)


def score(inputs: int, classes: int) -> nn.Conv2d:
    """Scores that are zero before training."""
    convolution = nn.Conv2d(inputs, classes, 1)
    for parameter in convolution.parameters():
        nn.init.zeros_(parameter)
    return convolution


def enlarge(classes: int, factor: int) -> nn.ConvTranspose2d:
    """Bilinear enlargement as a transposed convolution that is not trained; it leaves a border for `crop`."""
    transposed = nn.ConvTranspose2d(classes, classes, 2 * factor, stride=factor, groups=classes, bias=False)
    tent = 1 - (torch.arange(2 * factor) - (factor - 0.5)).abs() / factor
    with torch.no_grad():
        transposed.weight.copy_(tent[:, None] * tent)
    return transposed.requires_grad_(False)


def crop(x: Tensor, offset: int, like: Tensor) -> Tensor:
    """A part of a map, from an offset each way, of another's height and width."""
    height, width = like.shape[-2:]
    return x[..., offset : offset + height, offset : offset + width]


def fcn16s(classes: int = 19) -> FCN:
    """FCN-16s: 22.7 % mIoU on COCO-Stuff."""
    return FCN(classes, offsets=(5,), margin=27)


def fcn8s(classes: int = 19) -> FCN:
    """FCN-8s: 27.2 % mIoU on COCO-Stuff in that data set's own table."""
    return FCN(classes, offsets=(5, 9), margin=31)
