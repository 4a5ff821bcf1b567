"""The accuracy of a network on a data set, of single frames or of sequences in order.

Shapes: B batch, K classes, H height, W width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg import metrics, plot
from streamseg.datasets import Dataset, Still, check_sizes, in_parallel, read_pairs
from streamseg.layouts import VIDEOS
from streamseg.model import FANet
from streamseg.runtime import Exported
from streamseg.stream import LastFrames, Policy, label_frame, to_policy

WORST = 6
"""How many of the worst frames an evaluation names."""

WARM_UP = 3
"""How many frames of a size are labelled before the first one is timed."""


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


@dataclass(frozen=True)
class VideoEvaluation(Evaluation):
    """How well a network does on sequences of frames, which it sees in order; NaN is what these are too short for."""

    mvc8: float
    """Video consistency of VSPW in windows of 8 frames; see metrics.mvc."""
    mvc16: float
    strict_mvc8: float
    """As mvc8, but the labels must be right as well."""
    strict_mvc16: float
    flip_rate: float
    """The share of pixels whose predicted label changes from the frame before a labelled one to it."""
    flip_rate_still: float
    """Of the pixels alone whose true label stays."""
    avg_rt_ms: float
    """Milliseconds from a frame on the device to its labels there, the paper's Avg RT (Table VI)."""
    max_latency_ms: float
    """Of the slowest frame, the paper's MaxLatency."""
    sequences: int
    device: str
    """What was timed."""


@dataclass(frozen=True)
class Step:
    """A frame of a sequence, and what the network made of it; labels (H, W) on the device."""

    still: Still
    first: bool
    """Whether a sequence begins."""
    labels: Tensor
    predicted: Tensor
    milliseconds: float


class Tally:
    """Adds up frame by frame what an evaluation is made of; the device need not wait."""

    def __init__(self, classes: int, device: torch.device):
        self.classes = classes
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        self.boundary = torch.zeros(4, classes, dtype=torch.int64, device=device)
        self.mious: dict[int, Tensor] = {}

    def add(self, index: int, labels: Tensor, predicted: Tensor) -> None:
        of_frame = metrics.confusion_matrix(labels, predicted, self.classes)
        self.confusion += of_frame
        self.boundary += metrics.boundary_counts(labels, predicted, self.classes)
        # stays on the device: to read it now would make the device wait
        self.mious[index] = metrics.iou(of_frame).nanmean()

    def result(self, dataset: Dataset) -> Evaluation:
        confusion = self.confusion.cpu()
        shares = zip(torch.stack([*self.mious.values()]).tolist(), self.mious, strict=True)
        worst = sorted((share, index) for share, index in shares if not math.isnan(share))[:WORST]
        return Evaluation(
            **vars(to_score(confusion, dataset)),
            pixel_accuracy=100 * metrics.pixel_accuracy(confusion),
            boundary_f1=100 * metrics.boundary_f1(self.boundary).nanmean().item(),
            confusion=confusion,
            images=len(self.mious),
            worst=tuple((index, 100 * share) for share, index in worst),
        )


