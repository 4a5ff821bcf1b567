"""Frames, contexts and runs of label_frame, for tests of streams."""

import torch
from torch.nn import functional as F

from streamseg.engine.steadying import STEADY_HIGH
from streamseg.stream.label_frames import (
    label_frame,
)
from streamseg.stream.state import (
    Fading,
    FadingInTime,
    LastFrames,
)

POLICIES = [
    1,
    2,
    4,
    Fading(0.5),
    Fading(0.9, limit=1),
    FadingInTime(0.1),
    FadingInTime(2.0, limit=1),
    LastFrames(2, steady=0.1),
    FadingInTime(0.5, steady=0.1),
    LastFrames(2, steady=STEADY_HIGH),
]


def random_frames(number, height=64, width=96, seed=0):
    """Frames of a camera that turns: each is one more step to the right in a wide picture."""
    generator = torch.Generator().manual_seed(seed)
    coarse = 255 * torch.rand(1, 3, height // 8, 2 * width // 8, generator=generator)
    wide = F.interpolate(coarse, (height, 2 * width + 8 * number), mode="bilinear")[0].byte()
    return [wide[:, :, 8 * i : 8 * i + width].contiguous() for i in range(number)]


def run(model, frames, window, state=None, **options):
    """The labels of frames, and the state after the last."""
    labels = []
    for frame in frames:
        found, state = label_frame(model, frame, state, window, **options)
        labels.append(found)
    return labels, state


def context_of(*numbers):
    """A context of one row."""
    return torch.tensor(numbers, dtype=torch.float32).view(1, 1, -1)


def same(one, other):
    labels = one.low_res_labels is other.low_res_labels or one.low_res_labels.equal(other.low_res_labels)
    evidence = [*(one.evidence or ())], [*(other.evidence or ())]
    alike = len(evidence[0]) == len(evidence[1]) and all(a.equal(b) for a, b in zip(*evidence, strict=True))
    return one.weights == other.weights and one.contexts.equal(other.contexts) and labels and alike


def differing(one, other):
    return sum((a != b).sum().item() for a, b in zip(one, other, strict=True))


def contexts(model, frames):
    with torch.inference_mode():
        return [model.step(frame[None])[1] for frame in frames]
