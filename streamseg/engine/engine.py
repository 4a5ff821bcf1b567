"""Engines: what labels frames, be it a network or another form of one, under one interface.

Any number of threads may call an engine at the same time, inside and outside of torch.inference_mode(). What it gives
is the caller's to keep.

Shapes: B streams in a batch, K classes, H height, W width, h x w the map of Res-1, D key channels, C channels of Res-1
… Res-4 side by side.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.tiles import check_model, labels_and_confidence_from_scores, labels_from_scores, to_checked_frame
from streamseg.io.images import Picture
from streamseg.models.baselines import Baseline
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import FANet
from streamseg.models.layers import check_image, describe_type


class Prediction(NamedTuple):
    """What is seen in an image."""

    labels: Tensor
    """(H, W), uint8."""
    confidence: Tensor | None = None
    """If wanted, the probability of each label, uint8: 255 is 1."""
    low_res_labels: Tensor | None = None
    """If labels are kept steady, those where the image was scored, (h, w), uint8."""


class FrameBatch(NamedTuple):
    """Images of as many streams, and what is wanted of them."""

    images: Tensor
    """(B, 3, H, W), bytes or floats in 0–255."""
    past: Tensor | None
    """The sum of the contexts of the earlier frames in each one's window (B, D, C); None if all are the first."""
    weights: Sequence[float]
    """How many frames each sum is of."""
    sizes: Sequence[tuple[int, int]]
    """Height and width of each one's labels."""
    with_confidence: bool = False
    """Whether the probability of each label is wanted too."""
    steady: float = 0.0
    """How much more the classes of the frame before score."""
    previous_labels: Sequence[Tensor | None] = ()
    """Those classes, (h, w), of each stream that has seen a frame of this size; needed where they score more."""


class Engine(Protocol):
    """What can label the frames of streams: a network, or another form of one."""

    @property
    def device(self) -> torch.device: ...

    @property
    def classes(self) -> int:
        """How many it tells apart."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of the contexts of Res-1 … Res-4, which are side by side."""

    @property
    def context_shape(self) -> tuple[int, int]:
        """D and C of a context; 0 and 0 for what sees each frame alone."""

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        """What is seen in each image, and the context (B, D, C), fp32, that it leaves to later ones."""


class EagerEngine:
    """A FANet as it is, operator by operator."""

    def __init__(self, model: FANet):
        check_model(model)
        self.model, self.classes = model, model.classes
        self.widths = tuple(attend.context_shape[1] for attend in model.attentions)
        self.context_shape = (model.attend1.context_shape[0], sum(self.widths))

    @property
    def device(self) -> torch.device:
        return self.model.mean.device

    def __call__(self, frame: Picture) -> Tensor:
        """Labels (H, W) or (B, H, W), uint8, of a frame (3, H, W) or frames (B, 3, H, W)."""
        labels, _ = self.step(frame)
        return labels

    def step(self, frame: Picture, past: Tensor | None = None, weight: float = 1.0) -> tuple[Tensor, Tensor]:
        """Labels of the next frame of a video, and the context that it leaves to later frames; see step_engine."""
        return step_engine(self, frame, past, weight)

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        model, past = self.model, batch.past
        check_model(model)  # whose mode may have changed
        model.check(batch.images, None)
        # in the network's precision at once: each of its four stages would do it by itself
        parts = None if past is None else past.to(model.mean.dtype).split(self.widths, dim=2)
        weights = model.mean.new_tensor(batch.weights).view(-1, 1, 1)
        maps, contexts = model.features(batch.images.to(self.device), parts, weights)
        predictions = predict_from_scores(model.score(maps), batch)
        # in fp32, in which sums of many frames do not drift
        return predictions, torch.cat(contexts, dim=2).float()


class ImageEngine:
    """A network that leaves nothing to later frames: one of FANet's rivals, or any other that gives scores.

    Args:
        score: Scores (B, K, h, w) of images (B, 3, H, W).
    """

    widths = (0, 0, 0, 0)
    context_shape = (0, 0)

    def __init__(self, model: Network, score: Callable[[Tensor], Tensor]):
        check_model(model)
        self.model, self.classes = model, model.classes
        self.score = score

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def __call__(self, frame: Picture) -> Tensor:
        """Labels (H, W) or (B, H, W), uint8, of a frame (3, H, W) or frames (B, 3, H, W)."""
        labels, _ = self.step(frame)
        return labels

    def step(self, frame: Picture, past: Tensor | None = None, weight: float = 1.0) -> tuple[Tensor, Tensor]:
        """Labels, and the context (B, 0, 0), which is empty: each frame is seen alone."""
        return step_engine(self, frame, past, weight)

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        check_model(self.model)  # whose mode may have changed
        images = batch.images.to(self.device)
        return predict_from_scores(self.score(images), batch), images.new_zeros(len(images), 0, 0, dtype=torch.float32)


