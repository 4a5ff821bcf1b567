"""Accuracy of a network on the single frames of a data set.

Shapes: K classes, H height, W width.
"""

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamseg.classes import IGNORE
from streamseg.data.datasets import Dataset, read_pairs
from streamseg.engine.engine import Engine, to_engine
from streamseg.evaluate import metrics, plot
from streamseg.evaluate.engines import open_evaluation_engine
from streamseg.evaluate.translate import to_lookup, translate_predicted
from streamseg.io.masks import Mask, remove_labels
from streamseg.models.checkpoint import Network
from streamseg.parallel import cluster, distributed
from streamseg.stream.label_frames import label_frame

WORST = 6
"""Number of worst frames that an evaluation lists."""
SHARD = 64
"""Frames per task of a cluster worker."""


@dataclass(frozen=True)
class Score:
    """The mIoU of a network on a data set; all values are in percent."""

    miou: float
    """Mean IoU of the classes that occur or are predicted."""
    iou: dict[str, float | None]
    """By class name; None if a class neither occurs nor is predicted."""


@dataclass(frozen=True)
class Evaluation(Score):
    """The accuracy of a network on a data set, in detail."""

    pixel_accuracy: float
    boundary_f1: float
    """Mean over the classes that have a boundary; NaN if none has."""
    confusion: Tensor
    """Pixel counts (K, K) by true class (row) and predicted class (column)."""
    images: int
    worst: tuple[tuple[int, float], ...]
    """Index and mIoU of the worst frames, worst first."""
    without_label: Tensor | None = field(default=None, kw_only=True)
    """Pixel counts (K,) by true class whose predicted class has no label in the data set; None if every class has."""


class Tally:
    """Accumulates the counts of an evaluation, frame by frame, on the device."""

    def __init__(self, classes: int, device: torch.device):
        self.classes = classes
        # the last column counts predictions that are none of the classes
        self.confusion = torch.zeros(classes, classes + 1, dtype=torch.int64, device=device)
        self.boundary = torch.zeros(4, classes, dtype=torch.int64, device=device)
        self.mious: dict[int, Tensor] = {}

    def add(self, index: int, labels: Tensor, predicted: Tensor) -> None:
        """Add the counts of one frame."""
        of_frame = metrics.confusion_matrix(labels, predicted, self.classes, self.classes + 1)
        self.confusion += of_frame
        self.boundary += metrics.boundary_counts(labels, predicted, self.classes)
        # stays on the device: reading it here would make the host wait
        self.mious[index] = metrics.iou(of_frame).nanmean()

    def add_all(self, other: "Tally") -> None:
        """Add the counts of other frames."""
        self.confusion += other.confusion.to(self.confusion.device)
        self.boundary += other.boundary.to(self.boundary.device)
        self.mious |= {index: miou.cpu() for index, miou in other.mious.items()}

    def result(self, dataset: Dataset, label_of: Sequence[int] | None) -> Evaluation:
        """Return the evaluation of all frames that were added; label_of is that of the predictions."""
        confusion = self.confusion.cpu()
        shares = zip(torch.stack([*self.mious.values()]).tolist(), self.mious, strict=True)
        worst = sorted((share, index) for share, index in shares if not math.isnan(share))[:WORST]
        return Evaluation(
            **vars(to_score(confusion, dataset)),
            pixel_accuracy=100 * metrics.pixel_accuracy(confusion),
            boundary_f1=100 * metrics.boundary_f1(self.boundary).nanmean().item(),
            confusion=confusion[:, : self.classes],
            images=len(self.mious),
            worst=tuple((index, 100 * share) for share, index in worst),
            without_label=confusion[:, self.classes] if IGNORE in (label_of or ()) else None,
        )


def evaluate(
    model: Network | Engine,
    dataset: Dataset,
    *,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
    label_of: Sequence[int] | None = None,
    mask: Mask | None = None,
) -> Evaluation:
    """Evaluate a network or an engine on every frame of a data set, at full size.

    Args:
        threads: Number of threads that decode frames.
        progress: Called after each frame with the number of frames done and the total.
        label_of: The number of the data set's label for each class of a network with other classes; IGNORE for a class
            without one, which is wrong wherever it is predicted.
        mask: Pixels to ignore: they do not count.
    """
    engine = to_engine(model)
    check_engine_fits(engine, dataset, label_of)
    tally = tally_frames(engine, dataset, range(len(dataset)), threads, progress, label_of, mask)
    return tally.result(dataset, label_of)


