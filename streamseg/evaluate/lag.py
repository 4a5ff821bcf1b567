"""How many frames late a label appears after the true label of a pixel has changed.

A *change* is a pixel whose true label becomes another class and then stays for HELD frames. Its lag is the number of
frames until the prediction is that class: 0 if it is so at once. This is compared with the lag of the same network
frame by frame, which has no memory: the difference is what memory costs.

Shapes: H height, W width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from streamseg.classes import IGNORE

HELD = 8
"""Frames for which a true label must stay after a change; a prediction that is not right within them counts as this."""


@dataclass(frozen=True)
class Lag:
    """The lag of a network after changes of the true label, in frames; NaN if there is none to measure."""

    changes: int
    """Pixels whose true label changed, and then stayed."""
    median: float
    p90: float
    mean: float
    missed: float
    """Percentage of the changes that were not predicted within HELD frames."""
    added_median: float
    """The lag less that of the same network frame by frame, of changes that this predicts within HELD frames."""
    added_p90: float
    added_mean: float


class LagTally:
    """Follows the pixels of sequences, and counts their changes by both lags, on the device."""

    def __init__(self, device: torch.device):
        # by the lag frame by frame (row) and the lag of the prediction (column)
        self.counts = torch.zeros(HELD + 1, HELD + 1, dtype=torch.int64, device=device)
        self.labels: Tensor | None = None

    def add(self, labels: Tensor, predicted: Tensor, alone: Tensor, *, first: bool) -> None:
        """Add the next frame of a sequence.

        Args:
            labels: True labels (H, W), with IGNORE.
            predicted: Predicted labels (H, W).
            alone: Labels (H, W) that the network predicts for this frame alone.
            first: Whether it is the first frame of a sequence.
        """
        if first or self.labels is None:
            # the number of frames since a change, from 1; 0 if none was seen
            self.age = torch.zeros_like(labels, dtype=torch.int64)
            self.lags = torch.full((2, *labels.shape), HELD, dtype=torch.int64, device=labels.device)
            self.labels = labels
            return
        has_class = labels != IGNORE
        changed = (labels != self.labels) & has_class & (self.labels != IGNORE)
        stays = (labels == self.labels) & has_class & (self.age > 0)
        self.age = torch.where(changed, 1, torch.where(stays, self.age + 1, 0))
        self.lags = torch.where(changed, HELD, self.lags)
        right = torch.stack([alone, predicted]) == labels
        awaited = (self.age > 0) & (self.age <= HELD) & (self.lags == HELD)
        self.lags = torch.where(right & awaited, self.age - 1, self.lags)
        bins = (self.lags[0] * (HELD + 1) + self.lags[1])[self.age == HELD]
        self.counts += bins.bincount(minlength=(HELD + 1) ** 2).view_as(self.counts)
        self.labels = labels

    def result(self) -> Lag:
        """Return the lag after all changes that were added."""
        counts = self.counts.cpu()
        ours = counts.sum(dim=0)
        lags = torch.arange(HELD + 1)
        known = counts[:HELD]
        added = (lags - lags[:HELD, None]).flatten()
        changes = int(ours.sum())
        return Lag(
            changes=changes,
            median=quantile(lags, ours, 0.5),
            p90=quantile(lags, ours, 0.9),
            mean=(lags * ours).sum().item() / changes if changes else math.nan,
            missed=100 * ours[HELD].item() / changes if changes else math.nan,
            added_median=quantile(added, known.flatten(), 0.5),
            added_p90=quantile(added, known.flatten(), 0.9),
            added_mean=(added * known.flatten()).sum().item() / known.sum().item() if known.any() else math.nan,
        )


def quantile(values: Tensor, counts: Tensor, share: float) -> float:
    """Return the smallest of several values, each with a count, that at least a share of them does not exceed."""
    total = counts.sum().item()
    if not total:
        return math.nan
    ordered, order = values.sort()
    reached = counts[order].cumsum(dim=0) >= share * total
    return float(ordered[int(reached.int().argmax())])


def lag_to_json(lag: Lag) -> dict:
    """Return a lag as JSON values: frames and percent, and null for what does not exist."""
    return {name: None if math.isnan(value) else value for name, value in vars(lag).items()}


def format_lag(lag: Lag) -> str:
    """Format a lag as a line for the terminal."""
    if not lag.changes:
        return f"Lag: no true label changes and then stays for {HELD} frames"
    line = (
        f"Lag after {lag.changes:,} changes of a pixel's true label: median {lag.median:.0f}, p90 {lag.p90:.0f}, "
        f"mean {lag.mean:.2f} frames ({lag.missed:.1f} % not within {HELD})"
    )
    if math.isnan(lag.added_median):
        return line
    return (
        f"{line}\nmore than frame by frame: median {lag.added_median:.0f}, p90 {lag.added_p90:.0f}, "
        f"mean {lag.added_mean:.2f} frames"
    )
