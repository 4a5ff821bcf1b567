"""ICNet: the deep layers run on a small image, and two shallow branches restore the detail.

H. Zhao, X. Qi, X. Shen, J. Shi, J. Jia, "ICNet for Real-Time Semantic Segmentation on High-Resolution Images", 2018.
Layers as in the authors' published network: PSPNet-50 at half its width, with the stride of a bottleneck in its first
1x1 convolution. The two auxiliary heads (7,334 parameters) are left out: their maps are in `outputs`.

Differences: resizes have align_corners=False, as everywhere in this package, and they round sizes up, so that images of
any size work and 1025 x 2049 gives the authors' sizes.

Shapes: B batch, K classes, H height, W width.

Golden for 19 classes: 6,699,987 parameters; 29.812 GMACs at 1025 x 2049, 29.029 at 1024 x 2048.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.layers import check_image, conv, init_network, normalise, resize, resize_to


class ICNet(nn.Module):
    """Three branches, named as in the paper: sub1 goes down to 1/8, sub2 to 1/16, and sub4 from there to 1/32."""

    classes: int
    mean: Tensor
    std: Tensor
    name = "icnet"
    deep_channels = (128, 256)

    def __init__(self, classes: int):
        super().__init__()
        init_network(self, classes)
        self.sub1 = nn.Sequential(conv(3, 32, 3, stride=2), conv(32, 32, 3, stride=2), conv(32, 64, 3, stride=2))
        self.sub2 = nn.Sequential(
            *(conv(3, 32, 3, stride=2), conv(32, 32, 3), conv(32, 64, 3), nn.MaxPool2d(3, stride=2, padding=1)),
            *bottlenecks(3, 64, 32),
            Bottleneck(128, 64, stride=2),
        )
        self.sub4 = nn.Sequential(
            *bottlenecks(3, 256, 64),
            *bottlenecks(6, 256, 128, dilation=2),
            *bottlenecks(3, 512, 256, dilation=4),
        )
        self.narrow = conv(1024, 256, 1)
        self.fuse2 = Fuse(256, 256)
        self.fuse1 = Fuse(128, 64)
        self.classify = nn.Conv2d(128, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return resize(logits, image)

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits at 1/4 of the image, and the maps at 1/16 and 1/32 for auxiliary heads."""
        check_image(image)
        x = normalise(image, self.mean, self.std)
        x1 = self.sub1(x)
        x2 = self.sub2(shrink(x, 2))
        x4 = self.narrow(pool_pyramid(self.sub4(shrink(x2, 2))))

        x2 = self.fuse2(x4, x2)
        x1 = self.fuse1(x2, x1)
        return self.classify(resize_to(x1, *divided_size(image, 4))), (x2, x4)


class Bottleneck(nn.Module):
    """ResNet's bottleneck, four times as wide at its end; the first of a stage has a convolution in its shortcut."""

    def __init__(self, inputs: int, width: int, *, stride: int = 1, dilation: int = 1):
        super().__init__()
        outputs = 4 * width
        self.branch = nn.Sequential(
            conv(inputs, width, 1, stride=stride),
            conv(width, width, 3, dilation=dilation),
            conv(width, outputs, 1, relu=False),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = conv(inputs, outputs, 1, relu=False, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.branch(x) + self.shortcut(x))


class Fuse(nn.Module):
    """Cascade feature fusion: a deep map, enlarged, and a shallow one become one of 128 channels."""

    def __init__(self, deep: int, shallow: int):
        super().__init__()
        self.deep = conv(deep, 128, 3, relu=False, dilation=2)
        self.shallow = conv(shallow, 128, 1, relu=False)
        self.relu = nn.ReLU()

    def forward(self, deep: Tensor, shallow: Tensor) -> Tensor:
        return self.relu(self.deep(resize(deep, shallow)) + self.shallow(shallow))


def bottlenecks(count: int, inputs: int, width: int, dilation: int = 1) -> list[Bottleneck]:
    """Build a stage of bottlenecks."""
    rest = [Bottleneck(4 * width, width, dilation=dilation) for _ in range(count - 1)]
    return [Bottleneck(inputs, width, dilation=dilation), *rest]


def pool_pyramid(x: Tensor) -> Tensor:
    """Add to a map its averages over grids of 1, 2, 3 and 6 bins in each direction."""
    return x + torch.stack([resize(F.adaptive_avg_pool2d(x, bins), x) for bins in (1, 2, 3, 6)]).sum(dim=0)


def shrink(x: Tensor, factor: int) -> Tensor:
    """Downsample a map or an image by a factor."""
    return resize_to(x, *divided_size(x, factor))


def divided_size(x: Tensor, factor: int) -> tuple[int, int]:
    """Return height and width of a map divided by a factor, rounded up."""
    return -(-x.shape[2] // factor), -(-x.shape[3] // factor)


def icnet(classes: int = 19) -> ICNet:
    """ICNet: 67.7 % mIoU on Cityscapes val, 69.5 on test; 67.1 on CamVid; 29.1 on COCO-Stuff."""
    return ICNet(classes)
