"""Engines: the interface that labels frames, and the engines that run a network operator by operator.

Any number of threads may call an engine at the same time, inside and outside of torch.inference_mode(). The tensors
that it returns belong to the caller.

Shapes: B streams in a batch, K classes, H height, W width, h x w the map of Res-1, D key channels, C channels of Res-1
… Res-4 concatenated.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.evidence import AnyEvidence, Evidence
from streamseg.engine.inputs import check_model, to_checked_frame
from streamseg.engine.labels import labels_and_confidence_from_scores, labels_from_scores
from streamseg.engine.looking_back import fuse_scores, looking_back
from streamseg.engine.mirroring import mirror
from streamseg.engine.steadying import MovedEvidence, Steadiness, is_mirrored, keep_labels, lower_confidence
from streamseg.io.images import Picture
from streamseg.models.baselines import Baseline
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import FANet
from streamseg.models.layers import check_image, describe_type
from streamseg.models.video.scheme import VideoMethod


class Prediction(NamedTuple):
    """The labels of a frame."""

    labels: Tensor
    """(H, W), uint8."""
    confidence: Tensor | None = None
    """On request, the probability of each label, (H, W), uint8: 255 is 1."""
    low_res_labels: Tensor | None = None
    """With hysteresis, the labels at the size of the scores, (h, w), uint8."""
    method_state: object = None
    """The state of a video method after the frame."""
    evidence: AnyEvidence | None = None
    """With a Steadiness, what keeps the labels of later frames steady."""


class FrameBatch(NamedTuple):
    """The next frames of several streams, and what to compute for them."""

    images: Tensor
    """(B, 3, H, W), bytes or floats in 0–255."""
    past: Tensor | None
    """Sum of the contexts of the earlier frames in each window (B, D, C); None if all frames are the first."""
    weights: Sequence[float]
    """Total weight of each of these sums; for a window, its number of frames."""
    sizes: Sequence[tuple[int, int]]
    """Height and width of the labels of each frame."""
    with_confidence: bool = False
    """Whether to compute the probability of each label too."""
    steady: float | Steadiness = 0.0
    """How steady labels are kept; a number is hysteresis, added to the score of each pixel's previous class."""
    previous_labels: Sequence[Tensor | None] = ()
    """Low-resolution labels of the previous frame of each stream, (h, w); required with hysteresis."""
    method_states: Sequence[object] = ()
    """The state of a video method before each frame, None for a first one; empty if all frames are the first."""
    mask: Tensor | None = None
    """The unmasked share of each pixel (B, H, W), 0 to 1; masked pixels of the images are painted over. None: all."""
    shares: Tensor | None = None
    """The share of each frame (B,) in the context that all of them attend to; None for contexts of their own."""
    evidence: Sequence[AnyEvidence | None] = ()
    """With a Steadiness, the evidence of the previous frame of each stream, of as many classes as the engine has; empty
    if all frames are the first."""
    gaps: Sequence[float] = ()
    """Seconds since the previous frame of each stream; empty for the usual."""
    longest_gaps: Sequence[float] = ()
    """The longest of these times of late; empty for the usual."""
    needs_contexts: bool = True
    """Whether the contexts are used; if not, an engine may return none of them, (0, D, C)."""

    def part(self, frames: slice) -> "FrameBatch":
        """Return some of the frames as a batch; their shares, if they have any, count in another context then."""
        return self._replace(
            images=self.images[frames],
            past=None if self.past is None else self.past[frames],
            weights=self.weights[frames],
            sizes=self.sizes[frames],
            previous_labels=self.previous_labels[frames],
            method_states=self.method_states[frames],
            mask=None if self.mask is None else self.mask[frames],
            shares=None if self.shares is None else self.shares[frames],
            evidence=self.evidence[frames],
            gaps=self.gaps[frames],
            longest_gaps=self.longest_gaps[frames],
        )


