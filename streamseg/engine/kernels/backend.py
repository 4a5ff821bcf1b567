"""Triton, if it is installed, and checks of whether its kernels can run."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

try:
    import triton

    tl, jit, cdiv, next_power_of_2 = triton.language, triton.jit, triton.cdiv, triton.next_power_of_2
    VERSION: str = triton.__version__
except ImportError:  # no Triton: a machine without a GPU
    VERSION, tl = "none", None

    def jit(kernel):
        return kernel

    def cdiv(whole, part):
        raise RuntimeError("Triton is not installed.")

    next_power_of_2 = cdiv

GLUON_VERSIONS = ("3.6", "3.7")
"""Versions of Triton whose Gluon, its lower level, is known to compile our kernels: it still changes."""

try:
    if not VERSION.startswith(GLUON_VERSIONS):
        raise ImportError
    from triton.experimental import gluon
    from triton.experimental.gluon.language.nvidia import hopper as hopper_language
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    gl, gluon_jit, hopper, GluonDescriptor = gluon.language, gluon.jit, hopper_language, TensorDescriptor
    meet = (
        gl.thread_barrier if VERSION.startswith("3.6") else gl.barrier
    )  # all threads of a program wait for each other
except ImportError:
    gl = hopper = GluonDescriptor = meet = None

    def gluon_jit(kernel):
        return kernel


def use_triton(x: Tensor) -> bool:
    """Return whether the Triton kernels can run on a tensor's device."""
    return x.is_cuda and VERSION != "none" and is_recent(x.device)


@cache
def is_recent(device: torch.device) -> bool:
    """Return whether Triton supports a GPU: Ampere (2020) or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def early(device: torch.device) -> dict[str, bool]:
    """Return the options of programmatic dependent launch, which launches a kernel before the previous one has ended.

    It exists from Hopper on. Such a kernel starts with wait(EARLY), before it reads or writes anything.
    """
    return {"EARLY": True, "launch_pdl": True} if is_hopper(device) else {"EARLY": False}


@cache
def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@jit
def wait(EARLY):
    """Wait until the previous kernel has ended."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@jit
def release(EARLY):
    """Allow the next kernel to be launched; it waits for the rest of this one, which should be short."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 on the CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def fits_tensor_cores(side: int) -> bool:
    """Return whether Triton can multiply matrices of that side: powers of two from 16 up."""
    return side >= 16 and side & (side - 1) == 0
