"""SegNet: VGG16 and a mirrored decoder, which unpools with the indices of the max poolings.

V. Badrinarayanan, A. Kendall, R. Cipolla, "SegNet: A Deep Convolutional Encoder-Decoder Architecture for Image
Segmentation", 2017. Layers as in the authors' published network: every convolution has a bias although batch norm
follows, the last convolution of a decoder group changes the channels, and there is no dropout.

Shapes: B batch, K classes, H height, W width.

Golden: 29,453,971 parameters and 142.779 GMACs at 360 x 640 for 19 classes; 29,449,355 and 426.000 at 720 x 960 for 11.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.baselines.vgg import batch_norm_conv, group, init_he, vgg16
from streamseg.models.layers import check_image, init_network, normalise, unpool


class SegNet(nn.Module):
    """The encoder's five groups each end in a pooling; the decoder's five each begin by undoing one."""

    classes: int
    mean: Tensor
    std: Tensor
    name = "segnet"
    deep_channels = ()

    def __init__(self, classes: int):
        super().__init__()
        init_network(self, classes)
        self.down = vgg16(batch_norm_conv)
        widths = ((512, 512, 512, 512), (512, 512, 512, 256), (256, 256, 256, 128), (128, 128, 64), (64, 64))
        self.up = nn.ModuleList(group(channels, batch_norm_conv) for channels in widths)
        self.classify = nn.Conv2d(64, classes, 3, padding=1)
        init_he(self.classify)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.outputs(image)
        return logits

    def outputs(self, image: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits (B, K, H, W), and no maps for auxiliary heads."""
        check_image(image)
        x = normalise(image, self.mean, self.std)
        sizes, indices = [], []
        for layers in self.down:
            x = layers(x)
            sizes.append(x.shape)
            x, maxima = F.max_pool2d_with_indices(x, (2, 2))
            indices.append(maxima)
        for layers in self.up:
            x = layers(unpool(x, indices.pop(), sizes.pop()))
        return self.classify(x), ()


def segnet(classes: int = 19) -> SegNet:
    """SegNet: 56.1 % mIoU on Cityscapes test, at 360 x 640."""
    return SegNet(classes)
