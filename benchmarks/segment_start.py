"""Time from the start of the process to the first labels of `streamseg segment`, and the longest wait after them:

    python benchmarks/segment_start.py [VIDEO] [--rounds 2] [--device cuda] [--json FILE]

Each round runs it in a new process with an empty cache for compiled kernels, and again with the cache that this filled.
The caches of this machine are not touched. A line of JSON for each frame tells when its labels came.

Python compiles the modules that it imports unless it finds their bytecode. Where there is none and it may not write any
(PYTHONDONTWRITEBYTECODE=1), it does so in each run, which takes seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from scene import SIZE, make_video

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "STREAMSEG_CACHE")
"""Variables that say where compiled kernels are kept."""
FRAMES = 120


def with_cache(folder: Path) -> dict[str, str]:
    """Return an environment in which all kernels are kept in a folder."""
    return os.environ | {name: str(folder / name.lower()) for name in CACHES}


def run_segment(video: Path, cache: Path, *options: str) -> dict[str, float]:
    """Label a video in a new process; return seconds to the first labels, to the end, and the longest wait between."""
    command = [sys.executable, "-m", "streamseg", "segment", str(video), "-o", str(cache / "out.mp4")]
    start = time.monotonic()
    with subprocess.Popen(
        [*command, "--no-overlay", "--json", "-", *options],
        env=with_cache(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        lines = [(line, time.monotonic() - start) for line in process.stdout]
        errors = process.stderr.read()
    end = time.monotonic() - start
    times = [seconds for line, seconds in lines if "summary" not in json.loads(line)]
    if process.returncode or not times:
        raise SystemExit(f"segment failed with status {process.returncode}: {errors[-2000:]}")
    waits = [late - early for early, late in pairwise(times)]
    return {
        "frames": len(times),
        "first_labels_seconds": times[0],
        "longest_wait_seconds": max(waits, default=0.0),
        "end_seconds": end,
    }


def time_import() -> float:
    """Return the seconds that Python and torch take to start, which no program of theirs can avoid."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch; torch.cuda.is_available()"], check=True)
    return time.monotonic() - start


def measure(video: Path, rounds: int, *options: str) -> dict:
    """Return the figures with an empty cache and with a filled one, and their medians."""
    runs: dict[str, list[dict[str, float]]] = {"empty": [], "filled": []}
    imports = []
    for _ in range(rounds):
        imports.append(time_import())
        with tempfile.TemporaryDirectory() as folder:
            for cache in runs:
                runs[cache].append(run_segment(video, Path(folder), *options))
    medians = {cache: {name: median(run[name] for run in found) for name in found[0]} for cache, found in runs.items()}
    alone = median(imports)
    for found in medians.values():
        found["beyond_import_seconds"] = found["first_labels_seconds"] - alone
    return {
        "import_torch_seconds": alone,
        "bytecode_is_written": not sys.dont_write_bytecode,
        "rounds": rounds,
        "options": options,
        **medians,
        "runs": runs,
    }


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", nargs="?", type=Path, help=f"by default {FRAMES} frames of a moving picture")
    parser.add_argument("--size", type=SIZE, default=(720, 1280), help="of the moving picture")
    parser.add_argument("--frames", type=int, default=FRAMES, help="of the moving picture")
    parser.add_argument("--input-size", default="", help="of the network; the frame's by default")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    given = {"--device": options.device, "--size": options.input_size}
    passed = [part for name, value in given.items() if value for part in (name, value)]
    with tempfile.TemporaryDirectory() as folder:
        video = options.video or make_video(Path(folder) / "in.mp4", options.size, options.frames)
        figures = measure(video, options.rounds, *passed)
    if figures["bytecode_is_written"]:
        print("Python may write bytecode")
    else:
        print("Python may not write bytecode: modules without it are compiled in each run")
    print(f"python and torch alone take {figures['import_torch_seconds']:.2f} s to start")
    for cache in ("empty", "filled"):
        found = figures[cache]
        print(
            f"{cache} cache: first labels after {found['first_labels_seconds']:.2f} s, "
            f"{found['beyond_import_seconds']:.2f} s more than torch alone, longest wait between two frames "
            f"{found['longest_wait_seconds']:.2f} s, {found['frames']:.0f} frames in {found['end_seconds']:.2f} s"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
