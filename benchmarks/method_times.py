"""Times of benchmarks/video_methods.py: a network's frames, as CUDA graphs and eager, and their cost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import streamseg
from streamseg.engine.graphs import capture_graph
from streamseg.evaluate.benchmark import count_macs, time_call
from streamseg.evaluate.method_cost import count_method_macs, is_frame, mean_macs, mean_time, position_calls
from streamseg.models.video import VideoMethod

Call = Callable[[], object]

GRAPHS = "CUDA graphs, fp16"


def count_cost(weights: Path, size: tuple[int, int], key_share: float) -> float:
    """Return the mean GMACs of a frame.

    Args:
        key_share: Share of the frames, 0 to 1, on which the schedule of a method fires.
    """
    network, _ = streamseg.load(weights)
    if isinstance(network, VideoMethod):
        return mean_macs(count_method_macs(network, size), key_share) / 1e9
    return count_macs(network, (1, 3, *size)) / 1e9


@torch.no_grad()
def measure_times(weights: Path, size: tuple[int, int], key_share: float, with_past: bool) -> dict[str, Any]:
    """Return the mean and the maximum time of a frame, from frame to logits of its size, and in which engine.

    On a GPU they are those of CUDA graphs in fp16, without the launches of kernels; those of the eager network are
    beside them. Where a schedule decides, there is a graph for either decision, and the wait for it is not in them.

    Args:
        with_past: Time a FANet with the context of an earlier frame.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    half = torch.float16 if device.type == "cuda" else torch.float32
    torch.backends.cudnn.benchmark = True
    network, _ = streamseg.load(weights)
    model: Any = network.to(device, half, memory_format=torch.channels_last)  # type: ignore[call-overload]
    image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, device=device)
    calls = calls_of(model, image, with_past)
    times = {name: typical_time(call, device) for name, call in calls.items()}
    eager = summarise(times, key_share)
    if device.type != "cuda":
        return eager | {"times": times, "engine": "eager, fp32", "device": "cpu"}
    found: dict[str, Any] = {f"eager_{key}": number for key, number in eager.items()}
    found |= {"eager_times": times, "device": torch.cuda.get_device_name(device)}
    try:
        graphs = {name: typical_time(capture_graph(call, device).replay, device) for name, call in calls.items()}
    except RuntimeError as error:  # the other networks, and the eager times, do not depend on it
        print(f"{weights.parent.name}: no CUDA graph, {error!r:.300}", flush=True)
        return found
    return found | summarise(graphs, key_share) | {"times": graphs, "engine": GRAPHS}


def calls_of(model: Any, image: torch.Tensor, with_past: bool) -> dict[str, Call]:
    """Return the calls to time, from frame to logits of the frame's size."""
    if isinstance(model, VideoMethod):
        return position_calls(model, image)
    if with_past:
        _, past = model.step(image)
        return {"every frame": partial(model.step, image, past)}
    return {"every frame": partial(model, image)}


def summarise(times: dict[str, float], key_share: float) -> dict[str, float]:
    """Return the mean time of a frame, with work after its labels, and the longest, without."""
    longest = max(taken for name, taken in times.items() if is_frame(name))
    return {"mean_ms": mean_time(times, key_share), "max_ms": longest}


def typical_time(call: Call, device: torch.device) -> float:
    """Return the median milliseconds of a call; on a GPU by events."""
    warm_up, rounds = (5, 30) if device.type == "cuda" else (1, 3)
    return median([time_call(call, device) for _ in range(warm_up + rounds)][warm_up:])
