"""Trains a flow network: on synthetic pairs, whose flow is known, then also on neighbouring frames of real videos.

A synthetic pair is a picture and the same picture moved: by a random affine motion of the whole, by another one of
random regions, and by a smooth deformation. A real pair has no flow to compare with: the earlier frame, warped by the
flow, should look like the later one, and the flow should be smooth where the picture is.

Shapes: B batch, N pictures, H height, W width, h x w the map of a flow.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.models.layers import resize_to
from streamseg.models.video.flownet import FLOW_SCALE, FlowEstimator, FlowNetS
from streamseg.models.video.scheme import resize_flow, warp

LEVEL_WEIGHTS = (0.005, 0.01, 0.02, 0.08, 0.32)
"""Weights of the end-point error at the five levels, fine to coarse, as FlowNet's authors have them."""

SHIFT, ZOOM, TURN, BEND = 0.08, 0.08, 0.05, 0.02
"""Largest motions of a synthetic pair: parts of the sides, a factor less 1, radians, and parts of the sides."""

SMOOTHNESS = 0.02
"""Weight of the smoothness of a flow in the loss of real pairs."""

WARM_UP = 0.02
"""Share of the training in which the learning rate rises."""


@dataclass(frozen=True)
class FlowProgress:
    """Progress of a training run."""

    share: float
    """Part of the training that is done, 0 to 1."""
    synthetic_loss: Tensor
    """A number on the network's device; whoever reads it waits for the device."""
    photometric_loss: Tensor
    """Likewise; 0 as long as only synthetic pairs are used."""


@dataclass(frozen=True)
class FlowErrors:
    """Errors of a flow, and of no flow at all."""

    ours: float
    zero: float


def elapsed_shares(minutes: float, done: float = 0.0) -> Iterator[float]:
    """Yield the share of a time that has passed, from `done` to 1, once for each training step."""
    start = time.monotonic() - 60 * minutes * done
    while (share := (time.monotonic() - start) / (60 * minutes)) < 1:
        yield share


def make_optimiser(network: FlowNetS, rate: float) -> torch.optim.Optimizer:
    """Return the optimiser of a flow network."""
    return torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-4)


def train_flow(
    network: FlowNetS,
    pictures: Tensor,
    pairs: Tensor,
    shares: Iterator[float],
    *,
    crop: tuple[int, int] = (384, 512),
    batch: int = 8,
    rate: float = 3e-4,
    synthetic_share: float = 0.6,
    seed: int = 0,
    optimiser: torch.optim.Optimizer | None = None,
) -> Iterator[FlowProgress]:
    """Train a flow network in place; yield the progress after every step.

    Args:
        pictures: (N, 3, H, W), bytes on the network's device.
        pairs: Neighbouring frames (M, 2, 3, H, W), earlier and later, likewise; M may be 0.
        shares: The share of the training that is done, for each step, such as elapsed_shares(5).
        crop: Height and width of the training crops.
        rate: The highest learning rate; it rises in a short warm-up, and falls to 0 along a cosine.
        synthetic_share: The part of the training with synthetic pairs alone.
        optimiser: That of a run which goes on; by default a new one, make_optimiser(network, rate).
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = optimiser or make_optimiser(network, rate)
    network.train()
    for share in shares:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(rate, share)
        images = random_crops(draw(pictures, batch, generator), crop, generator)
        current, previous, flow = make_synthetic_pairs(images, generator)
        loss = synthetic = multiscale_error(network, current, previous, flow)
        photometric = synthetic.new_zeros(())
        if share >= synthetic_share and len(pairs):
            real = draw(pairs, batch, generator)
            previous, current = random_crops(real.flatten(1, 2), crop, generator).split(3, dim=1)
            photometric = photometric_loss(network, current, previous)
            loss = synthetic + photometric
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        yield FlowProgress(share, synthetic.detach(), photometric.detach())
    network.eval()


def learning_rate(rate: float, share: float) -> float:
    """Return the learning rate after a share of the training: a short warm-up, then along a cosine to 0."""
    return rate * min(1.0, share / WARM_UP + 0.01) * 0.5 * (1 + math.cos(math.pi * share))


def draw(items: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return random items of a tensor, as floats."""
    chosen = torch.randint(len(items), (count,), generator=generator)
    return items[chosen.to(items.device)].float()


