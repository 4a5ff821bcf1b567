"""Train the video methods of the paper's Table VI on CamVid, all with the same short budget, and compare them.

    python benchmarks/video_methods.py DATA --out DIR --flow flow.safetensors [--iterations 1500] [--seeds 2]
        [--at-once 3] [-- OPTION...]

For each seed it trains the backbone, FANet-18 and FANet-34 on train (camvid-18), FANet + Temp on clips, and then each
method from the backbone's weights (camvid-method, with moved clips: CamVid's train has one frame a second). Copying and
Clockwork take the backbone's weights as they are. Each network is evaluated on val at 15 Hz: mIoU at each distance to
the key frame, flips and mVC8. Then, with nothing else on the GPU, every network is timed in one engine, eager, from
frame to logits. Several trainings share the GPU, under MPS if nvidia-cuda-mps-control is there. If it is stopped, the
same command continues: finished steps are skipped. It prints a table, and writes the figures to
DIR/video-methods.json. Options after -- are options of streamseg train, such as --batch 8. benchmarks/train_flow.py
makes the flow network.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch

import streamseg
from streamseg.evaluate.benchmark import count_macs, time_call
from streamseg.evaluate.method_cost import count_method_macs, is_frame, mean_macs, mean_time, position_calls
from streamseg.models.video import METHODS, VIDEO_METHODS, VideoMethod

INTERVAL = 5
"""Key interval of the methods that have one, but for Clockwork's 2."""

COPY_BESIDE_CLOCKWORK = "copy-2"
"""Copying at the interval of Clockwork; `copy` is at that of the others."""

AS_THEY_ARE = ("copy", COPY_BESIDE_CLOCKWORK, "clockwork", "clockwork-pipelined")
"""Methods that are not trained: their weights are the backbone's."""

WITH_FLOW = ("dff", "accel", "dvsnet", "netwarp", "grfp")

FROZEN_FLOW = ("accel", "netwarp", "grfp")
"""Methods that do not train their flow network."""

PROPAGATING = {
    "clockwork": COPY_BESIDE_CLOCKWORK,
    "dff": "copy",
    "accel": "copy",
    "clockwork-adaptive": "copy",
    "low-latency": "copy",
    "dvsnet": "copy",
}
"""The row of copying that each method has to beat; methods with a schedule have no interval, only a key share."""

CHEAPER_ON_AVERAGE = ("clockwork", "dff")
"""Methods whose mean time is expected below the backbone's, and whose longest is not."""

