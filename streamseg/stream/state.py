"""The state of a stream: the contexts of its past frames, and the policies that weigh them.

A state is a value that goes in and comes out: streams cannot mix, and any state can be kept, saved or returned to.

Shapes: T frames in a state, D key channels, C channels of the stages with attention side by side, B streams in a batch,
h x w the map of Res-1.
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
from streamseg.engine.engine import Prediction
from streamseg.engine.evidence import NOT_MIRRORED, AnyEvidence, Evidence
from streamseg.engine.steadying import Steadiness
from streamseg.io.checksums import BLANK_CHECKSUM, pop_checksum
from streamseg.io.tensors import load_tensors, open_tensors, write_tensors

FRAME_TIME = 1 / 25
"""Seconds between frames that have no times."""
GAP_DECAY = 0.95
"""What is left, with each frame, of the difference between the longest time between frames and the last one."""

STATE_ENTRY = "streamseg-state"
"""The key of a state's description in the metadata of its file."""


@dataclass(frozen=True)
class LastFrames:
    """A window of the last frames, the current one included, all with the same weight (paper Eq. 6)."""

    frames: int
    limit: float = math.inf
    """The largest total weight of the past; a network trained with T frames expects T - 1."""
    steady: float | Steadiness = 0.0
    """How steady labels are kept: a Steadiness, or the margin by which a class must win to replace the last one."""

    def __post_init__(self) -> None:
        check_count("window", self.frames)
        check_positive("limit", self.limit)
        check_steady(self.steady)


@dataclass(frozen=True)
class Fading:
    """All past frames, whose weights decay by a constant factor with each new frame."""

    share: float
    """The factor; with 0.5 all frames together weigh two in the end."""
    limit: float = math.inf
    """The largest total weight of the past; a network trained with T frames expects T - 1."""
    steady: float | Steadiness = 0.0
    """How steady labels are kept: a Steadiness, or the margin by which a class must win to replace the last one."""

    def __post_init__(self) -> None:
        check_positive("share", self.share)
        if self.share >= 1:
            raise ValueError(f"share is {self.share}; expected less than 1, or the past grows without limit.")
        check_positive("limit", self.limit)
        check_steady(self.steady)


@dataclass(frozen=True)
class FadingInTime:
    """All past frames, whose weights decay with time: a dropped frame does not change the weights of others."""

    half_life: float
    """Seconds in which a weight halves."""
    limit: float = math.inf
    """The largest total weight of the past; a network trained with T frames expects T - 1."""
    steady: float | Steadiness = 0.0
    """How steady labels are kept: a Steadiness, or the margin by which a class must win to replace the last one."""

    def __post_init__(self) -> None:
        check_positive("half_life", self.half_life)
        if self.half_life == math.inf:
            raise ValueError("half_life is inf; expected seconds, or the past grows without limit.")
        check_positive("limit", self.limit)
        check_steady(self.steady)


Policy = LastFrames | Fading | FadingInTime
"""How past frames are weighed."""


@dataclass(frozen=True, eq=False)
class State:
    """All that a stream carries from frame to frame. Its tensors are never modified."""

    contexts: Tensor
    """(T, D, C), fp32, oldest first; under a fading policy a single one, the weighted mean."""
    weights: tuple[float, ...]
    """The weight of each context at the time of the last frame."""
    seconds: float
    """The time of the last frame."""
    low_res_labels: Tensor | None = None
    """(h, w), uint8: the last frame's labels at the resolution of the scores, if the policy has a margin."""
    method_state: object = None
    """The state of a video method, such as DFF, which has no contexts."""
    evidence: AnyEvidence | None = None
    """What keeps the labels of later frames steady, if the policy has a Steadiness."""
    longest_gap: float = 0.0
    """The longest time between frames of late, in seconds; see find_longest_gap."""


def to_policy(window: int | Policy) -> Policy:
    """Return the policy of a window, which is a number of frames or a policy already."""
    return window if isinstance(window, Policy) else LastFrames(window)


def keeps_contexts(policy: Policy) -> bool:
    """Return whether frames use the contexts of earlier ones."""
    return not isinstance(policy, LastFrames) or policy.frames > 1


def check_steady(steady: float | Steadiness) -> None:
    """Raise a ValueError if `steady` is neither a Steadiness nor a margin, a number from 0 up."""
    if isinstance(steady, Steadiness):
        return
    if isinstance(steady, bool) or not isinstance(steady, (int, float)) or not 0 <= steady < math.inf:
        raise ValueError(f"steady is {steady!r:.80}; expected a number from 0 up, such as 1.")


