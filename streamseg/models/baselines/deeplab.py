"""DeepLab v2 with VGG16: dilated convolutions keep the map at 1/8, and four of them look at four scales.

L.-C. Chen, G. Papandreou, I. Kokkinos, K. Murphy, A. L. Yuille, "DeepLab: Semantic Image Segmentation with Deep
Convolutional Nets, Atrous Convolution, and Fully Connected CRFs", 2018. Layers as in the published configuration for
COCO-Stuff, without a CRF, which is the one whose accuracy the FANet paper prints.

Poolings round up, as there: of 640 pixels they make 81, the last of which lies beyond the image. Ours alone: such
scores are cut before the last resize, so that it moves none of the others.

Shapes: B batch, K classes, H height, W width.

Golden: 38,537,752 parameters and 318.201 GMACs at 640 x 640 for 182 classes.
"""

from functools import partial

import torch
from torch import Tensor, nn

from streamseg.checks import check_count
from streamseg.models.baselines.vgg import GROUPS, group, plain
from streamseg.models.layers import add_pixel_statistics, check_image, initialise, normalise, resize


class DeepLab(nn.Module):
    """VGG16 down to 1/8, and the sum of the scores of four branches."""

    mean: Tensor
    std: Tensor
    name = "deeplab"
    deep_channels = ()

    def __init__(self, classes: int):
        super().__init__()
        check_count("classes", classes)
        self.classes = classes
        add_pixel_statistics(self)
        halve = partial(nn.MaxPool2d, 3, stride=2, padding=1, ceil_mode=True)
        keep = partial(nn.MaxPool2d, 3, stride=1, padding=1)
        first, second, third, fourth, fifth = GROUPS
        self.trunk = nn.Sequential(
            *(group(first), halve()),
            *(group(second), halve()),
            *(group(third), halve()),
            *(group(fourth), keep()),
            *(group(fifth, partial(plain, dilation=2)), keep()),
        )
        self.branches = nn.ModuleList(branch(dilation, classes) for dilation in (6, 12, 18, 24))

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B, K, H, W) of an RGB image (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return resize(logits, image)

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits at 1/8 of the image, and no maps for auxiliary heads."""
        check_image(image)
        x = self.trunk(normalise(image, self.mean, self.std))
        scores = torch.stack([branch(x) for branch in self.branches]).sum(dim=0)
        return scores[..., : -(-image.shape[2] // 8), : -(-image.shape[3] // 8)], ()


def branch(dilation: int, classes: int) -> nn.Sequential:
    """One scale of the atrous spatial pyramid pooling."""
    score = nn.Conv2d(1024, classes, 1)
    initialise(score)
    return nn.Sequential(
        *(plain(512, 1024, dilation=dilation), nn.Dropout(0.5)),
        *(plain(1024, 1024, 1), nn.Dropout(0.5)),
        score,
    )


def deeplab(classes: int = 19) -> DeepLab:
    """DeepLab v2 (VGG16): 26.9 % mIoU on COCO-Stuff."""
    return DeepLab(classes)