FANETS = {"fanet18": 1, "fanet34": 1, "fanet18-temp": 2, "fanet34-temp": 2}
"""The window of each row of FANet."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="CamVid's folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the runs")
    parser.add_argument("--flow", type=Path, help="flow network, of train_flow.py; accel, netwarp and grfp need it")
    parser.add_argument("--backbone", default="swiftnet18", choices=("swiftnet18", "fanet18"))
    parser.add_argument("--iterations", type=int, default=1500, help="of every training")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=3, help="trainings that share the GPU")
    parser.add_argument("--imagenet", type=Path, help="folder with resnet18.* and resnet34.*, if offline")
    parser.add_argument("--only", nargs="+", default=[*METHODS], choices=[*METHODS], metavar="METHOD")
    parser.add_argument("--size", type=int, nargs=2, default=(720, 960), help="height and width that are timed")
    parser.add_argument("--without-fanet", action="store_true", help="leave out the rows of FANet")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    if not arguments.flow and (needed := [name for name in arguments.only if name in FROZEN_FLOW]):
        parser.error(f"{', '.join(needed)} do not train a flow network: give a trained one, --flow FILE")
    arguments.out.mkdir(parents=True, exist_ok=True)

    fanets = [] if arguments.without_fanet else [*FANETS]
    images = dict.fromkeys([arguments.backbone, *(name for name in fanets if FANETS[name] == 1)])
    copies = [COPY_BESIDE_CLOCKWORK] if {"copy", "clockwork"} <= {*arguments.only} else []
    later = [name for name in fanets if FANETS[name] > 1] + arguments.only + copies
    seeds = range(arguments.seeds)
    with mps(arguments.at_once) as environment, ThreadPoolExecutor(arguments.at_once) as pool:
        work = partial(train_and_evaluate, arguments, options, environment)
        for names in (images, later):
            done = [*pool.map(lambda job: work(*job), [(name, seed) for seed in seeds for name in names])]
            if not all(done) and names is images:
                sys.exit("A backbone failed: see output.txt in its folder.")
    found = {name: collect(arguments, name) for name in (arguments.backbone, *later, *images)}
    found = {name: figures for name, figures in found.items() if figures}
    for name, figures in found.items():
        figures |= measure(run_folder(arguments.out, name, 0) / "weights.safetensors", tuple(arguments.size), figures)
    (arguments.out / "video-methods.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(format_table(found))


class mps:  # noqa: N801 # used as a function
    """Run the MPS daemon meanwhile, if there is one, so that kernels of several processes run at the same time."""

    def __init__(self, at_once: int):
        control = shutil.which("nvidia-cuda-mps-control")
        self.control = control if at_once > 1 and torch.cuda.is_available() else None

    def __enter__(self) -> dict[str, str]:
        if self.control:
            subprocess.run([self.control, "-d"], check=False)
        return {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}

    def __exit__(self, *_: object) -> None:
        if self.control:
            subprocess.run([self.control], input="quit\n", text=True, check=False)


def run_folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-seed-{seed}"


def train_and_evaluate(
    arguments: argparse.Namespace, options: Sequence[str], environment: dict[str, str], name: str, seed: int
) -> bool:
    """Train and evaluate a network, skipping finished steps; returns whether all steps succeeded."""
    out = run_folder(arguments.out, name, seed)
    out.mkdir(parents=True, exist_ok=True)
    weights, figures = out / "weights.safetensors", out / "val.json"
    backbone = run_folder(arguments.out, arguments.backbone, seed) / "weights.safetensors"
    with (out / "output.txt").open("a", encoding="utf-8") as output:
        if name in AS_THEY_ARE and not weights.exists():
            wrap(name, arguments.backbone, backbone, weights)
        evaluate = ["evaluate", weights, "--data", arguments.data, "--dataset", "camvid", "--window", window_of(name)]
        steps: dict[Path, list[Any]] = {
            weights: train_command(arguments, name, seed, out, backbone) + [*options],
            figures: [*evaluate, "--json", figures, *device_of(options)],
        }
        for result, step in steps.items():
            command = [sys.executable, "-m", "streamseg", *map(str, step)]
            if (
                not result.exists()
                and subprocess.run(command, stdout=output, stderr=output, env=environment).returncode
            ):
                print(f"{out.name}: failed, see {out}/output.txt", flush=True)
                return False
    print(f"{out.name}: done", flush=True)
    return True


def train_command(arguments: argparse.Namespace, name: str, seed: int, out: Path, backbone: Path) -> list[Any]:
    """Return the arguments of streamseg that train a network."""
    common = ["--data", arguments.data, "--out", out, "--validate", "", "--seed", seed]
    common += ["--iterations", arguments.iterations, *(["--resume"] if (out / "state.pt").exists() else [])]
    network = name.removesuffix("-temp")
    if name in METHODS:
        flow = ["--flow-weights", arguments.flow] if arguments.flow and name in WITH_FLOW else []
        method = ["--network", f"{name}-{arguments.backbone}", "--initial", backbone, "--moved-clips", *flow]
        return ["train", "camvid-method", *method, "--window", INTERVAL, *common]
    if name.endswith("-temp"):
        initial = run_folder(arguments.out, network, seed) / "weights.safetensors"
        return ["train", f"camvid-video-{network[-2:]}", "--initial", initial, *common]
    depth = network[-2:]
    files = [*arguments.imagenet.glob(f"resnet{depth}.*")] if arguments.imagenet else []
    weights = ["--encoder-weights", files[0]] if files else []
    return ["train", "camvid-18", "--network", network, *weights, *common]


def wrap(name: str, network_name: str, backbone: Path, weights: Path) -> None:
    """Write a video method with the weights of an image network, and the interval that it is measured with."""
    network, classes = streamseg.load(backbone)
    method = VIDEO_METHODS[f"{name.removesuffix('-2')}-{network_name}"](len(classes))
    method.interval = method.interval and window_of(name)
    method.backbone.network.load_state_dict(network.state_dict())
    streamseg.save(method, classes, weights, source=f"{backbone.parent.name}, as it is")


def window_of(name: str) -> int:
    """Return --window of evaluate: a key interval, or FANet's window."""
    return 2 if name in ("clockwork", COPY_BESIDE_CLOCKWORK) else INTERVAL if name in METHODS else FANETS.get(name, 1)


def device_of(options: Sequence[str]) -> list[str]:
    return ["--device", options[options.index("--device") + 1]] if "--device" in options else []


