"""Measure the pipeline of `streamseg segment`: python benchmarks/pipeline.py overlap|memory|camera.

overlap  a 720p video from file to file: speed of the pipeline relative to its slowest stage
memory   10,000 frames from file to file: resident memory over time
camera   a camera of 60 frames a second for a minute, faster than the network: latency and dropped frames
"""

import os
import sys
import tempfile
import time
from collections.abc import Generator
from fractions import Fraction
from pathlib import Path

import torch

import streamseg
from streamseg.io.outputs import OutputFiles, plan_outputs
from streamseg.io.resolve import find_sources
from streamseg.io.sources import Capture, Source
from streamseg.stream.latency import Meter, Summary, format_summary
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import LastFrames

PICTURE = Path(__file__).parent.parent / "samples" / "suburb-1.jpg"


class Camera:
    """A virtual live camera that pans over a picture."""

    name, live, moving, paths, audio_from = "camera", True, True, (), None

    def __init__(self, size: tuple[int, int], rate: int, seconds: float):
        self.picture = streamseg.read_image(PICTURE)
        self.size, self.rate, self.seconds = size, Fraction(rate), seconds

    def view(self, number: int) -> torch.Tensor:
        _, tall, wide = self.picture.shape
        height, width = self.size
        top, left = (2 * number) % (tall - height), (3 * number) % (wide - width)
        return self.picture[:, top : top + height, left : left + width].contiguous()

    def captures(self) -> Generator[Capture, None, None]:
        start = time.monotonic()
        for number in range(round(self.seconds * self.rate)):
            time.sleep(max(0.0, start + float(number / self.rate) - time.monotonic()))
            yield Capture(self.view(number), self.name, number, float(number / self.rate), time.monotonic())


def run(source: Source, files: OutputFiles, size: tuple[int, int] | None, each=lambda capture: None) -> Summary:
    model, classes = streamseg.load()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(
        device, torch.float16 if device.type == "cuda" else torch.float32, memory_format=torch.channels_last
    )
    settings, meter = LabelSettings(model, classes, LastFrames(1), size=size), Meter()

    class EachFrame(PipelineObserver):
        def frame_written(self, capture: Capture, shares: list[float], files: OutputFiles) -> None:
            each(capture)

    Pipeline([(source, files)], settings, DrawStyle(), meter, observer=EachFrame()).run()
    return meter.summary()


def make_video(path: Path, size: tuple[int, int], frames: int) -> list[Source]:
    camera = Camera(size, 30, 0)
    streamseg.write_frames(path, (camera.view(i) for i in range(frames)), 30)
    return find_sources([str(path)])


def overlap(folder: Path) -> None:
    (source,) = make_video(folder / "in.mp4", (720, 1280), 100)
    (files,) = plan_outputs([source], str(folder / "out.mp4"))
    summary = run(source, files, (360, 640))
    print(format_summary(summary))
    slowest = max(summary.stages.values(), key=lambda stage: stage.mean)
    print(f"\npipeline / slowest stage: {summary.output_fps * slowest.mean:.3f}")


def memory(folder: Path) -> None:
    (source,) = make_video(folder / "in.mp4", (128, 160), 10_000)
    (files,) = plan_outputs([source], str(folder / "out.mp4"), labels=True)
    resident = {}

    def note_memory(capture: Capture) -> None:
        if (capture.index + 1) % 500 == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
            resident[capture.index + 1] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    print(format_summary(run(source, files, (64, 96), note_memory)))
    for number, size in resident.items():
        if number in (500, 1000, 2500, 5000, 7500, 10_000):
            print(f"frame {number:6}: {size:7.1f} MiB, {100 * size / resident[500] - 100:+.2f} % of frame 500")


def camera(folder: Path) -> None:
    summary = run(Camera((480, 640), 60, 60), OutputFiles(folder / "out.mp4"), (240, 320))
    print(format_summary(summary))
    assert summary.latency
    print(f"\np95 of the latency / network time: {summary.latency.p95 * summary.network_fps:.2f}")


if __name__ == "__main__":
    parts = {"overlap": overlap, "memory": memory, "camera": camera}
    for name in sys.argv[1:] or parts:
        print(f"\n== {name}: {torch.get_num_threads()} threads, torch {torch.__version__}\n")
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder))
