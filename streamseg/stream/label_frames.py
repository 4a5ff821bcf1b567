"""Streams of frames: their labels, and what a network remembers of them. Only this file knows of windows.

The state of a stream is a value that goes in and comes out: two streams cannot mix, and any state can be kept, saved,
or gone back to.

Shapes: B streams in a batch, K classes, H height, W width, h x w the map of Res-1, T frames in a state, D key channels,
C channels of Res-1 … Res-4 side by side.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.checks import check_count, check_positive
from streamseg.engine.engine import (
    EagerEngine as EagerEngine,
    Engine as Engine,
    FrameBatch as FrameBatch,
    ImageEngine as ImageEngine,
    Prediction as Prediction,
    apply_hysteresis as apply_hysteresis,
    check_past,
    predict_from_scores as predict_from_scores,
    resize_frames as resize_frames,
    to_engine as to_engine,
    to_uint8 as to_uint8,
)
from streamseg.engine.tiles import to_checked_frame
from streamseg.io.checksums import BLANK, take_checksum
from streamseg.io.images import Picture, to_frame
from streamseg.io.tensors import open_tensors, take_tensors, write_tensors
from streamseg.models import checkpoint
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import MIN_SIDE, FANet
from streamseg.models.layers import check_range, describe_type

FRAME_TIME = 1 / 25
"""Seconds between frames that come without times."""

MAX_PIXELS = 1024 * 2048
"""The most pixels that a network sees at once, unless told otherwise."""

# in the metadata of a file
ENTRY = "streamseg-state"


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
        check_steady(self.steady)


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
        check_steady(self.steady)


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
        check_steady(self.steady)


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


def segment(image: Picture, model: "Network | Engine | None" = None) -> Tensor:
    """Labels (H, W), uint8, of a picture: a path, a PIL picture, an array (H, W, 3) or a frame (3, H, W).

    Args:
        model: The network; without one, the weights that ship with streamseg, which are loaded once.
    """
    labels, _ = label_frame(bundled_model() if model is None else model, to_frame(image))
    return labels


@cache
def bundled_model() -> FANet:
    """The network that ships with streamseg."""
    with torch.inference_mode(False):  # it is for later calls too, which may be outside of it
        model, _ = checkpoint.load()
    return model


def label_frames(
    model: "Network | Engine",
    frames: Iterable[Picture],
    window: int | Policy = 1,
    state: State | None = None,
    *,
    times: Iterable[float] | None = None,
    cut: float | None = None,
    size: tuple[int, int] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each frame (3, H, W) of a stream with its labels (H, W), uint8, on the frame's device.

    Use label_frame to get the state out as well.

    Args:
        frames: They may be pictures of any kind that segment takes, such as arrays (H, W, 3).
        window: How many frames to look at, the present one among them; or another policy, such as Fading.
        state: What the stream has seen already.
        times: The time of each frame in seconds; without them there are 25 frames a second.
        cut: The distance between contexts, from 0 to 2, beyond which a new scene begins and the past is dropped.
        size: Height and width that the network sees frames at; without it, their own up to 1024 x 2048 pixels.
    """
    check_frames(frames)
    clock = repeat(None) if times is None else iter(times)
    for number, frame in enumerate(map(to_checked_frame, frames)):
        try:
            seconds = next(clock)
        except StopIteration:
            raise ValueError(f"There are {number} times, but more frames: give a time for each frame.") from None
        labels, state = label_frame(model, frame, state, window, seconds=seconds, cut=cut, size=size)
        yield frame, labels


