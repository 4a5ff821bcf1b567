"""Copies of frames and labels between the host's memory and the network's device.

On a GPU they go through pinned memory, which PyTorch reuses, on the current stream. On the CPU nothing is copied.
"""

import torch
from torch import Tensor

from streamseg.engine import kernels
from streamseg.io.decoded_frame import DecodedFrame
from streamseg.io.yuv import Yuv420, as_rgb


def upload(pixels: Tensor | Yuv420 | DecodedFrame, device: torch.device) -> Tensor:
    """Return a frame (3, H, W) as RGB on a device; on a GPU it may not have arrived yet.

    Args:
        pixels: For a GPU in pinned memory; see pin.
    """
    if isinstance(pixels, Yuv420):
        # half the bytes of RGB, which is made there
        return kernels.to_rgb(pixels.with_pixels(pixels.pixels.to(device, non_blocking=True)))
    return as_rgb(pixels).to(device, non_blocking=True)


def pin(pixels: Tensor | Yuv420 | DecodedFrame) -> Tensor | Yuv420:
    """Return pixels in pinned memory, from which a GPU copies while the host goes on.

    Planes are decoded into pinned memory (Decoding.pinned). To ask CUDA would make the network's thread wait.
    """
    if isinstance(pixels, Yuv420):
        return pixels
    frame = as_rgb(pixels)
    return frame if frame.is_pinned() else frame.pin_memory()


def start_download(x: Tensor) -> Tensor:
    """Return a tensor in the host's memory, complete once the device has finished what it was given."""
    if x.device.type != "cuda":
        return x.cpu()
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def download(*tensors: Tensor) -> list[Tensor]:
    """Return tensors of one device in the host's memory, once they are complete."""
    if tensors[0].device.type != "cuda":
        return [x.cpu() for x in tensors]
    copies = [start_download(x) for x in tensors]
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
