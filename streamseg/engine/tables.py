"""Tensors that depend on sizes alone, kept from frame to frame on the CPU, where making one takes long for its use."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

import torch

Sizes = ParamSpec("Sizes")
Table = TypeVar("Table")

KEPT_TABLES = 64
"""Of each kind: those of a few sizes of frames."""


def kept_on_cpu(make: Callable[Sizes, Table]) -> Callable[Sizes, Table]:
    """Keep the newest tables that a function makes for the CPU. It takes a device last, and nobody may change them.

    A GPU has none, as a stream could use a table before another one has made it; nor has a graph that is being made.
    """

    def make_for_all(*sizes: Sizes.args, **named: Sizes.kwargs) -> Table:
        with torch.inference_mode(False):  # for training too
            return make(*sizes, **named)

    make_once = lru_cache(KEPT_TABLES)(make_for_all)

    @wraps(make)
    def find(*sizes: Sizes.args, **named: Sizes.kwargs) -> Table:
        device = sizes[-1]
        kept = isinstance(device, torch.device) and device.type == "cpu" and not torch.compiler.is_compiling()
        return cast(Callable[Sizes, Table], make_once if kept else make)(*sizes, **named)

    return find
