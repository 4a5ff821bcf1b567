"""Many virtual cameras through the pipeline of `streamseg segment`, in this process:

    python benchmarks/cameras.py [--cameras 16] [--rate 30] [--seconds 60] [--json FILE]

Without --cameras and --rate: 16 cameras at 30 frames a second, then 64 at 10. Frames are in memory, for a GPU in pinned
memory, and delivered on a clock, so that decoding is not measured; each camera starts at another moment. A frame's
latency begins when it is due, even if its reader wakes up late, and ends when its labels are on the CPU. Nothing is
written.

The run that counts comes after one in which the engine prepares itself. To see that no frame waits for a compiler, let
that one find no kernels:

    TRITON_CACHE_DIR=$(mktemp -d) python benchmarks/cameras.py --cameras 16 --rate 30 --warm-up 30 --seconds 10
"""

import argparse
import json
import os
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import torch
from scene import SIZE, moving_scene
from torch import Tensor

from streamseg.cli.segmenting import SegmentOptions, open_model
from streamseg.evaluate.benchmark import describe_machine
from streamseg.evaluate.pipeline_benchmark import request_batch_sizes, wait_until_prepared
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.machine import available_cores
from streamseg.stream.latency import Meter, Summary, summary_to_json
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings

FRAMES = 24
"""Frames in memory, over and over."""
START_SECONDS = 0.5
"""Time for the threads of all cameras to start before the first frame is due."""


@dataclass(eq=False)
class VirtualCamera:
    """A live source whose frames come on a clock, as from a camera."""

    name: str
    frames: Sequence[Tensor]
    rate: Fraction
    count: int
    """How many frames it delivers."""
    begin: float
    """The time.monotonic() of its first frame."""
    live: bool = True
    moving: bool = True
    paths: tuple[Path, ...] = ()
    audio_from: str | None = None

    def captures(self) -> Generator[Capture, None, None]:
        for number in range(self.count):
            seconds = float(number / self.rate)
            due = self.begin + seconds
            time.sleep(max(0.0, due - time.monotonic()))
            yield Capture(self.frames[number % len(self.frames)], self.name, number, seconds, due)


@dataclass(frozen=True)
class Figures:
    """What was measured with a number of cameras."""

    cameras: int
    rate: float
    seconds: float
    size: tuple[int, int]
    input_size: tuple[int, int] | None
    """Of the network; None for the frame's."""
    expected: int
    """Frames that all cameras delivered together."""
    labelled: int
    dropped: int
    most_dropped: int
    """By one camera."""
    problems: list[str]
    first_labels_seconds: float
    """From the first frame of the first run, in which the engine prepares itself, to its first labels."""
    preparing: dict
    """The summary of that run."""
    memory_mb: dict[str, float]
    """Resident memory at the start and at the end of the run, and that on the GPU."""
    summary: dict


class FirstFrame(PipelineObserver):
    """Keeps the time.monotonic() of the first frame that left the pipeline, which writes nothing."""

    seen = 0.0

    def frame_written(self, *_: object) -> None:
        self.seen = self.seen or time.monotonic()


def run_cameras(
    settings: LabelSettings, frames: Sequence[Tensor], cameras: int, rate: float, seconds: float
) -> tuple[Summary, list[str], float]:
    """Run the pipeline; return its summary, what went wrong, and the seconds to the first labels."""
    exact, dice = Fraction(rate).limit_denominator(1000), random.Random(0)
    begin = time.monotonic() + START_SECONDS
    sources = [
        VirtualCamera(
            f"camera {i}",
            [*frames[i % len(frames) :], *frames],
            exact,
            round(seconds * rate),
            begin + dice.random() / rate,
        )
        for i in range(cameras)
    ]
    meter, first = Meter(), FirstFrame()
    pairs = [(source, OutputFiles()) for source in sources]
    result = Pipeline(pairs, settings, DrawStyle(), meter, observer=first).run()  # type: ignore[arg-type]
    if result.signal:
        raise KeyboardInterrupt
    return meter.summary(), result.problems, first.seen - min(source.begin for source in sources)


