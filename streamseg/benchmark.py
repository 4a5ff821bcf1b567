"""What a network costs."""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count_macs(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-accumulates of the convolutions and matrix products for an input of a shape; nothing is computed.

    These are what the paper prints as "GFLOPs"; a floating-point operation count is twice as much.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(network).to("meta").eval()(torch.empty(shape, device="meta"))
    return counter.get_total_flops() // 2
