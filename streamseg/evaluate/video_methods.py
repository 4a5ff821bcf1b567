"""The accuracy of video methods by the distance to the last key frame.

The accuracy of a method that propagates depends on where its key frames are. So one stream is started at each of the
first frames of a recording, as many as the key interval has: each labelled frame is then seen at each distance.

Shapes: H height, W width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from streamseg.data.datasets import Dataset, in_parallel
from streamseg.engine.engine import VideoEngine
from streamseg.evaluate import metrics
from streamseg.evaluate.images import Score, check_engine_fits, to_score, validate
from streamseg.evaluate.translate import to_lookup, translate_predicted
from streamseg.io.masks import Mask, paint_over, remove_labels
from streamseg.models.video import VideoMethod
from streamseg.parallel import distributed

MAX_STREAMS = 32
"""The longest key interval whose distances are measured: each is a stream of its own."""


@dataclass(frozen=True)
class DistanceScores:
    """The mIoU at each distance to the key frame, in percent."""

    mious: tuple[float, ...]
    """At distance 0, which is the backbone's, 1, …, all of the same frames; none if no labelled frame has enough frames
    before it to be seen at each distance."""

    @property
    def mean(self) -> float:
        """Mean over the distances: the accuracy of the method at this interval."""
        return fmean(self.mious) if self.mious else math.nan


def evaluate_distances(
    method: VideoMethod,
    dataset: Dataset,
    interval: int,
    *,
    threads: int = 2,
    label_of: Sequence[int] | None = None,
    mask: Mask | None = None,
) -> DistanceScores:
    """Return the mIoU of a video method at each distance to its key frame.

    Args:
        mask: Pixels to ignore: they do not count.
    """
    if not 1 <= interval <= MAX_STREAMS:
        raise ValueError(f"The key interval is {interval}; expected 1 to {MAX_STREAMS} to measure each distance.")
    engine, classes = VideoEngine(method), len(dataset.classes)
    check_engine_fits(engine, dataset, label_of)
    lookup = None if label_of is None else to_lookup(label_of, classes, engine.device)
    confusions = torch.zeros(interval, classes, classes + 1, dtype=torch.int64, device=engine.device)
    for sequence in dataset.labelled_sequences(interval - 1):
        states: list[Any] = [None] * interval
        for number, (frame, labels) in enumerate(in_parallel(dataset.read_sequence_frame, sequence, threads)):
            image = paint_over(frame[None].to(engine.device), mask)
            truth = remove_labels(labels.to(engine.device), mask)
            for stream in range(min(interval, number + 1)):
                distance = (number - stream) % interval
                predicted, states[stream] = label_next(method, image, None if distance == 0 else states[stream])
                # earlier frames are not seen at every distance
                if sequence[number].labels is not None and number >= interval - 1:
                    found = translate_predicted(predicted, lookup)
                    confusions[distance] += metrics.confusion_matrix(truth, found, classes, classes + 1)
    return DistanceScores(tuple(to_score(one, dataset).miou for one in confusions.cpu() if one.any()))


def validate_method(
    method: VideoMethod,
    dataset: Dataset,
    window: int,
    *,
    share: tuple[int, int] = (0, 1),
    label_of: Sequence[int] | None = None,
) -> Score:
    """Return the mIoU of a video method on the last frames of clips, the first of which is the key frame.

    A data set without such clips is validated frame by frame, which is the backbone.
    """
    clips = dataset.clips(window) if dataset.sequences else []
    if not clips:
        return validate(method, dataset, share=share, label_of=label_of)
    engine, classes = VideoEngine(method), len(dataset.classes)
    check_engine_fits(engine, dataset, label_of)
    lookup = None if label_of is None else to_lookup(label_of, classes, engine.device)
    confusion = torch.zeros(classes, classes + 1, dtype=torch.int64, device=engine.device)
    for clip in clips[share[0] :: share[1]]:
        state = None
        for path in clip.images:
            predicted, state = label_next(method, dataset.read_image(path)[None].to(engine.device), state)
        labels = dataset.read_labels(clip.labels).to(engine.device)
        found = translate_predicted(predicted, lookup)
        confusion += metrics.confusion_matrix(labels, found, classes, classes + 1)
    return to_score(distributed.all_reduce_sum(confusion).cpu(), dataset)


@torch.no_grad()
def label_next(method: VideoMethod, image: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Return the labels (H, W) of the next frame (1, 3, H, W) of a stream, and its state."""
    logits, state = method.step(image, state)
    return logits[0].argmax(dim=0).to(torch.uint8), state


def format_distances(scores: DistanceScores) -> str:
    """Format the mIoU at each distance for the terminal."""
    if not scores.mious:
        return "mIoU by distance to the key frame: none, no labelled frame has enough frames before it"
    numbers = "  ".join(f"{distance}: {miou:.1f}" for distance, miou in enumerate(scores.mious))
    return f"mIoU by distance to the key frame  {numbers}  mean {scores.mean:.1f}"
