"""VGG16's convolutions, the encoder of SegNet, FCN and DeepLab (Simonyan and Zisserman 2015).

Only the thirteen convolutions, because each network has its own poolings. 14,714,688 parameters without batch norm, in
the order of the published ImageNet weights.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

GROUPS = ((3, 64, 64), (64, 128, 128), (128, 256, 256, 256), (256, 512, 512, 512), (512, 512, 512, 512))
"""The channels before, between and after the convolutions of each group."""


def relu_conv(inputs: int, outputs: int, kernel: int = 3, dilation: int = 1) -> nn.Sequential:
    """Build a convolution with a bias, and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=dilation * (kernel // 2), dilation=dilation)
    init_he(convolution)
    return nn.Sequential(convolution, nn.ReLU())


def batch_norm_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Build a convolution with a bias, batch norm, and ReLU."""
    convolution, relu = relu_conv(inputs, outputs)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), relu)


def init_he(convolution: nn.Conv2d) -> None:
    """Initialise a convolution so that ReLUs keep the variance, which deep networks without batch norm need."""
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


def group(channels: Sequence[int], layer: Callable[[int, int], nn.Module] = relu_conv) -> nn.Sequential:
    """Build convolutions from each number of channels to the next."""
    return nn.Sequential(*(layer(inputs, outputs) for inputs, outputs in pairwise(channels)))


def vgg16(layer: Callable[[int, int], nn.Module] = relu_conv) -> nn.ModuleList:
    """Build the five groups of VGG16."""
    return nn.ModuleList(group(channels, layer) for channels in GROUPS)
