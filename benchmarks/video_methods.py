"""Train the video methods of the paper's Table VI on CamVid, all with the same short budget, and compare them.

    python benchmarks/video_methods.py DATA --clips CLIPS --out DIR [--minutes 12] [--at-once 5] [-- OPTION...]

It trains the flow network (train_flow.py) on CLIPS and, for each seed, the backbones, FANet-18 and FANet-34 on train
(camvid-18), then FANet + Temp on clips, and each method from its backbone's weights (camvid-method, with moved clips:
CamVid's train has one frame a second). Copying and Clockwork take the backbone's weights as they are. Where a schedule
chooses key frames, its threshold is tuned on moved clips of train to a mean key-frame rate. Each network is evaluated
on val at 15 Hz: mIoU at each distance to the key frame, flips and mVC8. Then, with nothing else on the GPU, every
network is timed in one engine, eager, from frame to logits, and as CUDA graphs where it can be.

Several processes share the GPU, under MPS if it works, each for one network and seed; all frames are decoded once, into
DIR/data. DIR/video-methods.json has the figures so far after every step. A network that fails leaves the others alone.
After --minutes it stops what still runs, times what is ready and prints the table; the same command continues, and
skips finished steps. Options after -- are options of every streamseg train, such as --crop 360 480.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from method_jobs import Job, JobRunner, SharedGPU
from method_table import COPY_BESIDE_CLOCKWORK, format_table
from method_times import count_cost, measure_times
from PIL import Image
from torch.nn import functional as F

import streamseg
from streamseg.cli import run as run_verb
from streamseg.data.augment import SHIFT, ZOOM
from streamseg.data.datasets import Dataset, in_parallel
from streamseg.evaluate.tune_schedule import tune_schedule
from streamseg.machine import available_cores
from streamseg.models.video import BACKBONES, METHODS, VIDEO_METHODS, VideoMethod
from streamseg.train.loss_module import move_camera_back

INTERVAL = 5
"""Key interval of the methods that have one, but for Clockwork's 2."""

AS_THEY_ARE = ("copy", COPY_BESIDE_CLOCKWORK, "clockwork", "clockwork-pipelined")
"""Methods that are not trained: their weights are the backbone's."""

WITH_FLOW = ("dff", "accel", "dvsnet", "netwarp", "grfp")

FROZEN_FLOW = ("accel", "netwarp", "grfp")
"""Methods that do not train their flow network."""

FANETS = {"fanet18": 1, "fanet34": 1, "fanet18-temp": 2, "fanet34-temp": 2}
"""The window of each row of FANet."""

TIMING_MINUTES = 1.5
"""Kept at the end for the times, of --minutes; at most a quarter of them."""

TUNING_CLIPS, TUNING_FRAMES = 8, 11
"""Clips that schedules are tuned on, and their frames: the first is a key frame, and ten may be."""


def main() -> None:
    arguments, options = parse(sys.argv[1:])
    if arguments.job:
        name, seed = arguments.job
        sys.exit(run_steps(arguments, options, name, int(seed)))
    start = time.monotonic()
    reserve = min(TIMING_MINUTES, arguments.minutes / 4)
    arguments.out.mkdir(parents=True, exist_ok=True)
    decode(arguments.data, arguments.out / "data", arguments.frame_size, arguments.frames)
    rows = list_rows(arguments)

    with SharedGPU(arguments.at_once) as environment:
        deadline = start + 60 * (arguments.minutes - reserve)
        runner = JobRunner(arguments.at_once, deadline, environment, lambda _: write_figures(arguments, rows))
        problems = runner.run(list_jobs(arguments, rows))
    for name in rows:
        if time.monotonic() < start + 60 * arguments.minutes:
            time_network(arguments, name)
            write_figures(arguments, rows)
    print(format_table(write_figures(arguments, rows)))
    for name, problem in problems.items():
        if problem:
            print(f"- {name}: {problem}")
    sys.exit(int(any(problems.values())))


