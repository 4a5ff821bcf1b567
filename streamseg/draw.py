"""Labels made visible.

Shapes: H height, W width.
"""

import torch
from torch import Tensor

from streamseg.classes import IGNORE, Classes


def overlay(frame: Tensor, labels: Tensor, classes: Classes, alpha: float = 0.5) -> Tensor:
    """A frame (3, H, W) under the colours of its labels (H, W); pixels of no class stay as they are.

    Args:
        alpha: Share of the colour, from 0 (the frame alone) to 1 (the colours alone).
    """
    colours = torch.tensor(classes.colours, dtype=torch.float32, device=frame.device)
    ignored = labels == IGNORE
    colour = colours[labels.long().masked_fill(ignored, 0)].permute(2, 0, 1)
    mixed = torch.lerp(frame.float(), colour, alpha).round().to(torch.uint8)
    return torch.where(ignored, frame, mixed)
