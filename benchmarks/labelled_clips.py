"""Label a clip in several ways by the scores of a network that are computed once, for steady.py."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import streamseg
from streamseg.data.datasets import Dataset
from streamseg.engine.engine import FrameBatch, ImageEngine, Prediction
from streamseg.engine.steady_graph import SteadyBuffers
from streamseg.engine.steadying import Steadiness, is_mirrored
from streamseg.evaluate.translate import to_lookup, translate_dataset, translate_predicted
from streamseg.models.fanet import FANet
from streamseg.stream.label_frames import step_batch
from streamseg.stream.state import LastFrames, State, find_longest_gap


@dataclass(frozen=True)
class Clip:
    """Frames (3, H, W) of a video with true labels (H, W), and their scores (1, K, h, w), computed once."""

    frames: list[Tensor]
    labels: list[Tensor]
    scores: list[Tensor]
    mirrored: list[Tensor]
    """The scores of the mirrored frames, which are mirrored."""


class KernelEngine(ImageEngine):
    """Keeps labels steady by the kernels of a GPU, for one stream of one size at a time."""

    steady: SteadyBuffers | None = None

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        if not isinstance(batch.steady, Steadiness):
            return super().predict(batch)
        scores = self.score(batch.images)
        if self.steady is None:
            _, classes, height, width = scores.shape
            shape = (classes, height, width)
            self.steady = SteadyBuffers(torch.empty_like(batch.images), shape, batch.sizes[0], batch.steady, False)
        self.steady.images.copy_(batch.images)
        self.steady.set_evidence(batch)
        self.steady.start()
        self.steady.compare()
        self.steady.finish(scores)
        return self.steady.read(), scores.new_zeros(1, 0, 0)


@dataclass(frozen=True)
class Labeller:
    """A network whose scores are known, and how its classes count as labels of a data set."""

    model: FANet
    lookup: Tensor
    labels: int

    @torch.no_grad()
    def make_clip(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Clip:
        device = self.lookup.device
        frames, labels = map(list, zip(*((frame.to(device), truth.to(device)) for frame, truth in pairs), strict=True))
        scores, mirrored = (
            [self.model.outputs(frame[None])[0] for frame in each]
            for each in (frames, [frame.flip(2) for frame in frames])
        )
        return Clip(frames, labels, scores, mirrored)

    def label(
        self, clip: Clip, order: Sequence[int], times: Sequence[float], steady: float | Steadiness
    ) -> list[Tensor]:
        """Return the labels of some frames of a clip, as a stream."""
        current: list[Tensor] = []
        kind = KernelEngine if self.lookup.is_cuda else ImageEngine
        engine = kind(self.model, lambda _: current[0])
        state: State | None = None
        predicted = []
        for i, seconds in zip(order, times, strict=True):
            mirrored = isinstance(steady, Steadiness) and is_mirrored(
                state and state.evidence, find_longest_gap(state, seconds), steady
            )
            current[:] = [(clip.mirrored if mirrored else clip.scores)[i]]
            images, policy = clip.frames[i][None], LastFrames(1, steady=steady)
            sizes = [(images.shape[2], images.shape[3])]
            (one,), (state,) = step_batch(engine, images, [state], policy, sizes=sizes, times=[seconds])
            predicted.append(translate_predicted(one.labels, self.lookup))
        return predicted


def open_network(weights: str, dataset: Dataset, device: str = "cpu") -> tuple[Labeller, Dataset]:
    """Return the network of a checkpoint, and a data set with the labels that it has."""
    model, classes = streamseg.load(weights)
    translation, dataset = translate_dataset(classes, dataset)
    count = len(dataset.classes)
    model = model.to(device, memory_format=torch.channels_last)
    return Labeller(model, to_lookup(translation.label_of, count, torch.device(device)), count), dataset