def random_crops(images: Tensor, crop: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return a random crop of each image (B, C, H, W), half of them flipped; smaller images are taken whole."""
    height, width = (min(side, whole) for side, whole in zip(crop, images.shape[-2:], strict=True))
    crops = []
    for image in images:
        top = int(torch.randint(images.shape[-2] - height + 1, (), generator=generator))
        left = int(torch.randint(images.shape[-1] - width + 1, (), generator=generator))
        part = image[..., top : top + height, left : left + width]
        crops.append(part.flip(-1) if torch.rand((), generator=generator) < 0.5 else part)
    return torch.stack(crops)


def make_synthetic_pairs(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return current frames, previous frames and the flow between them (B, 2, H, W), made of images (B, 3, H, W).

    The previous frame is the image, the current one the image warped by the flow, in another light.
    """
    batch, _, height, width = images.shape
    size = (height, width)
    # numbers are drawn on the CPU, a few per image, so that all devices get the same pairs
    strength = torch.rand(batch, 1, 1, 1, generator=generator).to(images.device)
    bend = BEND * torch.tensor([width, height]).view(1, 2, 1, 1) * torch.randn(batch, 2, 5, 5, generator=generator)
    regions = torch.randn(batch, 1, 4, 4, generator=generator)
    motions = torch.rand(2, 4, batch, 1, 1, generator=generator).to(images.device)
    contrast, brightness = torch.rand(2, batch, 1, 1, 1, generator=generator).to(images.device)

    whole, part = (affine_flow(motion, size) for motion in motions)
    inside = enlarge(regions.to(images.device), size) > 0.5
    flow = torch.where(inside, part, whole) + enlarge(bend.to(images.device), size)
    # most neighbouring frames differ little, some much
    flow = flow * 10 ** (1.5 * strength - 1.5)
    current = warp(images, flow)
    current = (current - 128) * (0.8 + 0.4 * contrast) + 128 + 30 * (brightness - 0.5)
    return current.clamp(0, 255), images, flow


def affine_flow(motion: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the flow (B, 2, H, W) of shifts, zooms and turns about the middle, given as (4, B, 1, 1) in 0–1."""
    height, width = size
    shift_x, shift_y, zoom, turn = (2 * motion - 1).unbind()
    x = torch.arange(width, device=motion.device) - (width - 1) / 2
    y = (torch.arange(height, device=motion.device) - (height - 1) / 2)[:, None]
    zoom, turn = ZOOM * zoom, TURN * turn
    return torch.stack(
        [SHIFT * width * shift_x + zoom * x - turn * y, SHIFT * height * shift_y + zoom * y + turn * x], dim=1
    )


def enlarge(noise: Tensor, size: tuple[int, int]) -> Tensor:
    """Return noise enlarged smoothly to a height and width."""
    return F.interpolate(noise, size=size, mode="bicubic", align_corners=True)


def is_visible(flow: Tensor) -> Tensor:
    """Return where (B, 1, h, w) a flow points to a pixel inside the other frame."""
    height, width = flow.shape[-2:]
    x = torch.arange(width, device=flow.device) + flow[:, :1]
    y = torch.arange(height, device=flow.device)[:, None] + flow[:, 1:]
    return (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)


def multiscale_error(network: FlowNetS, current: Tensor, previous: Tensor, flow: Tensor) -> Tensor:
    """Return the weighted end-point error of all levels of a flow network, for a known flow (B, 2, H, W)."""
    target = flow / (network.shrink * FLOW_SCALE)
    visible = is_visible(flow).float()
    levels = network.outputs(current, previous).pyramid
    finest = levels[0].shape[-2] * levels[0].shape[-1] * len(flow)
    total = flow.new_zeros(())
    for weight, level in zip(LEVEL_WEIGHTS, levels, strict=True):
        size = (level.shape[-2], level.shape[-1])
        mask = F.adaptive_avg_pool2d(visible, size)
        error = (level - F.adaptive_avg_pool2d(target, size)).norm(dim=1, keepdim=True)
        # relative to the finest level, so that the loss does not depend on the crop's size
        total = total + weight / LEVEL_WEIGHTS[0] * (mask * error).sum() / finest
    return total


def photometric_loss(network: FlowNetS, current: Tensor, previous: Tensor) -> Tensor:
    """Return how much the warped earlier frame differs from the later one, plus the roughness of the flow."""
    flow = network(current, previous)
    now, before = (F.avg_pool2d(frame, network.shrink, ceil_mode=True) / 255 for frame in (current, previous))
    large = resize_flow(flow, now)
    difference = ((now - warp(before, large)).square() + 1e-6).sqrt()
    visible = is_visible(large.detach()).float()
    error = (visible * difference).sum() / (3 * visible.sum()).clamp(min=1)
    return error + SMOOTHNESS * roughness(flow, resize_to(now, *flow.shape[-2:]))


def roughness(flow: Tensor, image: Tensor) -> Tensor:
    """Return the mean change of a flow (B, 2, h, w) between neighbouring pixels, less where the image changes too."""
    total = flow.new_zeros(())
    for dim in (2, 3):
        edge = image.diff(dim=dim).abs().mean(1, keepdim=True)
        total = total + ((-10 * edge).exp() * flow.diff(dim=dim).abs()).mean()
    return total


@torch.no_grad()
def end_point_error(flow: FlowEstimator, pictures: Tensor, *, batch: int = 4, seed: int = 1) -> FlowErrors:
    """Return the mean end-point error on synthetic pairs of pictures (N, 3, H, W), in pixels; of visible pixels."""
    generator = torch.Generator().manual_seed(seed)
    ours, zero, count = 0.0, 0.0, 0.0
    for images in pictures.split(batch):
        current, previous, target = make_synthetic_pairs(images.float(), generator)
        mask = is_visible(target)[:, 0]
        found = resize_flow(flow(current, previous), target)
        ours += (found - target).norm(dim=1)[mask].sum().item()
        zero += target.norm(dim=1)[mask].sum().item()
        count += mask.sum().item()
    return FlowErrors(ours / max(count, 1), zero / max(count, 1))


@torch.no_grad()
def photometric_error(flow: FlowEstimator, pairs: Tensor, *, batch: int = 4) -> FlowErrors:
    """Return the mean difference of later and warped earlier frames, of pairs (M, 2, 3, H, W), in 0–255."""
    ours, zero, count = 0.0, 0.0, 0
    for images in pairs.split(batch):
        previous, current = images.float().unbind(1)
        warped = warp(previous, resize_flow(flow(current, previous), current))
        ours += (current - warped).abs().sum().item()
        zero += (current - previous).abs().sum().item()
        count += current.numel()
    return FlowErrors(ours / max(count, 1), zero / max(count, 1))