def measure(
    settings: LabelSettings,
    size: tuple[int, int],
    cameras: int,
    rate: float,
    seconds: float,
    warm_up: float,
) -> Figures:
    """Measure a number of cameras, after a short run in which the engine prepares itself."""
    frames = list(moving_scene(size, FRAMES))
    if settings.device.type == "cuda":
        frames = [frame.pin_memory() for frame in frames]  # where segment's decoders write them
    preparing, problems, first = run_cameras(settings, frames, cameras, rate, warm_up)
    request_batch_sizes(settings, size, cameras)
    wait_until_prepared(settings)
    before = memory(settings.device)
    summary, more, _ = run_cameras(settings, frames, cameras, rate, seconds)
    after = memory(settings.device)
    return Figures(
        cameras,
        rate,
        seconds,
        size,
        settings.size,
        cameras * round(seconds * rate),
        summary.labelled,
        summary.dropped,
        max((dropped for _, dropped in summary.streams.values()), default=0),
        [*problems, *more],
        first,
        summary_to_json(preparing),
        {f"{name} {when}": found[name] for when, found in (("start", before), ("end", after)) for name in found},
        summary_to_json(summary),
    )


def memory(device: torch.device) -> dict[str, float]:
    """Return the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    found = {"resident": pages * os.sysconf("SC_PAGE_SIZE") / 1e6}
    return found | ({"GPU": torch.cuda.memory_allocated(device) / 1e6} if device.type == "cuda" else {})


def report(figures: Figures) -> str:
    """Return what was measured in a few lines."""
    summary, preparing = figures.summary, figures.preparing
    before = preparing["frames"]
    memory_used = ", ".join(f"{name} {value:,.0f} MB" for name, value in figures.memory_mb.items())
    return "\n".join(
        [
            f"{figures.cameras} cameras, {figures.rate:g} frames a second each, {figures.seconds:g} s",
            f"frames: {figures.labelled:,} of {figures.expected:,} labelled, {figures.dropped:,} dropped, "
            f"at most {figures.most_dropped:,} of one camera",
            f"from capture to labels: {list_times(summary)}",
            f"memory: {memory_used}",
            f"first labels of the first run after {figures.first_labels_seconds:.2f} s",
            f"frames of the first run: {before['labelled']:,} of {before['read']:,} labelled, {list_times(preparing)}",
            summary["bottleneck"],
            *figures.problems,
        ]
    )


def list_times(summary: dict) -> str:
    """Return the percentiles of the latency in a summary."""
    return ", ".join(f"{name} {value:.1f} ms" for name, value in (summary["latency_ms"] or {}).items()) or "-"


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cameras", type=int)
    parser.add_argument("--rate", type=float, help="frames a second of each camera")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of the run before the one that counts")
    parser.add_argument("--size", type=SIZE, default=(720, 1280), help="height and width of the frames")
    parser.add_argument("--input-size", default="", help="of the network; the frame's by default")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--precision", default="")
    parser.add_argument("--steady", default="", help="off, low, high or a number; as segment by default")
    parser.add_argument("--device", default="", help="a GPU if there is one")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    given = {"weights": options.weights, "device": options.device, "precision": options.precision}
    given |= {"size": options.input_size, "steady": options.steady}
    setups = [(options.cameras or 16, options.rate or 30.0)]
    if not (options.cameras or options.rate):
        setups.append((64, 10.0))
    found = []
    for cameras, rate in setups:
        settings, _ = open_model(SegmentOptions(**given))
        figures = measure(settings, options.size, cameras, rate, options.seconds, options.warm_up)
        print(report(figures), "\n", flush=True)
        found.append(figures)
        if options.json:  # after each, so that a run that is stopped leaves the first
            text = json.dumps({"machine": machine(settings.device), "runs": [asdict(one) for one in found]}, indent=2)
            options.json.write_text(text + "\n", encoding="utf-8")


def machine(device: torch.device) -> dict[str, str]:
    return describe_machine(device) | {"cores": str(available_cores())}


if __name__ == "__main__":
    main()