def tally_frames(
    engine: Engine,
    dataset: Dataset,
    indices: Sequence[int],
    threads: int,
    progress: Callable[[int, int], None] | None = None,
    label_of: Sequence[int] | None = None,
    mask: Mask | None = None,
) -> Tally:
    """Evaluate some frames of a data set, and return their counts."""
    tally = Tally(len(dataset.classes), engine.device)
    found = predictions(engine, dataset, indices, threads, label_of, mask)
    for index, (labels, predicted) in zip(indices, found, strict=True):
        tally.add(index, labels, predicted)
        if progress is not None:
            progress(len(tally.mious), len(indices))
    return tally


class EvaluationWorker:
    """Evaluates frames of a data set in a process of a cluster."""

    def __init__(
        self,
        dataset: Dataset,
        weights: Path | None,
        precision: str,
        scales: Sequence[float],
        flip: bool,
        trust: bool,
        label_of: Sequence[int] | None,
        device: str,
    ):
        self.dataset, self.label_of = dataset, label_of
        self.engine, _ = open_evaluation_engine(
            weights, torch.device(device), dataset, precision=precision, scales=scales, flip=flip, trust=trust
        )

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the frames of a row; returns pickled counts, or the error as text."""
        try:
            frames = range(row["first"], row["end"])
            tally = tally_frames(self.engine, self.dataset, frames, torch.get_num_threads(), None, self.label_of)
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
    label_of: Sequence[int] | None = None,
) -> Evaluation:
    """Evaluate weights on a Ray cluster, whose machines must all have access to the data and the weights.

    Args:
        address: Address of the cluster; see cluster.ray_cluster.
        precision: As scales, flip and trust, see open_evaluation_engine.
        gpus: Use GPUs, if there are any.
        label_of: As in evaluate.
    """
    total = Tally(len(dataset.classes), torch.device("cpu"))
    firsts = range(0, len(dataset), SHARD)
    rows = [{"first": first, "end": min(first + SHARD, len(dataset))} for first in firsts]
    with cluster.ray_cluster(address):
        arguments = (dataset, weights, precision, scales, flip, trust, label_of)
        for row in cluster.map_on_cluster(EvaluationWorker, arguments, rows, gpus=gpus):
            if row["problem"]:
                raise ValueError(row["problem"])
            total.add_all(pickle.loads(row["tally"]))
            if progress is not None:
                progress(len(total.mious), len(dataset))
    if len(total.mious) < len(dataset):
        raise OSError(f"{len(dataset) - len(total.mious)} frames were not evaluated: their workers failed.")
    total.mious = dict(sorted(total.mious.items()))
    return total.result(dataset, label_of)


def validate(
    model: Network | Engine,
    dataset: Dataset,
    *,
    threads: int = 2,
    share: tuple[int, int] = (0, 1),
    label_of: Sequence[int] | None = None,
    mask: Mask | None = None,
) -> Score:
    """Compute only the mIoU on every frame of a data set, which is far faster than evaluate.

    Args:
        share: Rank of this process, and number of processes; each evaluates its share of the frames.
        label_of, mask: As in evaluate.
    """
    engine, classes = to_engine(model), len(dataset.classes)
    check_engine_fits(engine, dataset, label_of)
    mine = range(share[0], len(dataset), share[1])
    confusion = torch.zeros(classes, classes + 1, dtype=torch.int64, device=engine.device)
    for labels, predicted in predictions(engine, dataset, mine, threads, label_of, mask):
        confusion += metrics.confusion_matrix(labels, predicted, classes, classes + 1)
    return to_score(distributed.all_reduce_sum(confusion).cpu(), dataset)


def predictions(
    engine: Engine,
    dataset: Dataset,
    indices: Sequence[int],
    threads: int,
    label_of: Sequence[int] | None,
    mask: Mask | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield true and predicted labels (H, W) of frames of a data set, on the engine's device.

    What a mask hides has no true label.
    """
    lookup = None if label_of is None else to_lookup(label_of, len(dataset.classes), engine.device)
    for index, (frame, labels) in zip(indices, read_pairs(dataset, indices, threads), strict=True):
        try:
            size = (frame.shape[1], frame.shape[2])
            predicted, _ = label_frame(engine, frame.to(engine.device), size=size, mask=mask)
        except ValueError as error:
            raise ValueError(f"{dataset.pairs[index].image}: {error}") from error
        yield remove_labels(labels.to(engine.device), mask), translate_predicted(predicted, lookup)


