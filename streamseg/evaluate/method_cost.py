"""The cost of video methods by the position in their key interval: multiply-accumulates and time a frame.

Shapes: B batch, H x W the frame.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from streamseg.engine.pick import PRECISIONS, fast_precisions
from streamseg.evaluate.benchmark import (
    Call,
    Cost,
    Timing,
    allocated,
    is_exported,
    measure_cost,
    open_network,
    time_paths,
)
from streamseg.models.baselines import BASELINES
from streamseg.models.bundled import BUNDLED_WEIGHTS
from streamseg.models.checkpoint import FANETS
from streamseg.models.video import VideoMethod

STILL, CHANGED = "still frame", "changed frame"
"""Names of the frames of a method whose schedule decides: one on which it does not fire, and one on which it does."""

AFTER_LABELS = ", after its labels"
"""End of the name of the work that a frame leaves for the time after its labels."""


def measure_any(
    name: str,
    size: tuple[int, int],
    batch: int,
    device: torch.device,
    precision: str = "",
    *,
    compiled: bool = False,
    seconds: float = 3.0,
    trust: bool = False,
) -> Cost:
    """Measure a network, an exported file, or a video method by its positions; the arguments are measure_cost's."""
    method = open_method(name)
    if method is not None:
        if compiled:
            raise ValueError(f"{name} is a video method, which runs operator by operator: leave out --compiled.")
        return measure_method(method, size, batch, device, precision, seconds)
    return measure_cost(name, size, batch, device, precision, compiled=compiled, seconds=seconds, trust=trust)


def open_method(name: str) -> VideoMethod | None:
    """Return the video method of a name or in a checkpoint; None if the name is that of something else."""
    if name in (*FANETS, *BASELINES, *BUNDLED_WEIGHTS) or is_exported(name):
        return None
    network = open_network(name)
    return network if isinstance(network, VideoMethod) else None


def measure_method(
    method: VideoMethod, size: tuple[int, int], batch: int, device: torch.device, precision: str, seconds: float
) -> Cost:
    """Measure a video method by the position in its key interval, operator by operator, from frame to logits.

    The last two lines are the mean over the positions and the slowest of them. The maximum leaves out the work after
    the labels, the mean does not.
    """
    precision = precision or fast_precisions(device)[0]
    if precision not in PRECISIONS or precision == "int8":
        raise ValueError(f"precision is {precision!r:.80}; {method.name} runs in fp32, fp16 or bf16.")
    before = allocated(device)
    macs = count_method_macs(method, size)
    method = method.to(device, PRECISIONS[precision], memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    frames = torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, device=device)
    with torch.no_grad():
        calls = {name: as_prepared(call) for name, call in position_calls(method, frames).items()}
        timings = time_paths(calls, device, len(frames), seconds, before)
    parameters = sum(x.numel() for x in method.parameters())
    gmacs = mean_macs(macs, key_share=0.0) / 1e9
    return Cost(method.name, parameters, gmacs, (*timings, *summarise_positions(timings, len(frames))))


def as_prepared(call: Call) -> Callable[[], Call]:
    """Return a function that prepares a call which needs no preparation."""
    return lambda: call


def summarise_positions(timings: Sequence[Timing], batch: int) -> tuple[Timing, Timing]:
    """Return the mean time of a frame over its positions, and the time of the slowest position."""
    means = [mean_time({timing.way: getattr(timing, name) for timing in timings}) for name in ("median", "p95", "p99")]
    slowest = max((timing for timing in timings if is_frame(timing.way)), key=lambda timing: timing.median)
    memory, rounds = slowest.memory_mb, min(timing.rounds for timing in timings)
    return (
        Timing("mean", means[0], means[1], means[2], 1000 * batch / means[0], memory, rounds),
        replace(slowest, way="maximum"),
    )


def is_frame(name: str) -> bool:
    """Return whether a name is that of a frame, and not of the work after its labels."""
    return not name.endswith(AFTER_LABELS)


def mean_time(times: Mapping[str, float], key_share: float = 0.0) -> float:
    """Return the mean time of a frame, with the work after its labels, from the times by position.

    Args:
        key_share: Share of the frames on which a schedule fires; without one, the mean is over the interval.
    """
    frames = {name: taken + times.get(name + AFTER_LABELS, 0.0) for name, taken in times.items() if is_frame(name)}
    return mean_macs(frames, key_share)


