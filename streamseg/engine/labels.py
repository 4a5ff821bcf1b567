"""From scores to labels at full size, in bands of rows.

Shapes: K classes, H height, W width, h x w the map of Res-1, which is also that of the scores.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


def labels_from_scores(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Return labels of a height and width, uint8: the argmax of the scores (K, h, w), resized bilinearly."""
    labels = torch.empty(size, dtype=torch.uint8, device=scores.device)
    for band in bands(scores, size):
        part = labels[band.rows]
        if scores.device.type != "cpu":
            part.copy_(band.logits().max(dim=0).indices)
            continue
        # Where the lines above and below have the same label, interpolation between them cannot change it.
        best = band.lines.max(dim=0).indices.to(torch.uint8)  # argmax takes ten times as long
        torch.index_select(best, 0, band.above, out=part)
        ambiguous = (best[band.above] != best[band.below]).flatten().nonzero().flatten()
        rows, columns = ambiguous // size[1], ambiguous % size[1]
        part.view(-1)[ambiguous] = band.logits_at(rows, columns).max(dim=0).indices.to(torch.uint8)
    return labels


def count_labels(labels: Tensor, classes: int) -> Tensor:
    """Return how many labels, uint8, have each class, (K,), on the device of the labels."""
    if labels.device.type == "cpu":
        return torch.bincount(labels.flatten(), minlength=classes)[:classes]
    # unlike bincount it does not wait for the GPU
    counts = torch.histc(labels.to(torch.int32), 256, 0, 256)
    return counts if classes == 256 else counts[:classes]


def count_batch(labels: Sequence[Tensor]) -> Tensor:
    """Return how many labels of each frame, uint8, have each value, (256 B,), on their device, which is not waited for.

    Frames of one size are counted together: on a GPU each call takes longer than the counting.
    """
    if len({x.shape for x in labels}) > 1 or labels[0].device.type == "cpu":
        return torch.cat([count_labels(x, 256) for x in labels])
    if len(labels) == 1:
        return count_labels(labels[0], 256)
    numbers = torch.stack([*labels]).flatten(1).to(torch.int32)
    values = 256 * len(labels)  # other numbers for each frame
    numbers += torch.arange(0, values, 256, dtype=torch.int32, device=numbers.device)[:, None]
    return torch.histc(numbers, values, 0, values)


def labels_and_confidence_from_scores(scores: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the labels of labels_from_scores, and the probability of each, uint8: 255 is 1."""
    labels, confidence = (torch.empty(size, dtype=torch.uint8, device=scores.device) for _ in range(2))
    for band in bands(scores, size):
        logits = band.logits()
        highest, labels[band.rows] = logits.max(dim=0)
        # the softmax of the highest score only
        confidence[band.rows] = (255 / (logits - highest).exp_().sum(dim=0)).round_()
    return labels, confidence


class Band(NamedTuple):
    """Rows of resized scores."""

    rows: slice
    lines: Tensor
    """The rows of the map that they are interpolated from, (K, n, W), resized to full width."""
    above: Tensor
    below: Tensor
    share: Tensor
    """For each row: the lines above and below it, and its position between them, from 0 to 1."""

    def logits(self) -> Tensor:
        """Return the scores (K, rows, W)."""
        above, below = (self.lines.index_select(1, line) for line in (self.above, self.below))
        return torch.lerp(above, below, self.share[:, None])

    def logits_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the scores of some pixels (K, n)."""
        width = self.lines.shape[2]
        lines = self.lines.flatten(1)
        above, below = (lines.index_select(1, line[rows] * width + columns) for line in (self.above, self.below))
        return torch.lerp(above, below, self.share[rows])


def bands(scores: Tensor, size: tuple[int, int]) -> Iterator[Band]:
    """Resize scores (K, h, w) bilinearly to a height and width, in fp32, a band of rows at a time."""
    classes, rows, _ = scores.shape
    height, width = size
    # On the CPU a band fits into the cache, and its memory is reused: 18 ms at 720 x 960 and 19 classes, against 40 ms
    # in one piece. On other devices each band costs a few more calls, so only memory limits it.
    numbers = 2**20 if scores.device.type == "cpu" else 2**26
    step = max(1, numbers // (classes * width))
    # First the few rows of the map that a band needs are resized to full width, then pairs of them are interpolated.
    # Positions of rows on the map are integers, in units of 1 / (2 height), so that bands agree to the last bit.
    # They are computed on the CPU: a GPU's kernels for these operators take long to load.
    whole = 2 * height
    place = ((2 * torch.arange(height, device="cpu") + 1) * rows - height).clamp(min=0)
    above = place // whole
    positions = above, (above + 1).clamp(max=rows - 1), (place % whole) / whole
    above, below, share = (values.to(scores.device, non_blocking=True) for values in positions)
    for start in range(0, height, step):
        band = slice(start, min(start + step, height))
        first = max((2 * band.start + 1) * rows - height, 0) // whole
        last = max((2 * band.stop - 1) * rows - height, 0) // whole + 1
        part = scores[None, :, first : last + 1].float()
        lines = F.interpolate(part, (part.shape[2], width), mode="bilinear", align_corners=False)[0]
        yield Band(band, lines, above[band] - first, below[band] - first, share[band])
