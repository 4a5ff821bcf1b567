"""Random flips, scales, crops and colours for a whole batch, on the device that it is on.

What is drawn (on the CPU, a few numbers an image) is apart from what is done with it, so that a run can be repeated and
split over processes.

Shapes: B batch, H x W the images, h x w the crops.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.classes import IGNORE

ZOOM, SHIFT = 0.03, 0.04
"""How far a camera moves from a frame to the next, at most: zoom, and shifts in halves of a side."""


@dataclass(frozen=True)
class AugmentParams:
    """What was drawn for each image of a batch: tensors (B,) where nothing else is said."""

    scale: Tensor
    flip: Tensor
    """1 or -1."""
    place: Tensor
    """(B, 2): of the crop in the scaled image, from 0 (left, top) to 1 (right, bottom)."""
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    pasted: Tensor
    """(B, 256): which labels' pixels come from the neighbour in the batch."""
    memory: Tensor
    """How much of the window a clip looks at, from 0 to 1."""
    motion: Tensor
    """(B, 3): a small motion of the camera, a zoom, and shifts to the right and down in halves of the crop's sides."""

    def __getitem__(self, part: slice | Tensor) -> "AugmentParams":
        return AugmentParams(**{name: value[part] for name, value in vars(self).items()})

    def to(self, device: torch.device) -> "AugmentParams":
        """The same on a device, which need not wait for it."""
        pinned = {name: value.pin_memory() if device.type == "cuda" else value for name, value in vars(self).items()}
        return AugmentParams(**{name: value.to(device, non_blocking=True) for name, value in pinned.items()})


def sample_params(batch: int, scale: tuple[float, float], jitter: float, mixing: float, seed: int) -> AugmentParams:
    """Draw for a batch: a scale (even in its logarithm), a flip, a place, and three colour factors in 1 ± jitter.

    A share `mixing` of the images gets half of the classes from its neighbour.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = torch.tensor(scale).log()
    uniform = torch.rand(7, batch, generator=generator)
    factors = 1 + jitter * (2 * uniform[4:] - 1)
    pasted = torch.rand(batch, 256, generator=generator) < 0.5
    pasted &= torch.rand(batch, 1, generator=generator) < mixing
    pasted[:, IGNORE] = False
    memory = torch.rand(batch, generator=generator)
    wiggle = 2 * torch.rand(batch, 3, generator=generator) - 1
    return AugmentParams(
        scale=(low + (high - low) * uniform[0]).exp(),
        flip=torch.where(uniform[1] < 0.5, -1.0, 1.0),
        place=uniform[2:4].T,
        brightness=factors[0],
        contrast=factors[1],
        saturation=factors[2],
        pasted=pasted,
        memory=memory,
        motion=torch.tensor([1.0, 0.0, 0.0]) + torch.tensor([ZOOM, SHIFT, SHIFT]) * wiggle,
    )


def augment(images: Tensor, labels: Tensor, choice: AugmentParams, crop: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Random views of a batch, cut to one size.

    Args:
        images: RGB (B, 3, H, W), bytes.
        labels: (B, H, W), bytes.
        choice: What was drawn, on the images' device.
        crop: Height and width of the result; what lies outside an image is grey, and its label is IGNORE.

    Returns:
        Images (B, 3, h, w), floats in 0–255, and labels (B, h, w), int64.
    """
    grid = sampling_grid(images.shape[-2:], crop, choice)
    # what F.grid_sample fills in is 0: shifted, so that it means no class
    ids = F.grid_sample(labels[:, None].float() - IGNORE, grid, mode="nearest", align_corners=False) + IGNORE
    return sample_images(images, grid, choice), ids[:, 0].round().long()


def augment_past(past: Tensor, choice: AugmentParams, crop: tuple[int, int]) -> Tensor:
    """The frames (B, P, 3, H, W) before those of a batch, seen as these are: (B, P, 3, h, w), floats in 0–255."""
    alike = choice[torch.arange(len(past), device=past.device).repeat_interleave(past.shape[1])]
    grid = sampling_grid(past.shape[-2:], crop, alike)
    return sample_images(past.flatten(0, 1), grid, alike).unflatten(0, past.shape[:2])


def sample_images(images: Tensor, grid: Tensor, choice: AugmentParams) -> Tensor:
    """Images at the places of a grid, in other colours; what lies outside is grey."""
    # what F.grid_sample fills in is 0: shifted, so that it means grey
    grey = 114.0
    views = F.grid_sample(images.float() - grey, grid, mode="bilinear", align_corners=False) + grey
    return jitter_colours(views, choice)


def sampling_grid(size: torch.Size, crop: tuple[int, int], choice: AugmentParams) -> Tensor:
    """Where in its image, from -1 to 1, each pixel of a crop comes from: (B, h, w, 2)."""
    axes = []
    for axis, (length, cut) in enumerate(zip(reversed(size), reversed(crop), strict=True)):  # x, then y
        # whole pixels, so that a crop without scaling copies pixels
        offset = (choice.place[:, axis] * (length * choice.scale - cut)).round()
        pixel = torch.arange(cut, device=offset.device) + 0.5
        source = (pixel + offset[:, None]) / choice.scale[:, None]
        axes.append(2 * source / length - 1)
    x = axes[0] * choice.flip[:, None]
    y = axes[1]
    return torch.stack([x[:, None, :].expand(-1, *crop), y[:, :, None].expand(-1, *crop)], dim=-1)


def shift_camera(x: Tensor, motion: Tensor, back: bool = False) -> Tensor:
    """A map (B, C, h, w) after a motion of the camera (B, 3), or before it; beyond its border it goes on as there."""
    zoom, shift = motion[:, :1], motion[:, 1:]
    zoom, shift = (1 / zoom, -shift / zoom) if back else (zoom, shift)
    theta = torch.cat([torch.diag_embed(zoom.expand(-1, 2)), shift[:, :, None]], dim=2)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid.to(x.dtype), mode="bilinear", padding_mode="border", align_corners=False)


def jitter_colours(images: Tensor, choice: AugmentParams) -> Tensor:
    """Brightness, contrast and saturation by the factors that were drawn."""
    images = images * choice.brightness.view(-1, 1, 1, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * choice.contrast.view(-1, 1, 1, 1)
    red, green, blue = images.split(1, dim=1)
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    return (grey + (images - grey) * choice.saturation.view(-1, 1, 1, 1)).clamp(0, 255)


def mix(images: Tensor, labels: Tensor, choice: AugmentParams) -> tuple[Tensor, Tensor]:
    """Paste the pixels of some classes of each image's neighbour over it, labels with them (ClassMix).

    Cars, people and signs then stand in front of more than the few backgrounds of a small data set.
    """
    other = neighbours(labels)
    mask = choice.pasted.gather(1, other.flatten(1)).view_as(other)
    return torch.where(mask[:, None], neighbours(images), images), torch.where(mask, other, labels)


def neighbours(batch: Tensor) -> Tensor:
    """The batch with its entries swapped two by two; a last odd one stays."""
    even = len(batch) // 2 * 2
    return torch.cat([batch[:even].unflatten(0, (-1, 2)).flip(1).flatten(0, 1), batch[even:]])
