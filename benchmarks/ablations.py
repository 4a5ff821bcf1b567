"""The paper's ablations, and its rivals, trained on CamVid with one equal, short budget.

    python benchmarks/ablations.py DATA OUT [--iterations 3000] [--seeds 1] [--at-once 3] [-- OPTION...]

Each network is trained by the recipe camvid-18 on train without one recording, and then measured on val and on that
recording. So many runs at a time, the first seed of all before the second of any; each has a folder in OUT, with all
that was said in output.txt. Stopped, the same command goes on: what is there is not done again. At the end a table, and
its figures in OUT/ablations.json; `streamseg reproduce all --runs OUT --data DATA` then sets them beside the paper's.
Options behind -- are those of streamseg train, such as --batch 8.
"""

import argparse
import json
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
}
"""What is trained unless told otherwise; FANet-18 itself is the fast attention, c' = 32 and Res-1 of its tables."""

LARGE = {name: ["--network", name] for name in ("segnet", "fcn16s", "fcn8s", "deeplab")}
"""VGG16's, which take several times as long: by name only."""

RESNETS = {"fanet34": "resnet34"} | dict.fromkeys(("erfnet", "enet", "icnet", *LARGE), "")
"""Which ImageNet file a run starts from, where it is not that of ResNet-18."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="CamVid's folder")
    parser.add_argument("out", type=Path, help="the folder for the runs")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=1, help="how many runs of each network")
    parser.add_argument("--at-once", type=int, default=3, help="how many runs share the GPU")
    parser.add_argument("--leave-out", default="0001TP", help="the recording of train that no run sees")
    parser.add_argument("--imagenet", type=Path, help="a folder with resnet18.* and resnet34.*, if offline")
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=[*RUNS, *LARGE], metavar="RUN")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, options = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]

    def run(name: str, seed: int) -> bool:
        train = [*(RUNS | LARGE)[name], "--iterations", str(given.iterations), "--seed", str(seed), *options]
        resnet = RESNETS.get(name, "resnet18")
        if given.imagenet and resnet:
            train += ["--encoder-weights", str(next(given.imagenet.glob(f"{resnet}.*")))]
        out = folder(given.out, name, seed)
        fine = train_and_measure(out, given.data, given.leave_out, train, options)
        print(f"{out.name}: {'done' if fine else f'failed, see {out}/output.txt'}", flush=True)
        return fine

    jobs = [(name, seed) for seed in range(given.seeds) for name in given.only]
    with ThreadPoolExecutor(given.at_once) as queue:
        fine = list(queue.map(lambda job: run(*job), jobs))
    found = {name: collect(given.out, name, given.seeds, ("val", given.leave_out)) for name in given.only}
    (given.out / "ablations.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(table(found))
    sys.exit(0 if all(fine) else 1)


def folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-seed-{seed}"


def train_and_measure(out: Path, data: Path, recording: str, train: Sequence[str], options: Sequence[str]) -> bool:
    """Train a network and measure it, as far as that is not done; returns whether all of it is."""
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "weights.safetensors"
    device = ["--device", options[options.index("--device") + 1]] if "--device" in options else []
    resume = ["--resume"] if (out / "state.pt").exists() else []
    command = ["train", "camvid-18", "--data", data, "--out", out, "--validate", "", "--leave-out", recording]
    steps = {weights: [*command, *train, *resume]}
    for split, only in (("val", ""), ("train", recording)):
        told = out / f"{only or split}.json"
        measure = ["evaluate", weights, "--data", data, "--dataset", "camvid", "--split", split, "--only", only]
        steps[told] = [*measure, "--json", told, *device]
    with (out / "output.txt").open("a", encoding="utf-8") as output:
        for result, step in steps.items():
            whole = [sys.executable, "-m", "streamseg", *map(str, step)]
            if not result.exists() and subprocess.run(whole, stdout=output, stderr=output).returncode:
                return False
    return True


Found = dict[str, dict[str, list[float]]]
"""On each part of the data, the figures of a network's runs: mIoU, and the IoU of each class by its name."""


def collect(out: Path, name: str, seeds: int, parts: Sequence[str]) -> Found:
    """What was measured of a network, as far as its runs are done."""
    found: Found = {}
    for part in parts:
        files = [folder(out, name, seed) / f"{part}.json" for seed in range(seeds)]
        told = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
        found[part] = {"miou": [one["miou"] for one in told]}
        for label in told[0]["iou"] if told else ():
            found[part][label] = [one["iou"][label] for one in told]
    return found


def table(found: dict[str, Found]) -> str:
    """The runs as a Markdown table; of several seeds the mean and their standard deviation."""
    parts = list(next(iter(found.values())))
    lines = [f"| run | {' | '.join(f'mIoU on {part}' for part in parts)} | seeds |", "|---" * (len(parts) + 2) + "|"]
    for name, figures in found.items():
        mious = [figures[part]["miou"] for part in parts]
        lines.append(f"| {name} | {' | '.join(map(spread, mious))} | {min(map(len, mious))} |")
    return "\n".join(lines)


def spread(mious: Sequence[float]) -> str:
    if not mious:
        return "–"
    return f"{fmean(mious):.1f}" + (f" ± {stdev(mious):.1f}" if len(mious) > 1 else "")


if __name__ == "__main__":
    main()
