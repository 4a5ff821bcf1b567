"""Between the planes of a video, YUV 4:2:0, and RGB frames."""

from __future__ import annotations

from streamseg.io.yuv import to_rgb, to_yuv

__all__ = ["to_rgb", "to_yuv"]
