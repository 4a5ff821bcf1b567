"""Optical flow by dense inverse search (DIS), on the CPU, by OpenCV: an optional extra.

T. Kroeger, R. Timofte, D. Dai, L. Van Gool, "Fast Optical Flow using Dense Inverse Search", 2016.

Shapes: B batch, H height, W width.
"""

from types import ModuleType

import torch
from torch import Tensor, nn


class DISFlow(nn.Module):
    """The flow of NetWarp's authors; nothing in it is trained."""

    def __init__(self) -> None:
        super().__init__()
        import_opencv()  # fails now rather than at the first frame

    @torch.no_grad()
    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        """Return the flow (B, 2, H, W) from the current to the previous frame, in pixels."""
        # a new search for each call: OpenCV's keeps buffers, which streams in several threads would share
        cv2 = import_opencv()
        search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
        flows = [
            torch.from_numpy(search.calc(now.numpy(), before.numpy(), None))
            for now, before in zip(to_grey(current), to_grey(previous), strict=True)
        ]
        return torch.stack(flows).permute(0, 3, 1, 2).contiguous().to(current.device)


def import_opencv() -> ModuleType:
    """Return OpenCV; an ImportError with one sentence if it is not installed."""
    try:
        import cv2
    except ImportError:
        raise ImportError(
            "DIS flow needs OpenCV, which is not installed: pip install 'streamseg[flow]', or use flownet_slim()."
        ) from None
    return cv2


def to_grey(image: Tensor) -> Tensor:
    """Return RGB images (B, 3, H, W) as grey bytes (B, H, W) on the CPU."""
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (image.cpu().float() * weights).sum(1).round().clamp(0, 255).to(torch.uint8)
