"""Streams of frames: their labels, and what a network remembers of them. Only this file knows of windows.

The state of a stream is a value that goes in and comes out: two streams cannot mix, and any state can be kept, saved,
or gone back to.

Shapes: B streams in a batch, K classes, H height, W width, h x w the map of Res-1, T frames in a state, D key channels,
C channels of Res-1 … Res-4 side by side.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor

from streamseg.engine.engine import (
    Engine,
    FrameBatch,
    Prediction,
    check_past,
    resize_frames,
    to_engine,
)
from streamseg.engine.tiles import to_checked_frame
from streamseg.io.images import Picture, to_frame
from streamseg.models import checkpoint
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import MIN_SIDE, FANet
from streamseg.models.layers import check_range, describe_type
from streamseg.stream.state import (
    LastFrames,
    Policy,
    State,
    advance,
    context_distances,
    frame_time,
    past_weight,
    stack_pasts,
    sum_past,
    to_policy,
)

MAX_PIXELS = 1024 * 2048
"""The most pixels that a network sees at once, unless told otherwise."""


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
            for i, distance in enumerate(context_distances(known, contexts, engine.widths)):
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


def check_window(engine: Engine, window: int | Policy) -> None:
    """Raise a ValueError if frames are to be remembered by what sees each of them alone."""
    policy = to_policy(window)
    if engine.context_shape == (0, 0) and not (isinstance(policy, LastFrames) and policy.frames == 1):
        raise ValueError(
            "The network sees each frame alone: leave out the window, or give weights of a FANet, or a file that was "
            "exported with --video."
        )


def network_size(height: int, width: int, pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """The height and width that a frame is seen at: its own, or less, in proportion, where it has too many pixels.

    No side is below 32, the least that a network can see.
    """
    scale = min(1.0, math.sqrt(pixels / (height * width)))
    tall = max(MIN_SIDE, int(height * scale))
    wide = max(MIN_SIDE, min(int(width * scale), pixels // tall))
    # of a narrow strip the short side has grown
    return max(MIN_SIDE, min(tall, pixels // wide)), wide


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