def frame_time(state: State | None, seconds: float | None) -> float:
    """Return the time of the next frame; one without a time follows the last after 1/25 s."""
    if seconds is None:
        return 0.0 if state is None else state.seconds + FRAME_TIME
    if not math.isfinite(seconds):
        raise ValueError(f"The time of a frame is {seconds}; expected seconds.")
    return seconds


def find_longest_gap(before: State | None, seconds: float) -> float:
    """Return the longest time between frames of late, that before a frame included: 0 for the first frame.

    It rises at once, and falls slowly: whether frames are mirrored depends on it, and must not change with each frame
    that was dropped or came late.
    """
    if before is None:
        return 0.0
    gap = max(0.0, seconds - before.seconds)  # a clock may go back
    return max(gap, GAP_DECAY * before.longest_gap + (1 - GAP_DECAY) * gap)


def decay(state: State, seconds: float, policy: Policy) -> State:
    """Return what is left of a state at the time of the next frame."""
    if isinstance(policy, LastFrames):
        first = max(0, len(state.weights) - (policy.frames - 1))
        if not first:
            return state
        return replace(state, contexts=state.contexts[first:], weights=state.weights[first:])
    if isinstance(policy, Fading):
        share = policy.share
    else:
        # a clock that goes back does not increase weights
        share = 0.5 ** (max(0.0, seconds - state.seconds) / policy.half_life)
    return replace(state, weights=tuple(share * weight for weight in state.weights))


def sum_past(decayed: State | None, policy: Policy) -> tuple[Tensor | None, float]:
    """Return the past of the next frame, (1, D, C), or None if it is empty; and its total weight."""
    weight = sum(decayed.weights) if decayed else 0.0
    if decayed is None or not weight:
        return None, 0.0
    past = weighted_sum(decayed.contexts, decayed.weights, min(1.0, policy.limit / weight))
    return past, min(weight, policy.limit)


def advance(
    decayed: State | None, context: Tensor, seconds: float, policy: Policy, prediction: Prediction | None = None
) -> State:
    """Return the state after one more frame, whose context (1, D, C) gets weight 1.

    Args:
        context: May be that of no frame, (0, D, C), if the policy keeps none.
        prediction: What else the frame passes on.
    """
    more = (prediction.low_res_labels, prediction.method_state, prediction.evidence) if prediction else (None,) * 3
    rest = (*more, find_longest_gap(decayed, seconds))
    if not keeps_contexts(policy):
        # not a view, so that no context stays in memory
        return State(context if not context.shape[0] else context.new_empty(0, *context.shape[1:]), (), seconds, *rest)
    old = decayed or State(context[:0], (), seconds)
    weights = (*old.weights, 1.0)
    if isinstance(policy, LastFrames):
        # what the next frame needs, copied, so that no other context stays in memory
        first = len(weights) - min(len(weights), policy.frames - 1)
        kept = [old.contexts[first:], context[max(0, first - len(old.weights)) :]]
        return State(torch.cat(kept), weights[first:], seconds, *rest)
    total = sum(weights)
    return State(weighted_sum(torch.cat([old.contexts, context]), weights, 1 / total), (total,), seconds, *rest)


def weighted_sum(contexts: Tensor, weights: Sequence[float], scale: float) -> Tensor:
    """Return the sum (1, D, C) of contexts (T, D, C) by their weights, times a scale."""
    # computed anew for each frame: the running sum of a window would drift
    if len(set(weights)) > 1:
        return (contexts * contexts.new_tensor([scale * weight for weight in weights]).view(-1, 1, 1)).sum(0, True)
    # with equal weights no numbers have to be copied to the device, so a long window costs no more than a short one
    total, share = contexts.sum(0, True), scale * weights[0]
    return total if share == 1 else share * total


def stack_pasts(pasts: Sequence[Tensor | None]) -> Tensor | None:
    """Return the pasts of several streams as a batch (B, D, C), with zeros for empty ones; None if all are empty."""
    some = next((past for past in pasts if past is not None), None)
    if some is None:
        return None
    return some if len(pasts) == 1 else torch.cat([torch.zeros_like(some) if past is None else past for past in pasts])