def parse(given: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this script, and those of streamseg train, which follow --."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="CamVid's folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the runs")
    parser.add_argument("--clips", type=Path, help="folder of videos, to train the flow network on")
    parser.add_argument("--flow", type=Path, help="a flow network of train_flow.py, instead of --clips")
    parser.add_argument("--flow-minutes", type=float, default=3, help="training of the flow network")
    parser.add_argument("--minutes", type=float, default=12, help="for everything")
    parser.add_argument("--backbones", nargs="+", default=[*BACKBONES], choices=[*BACKBONES], metavar="NAME")
    parser.add_argument("--iterations", type=int, default=1000, help="of image networks")
    parser.add_argument("--method-iterations", type=int, default=300, help="of methods, and of FANet + Temp")
    parser.add_argument("--batch", type=int, default=16, help="of image networks, and of FANet + Temp")
    parser.add_argument("--method-batch", type=int, default=8)
    parser.add_argument("--key-rate", type=float, default=100 / INTERVAL, help="for schedules, in percent")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=5, help="processes that share the GPU")
    parser.add_argument("--compiled", action="store_true", help="compile image networks: two minutes a process")
    parser.add_argument("--imagenet", type=Path, help="folder with resnet18.* and resnet34.*, if offline")
    parser.add_argument("--only", nargs="+", default=[*METHODS], choices=[*METHODS], metavar="METHOD")
    parser.add_argument("--size", type=int, nargs=2, default=(720, 960), help="height and width that are timed")
    parser.add_argument("--frame-size", type=int, nargs=2, help="height and width of all frames, for trials")
    parser.add_argument("--frames", type=int, help="first frames of each split that are used, for trials")
    parser.add_argument("--without-fanet", action="store_true", help="leave out the rows of FANet")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    given = [*given]
    cut = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:cut])
    if not (arguments.flow or arguments.clips) and (needed := [x for x in arguments.only if x in FROZEN_FLOW]):
        parser.error(f"{', '.join(needed)} do not train a flow network: give --clips DIR or --flow FILE")
    return arguments, given[cut + 1 :]


def decode(data: Path, out: Path, size: tuple[int, int] | None, most: int | None) -> None:
    """Write CamVid's train and val as files that take a quarter of the time to read, if they are not there."""
    if out.exists():
        return
    part = out.with_name(out.name + ".part")
    for split in ("train", "val"):
        dataset = streamseg.camvid(data, split)
        for folder in (part / split, part / f"{split}annot"):
            folder.mkdir(parents=True, exist_ok=True)
        write = partial(write_decoded, dataset, part, tuple(size) if size else None)
        for _ in in_parallel(write, range(len(dataset))[:most], available_cores()):
            pass
    part.rename(out)


def write_decoded(dataset: Dataset, out: Path, size: tuple[int, int] | None, index: int) -> None:
    frame, labels = dataset[index]
    if size:
        frame = F.interpolate(frame[None].float(), size, mode="bilinear", antialias=True)[0].round().byte()
        labels = F.interpolate(labels[None, None].float(), size, mode="nearest")[0, 0].byte()
    name = dataset.pairs[index].image.stem
    Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()).save(out / dataset.split / f"{name}.bmp")
    Image.fromarray(labels.numpy()).save(out / f"{dataset.split}annot" / f"{name}.png", compress_level=0)


def list_rows(arguments: argparse.Namespace) -> list[str]:
    """Return the names of all networks, in the order of the table."""
    methods = list(arguments.only)
    if {"copy", "clockwork"} <= {*methods}:
        methods.insert(methods.index("copy") + 1, COPY_BESIDE_CLOCKWORK)
    rows = [name for backbone in arguments.backbones for name in (backbone, *(f"{x}-{backbone}" for x in methods))]
    return [*dict.fromkeys(rows + ([] if arguments.without_fanet else [*FANETS]))]


def list_jobs(arguments: argparse.Namespace, rows: Sequence[str]) -> list[Job]:
    """Return a job for the flow network and for each network and seed: first the networks that others start from."""
    jobs = []
    if not arguments.flow and arguments.clips:
        size = arguments.frame_size or (720, 960)
        script = [sys.executable, Path(__file__).with_name("train_flow.py"), arguments.out / "data", arguments.clips]
        command = [*script, "--out", flow_file(arguments), "--minutes", arguments.flow_minutes, "--size", *size]
        jobs.append(Job("flow", [*map(str, command)], arguments.out / "flow.txt", flow_file(arguments)))
    ours = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    rest = sys.argv[len(ours) + 1 :]
    first, later = [x for x in rows if is_image(x)], [x for x in rows if not is_image(x)]
    for name, seed in [(name, seed) for part in (first, later) for seed in range(arguments.seeds) for name in part]:
        needs = [] if is_image(name) else [f"{initial_of(name)}-seed-{seed}"]
        if jobs and jobs[0].name == "flow" and method_of(name) in WITH_FLOW:
            needs.append("flow")
        out = run_folder(arguments.out, name, seed)
        command = [sys.executable, __file__, *ours, "--job", name, str(seed), *rest]
        jobs.append(Job(out.name, command, out / "output.txt", out / "cost.json", tuple(needs)))
    return jobs


