"""Streams of frames: their labels, and what a network remembers of them. Only this file knows of windows.

The state of a stream is a value that goes in and comes out: two streams cannot mix, and any state can be kept, saved,
or gone back to.

Shapes: B streams in a batch, K classes, H height, W width, h x w the map of Res-1, T frames in a state, D key channels,
C channels of Res-1 … Res-4 side by side.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.checks import check_count, check_positive
from streamseg.io.checksums import BLANK_CHECKSUM, pop_checksum
from streamseg.io.tensors import load_tensors, open_tensors, write_tensors

FRAME_TIME = 1 / 25
"""Seconds between frames that come without times."""

# in the metadata of a file
STATE_ENTRY = "streamseg-state"


@dataclass(frozen=True)
class LastFrames:
    """The window is the last frames exactly, the present one among them, and each weighs the same (paper Eq. 6)."""

    frames: int
    limit: float = math.inf
    """The most that all past frames weigh together; a network that was trained with T frames knows T - 1."""
    steady: float = 0.0
    """How much higher another class must score than the one that a pixel had a frame before, to take its place."""

    def __post_init__(self) -> None:
        check_count("window", self.frames)
        check_positive("limit", self.limit)
        check_steady_margin(self.steady)


@dataclass(frozen=True)
class Fading:
    """Every frame so far counts, but less with each one that comes after it."""

    share: float
    """What a frame's weight is multiplied by with each later frame; 0.5 makes all frames weigh two in the end."""
    limit: float = math.inf
    """The most that all past frames weigh together; a network that was trained with T frames knows T - 1."""
    steady: float = 0.0
    """How much higher another class must score than the one that a pixel had a frame before, to take its place."""

    def __post_init__(self) -> None:
        check_positive("share", self.share)
        if self.share >= 1:
            raise ValueError(f"share is {self.share}; expected less than 1: what never fades grows without end.")
        check_positive("limit", self.limit)
        check_steady_margin(self.steady)


@dataclass(frozen=True)
class FadingInTime:
    """Every frame so far counts, but less as time goes by: a frame that was dropped changes no other's weight."""

    half_life: float
    """Seconds in which a frame's weight halves."""
    limit: float = math.inf
    """The most that all past frames weigh together; a network that was trained with T frames knows T - 1."""
    steady: float = 0.0
    """How much higher another class must score than the one that a pixel had a frame before, to take its place."""

    def __post_init__(self) -> None:
        check_positive("half_life", self.half_life)
        if self.half_life == math.inf:
            raise ValueError("half_life is inf; expected seconds: what never fades grows without end.")
        check_positive("limit", self.limit)
        check_steady_margin(self.steady)


Policy = LastFrames | Fading | FadingInTime
"""What is remembered of the frames before."""


@dataclass(frozen=True, eq=False)
class State:
    """What a stream has seen: a value, whose tensors nothing changes."""

    contexts: Tensor
    """(T, D, C) in fp32, oldest first; of a fading past one alone, the weighted mean."""
    weights: tuple[float, ...]
    """Of each context, at the time of the last frame."""
    seconds: float
    """The time of the last frame."""
    coarse: Tensor | None = None
    """(h, w), uint8: the labels of the last frame where it was scored, under a policy that keeps labels steady."""


def sum_past(state: State | None, seconds: float, window: int | Policy) -> Tensor | None:
    """The past (1, D, C) of a frame at a time: the sum of the contexts by their weights; None if it is empty."""
    policy = to_policy(window)
    if state is None:
        return None
    left = decay(state, seconds, policy)
    weight = sum(left.weights)
    return weighted_sum(left.contexts, left.weights, min(1.0, policy.limit / weight)) if weight else None


def past_weight(state: State | None, seconds: float, window: int | Policy) -> float:
    """How many frames the past of a frame at a time weighs, for a network that averages."""
    policy = to_policy(window)
    return 0.0 if state is None else min(sum(decay(state, seconds, policy).weights), policy.limit)


def advance(state: State | None, context: Tensor, seconds: float, window: int | Policy) -> State:
    """The state after one more frame, whose context (1, D, C) weighs 1."""
    policy = to_policy(window)
    left = State(context[:0], (), seconds) if state is None else decay(state, seconds, policy)
    weights = (*left.weights, 1.0)
    if isinstance(policy, LastFrames):
        # what the next frame will look at; a copy, which holds on to no other frame
        first = len(weights) - min(len(weights), policy.frames - 1)
        kept = [left.contexts[first:], context[max(0, first - len(left.weights)) :]]
        return State(torch.cat(kept), weights[first:], seconds)
    total = sum(weights)
    return State(weighted_sum(torch.cat([left.contexts, context]), weights, 1 / total), (total,), seconds)


