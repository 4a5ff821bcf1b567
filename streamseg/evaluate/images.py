"""The accuracy of a network on the frames of a data set, one by one.

Shapes: B batch, K classes, H height, W width.
"""

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.data.datasets import Dataset, read_pairs
from streamseg.engine import runtime
from streamseg.engine.engine import Engine, ImageEngine, to_engine
from streamseg.engine.fast import CALIBRATION_FRAMES, FastEngine, accelerate
from streamseg.evaluate import metrics, plot
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import FANet
from streamseg.parallel import cluster, distributed
from streamseg.stream.label_frames import label_frame

WORST = 6
"""How many of the worst frames an evaluation names."""
SHARD = 64
"""How many frames a worker of a cluster measures at a time."""


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

    def add_all(self, other: "Tally") -> None:
        """Add what was found on other frames."""
        self.confusion += other.confusion.to(self.confusion.device)
        self.boundary += other.boundary.to(self.boundary.device)
        self.mious |= {index: miou.cpu() for index, miou in other.mious.items()}

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
    model: Network | Engine,
    dataset: Dataset,
    *,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a network, or whatever else labels frames, on every frame of a data set, one by one, at full size.

    Args:
        model: For several sizes, or mirrored frames, one that averages them.
        threads: How many frames to decode at a time.
        progress: Called after each frame with the number of frames done and of all.
    """
    engine = to_engine(model)
    check_dataset(engine, dataset)
    return tally_frames(engine, dataset, range(len(dataset)), threads, progress).result(dataset)


def tally_frames(
    engine: Engine,
    dataset: Dataset,
    indices: Sequence[int],
    threads: int,
    progress: Callable[[int, int], None] | None = None,
) -> Tally:
    """What is found on some frames of a data set."""
    tally = Tally(len(dataset.classes), engine.device)
    for index, (labels, predicted) in zip(indices, predictions(engine, dataset, indices, threads), strict=True):
        tally.add(index, labels, predicted)
        if progress is not None:
            progress(len(tally.mious), len(indices))
    return tally


class EvaluationWorker:
    """Measures a network on frames of a data set, in a process of its own."""

    def __init__(
        self,
        dataset: Dataset,
        weights: Path | None,
        precision: str,
        scales: Sequence[float],
        flip: bool,
        trust: bool,
        device: str,
    ):
        self.dataset = dataset
        place = torch.device(device)
        model, _, _ = runtime.open_weights(weights, place, trust=trust)
        self.engine = make_evaluation_engine(model, place, dataset, precision=precision, scales=scales, flip=flip)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """What is found on the frames from a first one up to an end; or a problem."""
        try:
            frames = range(row["first"], row["end"])
            tally = tally_frames(self.engine, self.dataset, frames, torch.get_num_threads())
        except (ValueError, OSError) as error:
            return {"tally": b"", "problem": str(error)}
        return {"tally": pickle.dumps(tally), "problem": ""}


def evaluate_on_cluster(
    dataset: Dataset,
    weights: Path | None,
    address: str,
    *,
    precision: str = "",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    trust: bool = False,
    gpus: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a network as evaluate does, on the machines of a Ray cluster; each must reach the data and the weights.

    Args:
        address: That of the cluster; see cluster.connected.
        gpus: Whether GPUs are used, if there are any.
    """
    total = Tally(len(dataset.classes), torch.device("cpu"))
    firsts = range(0, len(dataset), SHARD)
    rows = [{"first": first, "end": min(first + SHARD, len(dataset))} for first in firsts]
    with cluster.ray_cluster(address):
        given = (dataset, weights, precision, scales, flip, trust)
        for row in cluster.map_on_cluster(EvaluationWorker, given, rows, gpus=gpus):
            if row["problem"]:
                raise ValueError(row["problem"])
            total.add_all(pickle.loads(row["tally"]))
            if progress is not None:
                progress(len(total.mious), len(dataset))
    if len(total.mious) < len(dataset):
        raise OSError(f"{len(dataset) - len(total.mious)} frames were not measured: their workers failed or died.")
    total.mious = dict(sorted(total.mious.items()))
    return total.result(dataset)


def validate(model: Network | Engine, dataset: Dataset, *, threads: int = 2, share: tuple[int, int] = (0, 1)) -> Score:
    """Measure a network on every frame of a data set as evaluate does, but the mIoU alone, which is far faster.

    Args:
        share: Which of how many processes this is; each looks at its share of the frames, and all get the score.
    """
    engine, classes = to_engine(model), len(dataset.classes)
    check_dataset(engine, dataset)
    mine = range(share[0], len(dataset), share[1])
    confusion = torch.zeros(classes, classes, dtype=torch.int64, device=engine.device)
    for labels, predicted in predictions(engine, dataset, mine, threads):
        confusion += metrics.confusion_matrix(labels, predicted, classes)
    return to_score(distributed.all_reduce_sum(confusion).cpu(), dataset)