def predict_from_scores(scores: Tensor, batch: FrameBatch) -> list[Prediction]:
    """What scores (B, K, h, w) say of the images that they are of."""
    scores, coarse = apply_hysteresis(scores, batch)
    predictions = []
    for x, size, own in zip(scores, batch.sizes, coarse, strict=True):
        labels, confidence = (
            labels_and_confidence_from_scores(x, size) if batch.with_confidence else (labels_from_scores(x, size), None)
        )
        predictions.append(Prediction(labels, confidence, own))
    return predictions


def apply_hysteresis(scores: Tensor, batch: FrameBatch) -> tuple[Tensor, Sequence[Tensor | None]]:
    """Scores (B, K, h, w) in which the classes of the frame before have an advantage, and the best class of each."""
    if not batch.steady:
        return scores, [None] * len(scores)
    scores = scores.clone()
    for x, before in zip(scores, batch.previous_labels, strict=True):
        if before is not None and before.shape == x.shape[1:]:
            place = before[None].to(x.device, torch.int64).clamp(max=len(x) - 1)
            x.scatter_add_(0, place, torch.full_like(place, batch.steady, dtype=x.dtype))
    return scores, [*scores.argmax(dim=1).to(torch.uint8)]


def to_engine(model: "Network | Engine") -> Engine:
    """What labels frames by a network, or does so itself."""
    if isinstance(model, Baseline):
        return ImageEngine(model, partial(score_images, model))
    return model if hasattr(model, "predict") else EagerEngine(model)  # type: ignore[arg-type,return-value] # Plain checks it


def score_images(model: Baseline, images: Tensor) -> Tensor:
    """Scores (B, K, h, w) of images by a network that sees each frame alone."""
    scores, _ = model.outputs(images)
    return scores


def step_engine(
    engine: Engine, frame: Picture, past: Tensor | None = None, weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Labels (H, W) or (B, H, W), uint8, of a video's next frame, or those of B videos, and the contexts (B, D, C).

    Args:
        frame: A frame (3, H, W) or frames (B, 3, H, W), bytes, on the engine's device; or a picture of another kind
            that segment takes, such as an array (H, W, 3).
        past: The sum of the contexts of the earlier frames in each window (B, D, C); None for the first.
        weight: How many frames that sum is of, for a network that averages.
    """
    frames, one = to_frames(frame, engine.device)
    batch = make_frame_batch(engine, frames, past, weight)
    with torch.no_grad():
        predictions, contexts = engine.predict(batch)
    labels = torch.stack([prediction.labels for prediction in predictions])
    return labels[0] if one else labels, contexts


def to_frames(given: Picture, device: torch.device) -> tuple[Tensor, bool]:
    """Frames (B, 3, H, W), bytes, on a device, and whether one frame was given, without a batch; see step_engine."""
    one = getattr(given, "ndim", 3) != 4
    each = [given] if one else list(given)  # type: ignore[arg-type] # a tensor or an array
    if not each:
        raise ValueError("The batch has no frames; expected one or more.")
    taken = [to_checked_frame(frame) for frame in each]
    if isinstance(given, Tensor):
        if given.device != device:
            raise ValueError(f"The frame is on {given.device}, and the network on {device}: move one of them.")
        frames = given[None] if one else given
    else:
        frames = torch.stack(taken).to(device)
    check_image(frames)
    return frames, one


def make_frame_batch(engine: Engine, frames: Tensor, past: Tensor | None, weight: float) -> FrameBatch:
    """What is wanted of frames (B, 3, H, W) and their past; a ValueError if the past is none of this network."""
    if past is not None:
        if not isinstance(past, Tensor) or not past.is_floating_point():
            raise ValueError(
                f"The past is a {describe_type(past)}; expected the context that step() gave, or a sum of such."
            )
        expected = (len(frames), *engine.context_shape)
        if tuple(past.shape) != expected:
            raise ValueError(
                f"The past's shape is {tuple(past.shape)}; expected {expected}: the context that step() of this same "
                "network gave for as many frames, or a sum of such."
            )
        past = past.to(engine.device)
    size = (frames.shape[2], frames.shape[3])
    return FrameBatch(frames, past, [0.0 if past is None else weight] * len(frames), [size] * len(frames))


def check_past(past: Tensor | None, shape: tuple[int, int]) -> None:
    """Raise a ValueError if a past is not of the network that is to look back to it."""
    if past is not None and tuple(past.shape[1:]) != shape:
        raise ValueError(
            f"The state is of another network: its contexts have {past.shape[1]} x {past.shape[2]} numbers, and those "
            f"of this network {shape[0]} x {shape[1]}."
        )


def resize_frames(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B, 3, H, W) at another size; each pixel of a smaller one is a mean over those that it stands for."""
    if tuple(images.shape[-2:]) == size:
        return images
    # the CPU resizes bytes in a quarter of the time of floats; other devices know floats alone
    images = images if images.device.type == "cpu" else images.float()
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def to_uint8(images: Tensor) -> Tensor:
    """Images as bytes, which a GPU has resized as floats."""
    return images if images.dtype == torch.uint8 else images.round().clamp(0, 255).to(torch.uint8)
