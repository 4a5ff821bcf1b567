"""FANet, the network of "Real-time Semantic Segmentation with Fast Attention", for images and for video.

Shapes: B batch, K classes, H height, W width, D key channels (the paper's c'), C channels of a stage.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from streamseg.checks import check_count
from streamseg.models.attention import (
    ATTENTIONS,
    ChannelAttention,
    DotAttention,
    FastAttention,
    NoAttention,
    Scale,
    SelfAttention,
)
from streamseg.models.encoder import ReduceBy, Reduction, ResNet, resnet18, resnet34
from streamseg.models.layers import (
    MIN_SIDE as MIN_SIDE,
    add_pixel_statistics,
    check_image,
    conv,
    describe_type as describe_type,
    initialise,
    normalise,
    resize,
)

Attention = type[FastAttention | DotAttention | SelfAttention | ChannelAttention | NoAttention]
Maps = tuple[Tensor, Tensor, Tensor, Tensor]
Context = tuple[Tensor, Tensor, Tensor, Tensor]
"""What a frame leaves to later ones: a matrix (B, D, C) for each of Res-1 … Res-4, whatever the image's size."""


class FANet(nn.Module):
    """Fast Attention Network (paper Fig. 2a).

    An encoder, fast attention on each of its four stages, and a decoder that merges them from deep to shallow.

    Args:
        encoder: Makes the four feature maps.
        classes: How many classes to tell apart.
        attention: One of FastAttention and its rivals DotAttention, SelfAttention, ChannelAttention, NoAttention.
        key_channels: Channels of query and key, the paper's c'.
        averages: Whether it attends to the mean of the frames in the window, which fits any window, rather than to
            their sum, as in the paper.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: ResNet, classes: int, attention: Attention, key_channels: int, averages: bool = False):
        super().__init__()
        check_count("classes", classes)
        check_count("key_channels", key_channels)
        if attention not in ATTENTIONS.values():
            given = " ".join(repr(attention).split())
            raise ValueError(f"attention is {given:.80}; choose one of the classes {', '.join(ATTENTIONS)}.")
        self.classes = classes
        self.key_channels = key_channels
        self.averages = averages
        add_pixel_statistics(self)

        self.encoder = encoder
        self.deep_channels = encoder.channels[2:]
        c1, c2, c3, c4 = encoder.channels
        self.attend1 = attention(c1, key_channels)
        self.attend2 = attention(c2, key_channels)
        self.attend3 = attention(c3, key_channels)
        self.attend4 = attention(c4, key_channels)
        self.narrow4 = conv(c4, c3, 1)
        self.narrow3 = conv(c3, c2, 1)
        self.narrow2 = conv(c2, c1, 1)
        self.smooth3 = conv(c3, 128, 3)
        self.smooth1 = conv(c1, 128, 3)
        classifier = nn.Conv2d(256, classes, 1, bias=False)
        initialise(classifier)
        self.classify = nn.Sequential(conv(256, 256, 3), classifier)

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B, K, H, W) of an RGB image (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.step(image)
        return logits

    def step(self, image: Tensor, past: Sequence[Tensor] | None = None, weight: Scale = 1.0) -> tuple[Tensor, Context]:
        """Logits (B, K, H, W) of the next frame of a video, and the context that it leaves to later frames.

        Args:
            image: RGB (B, 3, H, W), bytes or floats in 0–255; each entry of the batch is a stream of its own.
            past: The sum of the contexts of the earlier frames in the window, stage by stage; None for the first.
            weight: How many frames that sum is of, for a network that averages; (B, 1, 1) where streams differ.
        """
        self.check(image, past)
        maps, context = self.features(image, past, weight)
        return resize(self.score(maps), image), context

    def outputs(
        self, image: Tensor, past: Sequence[Tensor] | None = None, weight: Scale = 1.0
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits at the size of Res-1's map, and the maps of Res-3 and Res-4, on which auxiliary heads are trained."""
        maps, _ = self.features(image, past, weight)
        return self.score(maps), maps[2:]

    def features(
        self, image: Tensor, past: Sequence[Tensor] | None = None, weight: Scale = 1.0
    ) -> tuple[Maps, Context]:
        """The maps of Res-1 … Res-4 after attention and merging, and the context."""
        maps, context = self.attend(self.encode(image), past, weight)
        return self.merge(maps), context

    def encode(self, image: Tensor) -> Maps:
        """The encoder's maps of Res-1 … Res-4; no past reaches them."""
        return self.encoder(normalise(image, self.mean, self.std))

    def attend(self, maps: Maps, past: Sequence[Tensor] | None = None, weight: Scale = 1.0) -> tuple[Maps, Context]:
        """The four maps after attention, and the context, which is the maps' own, whatever the past."""
        x1, x2, x3, x4 = maps
        past1, past2, past3, past4 = (None, None, None, None) if past is None else past
        scale = 1 / (1 + weight) if self.averages else None
        x1, context1 = self.attend1(x1, past1, scale)
        x2, context2 = self.attend2(x2, past2, scale)
        x3, context3 = self.attend3(x3, past3, scale)
        x4, context4 = self.attend4(x4, past4, scale)
        return (x1, x2, x3, x4), (context1, context2, context3, context4)

    def compute_context(self, maps: Maps) -> Context:
        """The context alone that maps of Res-1 … Res-4 leave to later frames."""
        x1, x2, x3, x4 = maps
        return (
            self.attend1.compute_context(x1),
            self.attend2.compute_context(x2),
            self.attend3.compute_context(x3),
            self.attend4.compute_context(x4),
        )

    def merge(self, maps: Maps) -> Maps:
        """The paper's FuseUp, from deep to shallow."""
        x1, x2, x3, x4 = maps
        x3 = x3 + resize(self.narrow4(x4), x3)
        x2 = x2 + resize(self.narrow3(x3), x2)
        x1 = x1 + resize(self.narrow2(x2), x1)
        return x1, x2, x3, x4

    def score(self, maps: Maps) -> Tensor:
        """Logits (B, K, h, w) at the size of Res-1's map."""
        x1, _, x3, _ = maps
        return self.classify(torch.cat([resize(self.smooth3(x3), x1), self.smooth1(x1)], dim=1))

    def check(self, image: Tensor, past: Sequence[Tensor] | None) -> None:
        """Raise a ValueError that says what is wrong with an input, if anything is."""
        check_image(image)
        if past is None:
            return
        if not isinstance(past, (tuple, list)):
            raise ValueError(f"The past is a {describe_type(past)}; expected a tuple or list of four matrices.")
        for matrix in past:
            if not isinstance(matrix, Tensor) or not matrix.is_floating_point():
                raise ValueError(f"The past holds a {describe_type(matrix)}; expected floating-point tensors.")
        expected = [(image.shape[0], *attend.context_shape) for attend in self.attentions]
        given = [tuple(context.shape) for context in past]
        if given != expected:
            raise ValueError(
                f"The past's shapes are {given}; expected {expected}: "
                "the context that step() of this same network returned for a batch of this size, or a sum of such."
            )

    @property
    def name(self) -> str:
        """The function that builds it."""
        return f"fanet{self.encoder.depth}"

    @property
    def attentions(self) -> tuple[FastAttention | ChannelAttention | NoAttention, ...]:
        """The attention modules of Res-1 … Res-4."""
        return self.attend1, self.attend2, self.attend3, self.attend4