def is_image(name: str) -> bool:
    """Return whether a row is an image network, which starts from ImageNet's weights."""
    return name in BACKBONES or FANETS.get(name) == 1


def method_of(name: str) -> str:
    """Return the method of a row, such as dff of dff-swiftnet18; empty for an image network and FANet + Temp."""
    return "" if is_image(name) or name in FANETS else name.rpartition("-")[0]


def initial_of(name: str) -> str:
    """Return the image network that a method or a FANet + Temp starts from."""
    return name.removesuffix("-temp") if name in FANETS else name.rpartition("-")[2]


def flow_file(arguments: argparse.Namespace) -> Path:
    return arguments.flow or arguments.out / "flow.safetensors"


def run_folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-seed-{seed}"


def run_steps(arguments: argparse.Namespace, options: Sequence[str], name: str, seed: int) -> int:
    """Train, tune and evaluate a network, and count its cost, skipping what is done; return the exit status."""
    out = run_folder(arguments.out, name, seed)
    out.mkdir(parents=True, exist_ok=True)
    weights, figures, cost = out / "weights.safetensors", out / "val.json", out / "cost.json"
    if not weights.exists():
        if method_of(name) in AS_THEY_ARE:
            wrap(arguments, name, seed)
        elif status := run_verb([*map(str, train_command(arguments, options, name, seed))]):
            return status
    if not (out / "tuned.json").exists():
        tune(arguments, weights, out / "tuned.json")
    if not figures.exists():
        command = ["evaluate", weights, "--data", arguments.out / "data", "--dataset", "camvid", "--json", figures]
        if status := run_verb([*map(str, [*command, "--window", window_of(name), *device_of(options)])]):
            return status
    if not cost.exists():
        share = json.loads(figures.read_text(encoding="utf-8")).get("key_share", 100.0) / 100
        write_json(cost, {"gmacs": count_cost(weights, tuple(arguments.size), share)})
    return 0


def train_command(arguments: argparse.Namespace, options: Sequence[str], name: str, seed: int) -> list[Any]:
    """Return the arguments of streamseg that train a network."""
    out, initial = run_folder(arguments.out, name, seed), initial_of(name)
    start = run_folder(arguments.out, initial, seed) / "weights.safetensors"
    iterations = arguments.iterations if is_image(name) else arguments.method_iterations
    common = ["--data", arguments.out / "data", "--out", out, "--validate", "", "--seed", seed]
    common += ["--iterations", iterations, *([] if arguments.compiled else ["--eager"]), *options]
    common += ["--resume"] if (out / "state.pt").exists() else []
    if "--batch" not in options:
        common += ["--batch", arguments.method_batch if method_of(name) else arguments.batch]
    if method := method_of(name):
        flow = ["--flow-weights", flow_file(arguments)] if method in WITH_FLOW and flow_file(arguments).exists() else []
        return ["train", "camvid-method", "--network", name, "--initial", start, "--moved-clips", *flow, *common]
    if name in FANETS and FANETS[name] > 1:
        return ["train", f"camvid-video-{initial[-2:]}", "--initial", start, *common]
    files = [*arguments.imagenet.glob(f"resnet{name[-2:]}.*")] if arguments.imagenet else []
    return ["train", "camvid-18", "--network", name, *(["--encoder-weights", files[0]] if files else []), *common]


def wrap(arguments: argparse.Namespace, name: str, seed: int) -> None:
    """Write a video method with the weights of its backbone, and the interval that it is measured with."""
    backbone = initial_of(name)
    source = run_folder(arguments.out, backbone, seed)
    network, classes = streamseg.load(source / "weights.safetensors")
    method = VIDEO_METHODS[f"{method_of(name).removesuffix('-2')}-{backbone}"](len(classes))
    method.interval = method.interval and window_of(name)
    method.backbone.network.load_state_dict(network.state_dict())
    out = run_folder(arguments.out, name, seed) / "weights.safetensors"
    streamseg.save(method, classes, out, source=f"{source.name}, as it is")


