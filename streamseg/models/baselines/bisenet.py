"""BiSeNet-18: a shallow spatial path for detail, and a ResNet-18 for context.

C. Yu, J. Wang, C. Peng, C. Gao, G. Yu, N. Sang, "BiSeNet: Bilateral Segmentation Network for Real-time Semantic
Segmentation", 2018. Layers as in the public re-implementation that the FANet paper times. Its two auxiliary heads
(150,144 parameters) are left out: their maps are in `outputs`.

Differences: the last resize has align_corners=False, as everywhere in this package. ReLU follows batch norm, as in the
newer file of that re-implementation; the older one has a leaky ReLU of slope 0.01, which its memory-saving batch norm
needs.

Shapes: B batch, K classes, H height, W width.

Golden: 13,242,240 parameters and 66.565 GMACs at 768 x 1536 for 19 classes.
"""

import torch
from torch import Tensor, nn

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


class BiSeNet(nn.Module):
    """Two paths that are fused at 1/8 of the image: the spatial path, and the encoder's two deep maps, resized."""

    classes: int
    mean: Tensor
    std: Tensor
    deep_channels = (128, 128)

    def __init__(self, encoder: ResNet, classes: int):
        super().__init__()
        init_network(self, classes)
        self.name = f"bisenet{encoder.depth}"
        self.spatial = nn.Sequential(
            conv(3, 64, 7, stride=2), conv(64, 64, 3, stride=2), conv(64, 64, 3, stride=2), conv(64, 128, 1)
        )
        self.encoder = encoder
        _, _, c3, c4 = encoder.channels
        self.everywhere = conv(c4, 128, 1)
        self.refine4 = Refine(c4, 128)
        self.refine3 = Refine(c3, 128)
        self.smooth4 = conv(128, 128, 3)
        self.smooth3 = conv(128, 128, 3)
        self.fuse = Fuse(256)
        classifier = nn.Conv2d(256, classes, 1, bias=False)
        initialise(classifier)
        self.classify = nn.Sequential(conv(256, 256, 3), classifier)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return resize(logits, image)

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits at 1/8 of the image, and the maps at 1/8 and 1/16 on which auxiliary heads are trained."""
        check_image(image)
        x = normalise(image, self.mean, self.std)
        detail = self.spatial(x)
        _, x2, x3, x4 = self.encoder(x)
        x4 = self.refine4(x4) + self.everywhere(mean_over_pixels(x4))
        x4 = self.smooth4(resize_nearest(x4, x3))
        x3 = self.smooth3(resize_nearest(self.refine3(x3) + x4, x2))
        return self.classify(self.fuse(torch.cat([detail, x3], dim=1))), (x3, x4)


class Refine(nn.Module):
    """Attention refinement: fewer channels, each multiplied by a weight that is computed from their means."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.narrow = conv(inputs, outputs, 3)
        self.weigh = nn.Sequential(conv(outputs, outputs, 1, relu=False), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(x)
        return x * self.weigh(mean_over_pixels(x))


class Fuse(nn.Module):
    """Feature fusion: a convolution, then each channel amplified by a weight that is computed from their means."""

    def __init__(self, channels: int):
        super().__init__()
        self.mix = conv(channels, channels, 1)
        reduce = nn.Conv2d(channels, channels // 4, 1, bias=False)
        expand = nn.Conv2d(channels // 4, channels, 1, bias=False)
        initialise(reduce)
        initialise(expand)
        self.weigh = nn.Sequential(reduce, nn.ReLU(), expand, nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x)
        return x + x * self.weigh(mean_over_pixels(x))


def mean_over_pixels(x: Tensor) -> Tensor:
    """Return the mean of a map over its pixels (B, C, 1, 1)."""
    return x.mean(dim=(2, 3), keepdim=True)


def bisenet18(classes: int = 19) -> BiSeNet:
    """BiSeNet-18: 74.8 % mIoU on Cityscapes val, 74.7 on test, at 768 x 1536; 68.7 on CamVid; 25.6 on COCO-Stuff."""
    return BiSeNet(resnet18("None"), classes)