def collect(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the accuracy of the finished runs of a network; nothing if there are none."""
    files = [run_folder(arguments.out, name, seed) / "val.json" for seed in range(arguments.seeds)]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    if not results:
        return {}
    by_distance = [result.get("miou_by_distance") for result in results]
    mious = [fmean(d) if d else r["miou"] for d, r in zip(by_distance, results, strict=True)]
    found = {key: fmean(result[key] or 0 for result in results) for key in ("flip_rate", "mvc8")}
    shares = fmean(result.get("key_share", 100.0) for result in results)
    distances = [fmean(column) for column in zip(*by_distance, strict=True)] if all(by_distance) else []
    return {"miou": mious, "by_distance": distances, **found, "key_share": shares}


@torch.no_grad()
def measure(weights: Path, size: tuple[int, int], figures: dict[str, Any]) -> dict[str, Any]:
    """Return GMACs a frame, and the mean and the maximum time of a frame, eager, in fp16 on a GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    half = torch.float16 if device.type == "cuda" else torch.float32
    torch.backends.cudnn.benchmark = True
    network, _ = streamseg.load(weights)
    share = figures["key_share"] / 100
    if isinstance(network, VideoMethod):
        gmacs = mean_macs(count_method_macs(network, size), share) / 1e9
    else:
        gmacs = count_macs(network, (1, 3, *size)) / 1e9
    model: Any = network.to(device, half, memory_format=torch.channels_last)  # type: ignore[call-overload]
    image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, device=device)
    times = {name: typical_time(call, device) for name, call in calls_of(model, image, weights).items()}
    longest = max(taken for name, taken in times.items() if is_frame(name))
    return {"gmacs": gmacs, "mean_ms": mean_time(times, share), "max_ms": longest, "times": times}


def calls_of(model: Any, image: torch.Tensor, weights: Path) -> dict[str, Callable[[], object]]:
    """Return the calls to time, from frame to logits of the frame's size."""
    if isinstance(model, VideoMethod):
        return position_calls(model, image)
    if "-temp-" in weights.parent.name:
        _, past = model.step(image)
        return {"every frame": partial(model.step, image, past)}
    return {"every frame": partial(model, image)}


def typical_time(call: Callable[[], object], device: torch.device) -> float:
    """Return the median milliseconds of a call."""
    warm_up, rounds = (20, 100) if device.type == "cuda" else (1, 3)
    return median([time_call(call, device) for _ in range(warm_up + rounds)][warm_up:])


def format_table(found: dict[str, dict[str, Any]]) -> str:
    """Format the figures as a Markdown table; several seeds give mean and standard deviation."""
    titles = ("", "mIoU", "at the last distance", "mean ms", "max ms", "flips %", "mVC8", "GMACs", "key frames %")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, figures in found.items():
        last = f"{figures['by_distance'][-1]:.1f}" if figures["by_distance"] else "–"
        cells = (
            name,
            mean_and_spread(figures["miou"]),
            last,
            *(f"{figures[key]:.2f}" for key in ("mean_ms", "max_ms", "flip_rate")),
            *(f"{figures[key]:.1f}" for key in ("mvc8", "gmacs", "key_share")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *verdicts(found), *cost_verdicts(found)]
    return "\n".join(lines)


def verdicts(found: dict[str, dict[str, Any]]) -> Iterable[str]:
    """Yield by how much each method that propagates beats copying the labels of the last key frame."""
    for name, copy in PROPAGATING.items():
        if name in found and copy in found:
            gains = [ours - copied for ours, copied in zip(found[name]["miou"], found[copy]["miou"], strict=False)]
            shares = f"{found[name]['key_share']:.0f} % and {found[copy]['key_share']:.0f} %"
            yield f"- {name} less copying: {mean_and_spread(gains)} mIoU; key frames {shares}"


def cost_verdicts(found: dict[str, dict[str, Any]]) -> Iterable[str]:
    """Yield whether methods with cheap frames between key frames are faster than the backbone, on average only."""
    backbone = next(iter(found.values()), {})  # the first row
    for name in CHEAPER_ON_AVERAGE:
        if name in found:
            mean, longest = (found[name][key] < backbone[key] for key in ("mean_ms", "max_ms"))
            yield (
                f"- {name}: the mean time is {'below' if mean else 'not below'} the backbone's, "
                f"the longest {'is too' if longest else 'is not'}"
            )


def mean_and_spread(numbers: Sequence[float]) -> str:
    return f"{fmean(numbers):.1f}" + (f" ± {stdev(numbers):.1f}" if len(numbers) > 1 else "")


if __name__ == "__main__":
    main()
