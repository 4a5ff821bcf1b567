"""Label the frames of streams.

`label_frames` iterates over a video, `label_frame` labels one frame and returns the state for the next one,
`label_batch` does so for several streams at once. All of them go through `step_batch`.

Shapes: B streams in a batch, H height, W width, D key channels, C channels of Res-1 … Res-4 side by side.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor

from streamseg.classes import IGNORE
from streamseg.engine.engine import Engine, FrameBatch, Prediction, VideoEngine, check_past, resize_frames, to_engine
from streamseg.engine.evidence import AnyEvidence, hide_labels
from streamseg.engine.inputs import to_checked_frame
from streamseg.engine.steadying import Steadiness
from streamseg.io.images import Picture, to_frame
from streamseg.io.masks import Mask, paint_over, to_mask
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
    decay,
    find_longest_gap,
    frame_time,
    keeps_contexts,
    stack_pasts,
    sum_past,
    to_policy,
)

MAX_PIXELS = 1024 * 2048
"""The largest network input, unless a size is given."""


def segment(image: Picture, model: "Network | Engine | None" = None, *, mask: Mask | Picture | None = None) -> Tensor:
    """Return the labels (H, W), uint8, of an image: a path, a PIL image, an array (H, W, 3) or a frame (3, H, W).

    Args:
        model: The network; by default the bundled weights, which are loaded once.
        mask: A picture whose black pixels are ignored; see label_frames.
    """
    labels, _ = label_frame(bundled_model() if model is None else model, to_frame(image), mask=mask)
    return labels


@cache
def bundled_model() -> FANet:
    """Return the network with the bundled weights."""
    with torch.inference_mode(False):  # later calls may be outside of inference mode
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
    mask: Mask | Picture | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each frame (3, H, W) of a stream with its labels (H, W), uint8, on the frame's device.

    Use label_frame to get the state as well.

    Args:
        frames: Frames, or anything that segment takes, such as arrays (H, W, 3).
        window: The number of frames that the network uses, the current one included; or a policy, such as Fading.
        state: The state after earlier frames of the stream.
        times: The time of each frame in seconds; by default there are 25 frames a second.
        cut: The distance between contexts, 0 to 2, above which a new scene begins and the past is dropped.
        size: The network input's height and width; by default the frame's own, up to 1024 x 2048 pixels.
        mask: The pixels to ignore: a Mask, a picture or its path, in which they are black, or a tensor of bool (H, W),
            in which they are False. They are left out of the contexts, and their labels are 255.
    """
    check_frames(frames)
    mask = to_mask(mask)
    clock = repeat(None) if times is None else iter(times)
    for number, frame in enumerate(map(to_checked_frame, frames)):
        try:
            seconds = next(clock)
        except StopIteration:
            raise ValueError(f"There are {number} times, but more frames: give a time for each frame.") from None
        labels, state = label_frame(model, frame, state, window, seconds=seconds, cut=cut, size=size, mask=mask)
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
    mask: Mask | Picture | None = None,
) -> tuple[Tensor, State]:
    """Return the labels (H, W), uint8, of a stream's next frame, and the state for the one after.

    The arguments are those of label_frames.
    """
    (labels,), (state,) = label_batch(
        model, [frame], [state], window, times=[seconds], cut=cut, size=size, masks=[mask]
    )
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
    masks: "Sequence[Mask | Picture | None]" = (),
    shares: Tensor | None = None,
) -> tuple[list[Tensor], list[State]]:
    """Return the labels of the next frame of each of several streams, and their states.

    The results are those of label_frame for each stream alone. A batch has one network input size: give one if the
    frames differ in size.

    Args:
        masks: The mask of each stream, as in label_frames; empty for none.
        shares: The share of each frame (B,) in the context that all of them attend to; see label_together.
    """
    engine, tensors = to_engine(model), [to_checked_frame(frame) for frame in frames]
    if size is None:
        sizes = {network_size(*frame.shape[1:]) for frame in tensors}
        if len(sizes) != 1:
            raise ValueError(f"The frames of the batch have {len(sizes)} sizes, expected one: give size=(H, W).")
        (size,) = sizes
    check_size(size)
    found = [to_mask(mask) for mask in masks or [None] * len(tensors)]
    device = engine.device
    resized = [
        resize_frames(paint_over(move_to(frame, device), mask)[None], size)
        for frame, mask in zip(tensors, found, strict=True)
    ]
    images = resized[0] if len(resized) == 1 else torch.cat(resized)
    label_sizes = [(frame.shape[1], frame.shape[2]) for frame in tensors]
    predictions, after = step_batch(
        engine, images, states, window, sizes=label_sizes, times=times, cut=cut, masks=found, shares=shares
    )
    return [move_to(labels, frame.device) for (labels, *_), frame in zip(predictions, tensors, strict=True)], after


