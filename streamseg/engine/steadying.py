"""Steady labels of a video: the scores of earlier frames, carried along with the picture, are evidence for the next.

The motion of each pixel of the scores is estimated on the brightness at twice their size, by Lucas and Kanade's method
from coarse to fine. The earlier scores are moved by it and averaged with the new ones where the moved picture
looks like the new one: not where something was uncovered, and nowhere after a cut. At full size a pixel then changes
its class only if the new one scores higher by a margin. It is a multiple of how much scores change on average from one
frame to the next: a network that is sure of itself, or whose scores are small, needs less. It is smaller where the
picture changes, and where one of both classes is rare in the frame before: poles, signs and distant people would
otherwise come in late, and dashes of a lane marking, which move, would leave late.

The network sees every second frame mirrored, so that two views of a scene are averaged: its errors in them differ more
than those in two frames. Where the views disagree the scores alternate, and labels must not. So two averages are made
of the scores s of a frame and the carried ones c of the frame before, moved along, which have a share p:

    (1 - p) s + p c              decides the labels
    2 (1 - p) s + (2 p - 1) c    is carried to the next frame; for p < 1/2, s

In a scene that stands still s is a + b and a - b by turns. Then c becomes a + b (1 - p) / p after the first of them,
and a - b (1 - p) / p after the second: in the first average b cancels out.

All functions have fixed shapes and never wait for the device, except where they say so.

Shapes: B streams in a batch, K classes, h x w the map of scores, H x W the labels, l x m the brightness.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.evidence import NOT_MIRRORED, AnyEvidence, Evidence
from streamseg.engine.motion import blur, enlarge_motion, estimate_motion, halve, is_inside, move, sample, to_grid
from streamseg.engine.tables import kept_on_cpu

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness."""

CUT, SAME_SCENE = 0.6, 0.75
"""How much of a picture is found again in the one before: up to the first after a cut, where all evidence is dropped,
and the second or more in one scene, where all of it counts. On CamVid's val 0.87 or more at 15 frames a second, 0.74 or
more at 5, and 0.54 or less 3 seconds later."""
MIN_TOLERANCE = 1e-3
"""A smaller tolerance counts as this one: no division by 0."""
RARE_NEW, RARE_OLD = 0.03, 0.5
"""Shares of the frame before, below which a class comes in, or leaves, by less than the margin: it falls with their
square roots."""
COUNTED = 64
"""Classes are counted at so many rows and columns of pixels, or up to twice as many; at all of a smaller frame."""
USUAL_GAP = 0.1
"""Seconds between frames up to which share and margin count in full; they fall as frames are further apart."""
MIN_VISIBLE = 1e-3
"""A smaller share of a frame that no mask hides counts as this one."""
MIRROR_SHARE = 0.49
"""The smallest share of the earlier frames with which every second frame is mirrored. Two views cancel from 1/2 on;
with less than that labels would alternate with them. A little less, because STEADY_LOW has 1/2 at 0.15 s, a usual time
between frames, and the rounding of times must not decide."""


