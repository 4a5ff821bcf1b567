"""Whether the Triton kernels can run, and numbers for their launch. Triton itself is imported by language.py."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def use_triton(x: Tensor) -> bool:
    """Return whether the Triton kernels can run on a tensor's device."""
    return x.is_cuda and has_triton() and is_recent(x.device)


def has_triton() -> bool:
    """Return whether Triton is installed, without importing it: the first labels do not wait for that.

    One that is installed and cannot be imported counts only until a module with kernels has tried.
    """
    language = sys.modules.get("streamseg.engine.kernels.language")
    return is_installed() and getattr(language, "VERSION", "") != "none"


@cache
def is_installed() -> bool:
    found = find_spec("triton")
    return found is not None and found.origin is not None  # a mere folder of this name has none


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


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 on the CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def fits_tensor_cores(side: int) -> bool:
    """Return whether Triton can multiply matrices of that side: powers of two from 16 up."""
    return side >= 16 and side & (side - 1) == 0


def cdiv(whole: int, part: int) -> int:
    """Return a quotient, rounded up."""
    return -(-whole // part)


def next_power_of_2(number: int) -> int:
    """Return the least power of two that is not less than a number."""
    return 1 << (number - 1).bit_length()