def context_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return the distance (B,) of two contexts, 0 (same scene) to 2: one minus the cosine similarity at one stage.

    That stage is Res-2 of a FANet, which separates scenes best of its four, and Res-3 of a FANet+, the shallower of its
    two. docs/segment.md has the measured distances.
    """
    stage = len(a) // 2 - 1
    return 1 - F.cosine_similarity(a[stage].flatten(1), b[stage].flatten(1))


def context_distances(states: Sequence[State | None], contexts: Tensor, widths: Sequence[int]) -> list[float]:
    """Return the distance of each stream's next context, of (B, D, C), from its past ones; 0 where it has none."""
    result = [0.0] * len(states)
    found = {}
    for i, state in enumerate(states):
        if state is not None and state.weights:
            past = weighted_sum(state.contexts, state.weights, 1.0)
            found[i] = context_distance(contexts[i : i + 1].split(widths, dim=2), past.split(widths, dim=2))
    if found:
        # one transfer from the device for all streams
        for i, distance in zip(found, torch.cat([*found.values()]).tolist(), strict=True):
            result[i] = distance
    return result


def save_state(state: State, path: str | Path) -> None:
    """Write the state of a stream to a safetensors file. The file appears whole or not at all."""
    if not isinstance(state, State):
        raise ValueError(f"The state is a {type(state).__name__}; expected a State, which label_frame returns.")
    if state.method_state is not None:
        name = type(state.method_state).__name__
        raise ValueError(f"The state is that of a video method ({name}), and only those of FANets can be written.")
    times = {"seconds": state.seconds, "longest_gap": state.longest_gap}
    entry = json.dumps({"weights": state.weights, **times, "checksum": BLANK_CHECKSUM})
    tensors = {"contexts": state.contexts} | ({} if state.low_res_labels is None else {"coarse": state.low_res_labels})
    if state.evidence is not None:
        tensors |= {f"evidence.{name}": tensor for name, tensor in zip(Evidence._fields, state.evidence, strict=True)}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(Path(path), tensors, {"format": "pt", STATE_ENTRY: entry})


def load_state(path: str | Path) -> State:
    """Read a state that save_state wrote, bit for bit. No code in the file is run."""
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
        longest_gap = float(entry.get("longest_gap", 0.0))  # older files do not have it
        contexts, labels = tensors.pop("contexts"), tensors.pop("coarse", None)
        evidence = pop_evidence(tensors)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} has invalid metadata ({error!r:.200}): it cannot be used.") from None
    labels_valid = labels is None or (labels.ndim == 2 and labels.dtype == torch.uint8)
    if tensors or contexts.ndim != 3 or len(contexts) != len(weights) or not labels_valid:
        raise ValueError(f"{path} holds other tensors than the contexts of a stream: it cannot be used.")
    values = [contexts, *((evidence.luma, evidence.scores, evidence.mirror_next) if evidence else ())]
    finite = all(value.dtype == torch.float32 and bool(value.isfinite().all()) for value in values)
    finite = finite and math.isfinite(seconds) and math.isfinite(longest_gap)
    if not (finite and all(0 < weight < math.inf for weight in weights)):
        raise ValueError(f"{path} holds invalid numbers, such as nan: it cannot be used.")
    return State(contexts, weights, seconds, labels, evidence=evidence, longest_gap=longest_gap)


def pop_evidence(tensors: dict[str, Tensor]) -> Evidence | None:
    """Remove the evidence from the tensors of a state's file and return it; None if there is none.

    Raises a ValueError if its tensors do not fit together, a KeyError if one is missing.
    """
    if not any(f"evidence.{name}" in tensors for name in Evidence._fields):
        return None
    # states of versions that mirrored no frames have no such part
    tensors.setdefault("evidence.mirror_next", NOT_MIRRORED)
    evidence = Evidence(*(tensors.pop(f"evidence.{name}") for name in Evidence._fields))
    luma, scores, labels, mirror_next = evidence
    sizes = [tuple(scale * side for side in scores.shape[1:]) for scale in (1, 2)]
    ranks = [tensor.ndim for tensor in (luma, scores, labels, mirror_next)]
    if ranks != [2, 3, 2, 0] or luma.shape not in sizes or 0 in scores.shape:
        raise ValueError(f"evidence of the shapes {[tuple(tensor.shape) for tensor in evidence]}")
    if labels.dtype != torch.uint8:
        raise ValueError(f"labels of the type {labels.dtype}")
    if mirror_next.item() not in (0, 1):
        raise ValueError(f"mirror_next is {mirror_next.item()}")
    return evidence
