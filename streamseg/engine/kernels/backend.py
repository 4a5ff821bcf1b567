"""Triton, where it is installed, and whether its kernels can run."""

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


def use_triton(x: Tensor) -> bool:
    """Whether Triton's kernels run where a tensor is."""
    return x.is_cuda and VERSION != "none" and is_recent(x.device)


@cache
def is_recent(device: torch.device) -> bool:
    """Whether a GPU is one that Triton is made for: of 2020 or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def early(device: torch.device) -> dict[str, bool]:
    """What tells a kernel, and the GPU, that it may be launched before the one before it has ended: from Hopper on.

    Such a kernel begins with wait(EARLY), before it reads or writes anything.
    """
    return {"EARLY": True, "launch_pdl": True} if is_hopper(device) else {"EARLY": False}


@cache
def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@jit
def wait(EARLY):
    """Wait until the kernel before this one has ended."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@jit
def release(EARLY):
    """Let the kernel after this one be launched, which waits for the rest of this one: when that is short."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@cache
def processors(device: torch.device) -> int:
    """How many programs a GPU runs at a time, if each takes all of a processor."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def fits_tensor_cores(side: int) -> bool:
    """Whether Triton multiplies matrices of such a side: powers of two from 16 up."""
    return side >= 16 and side & (side - 1) == 0