def position_calls(method: VideoMethod, image: Tensor) -> dict[str, Call]:
    """Return a call of step for each position in a fixed key interval, else for each kind of frame.

    The work that a frame leaves for the time after its labels is a call of its own.

    Args:
        image: A batch of frames, of bytes.
    """
    calls: dict[str, Call] = {"key frame": partial(method.step, image)}
    _, state = method.step(image)
    interval = fixed_interval(method)
    frames = {STILL: image, CHANGED: 255 - image}
    if interval is not None:
        frames = {f"{number} after": image for number in range(1, interval)}
    for name, frame in frames.items():
        calls[name] = partial(step_deciding, method, frame, state, name == CHANGED)
        _, after = step_deciding(method, frame, state, name == CHANGED)
        finished = method.finish(after)
        if finished is not after:
            calls[name + AFTER_LABELS] = partial(finish_deciding, method, after, name == CHANGED)
        if interval is not None:
            state = finished
    return calls


def fixed_interval(method: VideoMethod) -> int | None:
    """Return the key interval of a method; None without one, and where it is only the limit of a schedule."""
    return None if method.decides_by else method.interval


def step_deciding(method: VideoMethod, image: Tensor, state: Any, fires: bool) -> tuple[Tensor, Any]:
    """Return what step returns if the schedule of a method fires, or does not."""
    with deciding(method, fires):
        return method.step(image, state)


def finish_deciding(method: VideoMethod, state: Any, fires: bool) -> Any:
    """Return what finish returns if the schedule of a method fires, or does not."""
    with deciding(method, fires):
        return method.finish(state)


def count_method_macs(method: VideoMethod, size: tuple[int, int]) -> dict[str, int]:
    """Count the multiply-accumulates of a frame at each position of a fixed key interval, without computing.

    Without one: of the first frame, of one that changes nothing, and of one that makes the schedule fire. The
    work after the labels is counted with the frame that leaves it.
    """
    method = copy.deepcopy(method).to("meta").eval()
    image = torch.empty(1, 3, *size, device="meta")
    found, state = {}, None
    interval = fixed_interval(method)
    for number in range(interval or 1):
        found[f"{number} after" if number else "key frame"], state = count_step(method, image, state)
    if interval is None:
        for name in (STILL, CHANGED):
            with deciding(method, name == CHANGED):
                found[name], _ = count_step(method, image, state)
    return found


def count_step(method: VideoMethod, image: Tensor, state: Any) -> tuple[int, Any]:
    """Return the multiply-accumulates of a step on the meta device, and the state after it."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        _, state = method.step(image, state)
        state = method.finish(state)
    return counter.get_total_flops() // 2, state


@contextmanager
def deciding(method: VideoMethod, fires: bool) -> Iterator[None]:
    """Let the schedule of a method fire on every frame meanwhile, or on none; without a schedule nothing changes."""
    always_or_never = {"target": 100 if fires else 0, "threshold": 0 if fires else math.inf}
    before = {name: getattr(method, name) for name in always_or_never if hasattr(method, name)}
    try:
        for name in before:
            setattr(method, name, always_or_never[name])
        yield
    finally:
        for name, value in before.items():
            setattr(method, name, value)


def mean_macs(macs: Mapping[str, float], key_share: float) -> float:
    """Return the mean multiply-accumulates a frame: over the interval, or by the share of frames that fire."""
    if STILL not in macs:
        return fmean(macs.values())
    return key_share * macs[CHANGED] + (1 - key_share) * macs[STILL]


def time_positions(
    method: VideoMethod, size: tuple[int, int], device: torch.device, time_calls: Callable[[Call], list[float]]
) -> dict[str, float]:
    """Return the mean and the maximum time of a frame over the positions, and frames per second.

    Args:
        time_calls: Returns the milliseconds of repeated calls.
    """
    image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, device=device)
    times = {name: time_calls(call) for name, call in position_calls(method, image).items()}
    mean = mean_time({name: fmean(taken) for name, taken in times.items()})
    slowest = max(max(taken) for name, taken in times.items() if is_frame(name))
    return {"fps": 1000 / mean, "avg_ms": mean, "max_ms": slowest}