def check_engine_fits(engine: Engine, dataset: Dataset, label_of: Sequence[int] | None) -> None:
    """Raise a ValueError if a data set has no frames, or neither it nor label_of has as many classes as an engine."""
    if label_of is not None and engine.classes != len(label_of):
        raise ValueError(f"The network has {engine.classes} classes, but label_of has labels for {len(label_of)}.")
    if label_of is None and engine.classes != len(dataset.classes):
        raise ValueError(f"The network has {engine.classes} classes, but {dataset.name} has {len(dataset.classes)}.")
    if len(dataset) == 0:
        raise ValueError(f"{dataset.name} {dataset.split} has no frames to evaluate on.")


def to_score(confusion: Tensor, dataset: Dataset) -> Score:
    """Return the score of a confusion matrix (K, K) or (K, K + 1) of all frames of a data set."""
    if confusion.sum() == 0:
        raise ValueError(f"No pixel of {dataset.name} {dataset.split} has a class: there is nothing to evaluate on.")
    shares = zip(dataset.classes.names, metrics.iou(confusion).tolist(), strict=True)
    iou = {name: None if math.isnan(share) else 100 * share for name, share in shares}
    return Score(100 * metrics.miou(confusion), iou)


def evaluation_to_json(evaluation: Evaluation) -> dict:
    """Return an evaluation as JSON values: percent, and null for what does not exist."""
    return {
        "miou": evaluation.miou,
        "iou": evaluation.iou,
        "pixel_accuracy": evaluation.pixel_accuracy,
        "boundary_f1": None if math.isnan(evaluation.boundary_f1) else evaluation.boundary_f1,
        "images": evaluation.images,
        "confusion": evaluation.confusion.tolist(),
        **({} if evaluation.without_label is None else {"without_label": evaluation.without_label.tolist()}),
    }


def format_evaluation(evaluation: Evaluation) -> str:
    """Format an evaluation as a table for the terminal: the IoU of each class with a bar, then the mean IoU."""
    return format_shares(evaluation, {})


def format_shares(evaluation: Evaluation, more: dict[str, float]) -> str:
    """Format an evaluation as a table for the terminal, with more percentages before the mean IoU."""
    summary = {
        "pixel accuracy": percent(evaluation.pixel_accuracy),
        "boundary F1": percent(evaluation.boundary_f1),
        # two digits: networks differ little in these
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
    """Format a percentage; NaN becomes a dash."""
    return "-" if math.isnan(share) else f"{share:.{digits}f}"


def write_plots(
    folder: Path,
    evaluation: Evaluation,
    model: Network | Engine,
    dataset: Dataset,
    label_of: Sequence[int] | None = None,
    mask: Mask | None = None,
) -> None:
    """Write confusion.png, and worst.png with the worst frames, which are predicted again."""
    engine = to_engine(model)

    def predict_again(index: int) -> Tensor:
        ((_, predicted),) = predictions(engine, dataset, [index], 1, label_of, mask)
        return predicted

    draw_plots(folder, evaluation, dataset, predict_again)


def draw_plots(folder: Path, evaluation: Evaluation, dataset: Dataset, predict_again: Callable[[int], Tensor]) -> None:
    """Write the plots of an evaluation; predict_again returns the labels (H, W) of a frame by its index."""
    folder.mkdir(parents=True, exist_ok=True)
    confusion, names = evaluation.confusion, dataset.classes.names
    if evaluation.without_label is not None:
        confusion = torch.cat([confusion, evaluation.without_label[:, None]], dim=1)
    plot.confusion_plot(folder / "confusion.png", confusion, names)
    rows = []
    for index, share in evaluation.worst:
        title = f"{dataset.pairs[index].image.name}  mean IoU {share:.1f} %"
        predicted = predict_again(index).cpu()
        # none of the labels: the frame shows through
        drawn = torch.where(predicted < len(names), predicted, IGNORE)
        rows.append((*dataset[index], drawn, title))
    plot.write_worst(folder / "worst.png", rows, dataset.classes)