def label_frame(
    model: "Network | Engine",
    frame: Picture,
    state: State | None = None,
    window: int | Policy = 1,
    *,
    seconds: float | None = None,
    cut: float | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[Tensor, State]:
    """Labels (H, W), uint8, of a stream's next frame (3, H, W), and the state for the one after; see label_frames.

    The frame may be a picture of any kind that segment takes, such as an array (H, W, 3).
    """
    (labels,), (state,) = label_batch(model, [frame], [state], window, times=[seconds], cut=cut, size=size)
    return labels, state


def label_batch(
    model: "Network | Engine",
    frames: Sequence[Picture],
    states: Sequence[State | None],
    window: int | Policy = 1,
    *,
    times: Sequence[float | None] | None = None,
    cut: float | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[list[Tensor], list[State]]:
    """Labels of the next frame of each of several streams, and their states; as label_frame of each alone.

    The network sees them together, so at one size: frames of several sizes need one given.
    """
    engine, taken = to_engine(model), [to_checked_frame(frame) for frame in frames]
    if size is None:
        sizes = {network_size(*frame.shape[1:]) for frame in taken}
        if len(sizes) != 1:
            raise ValueError(f"A batch is seen at one size, but its frames have {len(sizes)}: give a size.")
        (size,) = sizes
    check_size(size)
    images = torch.cat([resize_frames(frame[None].to(engine.device, non_blocking=True), size) for frame in taken])
    own = [(frame.shape[1], frame.shape[2]) for frame in taken]
    predictions, after = step_batch(engine, images, states, window, sizes=own, times=times, cut=cut)
    return [labels.to(frame.device) for (labels, *_), frame in zip(predictions, taken, strict=True)], after


def step_batch(
    model: "Network | Engine",
    images: Tensor,
    states: Sequence[State | None],
    window: int | Policy = 1,
    *,
    sizes: Sequence[tuple[int, int]],
    confident: bool = False,
    times: Sequence[float | None] | None = None,
    cut: float | None = None,
) -> tuple[list["Prediction"], list[State]]:
    """What is seen in the next images (B, 3, H, W) of as many streams, and their states; see label_frames.

    No stream sees another's state.

    Args:
        sizes: Height and width of each one's labels.
        confident: Whether the probability of each label is wanted too.
    """
    engine, policy = to_engine(model), to_policy(window)
    times = [None] * len(states) if times is None else times
    if not len(images) == len(states) == len(times) == len(sizes):
        raise ValueError(f"{len(images)} images, {len(states)} states and {len(times)} times are no batch of streams.")
    check_window(engine, policy)
    check_range(images)
    moments = [frame_time(*pair) for pair in zip(states, times, strict=True)]
    with torch.no_grad():  # not inference_mode, whose tensors a caller could not change
        known = [state and replace(state, contexts=state.contexts.to(engine.device)) for state in states]
        pasts = [sum_past(*pair, policy) for pair in zip(known, moments, strict=True)]
        for past in pasts:
            check_past(past, engine.context_shape)
        weights = [past_weight(*pair, policy) for pair in zip(known, moments, strict=True)]
        before = [state.coarse if state else None for state in known]
        predictions, contexts = engine.predict(
            FrameBatch(images, stack_pasts(pasts), weights, sizes, confident, policy.steady, before)
        )
        if cut is not None:
            for i, distance in enumerate(distances(known, contexts, engine.widths)):
                if distance > cut:  # a new scene is seen once more, without the past, which is rare
                    known[i] = None
                    alone = FrameBatch(
                        images[i : i + 1], None, [0.0], sizes[i : i + 1], confident, policy.steady, [None]
                    )
                    predictions[i : i + 1], _ = engine.predict(alone)
        after = [advance(*entry, policy) for entry in zip(known, contexts.split(1), moments, strict=True)]
        return predictions, [
            replace(state, coarse=prediction.low_res_labels)
            for state, prediction in zip(after, predictions, strict=True)
        ]


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


def check_window(engine: Engine, window: int | Policy) -> None:
    """Raise a ValueError if frames are to be remembered by what sees each of them alone."""
    policy = to_policy(window)
    if engine.context_shape == (0, 0) and not (isinstance(policy, LastFrames) and policy.frames == 1):
        raise ValueError(
            "The network sees each frame alone: leave out the window, or give weights of a FANet, or a file that was "
            "exported with --video."
        )


def context_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """How far apart two contexts are, (B,), from 0 for the same scene to 2: one minus the cosine of Res-2's."""
    # of the four stages the one that tells best; docs/segment.md has distances that were measured
    return 1 - F.cosine_similarity(a[1].flatten(1), b[1].flatten(1))


def distances(states: Sequence[State | None], contexts: Tensor, widths: Sequence[int]) -> list[float]:
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


def network_size(height: int, width: int, pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """The height and width that a frame is seen at: its own, or less, in proportion, where it has too many pixels.

    No side is below 32, the least that a network can see.
    """
    scale = min(1.0, math.sqrt(pixels / (height * width)))
    tall = max(MIN_SIDE, int(height * scale))
    wide = max(MIN_SIDE, min(int(width * scale), pixels // tall))
    # of a narrow strip the short side has grown
    return max(MIN_SIDE, min(tall, pixels // wide)), wide


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


def check_frames(frames: object) -> None:
    """Raise a ValueError if something is one frame or the name of a file, and no frames one after the other."""
    if isinstance(frames, (str, Path)):
        raise ValueError(f"The frames are {str(frames)!r:.80}; expected frames: streamseg.read_frames gives a file's.")
    if not isinstance(frames, Iterable):
        raise ValueError(
            f"The frames are a {describe_type(frames)}; expected frames one after the other, such as a list."
        )
    if getattr(frames, "ndim", 4) != 4:
        raise ValueError("The frames are one frame; expected several, one after the other: give a list, [frame].")


def check_size(size: tuple[int, int]) -> None:
    """Raise a ValueError if a network cannot see frames at a size."""
    if len(size) != 2 or not all(type(side) is int and side >= MIN_SIDE for side in size):
        raise ValueError(f"The size is {size!r:.80}; expected height and width, {MIN_SIDE} pixels or more each.")


def check_steady(given: float) -> None:
    """Raise a ValueError if an advantage of the last labels is none."""
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
        raise ValueError(f"steady is {given!r:.80}; expected a number from 0 up, such as 1.")


def save_state(state: State, path: str | Path) -> None:
    """Write what a stream has seen to a safetensors file, whole or not at all."""
    if not isinstance(state, State):
        raise ValueError(
            f"The state is a {type(state).__name__}; expected what label_frame gives with a frame's labels."
        )
    entry = json.dumps({"weights": state.weights, "seconds": state.seconds, "checksum": BLANK})
    tensors = {"contexts": state.contexts} | ({} if state.coarse is None else {"coarse": state.coarse})
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(Path(path), tensors, {"format": "pt", ENTRY: entry})


def load_state(path: str | Path) -> State:
    """What a stream had seen when its state was saved, bit for bit; nothing in the file is ever run."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No state of a stream at {path}: check the path.")
    with open_tensors(path) as file:
        metadata, tensors = file.metadata() or {}, take_tensors(path, file)
    if ENTRY not in metadata:
        raise ValueError(f"{path} holds no state of a stream: give a file that save_state wrote.")
    try:
        entry = json.loads(metadata[ENTRY])
        take_checksum(path, entry)
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
