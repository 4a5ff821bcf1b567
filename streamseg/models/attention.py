"""Fast attention, and the attentions that the paper compares it with.

Shapes: B batch, N pixels, D query and key channels (the paper's c'), C value channels, H height, W width.

Each attention is a function of query, key and value, and a module that makes those three from a feature map. A module
returns its map and its context: the matrix (B, D, C) that a later frame needs (paper Eq. 6). The attentions that a
later frame cannot reuse return an empty context (B, 0, C), so that all of them can be called alike.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.models.layers import conv

Scale = float | Tensor
"""A number, or one for each entry of a batch: (B, 1, 1)."""


def fast_attention(
    q: Tensor, k: Tensor, v: Tensor, past: Tensor | None = None, scale: Scale | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine attention in linear time (paper Eq. 3) and, given the past, over frames (paper Eq. 6).

    Args:
        q: Query (B, N, D).
        k: Key (B, M, D).
        v: Value (B, M, C).
        past: Sum of the contexts of the earlier frames in the window (B, D, C).
        scale: What past and own context together are multiplied by: 1 / T for the mean over T frames; None for the
            sum, as in the paper.

    Returns:
        The attended values (B, N, C), and this frame's own context (B, D, C), without the past.
    """
    # the smallest norm is one that fp16 can hold: with PyTorch's 1e-12 a zero vector would become nan there
    q = F.normalize(q, dim=-1, eps=1e-6)
    k = F.normalize(k, dim=-1, eps=1e-6)
    return dot_attention(q, k, v, past, scale)


def dot_attention(
    q: Tensor, k: Tensor, v: Tensor, past: Tensor | None = None, scale: Scale | None = None
) -> tuple[Tensor, Tensor]:
    """Fast attention without the L2 normalisation: a plain dot product, whose affinity has no bound."""
    # half of 1/n before the product and half after it: a sum over a large image would leave fp16's range
    half = v.shape[1] ** -0.5
    context = (k * half).transpose(1, 2) @ v * half  # (B, D, C): all that a later frame needs
    total = context if past is None else context + past
    if past is not None and scale is not None:
        total = total * scale
    return q @ total.to(context.dtype), context


def self_attention(
    q: Tensor, k: Tensor, v: Tensor, past: Tensor | None = None, scale: Scale | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention of every pixel to every pixel (paper Eq. 1): quadratic, with nothing for a later frame."""
    return F.scaled_dot_product_attention(q, k, v, scale=1.0), v[:, :0]


def channel_attention(x: Tensor) -> Tensor:
    """DANet's attention of every channel to every channel, of pixels (B, N, C).

    As in DANet the likeness has no scale: a large image leaves fp16's range, so use fp32 or bf16.
    """
    likeness = x.transpose(1, 2) @ x  # (B, C, C)
    # DANet's affinity: what differs most from a channel counts most; softmax ignores the constant row maximum
    return x @ (-likeness).softmax(dim=-1).transpose(1, 2)


def to_pixels(x: Tensor) -> Tensor:
    """A feature map (B, C, H, W) as pixels (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


def to_map(x: Tensor, like: Tensor) -> Tensor:
    """Pixels (B, N, C) as a feature map (B, C, H, W) of another map's height and width."""
    return x.transpose(1, 2).unflatten(2, like.shape[-2:])


class FastAttention(nn.Module):
    """The fast attention module (paper Fig. 2b): 1x1 convolutions around fast_attention, plus the input."""

    attend: ClassVar[Callable[..., tuple[Tensor, Tensor]]] = staticmethod(fast_attention)

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__()
        # no ReLU on query and key: their cosine should reach -1 (paper Sec. III-B)
        self.query = conv(channels, key_channels, 1, relu=False)
        self.key = conv(channels, key_channels, 1, relu=False)
        self.value = conv(channels, channels, 1)
        self.out = conv(channels, channels, 1)
        self.context_shape = (key_channels, channels)

    def forward(self, x: Tensor, past: Tensor | None = None, scale: Scale | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = to_pixels(self.query(x)), to_pixels(self.key(x)), to_pixels(self.value(x))
        y, context = self.attend(q, k, v, past, scale)
        return x + self.out(to_map(y, x)), context

    def compute_context(self, x: Tensor) -> Tensor:
        """The context alone that a map leaves to later frames: no query, no output."""
        k, v = to_pixels(self.key(x)), to_pixels(self.value(x))
        _, context = self.attend(k[:, :1], k, v)
        return context


class DotAttention(FastAttention):
    """Rival: the fast attention module without L2 normalisation."""

    attend = staticmethod(dot_attention)


class SelfAttention(FastAttention):
    """Rival: the non-local module, with softmax."""

    attend = staticmethod(self_attention)

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__(channels, key_channels)
        self.context_shape = (0, channels)


class ChannelAttention(nn.Module):
    """Rival: DANet's channel attention, whose share in the output is learned from zero; it has no key channels."""

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__()
        self.share = nn.Parameter(torch.zeros(1))
        self.context_shape = (0, channels)

    def forward(self, x: Tensor, past: Tensor | None = None, scale: Scale | None = None) -> tuple[Tensor, Tensor]:
        pixels = to_pixels(x)
        return x + self.share * to_map(channel_attention(pixels), x), self.compute_context(x)

    def compute_context(self, x: Tensor) -> Tensor:
        return to_pixels(x)[:, :0]


class NoAttention(nn.Module):
    """Rival: no attention at all."""

    def __init__(self, channels: int, key_channels: int = 32):
        super().__init__()
        self.context_shape = (0, channels)

    def forward(self, x: Tensor, past: Tensor | None = None, scale: Scale | None = None) -> tuple[Tensor, Tensor]:
        return x, self.compute_context(x)

    def compute_context(self, x: Tensor) -> Tensor:
        return to_pixels(x)[:, :0]


ATTENTIONS = {
    kind.__name__: kind for kind in (FastAttention, DotAttention, SelfAttention, ChannelAttention, NoAttention)
}
