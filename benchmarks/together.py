"""Measure cameras that look together, and masks, for docs/cameras.md and docs/segment.md.

    python benchmarks/together.py cameras | masks WEIGHTS CAMVID

cameras  mIoU on CamVid val cut into left and right halves as two cameras: each alone, both together, and the whole
         picture; and the same of quarters of the width as four cameras
masks    mIoU on CamVid val under letterboxes and a burnt-in clock, with and without a mask, and without them
"""

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import streamseg
from streamseg.engine.engine import Engine
from streamseg.evaluate import metrics
from streamseg.evaluate.translate import to_lookup, translate_dataset, translate_predicted
from streamseg.io.masks import Mask
from streamseg.stream.label_frames import label_frame
from streamseg.stream.together import label_together

BAR = 90
"""Rows of a letterbox."""


def measure(weights: str, data: str, ways: dict[str, Callable[[Engine, Tensor], Tensor]]) -> None:
    """Print the mIoU of each way to label the frames of CamVid val."""
    network, classes = streamseg.load(weights)
    translation, dataset = translate_dataset(classes, streamseg.camvid(data, "val"), None)
    lookup = (
        to_lookup(translation.label_of, len(dataset.classes), torch.device("cpu")) if translation.label_of else None
    )
    engine, count = streamseg.accelerate(network), len(dataset.classes)
    confusion = {name: torch.zeros(count, count + 1, dtype=torch.int64) for name in ways}
    for frame, labels in dataset:
        for name, label in ways.items():
            predicted = translate_predicted(label(engine, frame), lookup)
            truth = torch.where(predicted == 255, 255, labels)
            confusion[name] += metrics.confusion_matrix(truth, predicted, count, count + 1)
    for name, counts in confusion.items():
        print(f"{name:24}{100 * metrics.miou(counts):8.2f}", flush=True)


def label_whole(engine: Engine, frame: Tensor) -> Tensor:
    return label_frame(engine, frame)[0]


def cut(frame: Tensor, parts: int) -> Sequence[Tensor]:
    """Cut a frame into cameras side by side."""
    return [part.contiguous() for part in frame.chunk(parts, dim=2)]


def cameras(weights: str, data: str) -> None:
    def apart(parts: int) -> Callable[[Engine, Tensor], Tensor]:
        return lambda engine, frame: torch.cat([label_whole(engine, part) for part in cut(frame, parts)], dim=1)

    def together(parts: int) -> Callable[[Engine, Tensor], Tensor]:
        return lambda engine, frame: torch.cat(label_together(engine, cut(frame, parts))[0], dim=1)

    ways = {"whole": label_whole}
    for parts in (2, 4):
        ways |= {f"{parts} cameras, apart": apart(parts), f"{parts} cameras, together": together(parts)}
    measure(weights, data, ways)


def masks(weights: str, data: str) -> None:
    looked_at = torch.ones(720 + 2 * BAR, 960, dtype=torch.bool)
    looked_at[:BAR] = looked_at[-BAR:] = False
    noise = torch.randint(0, 256, (3, BAR, 480), generator=torch.Generator().manual_seed(0)).byte()

    def boxed(frame: Tensor) -> Tensor:
        bars = torch.zeros(3, 720 + 2 * BAR, 960, dtype=torch.uint8)
        bars[:, BAR:-BAR] = frame
        bars[:, -BAR:, :480] = noise
        return bars

    def without(engine: Engine, frame: Tensor) -> Tensor:
        return label_frame(engine, boxed(frame))[0][BAR:-BAR]

    def masked(engine: Engine, frame: Tensor) -> Tensor:
        return label_frame(engine, boxed(frame), mask=Mask(looked_at))[0][BAR:-BAR]

    def cropped(engine: Engine, frame: Tensor) -> Tensor:
        return label_whole(engine, frame)

    measure(weights, data, {"no letterbox": cropped, "letterbox": without, "letterbox, masked": masked})


if __name__ == "__main__":
    {"cameras": cameras, "masks": masks}[sys.argv[1]](*sys.argv[2:])
