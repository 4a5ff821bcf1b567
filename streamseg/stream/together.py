"""Cameras of one vehicle that look together: each attends to the context of all of them.

Contexts are means over pixels, so the context of all cameras is the mean of theirs, weighted by their pixels: that of
one picture whose pixels are those of all. The state of each camera holds it, and so the window is one of all too.

Shapes: B cameras, H height, W width, D key channels, C channels of the stages with attention side by side.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from streamseg.engine.engine import Engine, FrameBatch, check_past, resize_frames, to_engine
from streamseg.engine.inputs import to_checked_frame
from streamseg.engine.steadying import Steadiness
from streamseg.io.images import Picture
from streamseg.io.masks import Mask, paint_over, to_mask
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import join_contexts
from streamseg.stream.label_frames import check_size, hide_prediction, label_batch, network_size, stack_masks
from streamseg.stream.state import Policy, State, advance, decay, frame_time, sum_past, to_policy


def label_together(
    model: "Network | Engine",
    frames: Sequence[Picture],
    states: Sequence[State | None] | None = None,
    window: int | Policy = 1,
    *,
    times: Sequence[float | None] | None = None,
    cut: float | None = None,
    size: tuple[int, int] | None = None,
    masks: "Sequence[Mask | Picture | None]" = (),
) -> tuple[tuple[Tensor, ...], tuple[State, ...]]:
    """Return the labels of the frames of several cameras that attend to all of them, and the state of each.

    Cameras of one network input size run in one pass; of several sizes each frame runs twice, first for the context.

    Args:
        frames: A frame of each camera, taken at the same time.
        states: The states after the frames before; None for the first frames.
        window: As times and size, see label_frames.
        cut: See label_frames; a cut drops the past of all cameras.
        masks: The mask of each camera; empty for none.
    """
    engine, tensors = to_engine(model), [to_checked_frame(frame) for frame in frames]
    check_together(engine)
    if not tensors:
        raise ValueError("There are no frames to look at together: give one of each camera.")
    states = [None] * len(tensors) if states is None else states
    found = [to_mask(mask) for mask in masks or [None] * len(tensors)]
    if not len(tensors) == len(states) == len(found):
        raise ValueError(
            f"{len(tensors)} frames, {len(states)} states and {len(found)} masks do not belong together: give as many "
            "of each."
        )
    if size is not None:
        check_size(size)
    sizes = [size or network_size(frame.shape[1], frame.shape[2]) for frame in tensors]
    shares = pixel_shares(sizes, found, engine.device)
    if len({*sizes}) == 1:
        labels, after = label_batch(
            engine, tensors, states, window, times=times, cut=cut, size=sizes[0], masks=found, shares=shares
        )
        return tuple(labels), tuple(after)
    if cut is not None:
        raise ValueError("Cameras of several sizes have no check for cuts: give one size=(H, W), or leave out cut.")
    policy = to_policy(window)
    if isinstance(policy.steady, Steadiness):
        raise ValueError(
            "Labels of cameras of several sizes are not averaged over time: give one size=(H, W), or steady=0.5."
        )
    return label_sizes(engine, tensors, states, policy, times, sizes, found, shares)


def pixel_shares(sizes: Sequence[tuple[int, int]], masks: Sequence[Mask | None], device: torch.device) -> Tensor:
    """Return the share (B,) of each camera in the pixels that all of them look at."""
    counts = [
        height * width * (1.0 if mask is None else mask.looked_at.double().mean().item())
        for (height, width), mask in zip(sizes, masks, strict=True)
    ]
    return torch.tensor([count / sum(counts) for count in counts], device=device)


def label_sizes(
    engine: Engine,
    frames: Sequence[Tensor],
    states: Sequence[State | None],
    policy: Policy,
    times: Sequence[float | None] | None,
    sizes: Sequence[tuple[int, int]],
    masks: Sequence[Mask | None],
    shares: Tensor,
) -> tuple[tuple[Tensor, ...], tuple[State, ...]]:
    """Label frames of several network input sizes together: first the context of each, then each with that of all."""
    images = [
        resize_frames(paint_over(frame.to(engine.device), mask)[None], size)
        for frame, size, mask in zip(frames, sizes, masks, strict=True)
    ]
    with torch.no_grad():
        own = torch.cat([compute_context(engine, *entry) for entry in zip(images, masks, strict=True)])
    joint = join_contexts(own, shares)
    labels, after = [], []
    for i, (frame, image, state) in enumerate(zip(frames, images, states, strict=True)):
        one, seconds = slice(i, i + 1), frame_time(state, None if times is None else times[i])
        known = state and replace(state, contexts=state.contexts.to(own.device))
        decayed = known and decay(known, seconds, policy)
        past, weight = sum_past(decayed, policy)
        check_past(past, engine.context_shape)
        # an engine adds a frame's own context to the past: all others are what is missing
        others = joint[one] - own[one] + (0 if past is None else past)
        batch = FrameBatch(
            image,
            others,
            [weight],
            [(frame.shape[1], frame.shape[2])],
            steady=policy.steady,
            previous_labels=[known.low_res_labels if known else None],
            mask=stack_masks(masks[one], image),
        )
        with torch.no_grad():
            (prediction,), _ = engine.predict(batch)
        labels.append(hide_prediction(prediction, masks[i]).labels.to(frame.device))
        kept = advance(decayed, joint[one], seconds, policy)
        after.append(replace(kept, low_res_labels=prediction.low_res_labels))
    return tuple(labels), tuple(after)


def compute_context(engine: Engine, image: Tensor, mask: Mask | None) -> Tensor:
    """Return the context (1, D, C) of an image (1, 3, H, W) alone."""
    size = (image.shape[2], image.shape[3])
    _, contexts = engine.predict(FrameBatch(image, None, [0.0], [size], mask=stack_masks([mask], image)))
    return contexts


def check_one_size(sizes: Sequence[tuple[int, int]]) -> None:
    """Raise a ValueError if cameras that run in one pass have several network input sizes."""
    if len(found := sorted({*sizes})) > 1:
        shown = " and ".join(f"{height} x {width}" for height, width in found[:2])
        raise ValueError(
            f"The cameras look together at one network input size, but theirs are {shown}: give one with --size."
        )


def check_together(engine: Engine) -> None:
    """Raise a ValueError if an engine has no context that cameras could share."""
    if not engine.context_shape[0]:
        raise ValueError(
            "The network has no context that cameras could share: give FANet weights, or a file exported with --video."
        )
