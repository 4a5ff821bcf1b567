"""Frames as a decoder holds them."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor


class DecodedFrame:
    """A frame of a live video, which becomes RGB when it is needed. Any thread may ask for it.

    Args:
        size: Height and width.
        convert: Returns the frame as RGB (3, height, width); called once at most.
    """

    def __init__(self, size: tuple[int, int], convert: Callable[[], Tensor]):
        self.shape = torch.Size((3, *size))
        self.convert: Callable[[], Tensor] | None = convert
        self.rgb: Tensor | None = None
        self.lock = threading.Lock()

    def to_rgb(self) -> Tensor:
        """Return the frame as RGB; the decoder has its memory back then."""
        with self.lock:
            if self.convert is not None:
                self.rgb, self.convert = self.convert(), None
            assert self.rgb is not None
            return self.rgb
