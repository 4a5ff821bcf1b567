"""The study of windows behind docs/video.md: python benchmarks/video.py CAMVID OUT WEIGHTS...

Evaluates every checkpoint on CamVid's val, in order, under every way of remembering, with frames 1/15 s and 1 s apart.
Prints a table and writes OUT, a JSON file with a row for each.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

import streamseg
from streamseg.datasets import Dataset
from streamseg.evaluate import evaluate_video
from streamseg.stream import Fading, FadingInTime, LastFrames, Policy

POLICIES: dict[str, Policy] = {
    **{f"last {frames}": LastFrames(frames) for frames in (1, 2, 4, 8, 16)},
    "fading 0.5": Fading(0.5),
    "fading 0.8": Fading(0.8),
    "half-life 0.2 s": FadingInTime(0.2),
    "half-life 1 s": FadingInTime(1.0),
}
FIGURES = ("miou", "mvc8", "strict_mvc8", "mvc16", "flip_rate", "flip_rate_still", "avg_rt_ms")


def spaced(dataset: Dataset, step: int) -> Dataset:
    """The same frames in sequences of every so many frames."""
    sequences = [sequence[start::step] for sequence in dataset.sequences for start in range(step)]
    return replace(dataset, sequences=tuple(sequences))


def main(data: Path, out: Path, weights: list[Path]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = streamseg.camvid(data, "val")
    rows = []
    print(f"{'weights':24}{'gap':>8}{'remembers':>18}" + "".join(f"{name:>16}" for name in FIGURES))
    for path in weights:
        model, _ = streamseg.load(path)
        model = model.to(device, memory_format=torch.channels_last)
        for gap, frames in (("1/15 s", dataset), ("1 s", spaced(dataset, 15))):
            for name, policy in POLICIES.items():
                result = evaluate_video(model, frames, device, policy, threads=torch.get_num_threads())
                figures = {figure: getattr(result, figure) for figure in FIGURES}
                rows.append({"weights": path.parent.name, "gap": gap, "remembers": name, **figures, "iou": result.iou})
                print(
                    f"{path.parent.name:24}{gap:>8}{name:>18}"
                    + "".join(f"{value:16.3f}" for value in figures.values()),
                    flush=True,
                )
                out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
