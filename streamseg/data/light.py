"""Random light for a batch of images: gamma, colour temperature, night, blur and noise.

With twice these shares and ranges a network was worse on a recording that was left out, with none of them too.

Shapes: B batch, h x w the images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

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
        draws: (B, DRAWS), random numbers from 0 to 1, on the images' device.
        strength: Factor of the shares of the images that are changed, from 0 to 1.
        seeds: Seeds of the noise of each image: numbers of the step, the image and the frame. The noise of an image
            then does not depend on the processes that share a batch.
    """
    columns = draws[:, :, None, None, None]

    def chosen(column: int, share: float) -> Tensor:
        return columns[:, column] < strength * share

    gamma = (GAMMA * (2 * columns[:, 0] - 1) * chosen(1, GAMMA_SHARE)).exp()
    x = (images / 255).clamp(min=1e-4) ** gamma
    x = x * (1 + TEMPERATURE * (draws[:, 2:5, None, None] - 0.5) * chosen(5, TEMPERATURE_SHARE))
    darkest, brightest = NIGHT
    x = x * torch.where(chosen(6, NIGHT_SHARE), darkest + (brightest - darkest) * columns[:, 7], 1.0)
    x = torch.where(chosen(8, BLUR_SHARE), blur(x), x)
    x = x + noise(x, seeds) * (NOISE * columns[:, 9] * chosen(10, NOISE_SHARE))
    return (255 * x).clamp(0, 255)


def blur(images: Tensor) -> Tensor:
    """Blur with the weights 1, 2, 1 across and down: twice the mean of four neighbours."""
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    return F.avg_pool2d(F.avg_pool2d(padded, 2, stride=1), 2, stride=1)


def noise(images: Tensor, seeds: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return normal noise for each image from its seed."""
    values, generator = torch.empty_like(images), torch.Generator(images.device)
    for value, (step, image, frame) in zip(values, seeds, strict=True):
        value.normal_(generator=generator.manual_seed(((step << 16) + (image << 10) + frame) % 2**63))
    return values
