"""Times of every convolution of a network on a GPU, by the Triton kernel under several plans, and by cuDNN.

    python benchmarks/convolutions.py fanetplus18 --size 1024x2048

A star marks what the fast engine uses.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from streamseg.engine import convolutions
from streamseg.engine.convolutions import GpuConv
from streamseg.engine.graphs import capture_graph
from streamseg.engine.kernels import convolution
from streamseg.engine.kernels.backend import is_hopper
from streamseg.engine.kernels.convolution import MAX_TILES, Plan, plan_blocks
from streamseg.evaluate.benchmark import open_network

CALLS = 20
"""Number of calls in one CUDA graph, which hides the time of its launch."""

PLANS = [
    Plan(128, 128, 64, 1),
    Plan(128, 64, 64, 1),
    Plan(64, 128, 64, 1),
    Plan(64, 64, 64, 1),
    Plan(64, 256, 64, 1, warps=8),
    Plan(64, 64, 128, 1),
    Plan(64, 64, 128, 3),
    Plan(64, 64, 128, 4),
]

Layer = tuple[tuple[int, int], int, int, torch.Size]
"""Outputs and kernel, stride, padding, and shape of the input."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", nargs="?", default="fanetplus18")
    parser.add_argument("--size", default="1024x2048")
    options = parser.parse_args()
    height, width = map(int, options.size.split("x"))
    for layer, count in find_layers(open_network(options.network).cuda(), height, width).items():
        (outputs, side), stride, padding, shape = layer
        x = torch.randn(shape, device="cuda").half().contiguous(memory_format=torch.channels_last)
        weight = torch.randn(outputs, shape[1], side, side, device="cuda").half() / 50
        conv = GpuConv(weight.contiguous(memory_format=torch.channels_last), weight[:, 0, 0, 0], stride, padding)
        print(f"{count} x {side}x{side}/{stride} {shape[1]} -> {outputs}, {shape[2]} x {shape[3]}:", time_ways(conv, x))


@torch.no_grad()
def find_layers(network: nn.Module, height: int, width: int) -> dict[Layer, int]:
    """Return the convolutions of the fast engine's kernel, and how often each occurs."""
    found: dict[Layer, int] = {}

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        shape = inputs[0].shape
        if shape[1] >= 64 and module.out_channels % 64 == 0:
            kernel = (module.out_channels, module.kernel_size[0])
            layer = (kernel, module.stride[0], int(module.padding[0]), shape)
            found[layer] = found.get(layer, 0) + 1

    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(record)
    network.eval()(torch.zeros(1, 3, height, width, dtype=torch.uint8, device="cuda"))
    return found


@torch.no_grad()
def time_ways(conv: GpuConv, x: Tensor) -> str:
    """Return the microseconds of a convolution by cuDNN and under each plan, the shortest first."""
    outputs, inputs, side, _ = conv.weight.shape
    out = conv.allocate_output(x)
    chosen = (
        plan_blocks(out[:, 0].numel(), inputs, outputs, side * side, is_hopper(x.device))
        if conv.uses_triton(x)
        else None
    )
    times: dict[Plan | None, float] = {}
    for plan in dict.fromkeys((chosen, None, *PLANS)):
        if plan and (plan.channels > outputs or plan.depth > inputs or inputs % plan.depth):
            continue
        if plan and plan.splits > 1 and out[:, 0].numel() * outputs > MAX_TILES * plan.pixels * plan.channels:
            continue
        convolution.plan_blocks = lambda *_, plan=plan: plan
        convolutions.CUDNN_MACS = 1e18 if plan else 0.0
        times[plan] = time_call(partial(conv.relu, x))
    names = {plan: "/".join(map(str, plan)) if plan else "cuDNN" for plan in times}
    ranked = sorted(times, key=times.__getitem__)
    convolution.plan_blocks, convolutions.CUDNN_MACS = plan_blocks, CUDNN_MACS
    return "  ".join(f"{names[plan]}{'*' * (plan == chosen)} {times[plan]:.1f}" for plan in ranked)


def time_call(call: Callable[[], object]) -> float:
    """Return the median time of a call on the GPU, in microseconds."""
    graph = capture_graph(lambda: [call() for _ in range(CALLS)], torch.device("cuda", torch.cuda.current_device()))
    times = []
    for _ in range(20):
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        graph.replay()
        done.record()
        done.synchronize()
        times.append(1000 * begun.elapsed_time(done) / CALLS)
    return median(times)


CUDNN_MACS = convolutions.CUDNN_MACS

if __name__ == "__main__":
    main()
