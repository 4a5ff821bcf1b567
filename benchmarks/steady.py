"""Measure what keeps the labels of a video steady, for docs/video.md.

    python benchmarks/steady.py accuracy CAMVID WEIGHTS
    python benchmarks/steady.py time [WEIGHTS [HEIGHT WIDTH]]

accuracy  the network's scores of CamVid's val, computed once, labelled in several ways and as several streams
time      a frame in milliseconds, one way after the other on the same frame, so that a busy machine disturbs all alike
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

import streamseg
from streamseg.engine.engine import ImageEngine
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW, Steadiness
from streamseg.evaluate import metrics
from streamseg.evaluate.translate import to_lookup, translate_dataset, translate_predicted
from streamseg.stream.label_frames import label_frame, step_batch
from streamseg.stream.state import LastFrames, State

WAYS: dict[str, float | Steadiness] = {
    "off": 0.0,
    "0.5": 0.5,
    "1": 1.0,
    "2": 2.0,
    "low": STEADY_LOW,
    "high": STEADY_HIGH,
}
RATE = 15
"""Frames a second of CamVid's val."""
LAG_FRAMES = 6
"""A true label must stay this long after it has changed to count for the lag."""
ROUNDS = 30


def streams(frames: int) -> dict[str, tuple[list[int], list[float]]]:
    """Return the numbers of the frames of each stream, and their times."""
    chance = random.Random(0)
    whole = list(range(frames))
    kept = [i for i in whole if chance.random() > 0.3]
    parts = [whole[i : i + 5] for i in range(0, frames - 4, 5)]
    chance.shuffle(parts)
    jumps = [i for part in parts for i in part]
    stopped = [*whole[:40], *[40] * 20, *whole[40:]]
    return {
        "15 a second": (whole, [i / RATE for i in whole]),
        "every 2nd": (whole[::2], [i / RATE for i in whole[::2]]),
        "every 3rd": (whole[::3], [i / RATE for i in whole[::3]]),
        "30 % dropped": (kept, [i / RATE for i in kept]),
        "stopped for 20": (stopped, [i / RATE for i in range(len(stopped))]),
        "a jump each 5": (jumps, [i / RATE for i in range(len(jumps))]),
    }


def lag(labels: Tensor, predicted: Tensor) -> tuple[float, float]:
    """Return in how many frames a pixel has its new true label, median and mean, of those that get it in time."""
    found = []
    for t in range(1, len(labels) - LAG_FRAMES):
        changed = (labels[t] != labels[t - 1]) & (labels[t] != 255) & (labels[t - 1] != 255)
        changed &= (labels[t : t + LAG_FRAMES + 1] == labels[t]).all(dim=0)
        right = predicted[t : t + LAG_FRAMES + 1, changed] == labels[t, changed]
        found.append(right.int().argmax(dim=0)[right.any(dim=0)])
    frames = torch.cat(found).double()
    return frames.median().item(), frames.mean().item()


def accuracy(data: str, weights: str) -> None:
    model, classes = streamseg.load(weights)
    translation, dataset = translate_dataset(classes, streamseg.camvid(Path(data), "val"))
    count = len(dataset.classes)
    lookup = to_lookup(translation.label_of, count, torch.device("cpu"))
    images, labels, scores = [], [], []
    with torch.no_grad():
        for image, truth in (dataset[i] for i in range(len(dataset))):
            images.append(image)
            labels.append(truth)
            scores.append(model.outputs(image[None])[0])
    current: list[Tensor] = []
    engine = ImageEngine(model, lambda _: current[0])
    print("| stream | --steady | mIoU | flips, % | mVC8 | lag, median and mean |\n|" + "---|" * 6)
    for stream, (order, times) in streams(len(dataset)).items():
        for name, steady in WAYS.items():
            state: State | None = None
            predicted = []
            for i, seconds in zip(order, times, strict=True):
                current[:] = [scores[i]]
                size = (images[i].shape[1], images[i].shape[2])
                policy = LastFrames(1, steady=steady)
                (one,), (state,) = step_batch(engine, images[i][None], [state], policy, sizes=[size], times=[seconds])
                predicted.append(translate_predicted(one.labels, lookup))
            figures = measure([labels[i] for i in order], predicted, count)
            late = "{:.0f}, {:.2f}".format(*lag(torch.stack([labels[i] for i in order]), torch.stack(predicted)))
            print(f"| {stream} | {name} | " + " | ".join(f"{x:.2f}" for x in figures) + f" | {late} |", flush=True)


def measure(labels: Sequence[Tensor], predicted: Sequence[Tensor], classes: int) -> tuple[float, float, float]:
    """Return mIoU, flips while the truth stays, and mVC8, in percent."""
    runs, confusion, flips, windows = None, 0, torch.zeros(4, dtype=torch.int64), []
    for truth, ours in zip(labels, predicted, strict=True):
        runs = metrics.extend_runs(runs, truth, ours)
        confusion = confusion + metrics.confusion_matrix(truth, ours, classes, classes + 1)
        flips += metrics.flip_counts(runs)
        windows.append(metrics.consistency(runs, 8))
    mvc8, _ = metrics.mvc([windows]).tolist()
    return 100 * metrics.miou(confusion), 100 * metrics.flip_rates(flips)[1].item(), 100 * mvc8


def time(weights: str = "", height: str = "720", width: str = "960") -> None:
    model, _ = streamseg.load(weights or None)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last)
    engine = streamseg.accelerate(model)
    sample = streamseg.read_image(next(iter(sorted((Path(__file__).parents[1] / "samples").glob("*.jpg")))))
    wide = torch.nn.functional.interpolate(sample[None], (int(height), int(width) + 8 * ROUNDS), mode="bilinear")[0]
    states: dict[str, State | None] = dict.fromkeys(WAYS)
    spent: dict[str, list[float]] = {name: [] for name in WAYS}
    for i in range(ROUNDS):
        frame = wide[:, :, 8 * i : 8 * i + int(width)].contiguous().to(engine.device)
        for name, steady in WAYS.items():
            start = perf_counter()
            labels, states[name] = label_frame(engine, frame, states[name], LastFrames(1, steady=steady))
            labels.cpu()
            spent[name].append(1000 * (perf_counter() - start))
    plain = spent["off"][2:]
    for name, times in spent.items():
        ratio = median(t / p for t, p in zip(times[2:], plain, strict=True))
        print(f"--steady {name}: {median(times[2:]):.1f} ms a frame, {ratio:.3f} of off")


if __name__ == "__main__":
    part, *arguments = sys.argv[1:] or [""]
    parts = {"accuracy": accuracy, "time": time}
    if part not in parts:
        sys.exit(__doc__)
    parts[part](*arguments)
