"""The accuracy of a network on a data set.

Shapes: B batch, K classes, H height, W width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg import metrics, plot
from streamseg.datasets import Dataset, read_pairs

WORST = 6
"""How many of the worst frames an evaluation names."""


@dataclass(frozen=True)
class Score:
    """How well a network does on a data set, in short; all shares are in percent."""

    miou: float
    """The mean of the IoUs, over the classes that occur or are predicted."""
    iou: dict[str, float | None]
    """By class name; None where a class neither occurs nor is predicted."""


@dataclass(frozen=True)
class Evaluation(Score):
    """How well a network does on a data set, at length."""

    pixel_accuracy: float
    boundary_f1: float
    """The mean over the classes that have a boundary; NaN if none has."""
    confusion: Tensor
    """Pixels (K, K) by true class (row) and predicted class (column)."""
    images: int
    worst: tuple[tuple[int, float], ...]
    """Index and mIoU of the worst frames, worst first."""


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    device: torch.device,
    *,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    precision: torch.dtype = torch.float32,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a network on every frame of a data set, one by one, at full size.

    Args:
        device: Where the network is.
        scales: Sizes at which the network sees each frame; of several, the probabilities are averaged.
        flip: Whether it sees each frame mirrored as well.
        precision: float32, or the half precision to run the network in by autocast.
        threads: How many frames to decode at a time.
        progress: Called after each frame with the number of frames done and of all.
    """
    classes = len(dataset.classes)
    confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
    boundary = torch.zeros(4, classes, dtype=torch.int64, device=device)
    frame_mious = []
    with evaluating(model), torch.inference_mode():
        for labels, predicted in predictions(model, dataset, device, scales, flip, precision, threads):
            of_frame = metrics.confusion_matrix(labels, predicted, classes)
            confusion += of_frame
            boundary += metrics.boundary_counts(labels, predicted, classes)
            # stays on the device: to read it now would make the device wait
            frame_mious.append(metrics.iou(of_frame).nanmean())
            if progress is not None:
                progress(len(frame_mious), len(dataset))

    confusion = confusion.cpu()
    of_frames = torch.stack(frame_mious).tolist()
    worst = sorted((share, index) for index, share in enumerate(of_frames) if not math.isnan(share))[:WORST]
    return Evaluation(
        **vars(to_score(confusion, dataset)),
        pixel_accuracy=100 * metrics.pixel_accuracy(confusion),
        boundary_f1=100 * metrics.boundary_f1(boundary).nanmean().item(),
        confusion=confusion,
        images=len(of_frames),
        worst=tuple((index, 100 * share) for share, index in worst),
    )


def validate(
    model: nn.Module,
    dataset: Dataset,
    device: torch.device,
    *,
    precision: torch.dtype = torch.float32,
    threads: int = 2,
) -> Score:
    """Measure a network on every frame of a data set as evaluate does, but the mIoU alone, which is far faster.

    Args:
        device: Where the network is.
        precision: float32, or the half precision to run the network in by autocast.
        threads: How many frames to decode at a time.
    """
    classes = len(dataset.classes)
    confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
    with evaluating(model), torch.inference_mode():
        for labels, predicted in predictions(model, dataset, device, (1.0,), False, precision, threads):
            confusion += metrics.confusion_matrix(labels, predicted, classes)
    return to_score(confusion.cpu(), dataset)


