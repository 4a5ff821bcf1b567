"""Fast attention, and the attentions that the paper compares it with.

Shapes: B batch, N pixels, D query and key channels (the paper's c'), C value channels, H height, W width.

Each attention is a function of query, key and value, and a module that computes those three from a feature map. A
module returns the attended map and its context, the matrix (B, D, C) that later frames use (paper Eq. 6). Attentions
without such a matrix return an empty context (B, 0, C), so that all of them have the same interface.
"""

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.layers import conv

Scale = float | Tensor
"""A number, or one number for each entry of a batch, (B, 1, 1)."""


class Attention(Protocol):
    """The interface of an attention module: an nn.Module that is built as attention(channels, key_channels).

    A module that sets `linear = True` promises that its context is a mean over pixels and that other pixels reach the
    output only through the sum of context and past. Then label_tiled can run it tile by tile.
    """

    context_shape: tuple[int, int]
    """D and C of a context; D is the same at all four stages, and 0 if a frame passes nothing on."""

    def __call__(
        self, x: Tensor, past: Tensor | None = None, scale: Scale | None = None, pixels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the attended map, of the same shape as x (B, C, H, W), and the context (B, *context_shape).

        Args:
            past: Sum of the contexts of the earlier frames in the window.
            scale: Factor for the sum of context and past; None for 1.
            pixels: The weight of each pixel in the context (B, H, W), from 0 to 1; given only with a mask.
        """

    def compute_context(self, x: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Return only the context of a map."""


def fast_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: Tensor | None = None,
    scale: Scale | None = None,
    pixels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosine attention in linear time (paper Eq. 3) and, given the past, over frames (paper Eq. 6).

    Args:
        q: Query (B, N, D).
        k: Key (B, M, D).
        v: Value (B, M, C).
        past: Sum of the contexts of the earlier frames in the window (B, D, C).
        scale: Factor for the sum of past and context: 1 / T for the mean over T frames; None for the sum, as in the
            paper.
        pixels: The weight of each pixel of key and value (B, M), from 0, which leaves it out, to 1; None for 1. The
            context is the weighted sum over the pixels divided by the sum of the weights.

    Returns:
        The attended values (B, N, C), and the context of this frame alone (B, D, C).
    """
    # eps must be representable in fp16: with PyTorch's default of 1e-12 a zero vector becomes nan
    q = F.normalize(q, dim=-1, eps=1e-6)
    k = F.normalize(k, dim=-1, eps=1e-6)
    return dot_attention(q, k, v, past, scale, pixels)


def dot_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: Tensor | None = None,
    scale: Scale | None = None,
    pixels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fast attention without L2 normalisation: the affinity is an unbounded dot product."""
    if pixels is None:
        # 1/√n before and after the product instead of 1/n once: a sum over a large image overflows fp16
        root = v.shape[1] ** -0.5
        context = (k * root).transpose(1, 2) @ v * root  # (B, D, C): all that later frames need
    else:
        context = masked_context(k, v, pixels)
    total = context if past is None else context + past
    if past is not None and scale is not None:
        total = total * scale
    return q @ total.to(context.dtype), context


def masked_context(k: Tensor, v: Tensor, pixels: Tensor) -> Tensor:
    """Return the context (B, D, C) of key and value as dot_attention does, of pixels with weights (B, M)."""
    # in fp64 like a Python float, and rounded once: weights of 1 change no bit of the context
    root = pixels.double().sum(dim=1).clamp(min=1e-9).pow(-0.5).view(-1, 1, 1)
    root = root.to(torch.promote_types(k.dtype, torch.float32))
    weighted = (k * (pixels[:, :, None].to(root) * root)).to(k.dtype)
    return (weighted.transpose(1, 2) @ v * root).to(v.dtype)


def self_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: Tensor | None = None,
    scale: Scale | None = None,
    pixels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of every pixel to every pixel (paper Eq. 1): quadratic, and without a context."""
    # the logarithm of a weight, which softmax takes as a factor
    bias = None if pixels is None else pixels[:, None].to(q).log().expand(-1, q.shape[1], -1)
    return F.scaled_dot_product_attention(q, k, v, bias, scale=1.0), v[:, :0]


def channel_attention(x: Tensor, pixels: Tensor | None = None) -> Tensor:
    """DANet's attention of every channel to every channel, of pixels (B, N, C), which may have weights (B, N).

    As in DANet the similarity is not scaled: a large image overflows fp16, so use fp32 or bf16.
    """
    weighted = x if pixels is None else x * pixels[:, :, None].to(x)
    similarity = weighted.transpose(1, 2) @ x  # (B, C, C)
    # DANet subtracts from the row maximum: the least similar channels weigh most; softmax cancels the maximum itself
    return x @ (-similarity).softmax(dim=-1).transpose(1, 2)


def to_pixels(x: Tensor) -> Tensor:
    """Flatten a feature map (B, C, H, W) to pixels (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


def flatten_weights(pixels: Tensor | None) -> Tensor | None:
    """Flatten the weights of the pixels of a map (B, H, W) to (B, N)."""
    return None if pixels is None else pixels.flatten(1)


def to_map(x: Tensor, like: Tensor) -> Tensor:
    """Reshape pixels (B, N, C) to a feature map (B, C, H, W) of the height and width of `like`."""
    return x.transpose(1, 2).unflatten(2, like.shape[-2:])


class FastAttention(nn.Module):
    """The fast attention module (paper Fig. 2b): 1x1 convolutions around fast_attention, plus the input."""

    attend: ClassVar[Callable[..., tuple[Tensor, Tensor]]] = staticmethod(fast_attention)
    linear = True

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__()
        # no ReLU on query and key: their cosine similarity should reach -1 (paper Sec. III-B)
        self.query = conv(channels, key_channels, 1, relu=False)
        self.key = conv(channels, key_channels, 1, relu=False)
        self.value = conv(channels, channels, 1)
        self.out = conv(channels, channels, 1)
        self.context_shape = (key_channels, channels)

    def forward(
        self, x: Tensor, past: Tensor | None = None, scale: Scale | None = None, pixels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = to_pixels(self.query(x)), to_pixels(self.key(x)), to_pixels(self.value(x))
        y, context = self.attend(q, k, v, past, scale, flatten_weights(pixels))
        return x + self.out(to_map(y, x)), context

    def compute_context(self, x: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Return only the context of a map, without computing query and output."""
        k, v = to_pixels(self.key(x)), to_pixels(self.value(x))
        _, context = self.attend(k[:, :1], k, v, pixels=flatten_weights(pixels))
        return context


class DotAttention(FastAttention):
    """Baseline: the fast attention module without L2 normalisation."""

    attend = staticmethod(dot_attention)


class SelfAttention(FastAttention):
    """Baseline: the non-local module, with softmax."""

    attend = staticmethod(self_attention)
    linear = False

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__(channels, key_channels)
        self.context_shape = (0, channels)


class ChannelAttention(nn.Module):
    """Baseline: DANet's channel attention, scaled by a factor that is learned from zero; it has no key channels."""

    linear = False

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__()
        self.share = nn.Parameter(torch.zeros(1))
        self.context_shape = (0, channels)

    def forward(
        self, x: Tensor, past: Tensor | None = None, scale: Scale | None = None, pixels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        attended = channel_attention(to_pixels(x), flatten_weights(pixels))
        return x + self.share * to_map(attended, x), self.compute_context(x)

    def compute_context(self, x: Tensor, pixels: Tensor | None = None) -> Tensor:
        return to_pixels(x)[:, :0]


class NoAttention(nn.Module):
    """Baseline: no attention."""

    linear = True

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__()
        self.context_shape = (0, channels)

    def forward(
        self, x: Tensor, past: Tensor | None = None, scale: Scale | None = None, pixels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return x, self.compute_context(x)

    def compute_context(self, x: Tensor, pixels: Tensor | None = None) -> Tensor:
        return to_pixels(x)[:, :0]


ATTENTIONS = {
    module.__name__: module for module in (FastAttention, DotAttention, SelfAttention, ChannelAttention, NoAttention)
}
"""The attentions of this package, by the name of their class."""