class Engine(Protocol):
    """Labels the frames of streams; `labels = engine(frame)` labels a single frame."""

    classes: int
    widths: tuple[int, ...]
    """Channels of the contexts of the stages with attention, which are concatenated."""
    context_shape: tuple[int, int]
    """D and C of a context; 0 and 0 for an engine without context."""

    @property
    def device(self) -> torch.device: ...

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        """Return the prediction of each frame, and the contexts for later frames (B, D, C), fp32."""
        ...

    def __call__(self, frame: Picture) -> Tensor:
        """Return the labels (H, W) or (B, H, W), uint8, of a frame (3, H, W) or frames (B, 3, H, W)."""
        labels, _ = self.step(frame)
        return labels

    def step(self, frame: Picture, past: Tensor | None = None, weight: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the labels of the next frame of a video, or of B videos, and the contexts (B, D, C).

        Args:
            frame: A frame (3, H, W) or frames (B, 3, H, W), bytes, on the engine's device; or any picture that segment
                accepts, such as an array (H, W, 3).
            past: Sum of the contexts of the earlier frames in each window (B, D, C); None for the first frame.
            weight: Number of frames in that sum, for a network that averages.
        """
        frames, is_single = to_frames(frame, self.device)
        with torch.no_grad():
            predictions, contexts = self.predict(make_frame_batch(self, frames, past, weight))
        labels = torch.stack([prediction.labels for prediction in predictions])
        return labels[0] if is_single else labels, contexts


class EagerEngine(Engine):
    """Runs a FANet operator by operator."""

    def __init__(self, model: FANet):
        check_model(model)
        self.model, self.classes = model, model.classes
        self.widths = tuple(attend.context_shape[1] for attend in model.attentions)
        self.context_shape = (model.attentions[0].context_shape[0], sum(self.widths))

    @property
    def device(self) -> torch.device:
        return self.model.mean.device

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        model, past = self.model, batch.past
        check_model(model)  # it may have been set to training mode since
        model.check(batch.images, None)
        # cast once, instead of at each stage
        parts = None if past is None else past.to(model.mean.dtype).split(self.widths, dim=2)
        weights = model.mean.new_tensor(batch.weights).view(-1, 1, 1)
        seen, mirrored = mirror_batch(batch, self.device)
        with look_back_beside(batch, self.device) as looked_back:
            maps, contexts = model.features(seen.images, parts, weights, seen.mask, batch.shares)
            predictions = predict_from_scores(model.score(maps), batch, mirrored, looked_back)
        return predictions, torch.cat(contexts, dim=2).float()  # fp32: sums over many frames drift in half precision


class ImageEngine(Engine):
    """Runs a network without context, such as a baseline, or any function that returns scores.

    Args:
        score: Returns the scores (B, K, h, w) of images (B, 3, H, W).
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

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        check_model(self.model)  # it may have been set to training mode since
        seen, mirrored = mirror_batch(batch, self.device)
        with look_back_beside(batch, self.device) as looked_back:
            predictions = predict_from_scores(self.score(seen.images), batch, mirrored, looked_back)
        return predictions, seen.images.new_zeros(len(batch.images), 0, 0, dtype=torch.float32)


class VideoEngine(Engine):
    """Runs a video method, such as DFF, operator by operator: streams of a batch one by one, each with its state."""

    widths = (0, 0, 0, 0)
    context_shape = (0, 0)

    def __init__(self, model: VideoMethod):
        check_model(model)
        self.model, self.classes = model, model.classes

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        check_model(self.model)  # it may have been set to training mode since
        # on the CPU a copy: methods keep images in their states, and serve uses the memory of frames again
        images = batch.images.to(self.device, copy=self.device.type == "cpu")
        states = batch.method_states or [None] * len(images)
        # copies: a state may keep the image, which the caller may overwrite
        steps = [self.model.step(image[None].clone(), state) for image, state in zip(images, states, strict=True)]
        if isinstance(batch.steady, Steadiness):  # its features of earlier frames would not fit mirrored ones
            batch = batch._replace(steady=batch.steady.unmirrored())
        predictions = predict_from_scores(torch.cat([logits for logits, _ in steps]), batch)
        after = [
            prediction._replace(method_state=state) for prediction, (_, state) in zip(predictions, steps, strict=True)
        ]
        return after, images.new_zeros(len(images), 0, 0, dtype=torch.float32)

    @torch.no_grad()
    def finish(self, state: object) -> object:
        """Do the work that the last frame has left for the time after its labels."""
        return self.model.finish(state)


def mirror_batch(batch: FrameBatch, device: torch.device) -> tuple[FrameBatch, Tensor | None]:
    """Return a batch as the network sees it, on a device; and which of its frames are mirrored, see find_mirrored."""
    mirrored = find_mirrored(batch, device)
    mask = None if batch.mask is None else mirror(batch.mask, mirrored)
    return batch._replace(images=mirror(batch.images.to(device), mirrored), mask=mask), mirrored


def find_mirrored(batch: FrameBatch, device: torch.device) -> Tensor | None:
    """Return which frames of a batch are labelled mirrored, 1 or else 0, (B,); None if no frame is.

    Only on the CPU the host looks at values.
    """
    if not (isinstance(batch.steady, Steadiness) and batch.steady.mirror and any(batch.evidence)):
        return None
    gaps = batch.longest_gaps or [0.0] * len(batch.evidence)
    flags = [is_mirrored(entry, gap, batch.steady) for entry, gap in zip(batch.evidence, gaps, strict=True)]
    mirrored = torch.stack([flag.to(device) for flag in flags])
    return None if device.type == "cpu" and not mirrored.any() else mirrored


def look_back_beside(batch: FrameBatch, device: torch.device) -> AbstractContextManager[Future[MovedEvidence] | None]:
    """Look back from the frames of a batch while the network computes their scores, in the block, on the CPU."""
    if device.type != "cpu" or not isinstance(batch.steady, Steadiness):
        return nullcontext()
    return looking_back(batch.images.cpu(), batch.evidence, usual_gaps(batch), batch.steady, batch.mask)


def usual_gaps(batch: FrameBatch) -> Sequence[float]:
    """Return the seconds since the previous frame of each stream, 0 for the usual."""
    return batch.gaps or [0.0] * len(batch.images)


def predict_from_scores(
    scores: Tensor, batch: FrameBatch, mirrored: Tensor | None = None, looked_back: Future[MovedEvidence] | None = None
) -> list[Prediction]:
    """Return the predictions of frames from their scores (B, K, h, w).

    Args:
        mirrored: 1 for frames whose scores are mirrored, or else 0, (B,); None if none are.
        looked_back: What look_back_beside has yielded for the batch.
    """
    if isinstance(batch.steady, Steadiness):
        label = labels_and_confidence_from_scores if batch.with_confidence else labels_without_confidence
        return predict_steadily(scores, batch, batch.steady, label, mirrored, looked_back)
    scores, low_res = apply_hysteresis(scores, batch)
    predictions = []
    for x, size, small in zip(scores, batch.sizes, low_res, strict=True):
        if batch.with_confidence:
            labels, confidence = labels_and_confidence_from_scores(x, size)
            predictions.append(Prediction(labels, confidence, small))
        else:
            predictions.append(Prediction(labels_from_scores(x, size), None, small))
    return predictions


def apply_hysteresis(scores: Tensor, batch: FrameBatch) -> tuple[Tensor, Sequence[Tensor | None]]:
    """Raise the scores (B, K, h, w) of each pixel's previous class; return them and the best classes (h, w)."""
    if not batch.steady or isinstance(batch.steady, Steadiness):
        return scores, [None] * len(scores)
    scores = scores.clone()
    for x, previous in zip(scores, batch.previous_labels, strict=True):
        if previous is not None and previous.shape == x.shape[1:]:
            index = previous[None].to(x.device, torch.int64).clamp(max=len(x) - 1)
            x.scatter_add_(0, index, torch.full_like(index, batch.steady, dtype=x.dtype))
    return scores, [*scores.argmax(dim=1).to(torch.uint8)]


def predict_steadily(
    scores: Tensor,
    batch: FrameBatch,
    steadiness: Steadiness,
    label: Callable[[Tensor, tuple[int, int]], tuple[Tensor, Tensor | None]],
    mirrored: Tensor | None = None,
    looked_back: Future[MovedEvidence] | None = None,
) -> list[Prediction]:
    """Return predictions from the scores (B, K, h, w) of frames and the evidence of earlier ones.

    Args:
        label: Returns the labels of scores (K, h, w) in a height and width, and their confidence if it is wanted.
        mirrored: 1 for frames whose scores are mirrored, or else 0, (B,); None if none are.
        looked_back: What look_back_beside has yielded for the batch.
    """
    count, scores = len(scores), mirror(scores, mirrored)
    mirror_next = scores.new_full((count,), float(steadiness.mirror), dtype=torch.float32)
    if mirrored is not None:
        mirror_next -= mirrored
    evidence = list(batch.evidence) or [None] * count
    with torch.inference_mode():  # on the CPU a small operator takes a tenth less time in it
        fused = fuse_scores(scores, batch.images, evidence, usual_gaps(batch), steadiness, batch.mask, looked_back)
    predictions = []
    for i, (size, earlier) in enumerate(zip(batch.sizes, evidence, strict=True)):
        labels, confidence = label(fused.scores[i], size)
        if earlier is not None and earlier.labels.shape == labels.shape:
            kept = keep_labels(labels, earlier.labels.to(labels.device), fused.scores[i], fused.margin[i])
            if confidence is not None:
                lower_confidence(confidence, *kept)
        # copies: the caller may change the labels, no other stream of the batch stays in memory, and tensors that are
        # made in inference mode cannot be changed outside of it
        parts = fused.luma[i, 0], fused.carried[i], labels, mirror_next[i]
        after = Evidence(*(part.clone() for part in parts))
        predictions.append(Prediction(labels, confidence, evidence=after))
    return predictions


def labels_without_confidence(scores: Tensor, size: tuple[int, int]) -> tuple[Tensor, None]:
    """Return the labels of scores (K, h, w) in a height and width, and no confidence."""
    return labels_from_scores(scores, size), None


def to_engine(model: "Network | Engine") -> Engine:
    """Return an engine that runs a network operator by operator; an engine is returned unchanged."""
    if hasattr(model, "predict"):
        return model  # type: ignore[return-value] # no network has it
    if isinstance(model, Baseline):
        return ImageEngine(model, partial(score_images, model))
    if isinstance(model, VideoMethod):
        return VideoEngine(model)
    return EagerEngine(model)  # type: ignore[arg-type] # checked there


def score_images(model: Baseline, images: Tensor) -> Tensor:
    """Return the scores (B, K, h, w) of images by a baseline."""
    scores, _ = model.outputs(images)
    return scores


def to_frames(given: Picture, device: torch.device) -> tuple[Tensor, bool]:
    """Return frames (B, 3, H, W), bytes, on a device, and whether a single frame without a batch was given."""
    is_single = getattr(given, "ndim", 3) != 4
    pictures = [given] if is_single else list(given)  # type: ignore[arg-type] # a tensor or an array
    if not pictures:
        raise ValueError("The batch has no frames; expected one or more.")
    checked = [to_checked_frame(picture) for picture in pictures]
    if isinstance(given, Tensor):
        if given.device != device:
            raise ValueError(f"The frame is on {given.device}, and the network on {device}: move one of them.")
        frames = given[None] if is_single else given
    else:
        frames = torch.stack(checked).to(device)
    check_image(frames)
    return frames, is_single


def make_frame_batch(engine: Engine, frames: Tensor, past: Tensor | None, weight: float) -> FrameBatch:
    """Return the batch of frames (B, 3, H, W) and their past; a ValueError if the past does not fit the engine."""
    if past is not None:
        if not isinstance(past, Tensor) or not past.is_floating_point():
            raise ValueError(
                f"The past is a {describe_type(past)}; expected a context that step() returned, or a sum of contexts."
            )
        expected = (len(frames), *engine.context_shape)
        if tuple(past.shape) != expected:
            raise ValueError(
                f"The past's shape is {tuple(past.shape)}; expected {expected}: a context that step() of this network "
                "returned for as many frames, or a sum of contexts."
            )
        past = past.to(engine.device)
    size = (frames.shape[2], frames.shape[3])
    return FrameBatch(frames, past, [0.0 if past is None else weight] * len(frames), [size] * len(frames))


def check_past(past: Tensor | None, shape: tuple[int, int]) -> None:
    """Raise a ValueError if a past does not have the context shape of the network."""
    if past is not None and tuple(past.shape[1:]) != shape:
        raise ValueError(
            f"The state belongs to another network: its contexts are {past.shape[1]} x {past.shape[2]}, but those of "
            f"this network {shape[0]} x {shape[1]}."
        )


def resize_frames(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (B, 3, H, W) bilinearly, with anti-aliasing."""
    if tuple(images.shape[-2:]) == size:
        return images
    # on the CPU bytes are resized four times as fast as floats; other devices support only floats
    images = images if images.device.type == "cpu" else images.float()
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def to_uint8(images: Tensor) -> Tensor:
    """Round images to bytes."""
    return images if images.dtype == torch.uint8 else images.round().clamp(0, 255).to(torch.uint8)
