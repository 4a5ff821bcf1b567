"""The steps that PyTorch has no single kernel for, of the fast engine and around it, each in PyTorch and in Triton.

A GPU runs the Triton kernel, if Triton is installed; everything else runs the PyTorch definition.

Shapes: B batch, K classes, H x W the frame, h x w a map, N its pixels, C its channels, D key channels. Maps are
channels_last, in half precision on a GPU.
"""

from streamseg.engine.kernels.attention import attend, gather_context
from streamseg.engine.kernels.backend import VERSION, use_triton
from streamseg.engine.kernels.colour import to_rgb, to_yuv
from streamseg.engine.kernels.compiling import wait_until_compiled
from streamseg.engine.kernels.convolution import MAX_TILES, convolve, convolve_and_classify
from streamseg.engine.kernels.drawing import blend_labels, border_mask, lookup
from streamseg.engine.kernels.folder import kernel_folder, make_kernel_folder
from streamseg.engine.kernels.labels import label
from streamseg.engine.kernels.pyramid import pool_pyramid
from streamseg.engine.kernels.resize import add_resized, average_pairs, resize_into
from streamseg.engine.kernels.stem import resize_frame, squares, stem_convolution, unfold_frame

__all__ = [
    "MAX_TILES",
    "VERSION",
    "add_resized",
    "attend",
    "average_pairs",
    "blend_labels",
    "border_mask",
    "convolve",
    "convolve_and_classify",
    "gather_context",
    "kernel_folder",
    "label",
    "lookup",
    "make_kernel_folder",
    "pool_pyramid",
    "resize_frame",
    "resize_into",
    "squares",
    "stem_convolution",
    "to_rgb",
    "to_yuv",
    "unfold_frame",
    "use_triton",
    "wait_until_compiled",
]
