"""Measure weights on data sets, by day and by night, for their model card.

    python benchmarks/model_card.py WEIGHTS --camvid DIR --comma10k DIR --out docs/measured/model-card-NAME.json \
        --pictures docs/model-card-NAME.jpg

evaluates the weights on the frames of a split (val) of each data set, and writes the IoU of each label and the mean, by
day and by night: a frame counts as night if the mean of all its channels is below 60. Of comma10k it also writes the
IoU of road (with lane marking), movable and the rest; the pixels of the own car are left out there, because not every
network knows it. A class of the network that a data set does not label is wrong wherever it is predicted; see
streamseg evaluate.

--pictures draws the failure cases on comma10k, frame, true and predicted labels side by side: of the frames with at
least 1 % movable those with the lowest IoU of movable, and of those with at least 5 % road the lowest IoU of road.

`python docs/model_cards.py` then writes the tables into the cards.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import streamseg
from streamseg.classes import IGNORE, Classes
from streamseg.data.datasets import Dataset, read_pairs
from streamseg.data.shards import open_dataset
from streamseg.engine.engine import Engine
from streamseg.engine.open import open_engine
from streamseg.evaluate import metrics
from streamseg.evaluate.translate import to_lookup, translate_dataset, translate_predicted
from streamseg.io.captions import render_legend
from streamseg.io.images import write_image
from streamseg.models.bundled import find_weights
from streamseg.stream.label_frames import label_frame

NIGHT = 60
"""A frame counts as night if the mean of all its channels is below this."""
GROUPS = {
    "comma10k": {
        "road": "road",
        "lane marking": "road",
        "movable": "movable",
        "undrivable": "rest",
        "my car": "ignored",
    }
}
"""For each data set, the group of each label; pixels of the group "ignored" are left out."""
LEAST = {"movable": 0.01, "road": 0.05}
"""Share of the pixels of a group that a frame needs to be among its failure cases."""
CASES = 2
"""Failure cases of each group."""
WIDTH = 320
"""Of each of the three pictures of a failure case."""


@dataclass
class Counts:
    """Sums over some frames: confusion of the labels (K, K + 1), and of the groups of labels."""

    frames: int = 0
    labels: Tensor = field(default_factory=lambda: torch.zeros(()))
    groups: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, labels: Tensor, groups: Tensor) -> None:
        self.frames += 1
        self.labels = self.labels + labels.cpu()
        self.groups = self.groups + groups.cpu()


@dataclass(frozen=True)
class Case:
    """A frame with the IoU of a group of labels."""

    index: int
    group: str
    iou: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="a name that streamseg weights lists, or a checkpoint")
    parser.add_argument("--camvid", type=Path, metavar="DIR", help="CamVid")
    parser.add_argument("--comma10k", type=Path, metavar="DIR", help="comma10k")
    parser.add_argument("--split", default="val", help="split of both (default: val)")
    parser.add_argument("--step", type=int, default=1, help="evaluate every STEP-th frame (default: 1)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for the figures")
    parser.add_argument("--pictures", type=Path, help="a JPEG for the failure cases on comma10k")
    options = parser.parse_args()
    folders = {"camvid": options.camvid, "comma10k": options.comma10k}
    if not any(folders.values()):
        parser.error("Give --camvid DIR or --comma10k DIR.")
    datasets = {name: open_dataset(name, data, options.split) for name, data in folders.items() if data}
    figures = measure(options.weights, datasets, torch.device(options.device), options.step, options.pictures)
    options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


def measure(weights: str, datasets: dict[str, Dataset], device: torch.device, step: int, pictures: Path | None) -> dict:
    """Return the figures of weights on data sets, and draw the failure cases."""
    engine, classes, _ = open_engine(find_weights(weights), device, "fp32", eager=True)
    about = streamseg.describe(weights)
    figures: dict = {"weights": weights, "network": about.network, "source": about.source, "datasets": {}}
    for name, dataset in datasets.items():
        translation, frames = translate_dataset(classes, dataset)
        indices = range(0, len(frames), step)
        counts, cases = evaluate_frames(engine, frames, indices, translation.label_of, GROUPS.get(name, {}))
        figures["datasets"][name] = {
            "split": dataset.split,
            "translated": translation.renamed(),
            **{
                light: figures_of(found, frames, GROUPS.get(name, {}))
                for light, found in counts.items()
                if found.frames
            },
        }
        worst = [case for group in LEAST for case in sorted(cases.get(group, []), key=lambda case: case.iou)[:CASES]]
        if pictures and worst:
            draw_cases(pictures, engine, frames, worst, translation.label_of)
            named = [(frames.pairs[case.index].image.name, case.group, round(case.iou, 1)) for case in worst]
            figures["failures"] = [{"frame": frame, "label": group, "iou": iou} for frame, group, iou in named]
    return figures


def evaluate_frames(
    engine: Engine, dataset: Dataset, indices: range, label_of: tuple[int, ...], group_of: dict[str, str]
) -> tuple[dict[str, Counts], dict[str, list[Case]]]:
    """Return the counts of frames, by day and by night, and the IoU of each group in the frames with enough of it."""
    labels, names = len(dataset.classes), group_names(group_of)
    lookup = to_lookup(label_of, labels, engine.device)
    # labels that a network cannot tell apart are in one group
    groups = [group_of.get(name.split(" + ")[0], "ignored") for name in dataset.classes.names]
    # a prediction of an ignored label, or of none, is one of none of the groups
    coarse = to_lookup([names.index(name) if name in names else IGNORE for name in groups], len(names), engine.device)
    coarse_true = coarse.clone()
    coarse_true[[i for i, name in enumerate(groups) if name == "ignored"]] = IGNORE
    coarse_true[IGNORE] = IGNORE
    counts = {"all": Counts(), "day": Counts(), "night": Counts()}
    cases: dict[str, list[Case]] = {}
    pairs = read_pairs(dataset, indices, torch.get_num_threads())
    for index, (frame, true) in zip(indices, pairs, strict=True):
        predicted = predict(engine, frame, lookup)
        true = true.to(engine.device)
        fine = metrics.confusion_matrix(true, predicted, labels, labels + 1)
        grouped = metrics.confusion_matrix(
            coarse_true[true.long()], coarse[predicted.long()], len(names), len(names) + 1
        )
        for light in ("all", "night" if frame.float().mean() < NIGHT else "day"):
            counts[light].add(fine, grouped)
        shares = grouped.sum(dim=1) / grouped.sum()
        for name, share, iou in zip(names, shares.tolist(), metrics.iou(grouped).tolist(), strict=True):
            if share >= LEAST.get(name, math.inf):
                cases.setdefault(name, []).append(Case(index, name, 100 * iou))
        if counts["all"].frames % 50 == 0:
            print(f"{dataset.name}: {counts['all'].frames} of {len(indices)} frames", flush=True)
    return counts, cases


def predict(engine: Engine, frame: Tensor, lookup: Tensor) -> Tensor:
    """Return the predicted labels (H, W) of a frame, as labels of the data set."""
    predicted, _ = label_frame(engine, frame.to(engine.device), size=(frame.shape[1], frame.shape[2]))
    return translate_predicted(predicted, lookup)


def group_names(group_of: dict[str, str]) -> list[str]:
    """Return the groups of a data set that are measured."""
    return [name for name in dict.fromkeys(group_of.values()) if name != "ignored"]


def figures_of(found: Counts, dataset: Dataset, group_of: dict[str, str]) -> dict:
    """Return the figures of some frames, in percent."""
    iou = dict(zip(dataset.classes.names, map(percent, metrics.iou(found.labels).tolist()), strict=True))
    figures = {"frames": found.frames, "miou": percent(metrics.miou(found.labels)), "iou": iou}
    if group_of:
        shares = map(percent, metrics.iou(found.groups).tolist())
        figures["groups"] = dict(zip(group_names(group_of), shares, strict=True))
    return figures


def percent(share: float) -> float | None:
    return None if math.isnan(share) else round(100 * share, 2)


def draw_cases(path: Path, engine: Engine, dataset: Dataset, cases: list[Case], label_of: tuple[int, ...]) -> None:
    """Draw a row for each case: the frame, its true labels, the predicted ones."""
    lookup = to_lookup(label_of, len(dataset.classes), engine.device)
    rows = []
    for case in cases:
        frame, true = dataset[case.index]
        predicted = predict(engine, frame, lookup).cpu()
        shown = torch.where(predicted < len(dataset.classes), predicted, IGNORE)
        overlays = [streamseg.overlay(frame, labels, dataset.classes, alpha=0.6) for labels in (true, shown)]
        rows.append(torch.cat([shrink(picture) for picture in (frame, *overlays)], dim=2))
    picture = torch.cat(rows, dim=1)
    numbers = range(len(dataset.classes))
    write_image(path, torch.cat([picture, draw_names(dataset.classes, numbers, picture.shape[2])], dim=1))


def draw_names(classes: Classes, numbers: Sequence[int], width: int) -> Tensor:
    """Return a strip (3, h, width) with the colours and names of classes, side by side."""
    names = [render_legend(classes, [number], 400) for number in numbers]
    height = max(name.shape[1] for name in names)
    strip = names[0][:, :1, :1].repeat(1, height, width)  # their ground
    left = 0
    for name in names:
        room = strip[:, : name.shape[1], left : left + name.shape[2]]
        room.copy_(name[:, :, : room.shape[2]])
        left += name.shape[2]
    return strip


def shrink(picture: Tensor) -> Tensor:
    """Return a picture (3, H, W) of the width of a column."""
    height = round(WIDTH * picture.shape[1] / picture.shape[2])
    return F.interpolate(picture[None], (height, WIDTH), mode="bilinear", antialias=True)[0]


if __name__ == "__main__":
    main()