def predictions(
    model: nn.Module,
    dataset: Dataset,
    device: torch.device,
    scales: Sequence[float],
    flip: bool,
    precision: torch.dtype,
    threads: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """True and predicted labels (H, W) of each frame of a data set, on the device."""
    check_scales(scales)
    if len(dataset) == 0:
        raise ValueError(f"{dataset.name} {dataset.split} holds no frames to evaluate on.")
    frames = read_pairs(dataset, range(len(dataset)), threads)
    for pair, (frame, labels) in zip(dataset.pairs, frames, strict=True):
        try:
            with torch.autocast(device.type, precision, enabled=precision != torch.float32):
                scores = predict(model, frame[None].to(device), scales, flip)
        except ValueError as error:
            raise ValueError(f"{pair.image}: {error}") from error
        if scores.shape[1] != len(dataset.classes):
            raise ValueError(
                f"The network tells {scores.shape[1]} classes apart, but {dataset.name} has {len(dataset.classes)}."
            )
        yield labels.to(device), scores[0].argmax(dim=0)


def to_score(confusion: Tensor, dataset: Dataset) -> Score:
    """The score that a confusion matrix (K, K) of all frames of a data set gives."""
    if confusion.sum() == 0:
        raise ValueError(f"No pixel of {dataset.name} {dataset.split} has a class: there is nothing to evaluate on.")
    shares = zip(dataset.classes.names, metrics.iou(confusion).tolist(), strict=True)
    iou = {name: None if math.isnan(share) else 100 * share for name, share in shares}
    return Score(100 * metrics.miou(confusion), iou)


def predict(model: nn.Module, frames: Tensor, scales: Sequence[float] = (1.0,), flip: bool = False) -> Tensor:
    """Scores (B, K, H, W) of frames (B, 3, H, W), the highest being the class; at several sizes, the mean probability.

    Of one size and no flip they are the network's own logits, so that the labels are exactly its own.
    """
    check_scales(scales)
    if list(scales) == [1] and not flip:
        return model(frames)
    height, width = frames.shape[-2:]
    total = torch.zeros((), device=frames.device)
    for scale in scales:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        view = frames if scale == 1 else F.interpolate(frames.float(), size, mode="bilinear", antialias=True)
        share = probabilities(model(view), (height, width))
        if flip:
            share = (share + probabilities(model(view.flip(-1)).flip(-1), (height, width))) / 2
        total = total + share
    return total / len(scales)


def check_scales(scales: Sequence[float]) -> None:
    """Raise a ValueError if these are no sizes to see a frame at."""
    if not scales or not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise ValueError(f"The scales are {list(scales)}; expected one or more numbers above 0, such as 1.0.")


def probabilities(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """The probability of each class, from logits resized to a height and width."""
    return F.interpolate(logits.float(), size, mode="bilinear", align_corners=False).softmax(dim=1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode for a while; each of its parts then gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def to_json(evaluation: Evaluation) -> dict:
    """An evaluation as JSON can hold it: percent, and null for what does not exist."""
    return {
        "miou": evaluation.miou,
        "iou": evaluation.iou,
        "pixel_accuracy": evaluation.pixel_accuracy,
        "boundary_f1": None if math.isnan(evaluation.boundary_f1) else evaluation.boundary_f1,
        "images": evaluation.images,
        "confusion": evaluation.confusion.tolist(),
    }


def render(evaluation: Evaluation) -> str:
    """An evaluation as a table for the terminal: the IoU of each class with a bar, the mean IoU last."""
    summary = {
        "pixel accuracy": evaluation.pixel_accuracy,
        "boundary F1": evaluation.boundary_f1,
        "mean IoU": evaluation.miou,
    }
    width = max(map(len, [*evaluation.iou, *summary]))
    lines = [f"{'IoU by class':{width}}      %"]
    for name, share in evaluation.iou.items():
        bar = "does not occur" if share is None else "█" * round(share / 2.5)
        lines.append(f"{name:{width}}  {'-' if share is None else f'{share:.1f}':>5}  {bar}".rstrip())
    lines.append("")
    for name, share in summary.items():
        lines.append(f"{name:{width}}  {'-' if math.isnan(share) else f'{share:.1f}':>5}")
    return "\n".join(lines)


def write_plots(
    folder: Path,
    evaluation: Evaluation,
    model: nn.Module,
    dataset: Dataset,
    device: torch.device,
    *,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
) -> None:
    """Draw an evaluation into a folder: confusion.png, and worst.png with the worst frames, predicted once more."""
    folder.mkdir(parents=True, exist_ok=True)
    plot.confusion_plot(folder / "confusion.png", evaluation.confusion, dataset.classes.names)
    rows = []
    with evaluating(model), torch.inference_mode():
        for index, share in evaluation.worst:
            frame, labels = dataset[index]
            predicted = predict(model, frame[None].to(device), scales, flip)[0].argmax(dim=0).cpu()
            rows.append((frame, labels, predicted, f"{dataset.pairs[index].image.name}  mean IoU {share:.1f} %"))
    plot.write_worst(folder / "worst.png", rows, dataset.classes)
