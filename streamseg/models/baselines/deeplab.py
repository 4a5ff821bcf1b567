"""DeepLab v2 with VGG16: dilated convolutions keep the map at 1/8, and four branches cover four scales.

L.-C. Chen, G. Papandreou, I. Kokkinos, K. Murphy, A. L. Yuille, "DeepLab: Semantic Image Segmentation with Deep
Convolutional Nets, Atrous Convolution, and Fully Connected CRFs", 2018. Layers as in the published configuration for
COCO-Stuff, without a CRF: the FANet paper prints its accuracy.

Poolings round up, as there: 640 pixels become 81, the last of which lies outside the image. Difference: such scores are
cropped before the last resize, so that it does not shift the others.

Shapes: B batch, K classes, H height, W width.

Golden: 38,537,752 parameters and 318.201 GMACs at 640 x 640 for 182 classes.
"""

from functools import partial

import torch
from torch import Tensor, nn

from streamseg.models.baselines.vgg import GROUPS, group, relu_conv
from streamseg.models.layers import check_image, init_network, initialise, normalise, resize


class DeepLab(nn.Module):
    """VGG16 down to 1/8, and the sum of the scores of four branches."""

    classes: int
    mean: Tensor
    std: Tensor
    name = "deeplab"
    deep_channels = ()

    def __init__(self, classes: int):
        super().__init__()
        init_network(self, classes)
        halve = partial(nn.MaxPool2d, 3, stride=2, padding=1, ceil_mode=True)
        keep = partial(nn.MaxPool2d, 3, stride=1, padding=1)
        first, second, third, fourth, fifth = GROUPS
        self.trunk = nn.Sequential(
            *(group(first), halve()),
            *(group(second), halve()),
            *(group(third), halve()),
            *(group(fourth), keep()),
            *(group(fifth, partial(relu_conv, dilation=2)), keep()),
        )
        self.branches = nn.ModuleList(branch(dilation, classes) for dilation in (6, 12, 18, 24))

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return resize(logits, image)

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits at 1/8 of the image, and no maps for auxiliary heads."""
        check_image(image)
        x = self.trunk(normalise(image, self.mean, self.std))
        scores = torch.stack([branch(x) for branch in self.branches]).sum(dim=0)
        return scores[..., : -(-image.shape[2] // 8), : -(-image.shape[3] // 8)], ()


def branch(dilation: int, classes: int) -> nn.Sequential:
    """Build one scale of the atrous spatial pyramid pooling."""
    score = nn.Conv2d(1024, classes, 1)
    initialise(score)
    return nn.Sequential(
        *(relu_conv(512, 1024, dilation=dilation), nn.Dropout(0.5)),
        *(relu_conv(1024, 1024, 1), nn.Dropout(0.5)),
        score,
    )


def deeplab(classes: int = 19) -> DeepLab:
    """DeepLab v2 (VGG16): 26.9 % mIoU on COCO-Stuff."""
    return DeepLab(classes)
