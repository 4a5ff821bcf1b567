"""What the fast way and int8 give and cost on the CPU, for docs/performance.md: python benchmarks/int8.py CAMVID.

Times the weights that ship on a sample picture of 512 x 1024 in turn: the network and the highest of its scores,
operator by operator; the same as `segment` has it in Python; the fast way; and int8. Then labels every second frame of
CamVid's val in fp32 and in int8, calibrated on eight frames of train.
"""

import sys
from functools import partial
from pathlib import Path
from statistics import median

import torch

import streamseg
from streamseg import metrics
from streamseg.benchmark import label_whole, time_in_turn
from streamseg.stream import fit, segment

PICTURE = Path(__file__).parent.parent / "samples" / "suburb-1.jpg"


def main(data: Path) -> None:
    model, _ = streamseg.load()
    train, val = streamseg.camvid(data, "train"), streamseg.camvid(data, "val")
    calibration = [train[i][0] for i in range(0, 360, 45)]
    exact, quick = streamseg.accelerate(model), streamseg.accelerate(model, "int8", calibration)

    picture = fit(streamseg.read_image(PICTURE)[None], (512, 1024))[0]
    plain = model.to(memory_format=torch.channels_last)
    calls = {
        "network": partial(label_whole, plain, picture[None]),
        "plain": partial(segment, picture, plain),
        "fp32": partial(exact, picture),
        "int8": partial(quick, picture),
    }
    with torch.no_grad():
        times = {name: median(taken) for name, taken in time_in_turn(calls, torch.device("cpu"), 30).items()}
    for name, taken in times.items():
        print(f"{name}: {taken:.1f} ms, {times['network'] / taken:.2f} times as fast as the network")

    same, confusion = [], {name: torch.zeros(11, 11, dtype=torch.int64) for name in ("fp32", "int8")}
    for i in range(0, len(val), 2):
        frame, labels = val[i]
        found = {"fp32": exact(frame), "int8": quick(frame)}
        same.append((found["fp32"] == found["int8"]).float().mean().item())
        for name, ours in found.items():
            confusion[name] += metrics.confusion_matrix(labels, ours, 11)
    print(f"the same labels: {100 * sum(same) / len(same):.2f} % of the pixels of {len(same)} frames")
    print({name: round(100 * metrics.iou(counts).nanmean().item(), 2) for name, counts in confusion.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