def tune(arguments: argparse.Namespace, weights: Path, out: Path) -> None:
    """Choose the threshold or target of a method with a schedule on moved clips of train, and save it with it."""
    network, classes = streamseg.load(weights)
    if not isinstance(network, VideoMethod) or not network.decides_by:
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network.to(device)
    clips = make_clips(streamseg.camvid(arguments.out / "data", "train"), device)
    found = tune_schedule(network, clips, arguments.key_rate)
    source = streamseg.describe(weights).source
    streamseg.save(network.cpu(), classes, weights, source=f"{source}; schedule tuned to {arguments.key_rate:g} %")
    write_json(out, {network.decides_by: found.value, "key_rate": found.key_rate})
    print(f"{network.decides_by} {found.value:.4g}: {found.key_rate:.1f} % key frames on clips of train", flush=True)


def make_clips(train: Dataset, device: torch.device) -> list[torch.Tensor]:
    """Return clips (T, 3, H, W) of frames of train, each moved by a steady random camera motion, as in training."""
    generator = torch.Generator().manual_seed(0)
    clips = []
    for index in range(0, len(train), -(-len(train) // TUNING_CLIPS)):
        motion = 2 * torch.rand(1, 3, generator=generator) - 1
        motion = torch.tensor([1.0, 0.0, 0.0]) + torch.tensor([ZOOM, SHIFT, SHIFT]) * motion
        frame = train[index][0][None].float().to(device)
        before = move_camera_back(frame, motion.to(device), TUNING_FRAMES - 1)[0]
        clips.append(torch.cat([before.flip(0), frame]))
    return clips


def window_of(name: str) -> int:
    """Return --window of evaluate: a key interval, or FANet's window."""
    if method := method_of(name):
        return 2 if method in ("clockwork", COPY_BESIDE_CLOCKWORK) else INTERVAL
    return FANETS.get(name, 1)


def device_of(options: Sequence[str]) -> list[str]:
    return ["--device", options[options.index("--device") + 1]] if "--device" in options else []


def time_network(arguments: argparse.Namespace, name: str) -> None:
    """Time a network of the first seed, if it is ready and has no times yet; an error is printed."""
    out = run_folder(arguments.out, name, 0)
    if (out / "times.json").exists() or not (out / "cost.json").exists():
        return
    share = json.loads((out / "val.json").read_text(encoding="utf-8")).get("key_share", 100.0) / 100
    try:
        times = measure_times(out / "weights.safetensors", tuple(arguments.size), share, FANETS.get(name, 1) > 1)
    except (RuntimeError, ValueError) as error:
        print(f"{name}: not timed, {error!r:.300}", flush=True)
        return
    write_json(out / "times.json", times)


def write_figures(arguments: argparse.Namespace, rows: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Write the figures so far, and return them."""
    found = {name: collect(arguments, name) for name in rows}
    found = {name: figures for name, figures in found.items() if figures}
    flow = flow_file(arguments).with_suffix(".json")
    errors = {"flow": json.loads(flow.read_text(encoding="utf-8"))} if flow.exists() else {}
    write_json(arguments.out / "video-methods.json", {**found, **errors})
    return found


def collect(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the figures of the finished runs of a network; nothing if there are none."""
    folders = [run_folder(arguments.out, name, seed) for seed in range(arguments.seeds)]
    folders = [folder for folder in folders if (folder / "cost.json").exists()]
    if not folders:
        return {}
    results = [json.loads((folder / "val.json").read_text(encoding="utf-8")) for folder in folders]
    by_distance = [result.get("miou_by_distance") for result in results]
    mious = [fmean(d) if d else r["miou"] for d, r in zip(by_distance, results, strict=True)]
    found = {key: fmean(result[key] or 0 for result in results) for key in ("flip_rate", "mvc8")}
    shares = fmean(result.get("key_share", 100.0) for result in results)
    distances = [fmean(column) for column in zip(*by_distance, strict=True)] if all(by_distance) else []
    costs = [
        json.loads(file.read_text(encoding="utf-8"))
        for file in (folders[0] / "cost.json", folders[0] / "tuned.json", folders[0] / "times.json")
        if file.exists()
    ]
    own = {key: number for cost in costs for key, number in cost.items()}
    return {"miou": mious, "by_distance": distances, **found, "key_share": shares, **own}


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write figures; the file is replaced whole."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    main()
