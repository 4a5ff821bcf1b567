"""Measure the accuracy and the speed of int8 on the CPU, for docs/performance.md.

    python benchmarks/int8.py --data CAMVID --weights FILE --recording 0001TP

labels the frames of one recording of CamVid's train in fp32 and in int8, which is calibrated on frames of the other
recordings, and prints the mIoU of both and the share of equal labels. For a fair figure the weights must not have been
trained on that recording. --onnx measures the int8 file of `streamseg export` as well.

Then the network (eager, channels_last), the fast form in fp32 and int8 label one frame in turn, on one thread; times
are processor times, so that other work on the machine does not count.

Set ONEDNN_MAX_CPU_ISA=AVX2 to measure like a processor without AVX-512 and VNNI (not for --onnx).
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

import streamseg
from streamseg.data.datasets import Dataset
from streamseg.deploy.export import export_program, quiet_exporters, write_int8
from streamseg.engine.engine import resize_frames
from streamseg.engine.runtime import Manifest, open_exported
from streamseg.evaluate import metrics
from streamseg.evaluate.benchmark import label_from_full_scores
from streamseg.stream.label_frames import segment

PICTURE = Path(__file__).parent.parent / "samples" / "suburb-1.jpg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="CamVid, with its folders train and trainannot")
    parser.add_argument("--weights", type=Path, help="weights not trained on the recording (default: bundled)")
    parser.add_argument("--recording", default="0001TP", help="start of the file names of the frames to evaluate")
    parser.add_argument("--step", type=int, default=1, help="evaluate every STEP-th frame (default: 1)")
    parser.add_argument("--calibrate", type=int, default=8, help="number of calibration frames (default: 8)")
    parser.add_argument("--onnx", action="store_true", help="measure the exported int8 file as well")
    parser.add_argument("--rounds", type=int, default=10, help="times that each engine is timed; 0: none")
    options = parser.parse_args()

    model, classes = streamseg.load(options.weights) if options.weights else streamseg.load()
    data = streamseg.camvid(options.data, "train")
    chosen = [i for i, pair in enumerate(data.pairs) if pair.image.name.startswith(options.recording)]
    others = [i for i in range(len(data)) if i not in chosen]
    if not chosen or not others:
        parser.error(f"{options.data} has no recording {options.recording!r} in train, or no other one.")
    calibration = [data[others[i * len(others) // options.calibrate]][0] for i in range(options.calibrate)]
    fp32, int8 = streamseg.accelerate(model), streamseg.accelerate(model, "int8", calibration)
    engines: dict[str, Callable[[Tensor], Tensor]] = {"fp32": fp32, "int8": int8}
    with TemporaryDirectory() as folder:
        if options.onnx:
            engines["int8 ONNX"] = export_int8(model, classes, Path(folder) / "int8.onnx", calibration)
        print_accuracy(engines, data, chosen[:: options.step])
    if options.rounds:
        print_speed(model, {"fp32": fp32, "int8": int8}, options.rounds)


def export_int8(model: streamseg.FANet, classes, path: Path, frames: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """Export a network to int8 for frames of one size, and return a function from a frame to its labels."""
    size = (frames[0].shape[1], frames[0].shape[2])
    manifest = Manifest(classes, size, (), False, 1, model.averages, "int8", "")
    with quiet_exporters():
        write_int8(export_program(model, manifest), manifest, path, frames)
    return partial(label_with, open_exported(path))


def label_with(engine, frame: Tensor) -> Tensor:
    return segment(frame, engine)


def print_accuracy(engines: dict[str, Callable[[Tensor], Tensor]], data: Dataset, chosen: list[int]) -> None:
    count = len(data.classes)
    same = dict.fromkeys(engines, 0.0)
    confusion = {name: torch.zeros(count, count, dtype=torch.int64) for name in engines}
    for i in chosen:
        frame, truth = data[i]
        found = {name: engine(frame) for name, engine in engines.items()}
        for name, labels in found.items():
            confusion[name] += metrics.confusion_matrix(truth, labels, count)
            same[name] += (labels == found["fp32"]).double().mean().item() / len(chosen)
    exact = 100 * metrics.iou(confusion["fp32"])
    print(f"{len(chosen)} frames of {data[chosen[0]][0].shape[1]} x {data[chosen[0]][0].shape[2]}")
    for name in engines:
        iou = 100 * metrics.iou(confusion[name])
        change = iou - exact
        worst = int(change.nan_to_num(0).argmin())
        print(
            f"{name}: {iou.nanmean():.2f} mIoU ({(iou.nanmean() - exact.nanmean()):+.2f}), {100 * same[name]:.2f} % of "
            f"the labels as in fp32, worst class {data.classes.names[worst]} {change[worst]:+.2f}"
        )


def print_speed(model: streamseg.FANet, engines: dict[str, Callable[[Tensor], Tensor]], rounds: int) -> None:
    torch.set_num_threads(1)
    picture = resize_frames(streamseg.read_image(PICTURE)[None], (512, 1024))[0]
    eager = model.to(memory_format=torch.channels_last)
    calls = {"network": partial(label_from_full_scores, eager, picture[None])}
    calls |= {name: partial(engine, picture) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(rounds + 1):
            for name, call in calls.items():
                start = time.process_time()
                call()
                times[name].append(1e3 * (time.process_time() - start))
    medians = {name: median(found[1:]) for name, found in times.items()}
    for name, milliseconds in medians.items():
        print(
            f"{name}: {milliseconds:.0f} ms on one thread for 512 x 1024, {medians['network'] / milliseconds:.2f} "
            f"times as fast as the network, {medians['fp32'] / milliseconds:.2f} times as fast as fp32"
        )


if __name__ == "__main__":
    main()
