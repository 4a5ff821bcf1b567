"""Random light for a batch of images: gamma, colour temperature, night, blur and noise.

Stronger changes, and none, gave a network that was worse on a recording that was left out: docs/training.md, "Roads and
light that the data do not show".

Shapes: B batch, h x w the images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.data.transfer import on_device

DRAWS = 11
"""Random numbers per image."""

GAMMA, GAMMA_SHARE = 0.6, 0.5
"""Largest logarithm of a gamma, and the share of the images that get one."""
TEMPERATURE, TEMPERATURE_SHARE = 0.4, 0.5
"""Red, green and blue are multiplied by 1 ± half of this."""
NIGHT, NIGHT_SHARE = (0.15, 0.5), 0.15
"""Range of the exposure of a night."""
BLUR_SHARE = 0.2
NOISE, NOISE_SHARE = 0.06, 0.3
"""Largest standard deviation of the noise of a pixel, as a share of white."""


def change_light(images: Tensor, draws: Tensor, strength: float, seeds: Sequence[tuple[int, int, int]]) -> Tensor:
    """Change the light of some images.

    Args:
        images: (B, 3, h, w), floats in 0–255.
        draws: (B, DRAWS), random numbers from 0 to 1, on the CPU, so that only chosen images are blurred or get noise.
        strength: Factor of the shares of the images that are changed, from 0 to 1.
        seeds: Seeds of the noise of each image: numbers of the step, the image and the frame. The noise of an image
            then does not depend on the processes that share a batch.
    """

    def chosen(column: int, share: float) -> Tensor:
        return draws[:, column] < strength * share

    gamma = (GAMMA * (2 * draws[:, 0] - 1) * chosen(1, GAMMA_SHARE)).exp()
    gains = 1 + TEMPERATURE * (draws[:, 2:5] - 0.5) * chosen(5, TEMPERATURE_SHARE)[:, None]
    darkest, brightest = NIGHT
    exposure = torch.where(chosen(6, NIGHT_SHARE), darkest + (brightest - darkest) * draws[:, 7], 1.0)
    factors = on_device(torch.cat([gamma[:, None], 255 * gains * exposure[:, None]], dim=1), images.device)
    x = (images / 255).clamp_(min=1e-4).pow_(factors[:, :1, None, None]).mul_(factors[:, 1:, None, None])
    if (blurred := chosen(8, BLUR_SHARE)).any():
        places = on_device(blurred.nonzero()[:, 0], images.device)
        x.index_copy_(0, places, blur(x[places]))
    deviations = (255 * NOISE * draws[:, 9] * chosen(10, NOISE_SHARE)).tolist()
    generator = torch.Generator(images.device)
    for image, deviation, seed in zip(x, deviations, seeds, strict=True):
        if deviation:
            image.add_(noise(image, seed, generator), alpha=deviation)
    return x.clamp_(0, 255)


def blur(images: Tensor) -> Tensor:
    """Blur with the weights 1, 2, 1 down and across."""
    rows = F.pad(images, (0, 0, 1, 1), mode="replicate")
    down = (rows[..., :-2, :] + rows[..., 2:, :]).add_(images, alpha=2)
    columns = F.pad(down, (1, 1, 0, 0), mode="replicate")
    return (columns[..., :-2] + columns[..., 2:]).add_(down, alpha=2).div_(16)


def noise(image: Tensor, seed: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Return normal noise for an image from its seed."""
    step, number, frame = seed
    generator.manual_seed(((step << 16) + (number << 10) + frame) % 2**63)
    return torch.empty_like(image).normal_(generator=generator)