def decay(state: State, seconds: float, policy: Policy) -> State:
    """What is left of a state when the next frame comes."""
    if isinstance(policy, LastFrames):
        first = max(0, len(state.weights) - (policy.frames - 1))
        return replace(state, contexts=state.contexts[first:], weights=state.weights[first:])
    if isinstance(policy, Fading):
        share = policy.share
    else:
        # while a clock is set back, nothing fades
        share = 0.5 ** (max(0.0, seconds - state.seconds) / policy.half_life)
    return replace(state, weights=tuple(share * weight for weight in state.weights))


def weighted_sum(contexts: Tensor, weights: Sequence[float], scale: float) -> Tensor:
    """The sum (1, D, C) of contexts (T, D, C) by their weights, times a scale."""
    # anew for each frame: the running sum of a window would drift
    if len(set(weights)) > 1:
        return (contexts * contexts.new_tensor([scale * weight for weight in weights]).view(-1, 1, 1)).sum(0, True)
    # of an exact window: no numbers have to go to the device, so that a long one takes no more time than a short one
    total, share = contexts.sum(0, True), scale * weights[0]
    return total if share == 1 else share * total


def context_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """How far apart two contexts are, (B,), from 0 for the same scene to 2: one minus the cosine of Res-2's."""
    # of the four stages the one that tells best; docs/segment.md has distances that were measured
    return 1 - F.cosine_similarity(a[1].flatten(1), b[1].flatten(1))


def context_distances(states: Sequence[State | None], contexts: Tensor, widths: Sequence[int]) -> list[float]:
    """How far each stream's next context, of (B, D, C), is from those it has seen; 0 where it has seen none."""
    far = [0.0] * len(states)
    found = {}
    for i, state in enumerate(states):
        if state is not None and state.weights:
            seen = weighted_sum(state.contexts, state.weights, 1.0)
            found[i] = context_distance(contexts[i : i + 1].split(widths, dim=2), seen.split(widths, dim=2))
    if found:
        # one answer for all streams, for which the device is waited for
        for i, distance in zip(found, torch.cat([*found.values()]).tolist(), strict=True):
            far[i] = distance
    return far


def stack_pasts(pasts: Sequence[Tensor | None]) -> Tensor | None:
    """The pasts of several streams as that of a batch; zeros, which change nothing, where there is none."""
    some = next((past for past in pasts if past is not None), None)
    if some is None:
        return None
    return some if len(pasts) == 1 else torch.cat([torch.zeros_like(some) if past is None else past for past in pasts])


def frame_time(state: State | None, seconds: float | None) -> float:
    """The time of the next frame; one without a time comes a 25th of a second after the last."""
    if seconds is None:
        return 0.0 if state is None else state.seconds + FRAME_TIME
    if not math.isfinite(seconds):
        raise ValueError(f"The time of a frame is {seconds}; expected seconds.")
    return seconds


def to_policy(window: int | Policy) -> Policy:
    """What a window says: a number of frames, or a policy itself."""
    return window if isinstance(window, Policy) else LastFrames(window)


def check_steady_margin(given: float) -> None:
    """Raise a ValueError if an advantage of the last labels is none."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
        raise ValueError(f"steady is {given!r:.80}; expected a number from 0 up, such as 1.")


def save_state(state: State, path: str | Path) -> None:
    """Write what a stream has seen to a safetensors file, whole or not at all."""
    if not isinstance(state, State):
        raise ValueError(
            f"The state is a {type(state).__name__}; expected what label_frame gives with a frame's labels."
        )
    entry = json.dumps({"weights": state.weights, "seconds": state.seconds, "checksum": BLANK_CHECKSUM})
    tensors = {"contexts": state.contexts} | ({} if state.coarse is None else {"coarse": state.coarse})
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(Path(path), tensors, {"format": "pt", STATE_ENTRY: entry})


def load_state(path: str | Path) -> State:
    """What a stream had seen when its state was saved, bit for bit; nothing in the file is ever run."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No state of a stream at {path}: check the path.")
    with open_tensors(path) as file:
        metadata, tensors = file.metadata() or {}, load_tensors(path, file)
    if STATE_ENTRY not in metadata:
        raise ValueError(f"{path} holds no state of a stream: give a file that save_state wrote.")
    try:
        entry = json.loads(metadata[STATE_ENTRY])
        pop_checksum(path, entry)
        weights, seconds = tuple(map(float, entry["weights"])), float(entry["seconds"])
        contexts, coarse = tensors.pop("contexts"), tensors.pop("coarse", None)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} describes itself wrongly ({error!r:.200}): it cannot be used.") from None
    plain = coarse is None or (coarse.ndim == 2 and coarse.dtype == torch.uint8)
    if tensors or contexts.ndim != 3 or len(contexts) != len(weights) or not plain:
        raise ValueError(f"{path} holds other tensors than the contexts of a stream: it cannot be used.")
    finite = contexts.dtype == torch.float32 and bool(contexts.isfinite().all())
    if not (finite and math.isfinite(seconds) and all(0 < weight < math.inf for weight in weights)):
        raise ValueError(f"{path} holds numbers that no stream leaves, such as nan: it cannot be used.")
    return State(contexts, weights, seconds, coarse)