@dataclass(frozen=True)
class Steadiness:
    """How much the frames of a video have to do with each other's labels."""

    share: float
    """Share of the earlier frames in the scores that decide the labels, where the moved picture is the same as the new
    one."""
    tolerance: float
    """Difference of brightness, 0 to 255, at which that share has fallen to 0.37 of its value."""
    margin: float
    """How much higher a new class must score to replace the class of a pixel, where neither is rare and the picture
    does not change: so many times as much as scores change on average from one frame to the next."""
    still: float
    """Difference of brightness between two frames, at the same place, at which the margin has fallen to 0.37."""
    mirror: bool = False
    """Whether every second frame is labelled mirrored, if frames are close; not for a network whose classes depend on
    left and right. Video methods and streams with cuts mirror none."""

    def __post_init__(self) -> None:
        if not isinstance(self.mirror, bool):
            raise ValueError(f"mirror is {self.mirror!r:.80}; expected True or False.")
        for name, limit in (("share", 1.0), ("tolerance", math.inf), ("margin", math.inf), ("still", math.inf)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < limit:
                expected = "a number from 0 up" if limit == math.inf else f"0 or more, and less than {limit:g}"
                raise ValueError(f"{name} is {value!r:.80}; expected {expected}.")
        if self.mirror and self.share < 0.5:
            raise ValueError(f"share is {self.share:g}; expected 0.5 or more with mirror=True, or views do not cancel.")

    def mirrors(self, longest_gap: float) -> bool:
        """Return whether every second frame is labelled mirrored where frames are so many seconds apart."""
        return self.mirror and self.share * weigh_gap(longest_gap) >= MIRROR_SHARE

    def unmirrored(self) -> "Steadiness":
        """Return the same without mirrored frames."""
        return replace(self, mirror=False)


STEADY_LOW = Steadiness(share=0.75, tolerance=12.0, margin=3.0, still=60.0, mirror=True)
"""The default of videos: more accurate than frame by frame, and steadier."""
STEADY_HIGH = Steadiness(share=0.8, tolerance=10.0, margin=5.7, still=60.0, mirror=True)
"""Steadier still, and less accurate than STEADY_LOW; than frame by frame with a FANet-18, but not with a FANet+."""


def name_steadiness(steady: float | Steadiness) -> str:
    """Return what --steady is for a steadiness, with or without mirrored frames: off, low, high, a margin, or other."""
    if not isinstance(steady, Steadiness):
        return f"{steady:g}" if steady else "off"
    names = {STEADY_LOW.unmirrored(): "low", STEADY_HIGH.unmirrored(): "high"}
    return names.get(steady.unmirrored(), "other")


class Fused(NamedTuple):
    """The averaged scores of a batch, and what else the labels and the next frames need."""

    scores: Tensor
    """Those that decide the labels, (B, K, h, w), fp32."""
    carried: Tensor
    """Those for the next frames, (B, K, h, w), fp32."""
    luma: Tensor
    """(B, 1, l, m)."""
    margin: Tensor
    """By how much a new class must win where neither is rare, (B, 1, h, w)."""


class Comparison(NamedTuple):
    """What of frames is found again in those before, in the size of the scores."""

    motion: Tensor
    """Where each pixel was, relative to its place, (B, 2, h, w)."""
    alike: Tensor
    """How alike a pixel and the one that it was are, 0 to 1, (B, 1, h, w)."""
    still: Tensor
    """How alike the frames are at the same place, (B, 1, h, w)."""
    found: Tensor
    """Parts (B, n) whose sum is the share of each frame that is found again, 0 to 1."""


class Trust(NamedTuple):
    """How far the frames before count."""

    likeness: Tensor
    """How far each pixel of theirs counts, 0 to 1, (B, 1, h, w)."""
    margin: Tensor
    """By how many mean changes of the scores a new class must win where neither is rare, (B, 1, h, w)."""


class MovedEvidence(NamedTuple):
    """The evidence of the frames before, moved along with the picture."""

    luma: Tensor
    """The brightness of the frames, (B, 1, l, m)."""
    scores: Tensor
    """The carried scores of the frames before, moved, (B, K, h, w)."""
    trust: Trust


def luma_size(scores: Sequence[int], images: Sequence[int]) -> tuple[int, int]:
    """Return height and width of the brightness: twice those of the scores, if the images are as large."""
    scale = 2 if 2 * scores[0] <= images[0] and 2 * scores[1] <= images[1] else 1
    return scale * scores[0], scale * scores[1]


def weigh_gap(gap: float) -> float:
    """Return how far the frame before counts after some seconds, more than 0 and up to 1."""
    return min(1.0, USUAL_GAP / max(gap, 1e-6))


def is_mirrored(evidence: AnyEvidence | None, longest_gap: float, steadiness: Steadiness) -> Tensor:
    """Return whether a frame is labelled mirrored, 1 or else 0, ().

    Args:
        evidence: That of the frame before.
        longest_gap: The longest time between frames of late, in seconds.
    """
    return NOT_MIRRORED if evidence is None or not steadiness.mirrors(longest_gap) else evidence.mirror_next


def move_evidence(
    luma: Tensor, before: Tensor, earlier: Tensor, weight: Tensor, steadiness: Steadiness, mask: Tensor | None = None
) -> MovedEvidence:
    """Return the evidence of the frames before, moved along to frames of a brightness (B, 1, l, m).

    Args:
        before: Brightness of the frames before, (B, 1, l, m).
        earlier: Their carried scores, (B, K, h, w).
        weight: For each stream, how far the frame before counts, 0 to 1, (B,): 0 if there is none.
        mask: The unmasked share of each pixel of the frames, (B, H', W').
    """
    comparison = compare(luma, before, (earlier.shape[2], earlier.shape[3]), steadiness)
    if mask is not None:
        comparison = leave_out_hidden(comparison, mask)
    return MovedEvidence(luma, move(earlier, comparison.motion, "bicubic"), weigh(comparison, weight, steadiness))


def average(scores: Tensor, moved: MovedEvidence, steadiness: Steadiness) -> Fused:
    """Return the averaged scores of frames, from their scores (B, K, h, w)."""
    share = steadiness.share * moved.trust.likeness
    carried = torch.lerp(scores, moved.scores, carried_share(share))
    margin = moved.trust.margin * mean_change(scores, moved.scores, moved.trust.likeness)
    return Fused(torch.lerp(scores, moved.scores, share), carried, moved.luma, margin)


def mean_change(scores: Tensor, moved: Tensor, likeness: Tensor) -> Tensor:
    """Return how much scores (B, K, h, w) differ from the moved ones on average, (B, 1, 1, 1).

    Args:
        likeness: How far each pixel counts, (B, 1, h, w). If none does, 0 is returned.
    """
    change = (scores - moved).abs().mean(dim=1, keepdim=True) * likeness
    return change.sum(dim=(2, 3), keepdim=True) / likeness.sum(dim=(2, 3), keepdim=True).clamp(min=1e-6)


def carried_share(share: Tensor) -> Tensor:
    """Return the share of earlier frames in carried scores, from that in the scores that decide the labels."""
    return (2 * share - 1).clamp(min=0)


def compare(luma: Tensor, before: Tensor, size: tuple[int, int], steadiness: Steadiness) -> Comparison:
    """Compare frames with those before by their brightness (B, 1, l, m).

    Args:
        size: Height and width of the scores.
    """
    motion = estimate_motion(luma, before)  # at half the size of the brightness
    each = enlarge_motion(motion, (luma.shape[2], luma.shape[3]))
    grid = to_grid(each)
    alike = likeness(luma - sample(before, grid), steadiness.tolerance) * is_inside(grid)
    found = alike.mean(dim=(1, 2, 3))[:, None]
    change = luma - before
    if luma.shape[2:] == size:
        motion = each
    else:  # then they are twice as large
        change, alike = halve(change), halve(alike)
    return Comparison(motion, alike, likeness(change, steadiness.still), found)


def leave_out_hidden(comparison: Comparison, mask: Tensor) -> Comparison:
    """Return a comparison in which only visible pixels count as found again and alike: hidden ones never change.

    Args:
        mask: The unmasked share of each pixel, (B, H', W').
    """
    visible = mask.to(comparison.found.device).float().mean(dim=(1, 2))[:, None]
    parts = comparison.found.shape[1]
    found = (comparison.found - (1 - visible) / parts) / visible.clamp(min=MIN_VISIBLE)
    shown = resize_map(mask.to(comparison.found.device).float(), comparison.alike[0, 0])
    return comparison._replace(alike=comparison.alike * shown[:, None], found=found)


def weigh(comparison: Comparison, weight: Tensor, steadiness: Steadiness) -> Trust:
    """Return how far the frames before count.

    Args:
        comparison: Of the frames with those before.
        weight: How far these count at most, 0 to 1, (B,).
    """
    found = comparison.found.sum(dim=1).view(-1, 1, 1, 1)
    # a factor instead of an if: the host would have to wait for the device
    seen_again = ((found - CUT) / (SAME_SCENE - CUT)).clamp(0, 1) * weight.view(-1, 1, 1, 1)
    return Trust(comparison.alike * seen_again, steadiness.margin * comparison.still * seen_again)


def fit_evidence(evidence: AnyEvidence, scores: Tensor, brightness: Tensor) -> Evidence:
    """Return evidence on the device and at the sizes of scores (K, h, w) and brightness (l, m)."""
    luma, earlier, labels, mirror_next = (tensor.to(scores.device) for tensor in evidence)
    # the network input's size may have changed, such as under a deadline
    return Evidence(resize_map(luma[None], brightness)[0], resize_map(earlier, scores), labels, mirror_next)


def resize_map(values: Tensor, like: Tensor) -> Tensor:
    """Resize a map (C, h, w) bilinearly to the height and width of another."""
    size = (like.shape[-2], like.shape[-1])
    if values.shape[1:] == size:
        return values
    return F.interpolate(values[None], size, mode="bilinear", align_corners=False, antialias=True)[0]


def shrink_to_luma(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the brightness (B, 1, l, m), fp32, of images (B, 3, H, W) in a smaller size."""
    # on the CPU bytes are resized four times as fast as floats; other devices support only floats
    images = images if images.device.type == "cpu" else images.float()
    return to_luma(F.interpolate(images, size, mode="bilinear", antialias=True).float())


def to_luma(images: Tensor) -> Tensor:
    """Return the brightness (B, 1, H, W) of images (B, 3, H, W), fp32."""
    red, green, blue = LUMA
    return red * images[:, :1] + green * images[:, 1:2] + blue * images[:, 2:]


def likeness(difference: Tensor, tolerance: float) -> Tensor:
    """Return how alike (B, 1, h, w) two pictures are around each pixel: 1 for equal, 0.37 at the tolerance."""
    unlike = blur(difference.abs(), 3).div_(max(tolerance, MIN_TOLERANCE))
    return (unlike * unlike).mul_(-1).exp_()  # a product, as in correct_motion


def keep_labels(labels: Tensor, previous: Tensor, scores: Tensor, margin: Tensor) -> tuple[Tensor, Tensor]:
    """Replace labels (H, W) by the previous ones where new ones do not win by the margin.

    Args:
        labels: The best classes of the scores, resized bilinearly, uint8, contiguous. They are modified.
        previous: Labels of the frame before, of the same size.
        scores: (K, h, w).
        margin: That between classes that are not rare, (1, h, w).

    Returns:
        Numbers of pixels (n,), row by row, and the highest score of each less that of its label, (n,). Labels of other
        pixels have the highest score.
    """
    if labels.device.type == "cpu":  # few labels change; only here the host looks at values
        pixels = (labels != previous).flatten().nonzero().flatten()
    else:
        pixels = torch.arange(labels.numel(), device=labels.device)
    shares = class_shares(previous[None], len(scores))[0]
    chosen, loss = choose_labels(labels, previous, torch.cat([scores, margin]), shares, pixels)
    # scatter and index_select take a quarter of the time of indexing
    labels.view(-1).scatter_(0, pixels, chosen)
    return pixels, loss


def lower_confidence(confidence: Tensor, pixels: Tensor, loss: Tensor) -> None:
    """Replace the confidence (H, W), uint8, contiguous, of the best labels by that of labels of keep_labels."""
    flat = confidence.view(-1)
    flat.scatter_(0, pixels, (flat.index_select(0, pixels) * torch.exp(-loss)).round().to(torch.uint8))


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """Return the share (B, K) of each class in labels (B, H, W), from some of their pixels."""
    down, across = counting_steps(labels)
    counted = labels[:, None, ::down, ::across].float()  # ONNX Runtime compares no bytes
    numbers = torch.arange(classes, dtype=torch.float32, device=labels.device).view(-1, 1, 1)
    return (counted == numbers).float().mean(dim=(2, 3))


def margin_share(new: Tensor, old: Tensor) -> Tensor:
    """Return the share of the margin, 0 to 1, by which a new class must win over an old one, from those of both."""
    return ((new / RARE_NEW).clamp(max=1) * (old / RARE_OLD).clamp(max=1)).sqrt()


def counting_steps(labels: Tensor) -> tuple[int, int]:
    """Return the distances of the rows and of the columns of labels (B, H, W) at which classes are counted."""
    return max(1, labels.shape[1] // COUNTED), max(1, labels.shape[2] // COUNTED)


def choose_labels(
    labels: Tensor, previous: Tensor, maps: Tensor, shares: Tensor, pixels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the labels of some pixels (n,), and the highest score of each less that of its label.

    Args:
        maps: Scores and margin (K + 1, h, w).
        shares: Share of each class in the frame before, (K,).
        pixels: Numbers of pixels of the labels (H, W), row by row.
    """
    new, old = (tensor.flatten().index_select(0, pixels) for tensor in (labels, previous))
    old = old.clamp(max=len(maps) - 2)
    levels = torch.stack([new.int(), old.int(), torch.full_like(new, len(maps) - 1, dtype=torch.int32)])  # (3, n)
    best, rest, needed = interpolate_at(maps, levels, pixels, (labels.shape[0], labels.shape[1]))
    loss = best - rest
    of_new, of_old = (shares.index_select(0, level) for level in levels[:2])
    keep = loss < needed * margin_share(of_new, of_old)
    return torch.where(keep, old, new), torch.where(keep, loss.clamp(min=0), 0.0)


def interpolate_at(maps: Tensor, levels: Tensor, pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Return values (L, n) of maps (C, h, w), resized bilinearly to a height and width, at some pixels of it.

    Args:
        levels: Which map to read for each pixel, (L, n).
        pixels: Numbers of the pixels (n,), row by row.
    """
    (height, width), (h, w) = size, maps.shape[1:]
    rows, columns = pixels // width, pixels % width
    top, bottom, y = (table.index_select(0, rows) for table in find_neighbours(height, h, maps.device))
    left, right, x = (table.index_select(0, columns) for table in find_neighbours(width, w, maps.device))
    flat, start = maps.flatten(), levels * (h * w)

    def read(row: Tensor, column: Tensor) -> Tensor:
        return flat.index_select(0, (start + (row * w + column)).flatten()).view(start.shape)

    upper, lower = (torch.lerp(read(row, left), read(row, right), x) for row in (top, bottom))
    return torch.lerp(upper, lower, y)


@kept_on_cpu
def find_neighbours(size: int, small: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each pixel along a side, the two of a small map that it is interpolated from, and the second's share.

    They are int32, which is added faster.
    """
    place = ((torch.arange(size, device=device) + 0.5) * (small / size) - 0.5).clamp(min=0)
    first = place.int().clamp(max=small - 1)
    return first, (first + 1).clamp(max=small - 1), place - first