def init_as_identity(network: FANet) -> None:
    """Let a network begin close to what its encoder was for ImageNet, where all else would begin at random.

    The shortcut that the extra reduction adds to Res-1 passes on what it is given, and attention adds a tenth of what
    it usually does: not nothing, for through a ReLU of nothing no gradient comes back.
    """
    for name, weight in network.named_parameters():
        if name == "encoder.layer1.0.downsample.0.weight":
            nn.init.dirac_(weight)
        elif re.fullmatch(r"attend\d\.out\.1\.weight", name):
            nn.init.constant_(weight, 0.1)


def fanet18(
    classes: int = 19,
    *,
    attention: Attention = FastAttention,
    key_channels: int = 32,
    reduction: Reduction = "Res-1",
    reduce_by: ReduceBy = "stride",
    averages: bool = False,
) -> FANet:
    """FANet-18, the fast one: 75.0 % mIoU on Cityscapes val in the paper."""
    return FANet(resnet18(reduction, reduce_by), classes, attention, key_channels, averages)


def fanet34(
    classes: int = 19,
    *,
    attention: Attention = FastAttention,
    key_channels: int = 32,
    reduction: Reduction = "Res-1",
    reduce_by: ReduceBy = "stride",
    averages: bool = False,
) -> FANet:
    """FANet-34, the accurate one: 76.3 % mIoU on Cityscapes val in the paper."""
    return FANet(resnet34(reduction, reduce_by), classes, attention, key_channels, averages)
