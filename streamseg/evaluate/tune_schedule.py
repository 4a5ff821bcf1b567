"""Tuning of the schedules that choose key frames by content: the threshold or target for a mean key-frame rate.

A schedule's value says little by itself: how much a predicted deviation of 0.1 is depends on the network and on its
training. So it is chosen by what it costs, the share of key frames on clips that the method is not judged on.

Shapes: T frames of a clip, H x W the frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from streamseg.models.video import VideoMethod

TOLERANCE = 1.0
"""Difference of key-frame rates, in percent, that is close enough."""

ROUNDS = 10
"""Values that are tried at most."""


@dataclass(frozen=True)
class TunedSchedule:
    """The value that was chosen."""

    value: float
    """Threshold or target."""
    key_rate: float
    """Percentage of key frames on the clips with this value; of DVSNet, of cells that are segmented."""


def tune_schedule(method: VideoMethod, clips: Sequence[Tensor], key_rate: float) -> TunedSchedule:
    """Set the threshold or target of a method, so that it has a mean key-frame rate on clips, and return it.

    Bisection: a larger threshold gives fewer key frames, a larger target more. The first frame of a clip, which is
    always a key frame, does not count.

    Args:
        clips: Frames (T, 3, H, W) of bytes or floats, two or more, on the device of the method; as fast or slow as the
            videos later, and not those that it is evaluated on.
        key_rate: In percent, such as 20 to compare it with a key interval of 5.
    """
    if not 0 < key_rate < 100:
        raise ValueError(f"The key-frame rate is {key_rate}; expected a percentage between 0 and 100.")
    if not clips or min(map(len, clips)) < 2:
        raise ValueError("The clips have less than two frames; expected one clip or more, of two frames or more.")
    low, high = (0.0, 100.0) if method.decides_by == "target" else (0.0, 1.0)
    tried = []
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        method.set_schedule(middle)
        rate = measure_key_rate(method, clips)
        tried.append(TunedSchedule(middle, rate))
        if abs(rate - key_rate) <= TOLERANCE:
            break
        if (rate < key_rate) == (method.decides_by == "target"):
            low = middle
        else:
            high = middle
    best = min(tried, key=lambda one: abs(one.key_rate - key_rate))
    method.set_schedule(best.value)
    return best


@torch.no_grad()
def measure_key_rate(method: VideoMethod, clips: Sequence[Tensor]) -> float:
    """Return the percentage of key frames in clips (T, 3, H, W), without their first frames."""
    shares = []
    for clip in clips:
        _, state = method.step(clip[:1])
        for frame in clip[1:]:
            _, state = method.step(frame[None], state)
            state = method.finish(state)
            shares.append(method.key_share(state))
    return 100 * fmean(shares)
