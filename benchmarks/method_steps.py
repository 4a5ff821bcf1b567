"""The steps of a job of benchmarks/video_methods.py: train, tune, evaluate and count one network with one seed."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from method_copying import measure_copying
from method_table import COPY_BESIDE_CLOCKWORK
from method_times import count_cost

import streamseg
from streamseg.cli import run as run_verb
from streamseg.data.augment import SHIFT, ZOOM
from streamseg.data.datasets import Dataset
from streamseg.evaluate.tune_schedule import tune_schedule
from streamseg.models.video import BACKBONES, VIDEO_METHODS, VideoMethod
from streamseg.train.loss_module import move_camera_back

INTERVAL = 5
"""Key interval of the methods that have one, but for Clockwork's 2."""

LONGEST = {"dvsnet": 2 * INTERVAL}
"""The most frames from one key frame to the next, for a schedule that needs a limit. After a short training DVSNet's
decision network underestimates the changes of some cells, which would be warped to the end of the video."""

AS_THEY_ARE = ("copy", COPY_BESIDE_CLOCKWORK, "clockwork", "clockwork-pipelined")
"""Methods that are not trained: their weights are the backbone's."""

WITH_FLOW = ("dff", "accel", "dvsnet", "netwarp", "grfp")

FANETS = {"fanet18": 1, "fanet34": 1, "fanet18-temp": 2, "fanet34-temp": 2}
"""The window of each row of FANet."""

TUNING_CLIPS, TUNING_FRAMES = 6, 21
"""Clips that schedules are tuned on, and their frames: the first is a key frame, and twenty may be."""

TUNING_MOTION = 0.55
"""Share of the motion of training clips that these clips have. Those move by 11.9 pixels from frame to frame and by 44
in five, the pictures of val by 7.5 and 23 (estimate_motion). In a trial with the bundled weights street as backbone at
360 x 480, schedules that were tuned to 20 % key frames had 8 to 11 % on val with all of it, and 17 to 25 % with this
share."""

STRIDES = {"--loss-stride": 2, "--auxiliary-stride": 8}
"""Options of every training: the loss at every n-th pixel takes less of the time, and as many frames are seen."""

ALGORITHMS = 2
"""Algorithms of a convolution that cuDNN tries, of ten: trying them takes seconds, which a short training never
regains."""


def run_steps(arguments: argparse.Namespace, options: Sequence[str], name: str, seed: int) -> int:
    """Train, tune and evaluate a network, and count its cost, skipping what is done; return the exit status."""
    torch.set_num_threads(arguments.threads)
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark_limit = ALGORITHMS
    out = run_folder(arguments.out, name, seed)
    out.mkdir(parents=True, exist_ok=True)
    weights, figures, cost = out / "weights.safetensors", out / "val.json", out / "cost.json"
    if not weights.exists():
        if method_of(name) in AS_THEY_ARE:
            wrap(arguments, name, seed)
        elif status := run_verb([*map(str, train_command(arguments, options, name, seed))]):
            return status
        (out / "state.pt").unlink(missing_ok=True)  # dozens of them fill a small disk
    if not (out / "tuned.json").exists():
        tune(arguments, weights, out / "tuned.json")
    if not figures.exists():
        command = ["evaluate", weights, "--data", arguments.out / "data", "--dataset", "camvid", "--json", figures]
        if status := run_verb([*map(str, [*command, "--window", window_of(name), *device_of(options)])]):
            return status
    if (out / "tuned.json").exists():
        tuned, val = (json.loads((out / file).read_text(encoding="utf-8")) for file in ("tuned.json", "val.json"))
        print(f"{tuned['key_rate']:.1f} % key frames on clips of train, {val['key_share']:.1f} % on val", flush=True)
    if name in BACKBONES and not (out / "copying.json").exists():
        curve = measure_copying(weights, streamseg.camvid(arguments.out / "data", "val"))
        write_json(out / "copying.json", {"curve": curve})
    if not cost.exists():
        share = json.loads(figures.read_text(encoding="utf-8")).get("key_share", 100.0) / 100
        write_json(cost, {"gmacs": count_cost(weights, tuple(arguments.size), share)})
    return 0


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
    if "--crop" not in options:
        common += ["--crop", *arguments.crop]
    for option, stride in STRIDES.items():
        common += [] if option in options else [option, stride]
    if method := method_of(name):
        flow = ["--flow-weights", flow_file(arguments)] if method in WITH_FLOW else []
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
    network.interval = LONGEST.get(network.kind)
    network.to(device)
    clips = make_clips(streamseg.camvid(arguments.out / "data", "train"), device)
    found = tune_schedule(network, clips, arguments.key_rate)
    source = streamseg.describe(weights).source
    streamseg.save(network.cpu(), classes, weights, source=f"{source}; schedule tuned to {arguments.key_rate:g} %")
    write_json(out, {network.decides_by: found.value, "key_rate": found.key_rate})
    print(f"{network.decides_by} {found.value:.4g}: {found.key_rate:.1f} % key frames on clips of train", flush=True)


def make_clips(train: Dataset, device: torch.device) -> list[torch.Tensor]:
    """Return clips (T, 3, H, W) of frames of train, each moved by a steady random camera motion, as fast as val's."""
    generator = torch.Generator().manual_seed(0)
    clips = []
    for index in range(0, len(train), -(-len(train) // TUNING_CLIPS)):
        motion = 2 * torch.rand(1, 3, generator=generator) - 1
        motion = torch.tensor([1.0, 0.0, 0.0]) + TUNING_MOTION * torch.tensor([ZOOM, SHIFT, SHIFT]) * motion
        frame = train[index][0][None].float().to(device)
        before = move_camera_back(frame, motion.to(device), TUNING_FRAMES - 1)[0]
        clips.append(torch.cat([before.flip(0), frame]))
    return clips


def window_of(name: str) -> int:
    """Return --window of evaluate: a key interval, or FANet's window."""
    if method := method_of(name):
        return 2 if method in ("clockwork", COPY_BESIDE_CLOCKWORK) else LONGEST.get(method, INTERVAL)
    return FANETS.get(name, 1)


def device_of(options: Sequence[str]) -> list[str]:
    return ["--device", options[options.index("--device") + 1]] if "--device" in options else []


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write figures; the file is replaced whole."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
