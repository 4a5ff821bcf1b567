"""Compare ways to keep threads from waiting for Python's lock, on the machine itself, in about a minute with a GPU:

    python benchmarks/lock_variants.py [--frames 240] [--seconds 5] [--json FILE]

threads, 5 ms       codecs in threads, and Python's own turns of the lock
threads, 0.05 ms    codecs in threads, with the short turns of `segment` on a GPU
processes, 5 ms     codecs in processes of their own
processes, 0.05 ms  both, as `segment` works on a GPU with several sources

For each: labels, overlay and several streams relative to bare codecs in the same run, then virtual cameras, which have
no codecs. The JSON is written after each.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from cameras import FRAMES, run_cameras
from scene import SIZE, make_video, moving_scene

from streamseg.cli.segmenting import SegmentOptions, open_model
from streamseg.evaluate.benchmark import describe_machine
from streamseg.evaluate.pipeline_benchmark import measure_pipeline, request_batch_sizes, wait_until_prepared
from streamseg.machine import available_cores
from streamseg.parallel import threads
from streamseg.stream.latency import summary_to_json
from streamseg.stream.settings import DrawStyle, LabelSettings

VARIANTS = [("threads", 5.0), ("processes", 0.05), ("threads", 0.05), ("processes", 5.0)]
"""Where the codecs are, and milliseconds of a turn; the two that matter most first."""


def measure(video: Path, settings: LabelSettings, frames: list, codecs: str, options: argparse.Namespace) -> dict:
    """Measure files and cameras in the way that is set."""
    streams = options.streams
    figures = measure_pipeline(
        video, settings, DrawStyle(), frames=options.frames, streams=streams, rounds=options.rounds
    )
    found = {"files": asdict(figures)}
    if codecs == "threads":  # virtual cameras have no codecs
        request_batch_sizes(settings, options.size, options.cameras)
        wait_until_prepared(settings)
        summary, problems, _ = run_cameras(settings, frames, options.cameras, options.rate, options.seconds)
        found["cameras"] = summary_to_json(summary) | {"problems": problems}
    return found


def report(name: str, found: dict) -> str:
    """Return the figures of a variant in a line or two."""
    compared = [one for one in found["files"]["speeds"] if one["bare"]]
    speeds = [f"{one['way']} {one['fps']:.0f}/s ({one['of_bare']:.2f})" for one in compared]
    lines = [f"{name:20}{', '.join(speeds)}"]
    if "cameras" in found:
        summary = found["cameras"]
        read, labelled = summary["frames"]["read"], summary["frames"]["labelled"]
        lines.append(f"{'':20}cameras: {labelled:,} of {read:,}, p95 {summary['latency_ms']['p95']:.1f} ms")
    return "\n".join(lines)


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=SIZE, default=(720, 1280), help="height and width of the frames")
    parser.add_argument("--frames", type=int, default=240, help="of a video")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cameras", type=int, default=16)
    parser.add_argument("--rate", type=float, default=30.0, help="frames a second of each camera")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the cameras run")
    parser.add_argument("--device", default="", help="a GPU if there is one")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    settings, _ = open_model(SegmentOptions(device=options.device))
    frames = list(moving_scene(options.size, FRAMES))
    if settings.device.type == "cuda":
        frames = [frame.pin_memory() for frame in frames]
    machine = describe_machine(settings.device) | {"cores": str(available_cores())}
    found: dict[str, dict] = {}
    own_turn = sys.getswitchinterval()
    with tempfile.TemporaryDirectory() as folder:
        video = make_video(Path(folder) / "video.mp4", options.size, options.frames)
        for codecs, milliseconds in VARIANTS:
            name = f"{codecs}, {milliseconds:g} ms"
            os.environ["STREAMSEG_CODECS"], threads.TURN_SECONDS = codecs, milliseconds / 1000
            found[name] = measure(video, settings, frames, codecs, options)
            assert sys.getswitchinterval() == own_turn
            print(report(name, found[name]), flush=True)
            if options.json:
                text = json.dumps({"machine": machine, "variants": found}, indent=2)
                options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
