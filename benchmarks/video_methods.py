"""Train the video methods of the paper's Table VI on CamVid, all with the same short budget, and compare them.

    python benchmarks/video_methods.py DATA --out DIR [--clips CLIPS] [--minutes 8] [--at-once 12] [-- OPTION...]

It trains the flow network (train_flow.py) alone; then, for each seed, the backbones, FANet-18 and FANet-34 on train
(camvid-18), FANet + Temp on clips, and each method from its backbone's weights (camvid-method, with moved clips:
CamVid's train has one frame a second). Copying and Clockwork take the backbone's weights as they are. Where a schedule
chooses key frames, its threshold is tuned on moved clips of train to a mean key-frame rate. Each network is evaluated
on val at 15 Hz: mIoU at each distance to the key frame, flips and mVC8; copying at other shares of key frames too. Then
every network is timed, from frame to logits, as CUDA graphs and eager. Nothing else should use the GPU then: if
something does, give --without-times, and the same command without it later.

Several processes share the GPU, under MPS if it works, each for one network and seed; all frames are decoded once, into
DIR/data. DIR/video-methods.json has the figures so far after every step. A network that fails leaves the others alone.
After --minutes it stops what still runs, times what is ready and prints the table; the same command continues, and
skips finished steps. Options after -- are options of every streamseg train, such as --learning-rate 2e-4.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import train_flow
from method_jobs import Job, JobRunner, SharedGPU
from method_steps import (
    FANETS,
    INTERVAL,
    WITH_FLOW,
    flow_file,
    initial_of,
    is_image,
    method_of,
    run_folder,
    run_steps,
    write_json,
)
from method_table import COPY_BESIDE_CLOCKWORK, format_table
from method_times import measure_times
from PIL import Image
from torch.nn import functional as F

import streamseg
from streamseg.data.datasets import Dataset, in_parallel
from streamseg.machine import available_cores
from streamseg.models.video import BACKBONES, METHODS

PRELOAD = (
    "method_steps",
    "train_flow",
    "streamseg.cli.measuring",
    "streamseg.data.shards",
    "streamseg.engine.runtime",
    "streamseg.evaluate.engines",
    "streamseg.evaluate.video",
    "streamseg.train.loop",
    "torch._dynamo",  # optimisers import it, for seconds
    "matplotlib.backends.backend_agg",
    "matplotlib.projections",
    "matplotlib.figure",
)
"""What every job imports; none of them may start CUDA, which does not survive a fork."""

TIMING_MINUTES = 1.25
"""Kept at the end for the times, of --minutes; at most a quarter of them."""


def main() -> None:
    arguments, options = parse(sys.argv[1:])
    start = time.monotonic()
    reserve = 0.0 if arguments.without_times else min(TIMING_MINUTES, arguments.minutes / 4)
    os.environ.setdefault("OMP_NUM_THREADS", str(arguments.threads))
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = list_rows(arguments)

    with SharedGPU(arguments.at_once):
        deadline = start + 60 * (arguments.minutes - reserve)
        runner = JobRunner(arguments.at_once, deadline, lambda _: write_figures(arguments, rows), PRELOAD)
        decode(arguments.data, arguments.out / "data", arguments.frame_size, arguments.frames)
        jobs = list_jobs(arguments, options, rows)
        # beside trainings the flow network gets a tenth of the steps in its minute
        runner.run([job for job in jobs if job.name == "flow"])
        problems = runner.run(jobs)
    print(f"Trained and evaluated after {time.monotonic() - start:.0f} s.", flush=True)
    for name in [] if arguments.without_times else rows:
        if time.monotonic() < start + 60 * arguments.minutes:
            time_network(arguments, name)
            write_figures(arguments, rows)
    print(format_table(write_figures(arguments, rows)))
    for problem in dict.fromkeys(filter(None, problems.values())):
        print(f"- {problem}: {', '.join(name for name, found in problems.items() if found == problem)}")
    print(f"{time.monotonic() - start:.0f} s in all.", flush=True)
    sys.exit(int(any(problems.values())))


def parse(given: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this script, and those of streamseg train, which follow --."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="CamVid's folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the runs")
    parser.add_argument("--clips", type=Path, help="folder of videos, to train the flow network on too")
    parser.add_argument("--flow", type=Path, help="a flow network of train_flow.py, instead of training one")
    parser.add_argument("--flow-minutes", type=float, default=1.0, help="training of the flow network")
    parser.add_argument("--minutes", type=float, default=8, help="for everything")
    parser.add_argument("--backbones", nargs="+", default=[*BACKBONES], choices=[*BACKBONES], metavar="NAME")
    parser.add_argument("--iterations", type=int, default=2000, help="of image networks")
    parser.add_argument("--method-iterations", type=int, default=300, help="of methods, and of FANet + Temp")
    parser.add_argument("--batch", type=int, default=16, help="of image networks, and of FANet + Temp")
    parser.add_argument("--method-batch", type=int, default=8)
    parser.add_argument("--crop", type=int, nargs=2, default=(360, 480), help="height and width of training crops")
    parser.add_argument("--key-rate", type=float, default=100 / INTERVAL, help="for schedules, in percent")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=12, help="processes that share the GPU")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each process")
    parser.add_argument("--compiled", action="store_true", help="compile image networks: two minutes a process")
    parser.add_argument("--imagenet", type=Path, help="folder with resnet18.* and resnet34.*, if offline")
    parser.add_argument("--only", nargs="+", default=[*METHODS], choices=[*METHODS], metavar="METHOD")
    parser.add_argument("--size", type=int, nargs=2, default=(720, 960), help="height and width that are timed")
    parser.add_argument("--frame-size", type=int, nargs=2, help="height and width of all frames, for trials")
    parser.add_argument("--frames", type=int, help="first frames of each split that are used, for trials")
    parser.add_argument("--without-fanet", action="store_true", help="leave out the rows of FANet")
    parser.add_argument("--without-times", action="store_true", help="time nothing: the GPU is not idle")
    given = [*given]
    cut = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:cut])
    for folder in filter(None, (arguments.clips, arguments.imagenet)):
        if not folder.is_dir():
            parser.error(f"{folder} is no folder")
    if arguments.clips:
        train_flow.list_videos(arguments.clips)  # ends the program if there are too few
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


def list_jobs(arguments: argparse.Namespace, options: Sequence[str], rows: Sequence[str]) -> list[Job]:
    """Return a job for the flow network and for each network and seed, those first that take the longest to follow."""
    jobs = []
    if not arguments.flow and any(method_of(name) in WITH_FLOW for name in rows):
        size = arguments.frame_size or (720, 960)
        command = [arguments.out / "data", *filter(None, [arguments.clips]), "--out", flow_file(arguments)]
        command += ["--minutes", arguments.flow_minutes, "--size", *size, "--threads", arguments.threads]
        flow = partial(train_flow.main, [*map(str, command)])
        jobs.append(Job("flow", flow, arguments.out / "flow.txt", flow_file(arguments)))
    after = dict.fromkeys(WITH_FLOW, ("flow",)) if jobs else {}

    def order(name: str) -> int:
        return 0 if is_image(name) else 1 if method_of(name) in WITH_FLOW else 2

    for name, seed in sorted(
        ((x, seed) for seed in range(arguments.seeds) for x in rows), key=lambda one: order(one[0])
    ):
        needs = () if is_image(name) else (f"{initial_of(name)}-seed-{seed}", *after.get(method_of(name), ()))
        out = run_folder(arguments.out, name, seed)
        work = partial(run_steps, arguments, options, name, seed)
        jobs.append(Job(out.name, work, out / "output.txt", out / "cost.json", needs))
    return jobs


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
    """Write the figures so far, and return those of the rows."""
    found = {name: collect(arguments, name) for name in rows}
    found = {name: figures for name, figures in found.items() if figures}
    names = ("iterations", "batch", "method_iterations", "method_batch", "crop", "size", "flow_minutes", "key_rate")
    settings = {name: getattr(arguments, name) for name in names}
    flow = flow_file(arguments).with_suffix(".json")
    errors = json.loads(flow.read_text(encoding="utf-8")) if flow.exists() else {}
    write_json(arguments.out / "video-methods.json", {"settings": settings, "flow": errors, "rows": found})
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
    found = {key: [result[key] or 0.0 for result in results] for key in ("flip_rate", "mvc8")}
    shares = [result.get("key_share", 100.0) for result in results]
    distances = [fmean(column) for column in zip(*by_distance, strict=True)] if all(by_distance) else []
    gmacs = [json.loads((folder / "cost.json").read_text(encoding="utf-8"))["gmacs"] for folder in folders]
    own = read_all(folders, "tuned.json")
    if curves := read_all(folders, "copying.json"):
        own["copying"] = curves["curve"]
    times = read_all(folders[:1], "times.json")
    own |= {key: numbers[0] for key, numbers in times.items()}
    return {"miou": mious, "by_distance": distances, **found, "key_share": shares, "gmacs": fmean(gmacs), **own}


def read_all(folders: Sequence[Path], name: str) -> dict[str, list[Any]]:
    """Return the figures of a JSON file, each with its numbers in the folders that have the file."""
    files = [folder / name for folder in folders if (folder / name).exists()]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {key: [one[key] for one in found] for key in (found[0] if found else {})}


if __name__ == "__main__":
    main()