def predictions(
    engine: Engine, dataset: Dataset, indices: Sequence[int], threads: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """True and predicted labels (H, W) of frames of a data set, on the engine's device."""
    for index, (frame, labels) in zip(indices, read_pairs(dataset, indices, threads), strict=True):
        try:
            predicted, _ = label_frame(engine, frame.to(engine.device), size=(frame.shape[1], frame.shape[2]))
        except ValueError as error:
            raise ValueError(f"{dataset.pairs[index].image}: {error}") from error
        yield labels.to(engine.device), predicted


def check_dataset(engine: Engine, dataset: Dataset) -> None:
    """Raise a ValueError if a data set has other classes than a network, or no frames."""
    if engine.classes != len(dataset.classes):
        raise ValueError(
            f"The network tells {engine.classes} classes apart, but {dataset.name} has {len(dataset.classes)}."
        )
    if len(dataset) == 0:
        raise ValueError(f"{dataset.name} {dataset.split} holds no frames to evaluate on.")


def sample_frames(dataset: Dataset, count: int) -> list[Tensor]:
    """Frames from all over a data set, as many or fewer."""
    return [dataset[i][0] for i in range(0, len(dataset), max(1, -(-len(dataset) // count)))]


def to_score(confusion: Tensor, dataset: Dataset) -> Score:
    """The score that a confusion matrix (K, K) of all frames of a data set gives."""
    if confusion.sum() == 0:
        raise ValueError(f"No pixel of {dataset.name} {dataset.split} has a class: there is nothing to evaluate on.")
    shares = zip(dataset.classes.names, metrics.iou(confusion).tolist(), strict=True)
    iou = {name: None if math.isnan(share) else 100 * share for name, share in shares}
    return Score(100 * metrics.miou(confusion), iou)


def make_evaluation_engine(
    model: Network | runtime.ExportedEngine,
    device: torch.device,
    dataset: Dataset,
    *,
    precision: str = "",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
) -> Engine:
    """What labels frames of a data set by a network, on a device, or by an exported file.

    Args:
        precision: That of the network's fast form; empty for the network itself, in fp32.
        scales: The sizes that it sees each frame at, in those of the frame.
        flip: Whether it sees each frame mirrored as well.
    """
    averaged = flip or tuple(scales) != (1.0,)
    if isinstance(model, runtime.ExportedEngine):
        if averaged:
            raise ValueError(f"{model.path} gives labels, and no shares to average: leave out --scales and --flip.")
        return model
    # torch's stub lacks it
    network: Network = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if precision and averaged:
        raise ValueError("--precision is for frames seen once, as they are: leave out --scales and --flip.")
    if averaged:
        return averaging(network, scales, flip)
    return fast_form(network, precision, dataset) if precision else to_engine(network)


def fast_form(model: Network, precision: str, dataset: Dataset) -> Engine:
    """A network's fast form; the ranges of bytes are learned from frames all over a data set."""
    if isinstance(model, FANet):
        engine = accelerate(model, precision, sample_frames(dataset, CALIBRATION_FRAMES) if precision == "int8" else ())
        if isinstance(engine, FastEngine):
            return engine
    raise ValueError(f"This {model.name} has no fast form: leave out --precision.")


def averaging(model: Network, scales: Sequence[float] = (1.0,), flip: bool = False) -> Engine:
    """What labels each frame by a network that sees it at several sizes and, if wanted, mirrored as well; see predict.

    Args:
        scales: The sizes, in those of the frame.
        flip: Whether it sees each frame mirrored as well.
    """
    check_scales(scales)
    return ImageEngine(model, partial(average_scores, model, scales=scales, flip=flip))


def average_scores(model: nn.Module, frames: Tensor, scales: Sequence[float] = (1.0,), flip: bool = False) -> Tensor:
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


def format_evaluation(evaluation: Evaluation) -> str:
    """An evaluation as a table for the terminal: the IoU of each class with a bar, the mean IoU last."""
    return format_shares(evaluation, {})


def format_shares(evaluation: Evaluation, more: dict[str, float]) -> str:
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


def write_plots(folder: Path, evaluation: Evaluation, model: Network | Engine, dataset: Dataset) -> None:
    """Draw an evaluation into a folder: confusion.png, and worst.png with the worst frames, predicted once more."""

    def predict_again(index: int) -> Tensor:
        frame, _ = dataset[index]
        labels, _ = label_frame(model, frame, size=(frame.shape[1], frame.shape[2]))
        return labels

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
