"""Random flips, scales, crops and colours for a whole batch, on its device.

Random numbers are drawn on the CPU, a few per image, separately from their use, so that a run can be repeated and split
over processes.

Shapes: B batch, H x W the images, h x w the crops.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE
from streamseg.data.light import DRAWS
from streamseg.data.transfer import on_device

ZOOM, SHIFT = 0.03, 0.04
"""Maximum camera motion from one frame to the next: zoom, and shifts in halves of a side."""


@dataclass(frozen=True)
class AugmentParams:
    """Random augmentation parameters of each image in a batch: tensors (B,) unless another shape is given."""

    scale: Tensor
    flip: Tensor
    """1 or -1."""
    position: Tensor
    """(B, 2): position of the crop in the scaled image, from 0 (left, top) to 1 (right, bottom)."""
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    pasted: Tensor
    """(B, 256): whether the pixels of a label come from the neighbour in the batch (ClassMix)."""
    window_share: Tensor
    """Share of the window that a clip uses, from 0 to 1."""
    motion: Tensor
    """(B, 3): a small camera motion: zoom, and shifts to the right and down in halves of the crop's sides."""
    light: Tensor
    """(B, DRAWS): random numbers from 0 to 1 for change_light."""

    def __getitem__(self, part: slice | Tensor) -> "AugmentParams":
        return AugmentParams(**{name: value[part] for name, value in vars(self).items()})

    def to(self, device: torch.device) -> "AugmentParams":
        """Copy the parameters to a device without waiting for the copy."""
        return AugmentParams(**{name: on_device(value, device) for name, value in vars(self).items()})


def sample_params(batch: int, scale: tuple[float, float], jitter: float, classmix: float, seed: int) -> AugmentParams:
    """Draw the parameters of a batch: scale (log-uniform), flip, crop position, and three colour factors in 1 ± jitter.

    A share `classmix` of the images gets half of the classes from its neighbour.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(scale).log()
    uniform = torch.rand(7, batch, generator=generator)
    factors = 1 + jitter * (2 * uniform[4:] - 1)
    pasted = torch.rand(batch, 256, generator=generator) < 0.5
    pasted &= torch.rand(batch, 1, generator=generator) < classmix
    pasted[:, IGNORE] = False
    window_share = torch.rand(batch, generator=generator)
    shake = 2 * torch.rand(batch, 3, generator=generator) - 1
    light = torch.rand(batch, DRAWS, generator=generator)
    return AugmentParams(
        scale=(low + (high - low) * uniform[0]).exp(),
        flip=torch.where(uniform[1] < 0.5, -1.0, 1.0),
        position=uniform[2:4].T,
        brightness=factors[0],
        contrast=factors[1],
        saturation=factors[2],
        pasted=pasted,
        window_share=window_share,
        motion=torch.tensor([1.0, 0.0, 0.0]) + torch.tensor([ZOOM, SHIFT, SHIFT]) * shake,
        light=light,
    )


def augment(images: Tensor, labels: Tensor, params: AugmentParams, crop: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Scale, flip, crop and recolour a batch.

    Args:
        images: RGB (B, 3, H, W), uint8.
        labels: (B, H, W), uint8.
        params: Random parameters, on the images' device.
        crop: Height and width of the result; outside the image it is grey, with label IGNORE.

    Returns:
        Images (B, 3, h, w), floats in 0–255, and labels (B, h, w), int64.
    """
    grid = sampling_grid(images.shape[-2:], crop, params)
    # F.grid_sample pads with 0: shift the labels so that 0 means IGNORE
    ids = F.grid_sample(labels[:, None].float() - IGNORE, grid, mode="nearest", align_corners=False) + IGNORE
    return sample_images(images, grid, params), ids[:, 0].round().long()


