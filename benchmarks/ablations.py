"""Train the paper's ablations and baselines on CamVid, all with the same short budget.

    python benchmarks/ablations.py DATA OUT [--iterations 3000] [--seeds 1] [--at-once 3] [-- OPTION...]
    python benchmarks/ablations.py DATA OUT --only swiftnet18 --run 'wide=--network swiftnet18 --crop 720 960'

Each network is trained by the recipe camvid-18 on train without one recording, and then evaluated on val and on that
recording. Several runs share the GPU; the first seed of all networks comes before the second of any. Each run has a
folder in OUT, with its output in output.txt. If it is stopped, the same command continues: finished steps are skipped.
It prints a table, and writes the figures to OUT/ablations.json; `streamseg reproduce all --runs OUT --data DATA` then
compares them with the paper. Options after -- are options of streamseg train for all runs, such as --batch 8; --run
adds one with options of its own, which come after these.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev

RUNS = {
    "fanet18": [],
    "fanet34": ["--network", "fanet34"],
    **{f"attention-{kind}": ["--attention", kind] for kind in ("none", "self", "channel", "dot")},
    **{f"keys-{count}": ["--key-channels", str(count)] for count in (8, 16, 64, 128)},
    **{f"reduction-{place}": ["--reduction", place] for place in ("None", "Conv-0", "Res-2", "Res-3", "Res-4")},
    **{f"reduce-{kind}": ["--reduce-by", kind] for kind in ("average", "max")},
    **{name: ["--network", name] for name in ("erfnet", "enet", "bisenet18", "swiftnet18", "icnet", "shelfnet18")},
    **{name: ["--network", name] for name in ("fanetplus18", "fanetplus34")},
}
"""Runs by default; FANet-18 itself is the fast attention, c' = 32 and Res-1 of the paper's tables."""

LARGE = {name: ["--network", name] for name in ("segnet", "fcn16s", "fcn8s", "deeplab")}
"""Networks with VGG16, which take several times as long: only trained if named."""

RESNETS = {"fanet34": "resnet34", "fanetplus34": "resnet34"} | dict.fromkeys(("erfnet", "enet", "icnet", *LARGE), "")
"""ImageNet weights that a run starts from, if not those of ResNet-18."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="CamVid's folder")
    parser.add_argument("out", type=Path, help="the folder for the runs")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each network")
    parser.add_argument("--at-once", type=int, default=3, help="runs that share the GPU")
    parser.add_argument("--leave-out", default="0001TP", help="recording of train that is left out of training")
    parser.add_argument("--imagenet", type=Path, help="folder with resnet18.* and resnet34.*, if offline")
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=[*RUNS, *LARGE], metavar="RUN")
    parser.add_argument("--run", action="append", default=[], type=parse_run, metavar="NAME=OPTIONS")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]

    runs = {name: (RUNS | LARGE)[name] for name in arguments.only} | dict(arguments.run)

    def run(name: str, seed: int) -> bool:
        train = ["--iterations", str(arguments.iterations), "--seed", str(seed), *options, *runs[name]]
        network = train[train.index("--network") + 1] if "--network" in train else "fanet18"
        resnet = RESNETS.get(network, "resnet18")
        if arguments.imagenet and resnet:
            train += ["--encoder-weights", str(next(arguments.imagenet.glob(f"{resnet}.*")))]
        out = run_folder(arguments.out, name, seed)
        succeeded = train_and_evaluate(out, arguments.data, arguments.leave_out, train, options)
        print(f"{out.name}: {'done' if succeeded else f'failed, see {out}/output.txt'}", flush=True)
        return succeeded

    jobs = [(name, seed) for seed in range(arguments.seeds) for name in runs]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        succeeded = list(pool.map(lambda job: run(*job), jobs))
    found = {name: collect(arguments.out, name, arguments.seeds, ("val", arguments.leave_out)) for name in runs}
    (arguments.out / "ablations.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(format_table(found))
    sys.exit(0 if all(succeeded) else 1)


def parse_run(text: str) -> tuple[str, list[str]]:
    """Return name and options of NAME=OPTIONS."""
    name, equals, options = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", name):
        raise argparse.ArgumentTypeError(
            f"{text!r:.80} is no run; expected NAME=OPTIONS, such as 'wide=--crop 720 960'"
        )
    return name, shlex.split(options)


def run_folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-seed-{seed}"


def train_and_evaluate(out: Path, data: Path, recording: str, train: Sequence[str], options: Sequence[str]) -> bool:
    """Train and evaluate a network, skipping finished steps; returns whether all steps succeeded."""
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "weights.safetensors"
    device = ["--device", options[options.index("--device") + 1]] if "--device" in options else []
    resume = ["--resume"] if (out / "state.pt").exists() else []
    command = ["train", "camvid-18", "--data", data, "--out", out, "--validate", "", "--leave-out", recording]
    steps = {weights: [*command, *train, *resume]}
    for split, only in (("val", ""), ("train", recording)):
        figures = out / f"{only or split}.json"
        evaluate = ["evaluate", weights, "--data", data, "--dataset", "camvid", "--split", split, "--only", only]
        steps[figures] = [*evaluate, "--json", figures, *device]
    with (out / "output.txt").open("a", encoding="utf-8") as output:
        for result, step in steps.items():
            command = [sys.executable, "-m", "streamseg", *map(str, step)]
            if not result.exists() and subprocess.run(command, stdout=output, stderr=output).returncode:
                return False
    return True


Figures = dict[str, dict[str, list[float]]]
"""For each part of the data, the figures of a network's runs: mIoU, and the IoU of each class by its name."""


def collect(out: Path, name: str, seeds: int, parts: Sequence[str]) -> Figures:
    """Return the figures of the finished runs of a network."""
    found: Figures = {}
    for part in parts:
        files = [run_folder(out, name, seed) / f"{part}.json" for seed in range(seeds)]
        results = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
        found[part] = {"miou": [result["miou"] for result in results]}
        for label in results[0]["iou"] if results else ():
            found[part][label] = [result["iou"][label] for result in results]
    return found


def format_table(found: dict[str, Figures]) -> str:
    """Format the runs as a Markdown table; several seeds give mean and standard deviation."""
    parts = list(next(iter(found.values())))
    lines = [f"| run | {' | '.join(f'mIoU on {part}' for part in parts)} | seeds |", "|---" * (len(parts) + 2) + "|"]
    for name, figures in found.items():
        mious = [figures[part]["miou"] for part in parts]
        lines.append(f"| {name} | {' | '.join(map(mean_and_spread, mious))} | {min(map(len, mious))} |")
    return "\n".join(lines)


def mean_and_spread(mious: Sequence[float]) -> str:
    if not mious:
        return "–"
    return f"{fmean(mious):.1f}" + (f" ± {stdev(mious):.1f}" if len(mious) > 1 else "")


if __name__ == "__main__":
    main()