def evaluate(
    model: nn.Module | Exported,
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
    tally = Tally(len(dataset.classes), device)
    with evaluating(model), torch.inference_mode():
        results = predictions(model, dataset, device, scales, flip, precision, threads)
        for index, (labels, predicted) in enumerate(results):
            tally.add(index, labels, predicted)
            if progress is not None:
                progress(index + 1, len(dataset))
    return tally.result(dataset)


def evaluate_video(
    model: FANet | Exported,
    dataset: Dataset,
    device: torch.device,
    window: int | Policy,
    *,
    precision: torch.dtype = torch.float32,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> VideoEvaluation:
    """Measure a network on every sequence of a data set, whose frames it sees in order, at full size.

    Frames without labels are seen too, where they come before a labelled one and in its window.

    Args:
        device: Where the network is.
        window: How many frames to look at, the present one among them; or another policy, such as FadingInTime.
        precision: float32, or the half precision to run the network in by autocast.
        threads: How many frames to decode at a time.
        progress: Called after each frame with the number of frames done and of all.
    """
    if model.classes != len(dataset.classes):
        raise ValueError(
            f"The network tells {model.classes} classes apart, but {dataset.name} has {len(dataset.classes)}."
        )
    sequences = list_sequences(dataset, window)
    total = sum(map(len, sequences))
    place_of = {pair.image: index for index, pair in enumerate(dataset.pairs)}
    tally = Tally(len(dataset.classes), device)
    flips = torch.zeros(4, dtype=torch.int64, device=device)
    consistent: dict[int, list[list[Tensor]]] = {8: [], 16: []}
    times = []
    runs = None
    with evaluating(model), torch.inference_mode():
        for step in run_sequences(model, dataset, sequences, device, window, precision, threads):
            runs = metrics.extend(None if step.first else runs, step.labels, step.predicted)
            for frames, videos in consistent.items():
                if step.first:
                    videos.append([])
                videos[-1].append(metrics.consistency(runs, frames))
            if step.still.labels is not None:
                tally.add(place_of[step.still.image], step.labels, step.predicted)
                flips += metrics.flip_counts(runs)
            times.append(step.milliseconds)
            if progress is not None:
                progress(len(times), total)

    (mvc8, strict_mvc8), (mvc16, strict_mvc16) = (metrics.mvc(videos).tolist() for videos in consistent.values())
    flip_rate, flip_rate_still = metrics.flip_rates(flips).tolist()
    return VideoEvaluation(
        **vars(tally.result(dataset)),
        mvc8=100 * mvc8,
        mvc16=100 * mvc16,
        strict_mvc8=100 * strict_mvc8,
        strict_mvc16=100 * strict_mvc16,
        flip_rate=100 * flip_rate,
        flip_rate_still=100 * flip_rate_still,
        avg_rt_ms=sum(times) / len(times),
        max_latency_ms=max(times),
        sequences=len(sequences),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )


def list_sequences(dataset: Dataset, window: int | Policy) -> list[tuple[Still, ...]]:
    """The sequences of a data set with what comes before labelled frames; a ValueError says if they are none."""
    if len(dataset) == 0:
        raise ValueError(f"{dataset.name} {dataset.split} holds no frames to evaluate on.")
    sequences = dataset.stills(reach(window))
    needed = VIDEOS.get(dataset.name, "a data set of videos")
    if all(len(sequence) == 1 for sequence in sequences):
        raise ValueError(
            f"{dataset.name} {dataset.split} has no sequences of frames to look at in order: a window needs {needed}."
        )
    placed = {still.image for sequence in sequences for still in sequence}
    for pair in dataset.pairs:
        if pair.image not in placed:
            raise ValueError(f"{pair.image} is in no sequence of frames: a window needs {needed}.")
    return sequences


def reach(window: int | Policy) -> int | None:
    """How many frames are seen before a labelled one, if there are so many; None for all."""
    policy = to_policy(window)
    # one more than it looks back to: the frame that it is compared with has a whole window too
    return policy.frames if isinstance(policy, LastFrames) else None


def run_sequences(
    model: FANet | Exported,
    dataset: Dataset,
    sequences: Sequence[Sequence[Still]],
    device: torch.device,
    window: int | Policy,
    precision: torch.dtype,
    threads: int,
) -> Iterator[Step]:
    """Every frame of the sequences with its labels; each sequence begins without a past."""
    warm: set[tuple[int, int]] = set()
    frames = read_in_groups(dataset, chain.from_iterable(sequences), 4 * threads, threads)
    for sequence in sequences:
        state, opening = None, None
        for still, (frame, labels) in zip(sequence, islice(frames, len(sequence)), strict=True):
            first = opening is None
            opening = opening or (frame, still.image)
            check_sizes(*opening, frame, still.image)
            size, frame = (frame.shape[1], frame.shape[2]), frame.to(device)
            try:
                with torch.autocast(device.type, precision, enabled=precision != torch.float32):
                    if size not in warm:
                        warm.add(size)
                        warm_up(model, frame, window)
                    wait_for(device)
                    start = perf_counter()
                    predicted, state = label_frame(model, frame, state, window, seconds=still.seconds, size=size)
                    wait_for(device)
                    seconds = perf_counter() - start
            except ValueError as error:
                raise ValueError(f"{still.image}: {error}") from error
            yield Step(still, first, labels.to(device), predicted, 1000 * seconds)


def read_in_groups(
    dataset: Dataset, stills: Iterator[Still], count: int, threads: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Frames and labels, so many decoded at a time and then none until these are used: what is timed has no rival."""
    while group := list(islice(stills, count)):
        yield from list(in_parallel(dataset.read_still, group, threads))


def warm_up(model: FANet | Exported, frame: Tensor, window: int | Policy) -> None:
    """Label a frame with and without a past, so that a device has all that it needs for others of its size."""
    state = None
    for _ in range(WARM_UP):
        _, state = label_frame(model, frame, state, window, size=(frame.shape[1], frame.shape[2]))


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    model: nn.Module | Exported,
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
                predicted, classes = label(model, frame.to(device), scales, flip)
        except ValueError as error:
            raise ValueError(f"{pair.image}: {error}") from error
        if classes != len(dataset.classes):
            raise ValueError(
                f"The network tells {classes} classes apart, but {dataset.name} has {len(dataset.classes)}."
            )
        yield labels.to(device), predicted


def label(model: nn.Module | Exported, frame: Tensor, scales: Sequence[float], flip: bool) -> tuple[Tensor, int]:
    """Labels (H, W) of a frame (3, H, W), and how many classes are told apart; an exported file sees it as it is."""
    if isinstance(model, Exported):
        labels, _ = label_frame(model, frame, size=(frame.shape[1], frame.shape[2]))
        return labels, model.classes
    scores = predict(model, frame[None], scales, flip)
    return scores[0].argmax(dim=0), scores.shape[1]


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
def evaluating(model: nn.Module | Exported) -> Iterator[None]:
    """Put a network into evaluation mode for a while; each of its parts then gets its own mode back."""
    modules = [] if isinstance(model, Exported) else [*model.modules()]
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def video_to_json(evaluation: VideoEvaluation) -> dict:
    """An evaluation on sequences as JSON can hold it: percent, milliseconds, and null for what does not exist."""
    shares = ("mvc8", "mvc16", "strict_mvc8", "strict_mvc16", "flip_rate", "flip_rate_still")
    measured = {name: getattr(evaluation, name) for name in shares}
    return to_json(evaluation) | {
        **{name: None if math.isnan(share) else share for name, share in measured.items()},
        "avg_rt_ms": evaluation.avg_rt_ms,
        "max_latency_ms": evaluation.max_latency_ms,
        "sequences": evaluation.sequences,
        "device": evaluation.device,
    }


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
    return render_shares(evaluation, {})


def render_shares(evaluation: Evaluation, more: dict[str, float]) -> str:
    """An evaluation as a table for the terminal, with more shares before the mean IoU."""
    summary = {
        "pixel accuracy": percent(evaluation.pixel_accuracy),
        "boundary F1": percent(evaluation.boundary_f1),
        # these differ by little from network to network
        **{name: percent(share, digits=2) for name, share in more.items()},
        "mean IoU": percent(evaluation.miou),
    }
    width = max(map(len, [*evaluation.iou, *summary]))
    lines = [f"{'IoU by class':{width}}      %"]
    for name, share in evaluation.iou.items():
        bar = "does not occur" if share is None else "█" * round(share / 2.5)
        lines.append(f"{name:{width}}  {'-' if share is None else f'{share:.1f}':>5}  {bar}".rstrip())
    lines.append("")
    lines += [f"{name:{width}}  {share:>5}" for name, share in summary.items()]
    return "\n".join(lines)


def percent(share: float, digits: int = 1) -> str:
    return "-" if math.isnan(share) else f"{share:.{digits}f}"


def render_video(evaluation: VideoEvaluation) -> str:
    """An evaluation on sequences as a table for the terminal, with its times below."""
    shares = {
        "mVC8": evaluation.mvc8,
        "mVC16": evaluation.mvc16,
        "strict mVC8": evaluation.strict_mvc8,
        "strict mVC16": evaluation.strict_mvc16,
        "flip rate": evaluation.flip_rate,
        "flip rate, still": evaluation.flip_rate_still,
    }
    return (
        f"{render_shares(evaluation, shares)}\n\nAvg RT {evaluation.avg_rt_ms:.1f} ms, "
        f"MaxLatency {evaluation.max_latency_ms:.1f} ms a frame on {evaluation.device}"
    )


def write_plots(
    folder: Path,
    evaluation: Evaluation,
    model: nn.Module | Exported,
    dataset: Dataset,
    device: torch.device,
    *,
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
) -> None:
    """Draw an evaluation into a folder: confusion.png, and worst.png with the worst frames, predicted once more."""

    def predict_again(index: int) -> Tensor:
        frame, _ = dataset[index]
        labels, _ = label(model, frame.to(device), scales, flip)
        return labels

    with evaluating(model), torch.inference_mode():
        draw_plots(folder, evaluation, dataset, predict_again)


def write_video_plots(
    folder: Path,
    evaluation: VideoEvaluation,
    model: FANet | Exported,
    dataset: Dataset,
    device: torch.device,
    window: int | Policy,
) -> None:
    """Draw an evaluation on sequences as write_plots does; the worst frames come after those before them once more."""

    def predict_again(index: int) -> Tensor:
        alone = replace(dataset, pairs=(dataset.pairs[index],))
        *_, last = run_sequences(model, alone, alone.stills(reach(window)), device, window, torch.float32, 1)
        return last.predicted

    with evaluating(model), torch.inference_mode():
        draw_plots(folder, evaluation, dataset, predict_again)


def draw_plots(folder: Path, evaluation: Evaluation, dataset: Dataset, predict_again: Callable[[int], Tensor]) -> None:
    """Draw an evaluation, with labels (H, W) of its worst frames by their index."""
    folder.mkdir(parents=True, exist_ok=True)
    plot.confusion_plot(folder / "confusion.png", evaluation.confusion, dataset.classes.names)
    rows = []
    for index, share in evaluation.worst:
        title = f"{dataset.pairs[index].image.name}  mean IoU {share:.1f} %"
        rows.append((*dataset[index], predict_again(index).cpu(), title))
    plot.write_worst(folder / "worst.png", rows, dataset.classes)
