"""Measure the whole road on a machine with a GPU, in less than 7 minutes:

    python benchmarks/file_to_file.py [--out docs/measured] [--clip CLIP] [--only PART ...]

pipeline-720p  segment from file to file beside bare decoding and encoding, 600 frames of 1280 x 720 in H.264
cameras-16     16 virtual cameras of 720p, 30 frames a second each, for a minute
pipeline-1080p segment from file to file, 600 frames of 1920 x 1080
server         32 clients that send JPEGs of 720p to serve, on the GPU and on the CPU
cameras-64     64 virtual cameras, 10 frames a second each
first-labels   from the start of the process to the first labels, with an empty and a filled cache of kernels

Each part is a process and writes OUT/PART.json; one that fails does not stop the others. --quick measures nothing of
worth: it tries all parts with small numbers.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from scene import make_video

HERE = Path(__file__).parent
DEVICES = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
SIZES = {"pipeline-720p": (720, 1280), "pipeline-1080p": (1080, 1920)}
MIN_SECONDS = 5.0
"""A part is not started with less time left."""
PART_SECONDS = 150.0
"""A part that takes longer is ended, so that one that hangs leaves time for the others."""
QUICK_SIZES = {"pipeline-720p": (72, 128), "pipeline-1080p": (108, 192)}


def commands(videos: dict[str, Path], quick: bool) -> dict[str, list[str]]:
    """Return the command of each part, without its --json."""
    program, shown = [sys.executable], "720x1280"
    pipeline = [*program, "-m", "streamseg", "benchmark", "--device", DEVICES[0], "--pipeline"]
    cameras = [*program, str(HERE / "cameras.py")]
    clients = [*program, str(HERE / "serve.py"), "clients", "--seconds", "15"]
    first = [*program, str(HERE / "segment_start.py"), str(videos["pipeline-720p"]), "--rounds", "5"]
    few, many = ["--cameras", "16", "--rate", "30"], ["--cameras", "64", "--rate", "10"]
    small: list[str] = []
    if quick:
        shown, small = "72x128", ["--frames", "8", "--streams", "2", "--rounds", "1"]
        first[-1] = "1"
        clients = [*clients[:-1], "1", "--clients", "2"]
        few, many = (["--cameras", n, "--rate", "5", "--seconds", "1", "--warm-up", "1"] for n in ("2", "3"))
    return {
        "pipeline-720p": [*pipeline, str(videos["pipeline-720p"]), *small],
        "cameras-16": [*cameras, *few, "--size", shown],
        "pipeline-1080p": [*pipeline, str(videos["pipeline-1080p"]), *small],
        "server": [*clients, "--size", shown, "--device", *DEVICES],
        "cameras-64": [*cameras, *many, "--size", shown],
        "first-labels": first,
    }


def run_part(command: list[str], seconds: float) -> str:
    """Run a command for some time; return what went wrong, or nothing."""
    if seconds < MIN_SECONDS:
        return "was left out for lack of time"
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that it started
            return "did not end in time"
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    return f"ended with status {status}" if status else ""


def run_parts(parts: dict[str, list[str]], out: Path, deadline: float) -> dict[str, str]:
    """Run each part until a deadline; return what went wrong, by part."""
    problems = {}
    for part, command in parts.items():
        left = min(deadline - time.monotonic(), PART_SECONDS)
        print(f"\n== {part}\n{' '.join(command)}", flush=True)
        begin = time.monotonic()
        if problem := run_part([*command, "--json", str(out / f"{part}.json")], left):
            problems[part] = problem
        print(f"== {part}: {problems.get(part, 'done')} after {time.monotonic() - begin:.0f} s", flush=True)
    return problems


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "measured", help="a folder for the figures")
    parser.add_argument("--clip", type=Path, help="take its frames instead of a moving picture")
    parser.add_argument("--minutes", type=float, default=7.0, help="stop after this time")
    parser.add_argument("--frames", type=int, default=600, help="of each video")
    parser.add_argument("--only", nargs="+", metavar="PART", help="measure only these")
    parser.add_argument("--quick", action="store_true", help="try all parts with small numbers")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        videos = {part: Path(name) / f"{part}.mp4" for part in SIZES}
        parts = commands(videos, options.quick)
        if unknown := set(options.only or ()) - set(parts):
            parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(parts)}")
        parts = {part: command for part, command in parts.items() if part in (options.only or parts)}
        for part, size in (QUICK_SIZES if options.quick else SIZES).items():
            if any(str(videos[part]) in command for command in parts.values()):
                begin = time.monotonic()
                make_video(videos[part], size, 12 if options.quick else options.frames, options.clip)
                print(f"a video of {size[0]} x {size[1]} in {time.monotonic() - begin:.0f} s", flush=True)
        problems = run_parts(parts, options.out, deadline)
    for part, problem in problems.items():
        print(f"{part} {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