def move_to(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without asking torch if it is there: that takes the host microseconds."""
    return x if x.device == device else x.to(device, non_blocking=device.type == "cuda")


def step_batch(
    model: "Network | Engine",
    images: Tensor,
    states: Sequence[State | None],
    window: int | Policy = 1,
    *,
    sizes: Sequence[tuple[int, int]],
    with_confidence: bool = False,
    times: Sequence[float | None] | None = None,
    cut: float | None = None,
    masks: Sequence[Mask | None] = (),
    shares: Tensor | None = None,
) -> tuple[list[Prediction], list[State]]:
    """Return the predictions for the next images (B, 3, H, W) of B streams, and the streams' states after them.

    Args:
        sizes: Height and width of each image's labels.
        with_confidence: Whether to return the probability of each label as well.
        times, cut: See label_frames.
        masks: The mask of each stream; what it hides in the image is painted over already. Empty for none.
        shares: The share of each image (B,) in the context that all of them attend to; None for contexts of their own.
    """
    engine, policy = to_engine(model), to_policy(window)
    times, count = [None] * len(states) if times is None else times, images.shape[0]
    if not count == len(states) == len(times) == len(sizes):
        raise ValueError(
            f"{count} images, {len(states)} states, {len(times)} times and {len(sizes)} sizes do not form a batch"
            ": give as many of each."
        )
    check_window(engine, policy)
    check_range(images)
    now = [frame_time(*pair) for pair in zip(states, times, strict=True)]
    with torch.no_grad():  # not inference_mode: callers may modify the tensors
        known = [state and bring_contexts(state, engine.device) for state in states]
        decayed = [state and decay(state, seconds, policy) for state, seconds in zip(known, now, strict=True)]
        pasts, weights = zip(*[sum_past(state, policy) for state in decayed], strict=True)
        for past in pasts:
            check_past(past, engine.context_shape)
        previous = [state.low_res_labels if state else None for state in known]
        methods = [state.method_state if state else None for state in known]
        evidence = [pick_evidence(state, engine.classes) for state in known]
        gaps = [seconds - state.seconds if state else 0.0 for state, seconds in zip(known, now, strict=True)]
        batch = FrameBatch(
            images,
            stack_pasts(pasts),
            weights,
            sizes,
            with_confidence,
            pick_steadiness(policy, cut),
            previous,
            methods,
            mask=stack_masks(masks, images),
            shares=shares,
            evidence=evidence,
            gaps=gaps,
            longest_gaps=[find_longest_gap(*pair) for pair in zip(decayed, now, strict=True)],
            needs_contexts=cut is not None or keeps_contexts(policy),
        )
        predictions, contexts = engine.predict(batch)
        if cut is not None:
            for i, distance in enumerate(context_distances(known, contexts, engine.widths)):
                if distance > cut:  # rare: predict the first frame of the new scene again, without the past
                    decayed[i] = None
                    one = slice(i, i + 1)
                    predictions[one] = predict_again(engine, batch, one)
        if any(masks):
            predictions = [hide_prediction(*entry) for entry in zip(predictions, masks, strict=True)]
        parts = contexts.split(1) if contexts.shape[0] > 1 else [contexts] * count
        each = zip(decayed, parts, now, predictions, strict=True)
        return predictions, [advance(state, part, seconds, policy, one) for state, part, seconds, one in each]


def pick_evidence(state: State | None, classes: int) -> AnyEvidence | None:
    """Return the evidence of a stream; None if there is none, or only that of a network with other classes."""
    evidence = None if state is None else state.evidence
    return None if evidence is None or len(evidence.scores) != classes else evidence


def pick_steadiness(policy: Policy, cut: float | None) -> float | Steadiness:
    """Return how steady labels are kept: where contexts are compared to find cuts, no frame is mirrored.

    A mirrored frame has another context, about as far away as that of another scene may be.
    """
    steady = policy.steady
    return steady.unmirrored() if cut is not None and isinstance(steady, Steadiness) else steady


def bring_contexts(state: State, device: torch.device) -> State:
    """Return a state whose contexts are on a device."""
    contexts = state.contexts
    return state if contexts.device == device else replace(state, contexts=contexts.to(device))


def stack_masks(masks: Sequence[Mask | None], images: Tensor) -> Tensor | None:
    """Return the masks of images (B, 3, H, W) as shares (B, H, W), with ones for images without; None if none has."""
    if not any(masks):
        return None
    size = (images.shape[2], images.shape[3])
    whole = torch.ones(size, device=images.device)
    return torch.stack([whole if mask is None else mask.shares(size, images.device) for mask in masks])


def predict_again(engine: Engine, batch: FrameBatch, one: slice) -> list[Prediction]:
    """Return the prediction of one frame of a batch without a past.

    Frames that attend to one context get it anew, and only this one is taken.
    """
    if batch.shares is None:
        batch = batch.part(one)
    count = len(batch.images)
    first = batch._replace(past=None, weights=[0.0] * count, previous_labels=[None] * count)
    alone = first._replace(method_states=(), evidence=(), gaps=(), longest_gaps=())
    predictions, _ = engine.predict(alone)
    return predictions if batch.shares is None else predictions[one]


def hide_prediction(prediction: Prediction, mask: Mask | None) -> Prediction:
    """Return a prediction without a class, and without confidence, where a mask hides the frame."""
    if mask is None:
        return prediction
    height, width = prediction.labels.shape
    hidden = ~mask.pixels((height, width), prediction.labels.device)
    confidence, evidence = prediction.confidence, prediction.evidence
    return prediction._replace(
        labels=prediction.labels.masked_fill(hidden, IGNORE),
        confidence=None if confidence is None else confidence.masked_fill(hidden, 0),
        evidence=None if evidence is None else hide_labels(evidence, hidden),
    )


def finish_state(engine: Engine, state: State | None) -> State | None:
    """Do the work that a video method has left for the time after a frame's labels, and return the state with it."""
    if state is None or state.method_state is None or not isinstance(engine, VideoEngine):
        return state
    finished = engine.finish(state.method_state)
    return state if finished is state.method_state else replace(state, method_state=finished)


def network_size(height: int, width: int, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return the network input's size for a frame: its own, or a smaller one of the same proportions if too large.

    No side is below 32, the smallest that a network takes.
    """
    scale = min(1.0, math.sqrt(max_pixels / (height * width)))
    tall = max(MIN_SIDE, int(height * scale))
    wide = max(MIN_SIDE, min(int(width * scale), max_pixels // tall))
    # the short side of a narrow strip may have grown
    return max(MIN_SIDE, min(tall, max_pixels // wide)), wide


def check_window(engine: Engine, window: int | Policy) -> None:
    """Raise a ValueError if a window of several frames is asked of an engine that has no context."""
    policy = to_policy(window)
    if engine.context_shape == (0, 0) and not (isinstance(policy, LastFrames) and policy.frames == 1):
        raise ValueError(
            "The network labels each frame alone: leave out the window, or give FANet weights or a file exported with "
            "--video."
        )


def check_frames(frames: object) -> None:
    """Raise a ValueError if the argument is a single frame or a file name, not an iterable of frames."""
    if isinstance(frames, (str, Path)):
        raise ValueError(f"The frames are {str(frames)!r:.80}; expected frames: read them with streamseg.read_frames.")
    if not isinstance(frames, Iterable):
        raise ValueError(f"The frames are a {describe_type(frames)}; expected an iterable of frames, such as a list.")
    if getattr(frames, "ndim", 4) != 4:
        raise ValueError("The frames are a single frame; expected several: give a list, [frame].")


def check_size(size: tuple[int, int]) -> None:
    """Raise a ValueError if a size is no valid network input size."""
    if len(size) != 2 or not all(type(side) is int and side >= MIN_SIDE for side in size):
        raise ValueError(f"The size is {size!r:.80}; expected height and width, {MIN_SIDE} pixels or more each.")
