"""Pictures in which every place looks different, so that motion can be seen."""

import torch
from torch import Tensor
from torch.nn import functional as F


def texture(height: int, width: int, seed: int = 0) -> Tensor:
    """Return a smooth random picture (3, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    parts = [
        F.interpolate(torch.rand(1, 3, height // cell, width // cell, generator=generator), (height, width))
        for cell in (4, 8, 16, 32)
    ]
    blurred = F.avg_pool2d(torch.stack(parts).sum(dim=0), 5, 1, 2, count_include_pad=False)[0]
    low, high = blurred.amin(), blurred.amax()
    return (255 * (blurred - low) / (high - low)).byte()
