"""The steps that PyTorch has no single kernel for, of the fast engine and around it, each in PyTorch and in Triton.

A GPU runs the Triton kernel, if Triton is installed; everything else runs the PyTorch definition.

Shapes: B batch, K classes, H x W the frame, h x w a map, N its pixels, C its channels, D key channels. Maps are
channels_last, in half precision on a GPU.

The modules are imported when one of their names is first used. Most of them import Triton, which takes a quarter of a
second: the first labels of a video do not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamseg.engine.kernels.attention import attend as attend, gather_context as gather_context
    from streamseg.engine.kernels.averaging import average_scores as average_scores, move_scores as move_scores
    from streamseg.engine.kernels.backend import use_triton as use_triton
    from streamseg.engine.kernels.brightness import make_pyramids as make_pyramids
    from streamseg.engine.kernels.colour import to_rgb as to_rgb, to_yuv as to_yuv
    from streamseg.engine.kernels.compiling import wait_until_compiled as wait_until_compiled
    from streamseg.engine.kernels.convolution import (
        MAX_TILES as MAX_TILES,
        convolve as convolve,
        convolve_and_classify as convolve_and_classify,
    )
    from streamseg.engine.kernels.drawing import (
        blend_labels as blend_labels,
        border_mask as border_mask,
        lookup as lookup,
    )
    from streamseg.engine.kernels.folder import kernel_folder as kernel_folder, make_kernel_folder as make_kernel_folder
    from streamseg.engine.kernels.labels import label as label, write_class_shares as write_class_shares
    from streamseg.engine.kernels.language import VERSION as VERSION
    from streamseg.engine.kernels.motion import compare_frames as compare_frames, estimate_motion as estimate_motion
    from streamseg.engine.kernels.pyramid import pool_pyramid as pool_pyramid
    from streamseg.engine.kernels.resize import (
        add_resized as add_resized,
        average_pairs as average_pairs,
        resize_into as resize_into,
    )
    from streamseg.engine.kernels.stem import (
        resize_frame as resize_frame,
        squares as squares,
        stem_convolution as stem_convolution,
        unfold_frame as unfold_frame,
    )

# the same for the running program; a test keeps the two alike
MODULES = {
    "attention": "attend gather_context",
    "averaging": "average_scores move_scores",
    "backend": "use_triton",
    "brightness": "make_pyramids",
    "colour": "to_rgb to_yuv",
    "compiling": "wait_until_compiled",
    "convolution": "MAX_TILES convolve convolve_and_classify",
    "drawing": "blend_labels border_mask lookup",
    "folder": "kernel_folder make_kernel_folder",
    "labels": "label write_class_shares",
    "language": "VERSION",
    "motion": "compare_frames estimate_motion",
    "pyramid": "pool_pyramid",
    "resize": "add_resized average_pairs resize_into",
    "stem": "resize_frame squares stem_convolution unfold_frame",
}
MODULE_OF = {name: module for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'streamseg.engine.kernels' has no attribute {name!r}")
    found = getattr(import_module(f"streamseg.engine.kernels.{MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
