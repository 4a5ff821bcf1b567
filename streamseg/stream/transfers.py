"""Copies of frames and labels between the host's memory and the network's device.

On a GPU they go through pinned memory, which PyTorch reuses, on the current stream. On the CPU nothing is copied.
"""

import torch
from torch import Tensor

from streamseg.engine import kernels
from streamseg.io.yuv import Yuv420


def upload(pixels: Tensor | Yuv420, device: torch.device) -> Tensor:
    """Return a frame (3, H, W) as RGB on a device; on a GPU it may not have arrived yet."""
    if isinstance(pixels, Yuv420):
        # half the bytes of RGB, which is made there
        return kernels.to_rgb(pixels.with_pixels(copy_to(pixels.pixels, device)))
    return copy_to(pixels, device)


def copy_to(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device."""
    if device.type == "cuda" and not x.is_pinned():
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def download(*tensors: Tensor) -> list[Tensor]:
    """Return tensors of one device in the host's memory, once they are complete."""
    if tensors[0].device.type != "cuda":
        return [x.cpu() for x in tensors]
    copies = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in tensors]
    for copy, x in zip(copies, tensors, strict=True):
        copy.copy_(x, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
