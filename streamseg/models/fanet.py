"""FANet, the network of "Real-time Semantic Segmentation with Fast Attention", for images and for video.

Shapes: B batch, K classes, H height, W width, D key channels (the paper's c'), C channels of a stage.
"""

import re
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.checks import check_count
from streamseg.io.masks import GREY
from streamseg.models.attention import Attention, FastAttention, Scale
from streamseg.models.encoder import Encoder, Maps, ReduceBy, Reduction, ResNet, resnet18, resnet34
from streamseg.models.layers import (
    MIN_SIDE as MIN_SIDE,
    check_image,
    conv,
    describe_type as describe_type,
    init_network,
    initialise,
    normalise,
    resize,
)

Context = tuple[Tensor, ...]
"""Context passed to later frames: a matrix (B, D, C) for each stage with attention, at any image size."""

ATTENTION_MEMBERS = ("context_shape", "compute_context")


class FANet(nn.Module):
    """Fast Attention Network (paper Fig. 2a).

    An encoder, fast attention on each of its four stages, and a decoder that merges them from deep to shallow.

    Args:
        encoder: Computes the four feature maps: a ResNet, or any module with the interface of Encoder.
        classes: Number of classes.
        attention: FastAttention, another attention of this package (DotAttention, SelfAttention, ChannelAttention,
            NoAttention), or any module class with the interface of Attention.
        key_channels: Channels of query and key, the paper's c'.
        averages: Attend to the mean over the frames in the window, which fits any window, instead of the paper's sum.
    """

    classes: int
    mean: Tensor
    std: Tensor

    tile_grid = 64
    """Image pixels after which the grids of all maps repeat; label_tiled's tiles are multiples of it."""
    min_free_side = 65
    """Minimum height and width of an image for a Res-4 map of more than one pixel, which free sizes in exports need."""

    def __init__(
        self,
        encoder: Encoder,
        classes: int,
        attention: Callable[[int, int], Attention] = FastAttention,
        key_channels: int = 32,
        averages: bool = False,
    ):
        super().__init__()
        init_network(self, classes)
        check_count("key_channels", key_channels)
        check_encoder(encoder)
        self.key_channels = key_channels
        self.averages = averages

        self.encoder = encoder
        self.deep_channels = encoder.channels[2:]
        c1, c2, c3, c4 = encoder.channels
        self.attend1 = make_attention(attention, c1, key_channels)
        self.attend2 = make_attention(attention, c2, key_channels)
        self.attend3 = make_attention(attention, c3, key_channels)
        self.attend4 = make_attention(attention, c4, key_channels)
        check_contexts(self.attentions)
        self.narrow4 = conv(c4, c3, 1)
        self.narrow3 = conv(c3, c2, 1)
        self.narrow2 = conv(c2, c1, 1)
        self.smooth3 = conv(c3, 128, 3)
        self.smooth1 = conv(c1, 128, 3)
        classifier = nn.Conv2d(256, classes, 1, bias=False)
        initialise(classifier)
        self.classify = nn.Sequential(conv(256, 256, 3), classifier)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits (B, K, H, W) of RGB images (B, 3, H, W), bytes or floats in 0–255."""
        logits, _ = self.step(image)
        return logits

    def step(
        self,
        image: Tensor,
        past: Sequence[Tensor] | None = None,
        weight: Scale = 1.0,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Context]:
        """Return the logits (B, K, H, W) of the next frame of a video, and its context for later frames.

        Args:
            image: RGB (B, 3, H, W), bytes or floats in 0–255; each entry of the batch belongs to another stream.
            past: Sum of the contexts of the earlier frames in the window, stage by stage; None for the first frame.
            weight: Number of frames in that sum, for a network that averages; (B, 1, 1) where streams differ.
            mask: The unmasked share of each pixel (B, H, W), 0 to 1; others are painted over with grey, and
                left out of the context. None for all.
        """
        self.check(image, past)
        if mask is not None:
            check_mask(mask, image)
            image = image.masked_fill(mask[:, None] == 0, GREY)
        maps, context = self.features(image, past, weight, mask)
        return resize(self.score(maps), image), context

    def outputs(
        self,
        image: Tensor,
        past: Sequence[Tensor] | None = None,
        weight: Scale = 1.0,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return logits at the size of Res-1's map, and the maps of Res-3 and Res-4 for auxiliary heads."""
        maps, _ = self.features(image, past, weight, mask)
        return self.score(maps), maps[2:]

    def features(
        self,
        image: Tensor,
        past: Sequence[Tensor] | None = None,
        weight: Scale = 1.0,
        mask: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> tuple[Maps, Context]:
        """Return the maps of Res-1 … Res-4 after attention and merging, and the context.

        Args:
            mask: As in step; what it hides in the image is painted over already.
            shares: The share of each image (B,) in the context that all of them attend to; None for contexts of their
                own.
        """
        maps = self.encode(image)
        pixels = None if mask is None else self.weigh_pixels(mask, maps)
        if shares is None:
            maps, context = self.attend(maps, past, weight, pixels)
        else:
            maps, context = self.attend_together(maps, shares, past, weight, pixels)
        return self.merge(maps), context

    def encode(self, image: Tensor) -> Maps:
        """Return the encoder's maps of Res-1 … Res-4, which do not depend on the past."""
        return self.encoder(normalise(image, self.mean, self.std))

    def attend(
        self,
        maps: Maps,
        past: Sequence[Tensor] | None = None,
        weight: Scale = 1.0,
        pixels: Sequence[Tensor] | None = None,
    ) -> tuple[Maps, Context]:
        """Return the four maps after attention, and the context, which does not depend on the past.

        Args:
            pixels: For each stage with attention, the weight of each pixel in the context; None for 1.
        """
        stages = len(self.attentions)
        pasts, weights = ([None] * stages if x is None else x for x in (past, pixels))
        scale = 1 / (1 + weight) if self.averages else None
        attended, contexts = [], []
        for attend, x, own_past, own_pixels in zip(self.attentions, maps[-stages:], pasts, weights, strict=True):
            y, context = attend_stage(attend, x, own_past, own_pixels, scale)
            attended.append(y)
            contexts.append(context)
        x1, x2, x3, x4 = (*maps[:-stages], *attended)
        return (x1, x2, x3, x4), tuple(contexts)

    def attend_together(
        self,
        maps: Maps,
        shares: Tensor,
        past: Sequence[Tensor] | None = None,
        weight: Scale = 1.0,
        pixels: Sequence[Tensor] | None = None,
    ) -> tuple[Maps, Context]:
        """Return the four maps of images after attention to one context of all of them, and that context of each.

        Args:
            shares: The share of each image (B,) in the context: of the pixels of all images together.
        """
        own = self.compute_context(maps, pixels)
        joint = tuple(join_contexts(context, shares) for context in own)
        # attention adds an image's own context to the past; a weight of 0 does not average where there is none
        earlier = own if past is None else past
        others = [
            whole - part if past is None else whole - part + x.to(part)
            for whole, part, x in zip(joint, own, earlier, strict=True)
        ]
        maps, _ = self.attend(maps, others, 0.0 if past is None else weight, pixels)
        return maps, joint

    def compute_context(self, maps: Maps, pixels: Sequence[Tensor] | None = None) -> Context:
        """Return only the context of the maps of Res-1 … Res-4."""
        stages = len(self.attentions)
        pairs = zip(self.attentions, maps[-stages:], strict=True)
        if pixels is None:
            return tuple(attend.compute_context(x) for attend, x in pairs)
        return tuple(attend.compute_context(x, w) for (attend, x), w in zip(pairs, pixels, strict=True))

    def weigh_pixels(self, mask: Tensor, maps: Maps) -> list[Tensor]:
        """Return the weight of each pixel of the maps with attention, (B, h, w) each: its unmasked share."""
        return [average_mask(mask, x) for x in maps[-len(self.attentions) :]]

    def merge(self, maps: Maps) -> Maps:
        """Merge the maps from deep to shallow: the paper's FuseUp."""
        x1, x2, x3, x4 = maps
        x3 = x3 + resize(self.narrow4(x4), x3)
        x2 = x2 + resize(self.narrow3(x3), x2)
        x1 = x1 + resize(self.narrow2(x2), x1)
        return x1, x2, x3, x4

    def score(self, maps: Maps) -> Tensor:
        """Return logits (B, K, h, w) at the size of Res-1's map."""
        x1, _, x3, _ = maps
        return self.classify(torch.cat([resize(self.smooth3(x3), x1), self.smooth1(x1)], dim=1))

    def check(self, image: Tensor, past: Sequence[Tensor] | None) -> None:
        """Raise a ValueError if the image or the past has a wrong type or shape."""
        check_image(image)
        if past is None:
            return
        if not isinstance(past, (tuple, list)):
            raise ValueError(f"The past is a {describe_type(past)}; expected a tuple or list of matrices.")
        for matrix in past:
            if not isinstance(matrix, Tensor) or not matrix.is_floating_point():
                raise ValueError(f"The past holds a {describe_type(matrix)}; expected floating-point tensors.")
        expected = [(image.shape[0], *attend.context_shape) for attend in self.attentions]
        given = [tuple(context.shape) for context in past]
        if given != expected:
            raise ValueError(
                f"The past's shapes are {given}; expected {expected}: "
                "a context that step() of this network returned for a batch of this size, or a sum of contexts."
            )

    @property
    def name(self) -> str:
        """The name of the function that builds it; that of the encoder's class if it is not one of this package."""
        encoder = self.encoder
        return f"fanet{encoder.depth}" if isinstance(encoder, ResNet) else f"FANet of {type(encoder).__name__}"

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention modules of Res-1 … Res-4."""
        return self.attend1, self.attend2, self.attend3, self.attend4


def attend_stage(
    attend: Attention, x: Tensor, past: Tensor | None, pixels: Tensor | None, scale: Scale | None
) -> tuple[Tensor, Tensor]:
    """Return a map after attention, and its context; an attention of your own need not know of masks."""
    return attend(x, past, scale) if pixels is None else attend(x, past, scale, pixels)


def average_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Return the share of each pixel of a map (B, C, h, w) that a mask (B, H, W) of its image looks at, (B, h, w)."""
    return F.interpolate(mask[:, None], x.shape[-2:], mode="area")[:, 0]


def join_contexts(contexts: Tensor, shares: Tensor) -> Tensor:
    """Return the context of all images together for each of them, of their own contexts (B, D, C) and shares (B,)."""
    return (contexts * shares.to(contexts).view(-1, 1, 1)).sum(dim=0, keepdim=True).expand_as(contexts)


def check_mask(mask: Tensor, image: Tensor) -> None:
    """Raise a ValueError if a mask is not a tensor of floats (B, H, W) for its image."""
    expected = (image.shape[0], *image.shape[-2:])
    if not isinstance(mask, Tensor) or not mask.is_floating_point() or tuple(mask.shape) != expected:
        raise ValueError(f"The mask is a {describe_type(mask)}; expected floats from 0 to 1 of the shape {expected}.")


def check_encoder(encoder: Encoder) -> None:
    """Raise a ValueError if a module does not have the interface of Encoder."""
    channels = getattr(encoder, "channels", None)
    if not isinstance(encoder, nn.Module) or not isinstance(channels, (tuple, list)) or len(channels) != 4:
        raise ValueError(
            f"The encoder is a {type(encoder).__name__}; expected a module that returns the maps of Res-1 … Res-4 and "
            "lists their channels in `channels`."
        )


def make_attention(attention: Callable[[int, int], Attention], channels: int, key_channels: int) -> Attention:
    """Build the attention module of a stage; a ValueError if it does not have the interface of Attention."""
    # a class, and not any function that returns a module: load() builds the network from the class
    is_class = isinstance(attention, type) and issubclass(attention, nn.Module)
    module = attention(channels, key_channels) if is_class else None
    if not all(hasattr(module, name) for name in ATTENTION_MEMBERS):
        given = " ".join(repr(attention).split())
        raise ValueError(
            f"attention is {given:.80}; expected a module class with {' and '.join(ATTENTION_MEMBERS)}, such as "
            "FastAttention."
        )
    return cast("Attention", module)


def check_contexts(attentions: Sequence[Attention]) -> None:
    """Raise a ValueError if the contexts of the stages cannot be concatenated."""
    shapes = [attend.context_shape for attend in attentions]
    if len({keys for keys, _ in shapes}) > 1:
        raise ValueError(f"The contexts have the shapes {shapes}; expected the same first number at all stages.")


def init_as_identity(network: FANet) -> None:
    """Initialise the layers that ImageNet weights do not cover so that they pass their inputs on.

    The shortcut that the extra reduction adds to Res-1 becomes the identity, and the output of attention is scaled by
    0.1. Not by 0: no gradient passes a ReLU whose inputs are all zero.
    """
    for name, weight in network.named_parameters():
        if name == "encoder.layer1.0.downsample.0.weight":
            nn.init.dirac_(weight)
        elif re.fullmatch(r"attend\d\.out\.1\.weight", name):
            nn.init.constant_(weight, 0.1)


def fanet18(
    classes: int = 19,
    *,
    attention: Callable[[int, int], Attention] = FastAttention,
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
    attention: Callable[[int, int], Attention] = FastAttention,
    key_channels: int = 32,
    reduction: Reduction = "Res-1",
    reduce_by: ReduceBy = "stride",
    averages: bool = False,
) -> FANet:
    """FANet-34, the accurate one: 76.3 % mIoU on Cityscapes val in the paper."""
    return FANet(resnet34(reduction, reduce_by), classes, attention, key_channels, averages)