def augment_mask(looked_at: Tensor, params: AugmentParams, crop: tuple[int, int]) -> Tensor:
    """Return which pixels of the crops are not masked (B, h, w), 0 or 1, by those of the images (H, W).

    What is outside of an image counts, as it does without a mask.
    """
    hidden = (~looked_at).float().expand(len(params.scale), 1, *looked_at.shape)
    grid = sampling_grid(looked_at.shape, crop, params)
    return 1 - F.grid_sample(hidden, grid, mode="nearest", align_corners=False)[:, 0]


def augment_past(past: Tensor, params: AugmentParams, crop: tuple[int, int]) -> Tensor:
    """Augment the past frames (B, P, 3, H, W) like the images of their clips: (B, P, 3, h, w), floats in 0–255."""
    repeated = params[torch.arange(len(past), device=past.device).repeat_interleave(past.shape[1])]
    grid = sampling_grid(past.shape[-2:], crop, repeated)
    return sample_images(past.flatten(0, 1), grid, repeated).unflatten(0, past.shape[:2])


def sample_images(images: Tensor, grid: Tensor, params: AugmentParams) -> Tensor:
    """Sample images at the points of a grid, grey outside the image, and jitter their colours."""
    # F.grid_sample pads with 0: shift the values so that 0 means grey
    grey = 114.0
    sampled = F.grid_sample(images.float() - grey, grid, mode="bilinear", align_corners=False) + grey
    return jitter_colours(sampled, params)


def sampling_grid(size: torch.Size, crop: tuple[int, int], params: AugmentParams) -> Tensor:
    """Return the source of each pixel of a crop, in image coordinates from -1 to 1: (B, h, w, 2)."""
    axes = []
    for axis, (length, cut) in enumerate(zip(reversed(size), reversed(crop), strict=True)):  # x, then y
        # whole pixels, so that a crop without scaling copies pixels
        offset = (params.position[:, axis] * (length * params.scale - cut)).round()
        pixel = torch.arange(cut, device=offset.device) + 0.5
        source = (pixel + offset[:, None]) / params.scale[:, None]
        axes.append(2 * source / length - 1)
    x = axes[0] * params.flip[:, None]
    y = axes[1]
    return torch.stack([x[:, None, :].expand(-1, *crop), y[:, :, None].expand(-1, *crop)], dim=-1)


def shift_camera(x: Tensor, motion: Tensor, back: bool = False) -> Tensor:
    """Return a map (B, C, h, w) after a camera motion (B, 3), or with `back` before it; border values are repeated."""
    zoom, shift = motion[:, :1], motion[:, 1:]
    zoom, shift = (1 / zoom, -shift / zoom) if back else (zoom, shift)
    theta = torch.cat([torch.diag_embed(zoom.expand(-1, 2)), shift[:, :, None]], dim=2)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid.to(x.dtype), mode="bilinear", padding_mode="border", align_corners=False)


def jitter_colours(images: Tensor, params: AugmentParams) -> Tensor:
    """Multiply brightness, contrast and saturation by random factors."""
    images = images * params.brightness.view(-1, 1, 1, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * params.contrast.view(-1, 1, 1, 1)
    red, green, blue = images.split(1, dim=1)
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    return (grey + (images - grey) * params.saturation.view(-1, 1, 1, 1)).clamp(0, 255)


def mix(images: Tensor, labels: Tensor, params: AugmentParams) -> tuple[Tensor, Tensor]:
    """Paste the pixels and labels of some classes from each image's neighbour (ClassMix).

    Cars, people and signs then appear in front of more backgrounds than a small data set has.
    """
    other = swap_neighbours(labels)
    mask = params.pasted.gather(1, other.flatten(1)).view_as(other)
    return torch.where(mask[:, None], swap_neighbours(images), images), torch.where(mask, other, labels)


def swap_neighbours(batch: Tensor) -> Tensor:
    """Swap the entries of a batch in pairs; with an odd number, the last one stays."""
    even = len(batch) // 2 * 2
    return torch.cat([batch[:even].unflatten(0, (-1, 2)).flip(1).flatten(0, 1), batch[even:]])
