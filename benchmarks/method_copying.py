"""Copying in benchmarks/video_methods.py: the accuracy of the last key frame's labels by the share of key frames.

A method that propagates has to beat copying at its own share of key frames, and where a schedule decides, nobody knows
that share before. One pass of the backbone over val gives copying at every interval and offset: the labels of frame t
are those of frames t + 1, t + 2, … too.

Shapes: T frames of a sequence, H x W their labels, D distances to the key frame, K classes.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from method_table import Curve
from torch import Tensor

import streamseg
from streamseg.data.datasets import Dataset
from streamseg.evaluate import metrics
from streamseg.evaluate.images import to_score

INTERVALS = (1, 2, 3, 4, 5, 7, 10, 14, 20, 30)
"""Key intervals at which copying is measured: 100 to 3 % key frames."""


@torch.no_grad()
def measure_copying(weights: Path, dataset: Dataset) -> Curve:
    """Return the curve of copying the labels of an image network on the sequences of a data set."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, _ = streamseg.load(weights)
    network.to(device)
    counts = []
    for sequence in dataset.labelled_sequences():
        frames = [dataset.read_sequence_frame(entry) for entry in sequence]
        predicted = [network(frame[None].to(device))[0].argmax(dim=0).to(torch.uint8) for frame, _ in frames]
        labels = [labels.to(device) for _, labels in frames]
        counts.append(count_copies(predicted, labels, len(dataset.classes), max(INTERVALS)).cpu())
    return copying_curve(counts, dataset)


def count_copies(predicted: Sequence[Tensor], labels: Sequence[Tensor], classes: int, distances: int) -> Tensor:
    """Return the confusion matrices (T, D, K, K) of each frame with the prediction of a frame 0 to D - 1 before it.

    Args:
        predicted: Labels (H, W) of each frame by the network.
        labels: True labels (H, W).
    """
    counts = torch.zeros(len(labels), distances, classes, classes, dtype=torch.int64, device=labels[0].device)
    for number, true in enumerate(labels):
        for distance in range(min(distances, number + 1)):
            counts[number, distance] = metrics.confusion_matrix(true, predicted[number - distance], classes)
    return counts


def copying_curve(counts: Sequence[Tensor], dataset: Dataset) -> Curve:
    """Return the curve of the counts (T, D, K, K) of each sequence: at an interval, the mean mIoU over its distances.

    As in evaluate_distances, frames that are not seen at each distance are left out; the share of key frames is that of
    a stream that starts with the first frame, as evaluate prints it.
    """
    curve = []
    frames = sum(map(len, counts))
    for interval in INTERVALS:
        if interval > min(map(len, counts)):
            break
        seen = [sum(one[interval - 1 :, distance].sum(dim=0) for one in counts) for distance in range(interval)]
        keys = sum(-(-len(one) // interval) for one in counts)
        curve.append((100 * keys / frames, fmean(to_score(one, dataset).miou for one in seen)))
    return curve
