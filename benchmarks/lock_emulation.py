"""Emulate the pipeline of `streamseg segment` on a machine with a GPU and many cores, to study Python's lock:

    python benchmarks/lock_emulation.py [--streams 1 4 8] [--frames 400] [--interval 5] [--rounds 2] [--json FILE]

This is an emulation, not a measurement of any GPU: its ratios show how threads disturb each other, its frames a second
mean nothing. Codecs are waits without Python's lock (2 ms to decode a frame, 3.5 ms to encode one), with the few short
calls of PyAV around them, so that two cores are enough for many streams. The GPU is a wait of 0.3 ms for a batch. A
call to it is a small operator of torch, which gives up the lock and takes it back, and 5 µs of Python. The threads, the
queues and the meter are those of `segment`.

bare      the codecs alone, a thread for each decoder and each encoder
threads   calls to the GPU from readers, network and drawers, as `segment` made them before
together  calls to the GPU from the network thread alone, a batch at a time, as it makes them now

For each: frames a second, the ratio to bare in the same round, milliseconds a frame of each stage, and how long a
further thread waits for Python's lock.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

import streamseg
from streamseg.engine.engine import Engine, FrameBatch, Prediction
from streamseg.evaluate.lock_probe import LockProbe
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.parallel.threads import BoundedQueue, ThreadGroup
from streamseg.stream import device_work, source_threads, source_writer
from streamseg.stream.latency import Meter
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.source_threads import QUEUE_SIZE, SourceStream
from streamseg.stream.state import LastFrames

DECODE_SECONDS, ENCODE_SECONDS, GPU_SECONDS, COPY_SECONDS = 2e-3, 3.5e-3, 0.3e-3, 0.1e-3
CODEC_CALLS, NETWORK_CALLS, UPLOAD_CALLS, DOWNLOAD_CALLS, DRAW_CALLS = 12, 40, 12, 8, 25
PYTHON_SECONDS = 5e-6
"""What a call takes in Python, with the lock."""
FRAME = torch.zeros(3, 8, 8, dtype=torch.uint8)


def call(count: int) -> None:
    """Make short calls as to a GPU or to FFmpeg."""
    x = torch.zeros(1000)
    for _ in range(count):
        x.add_(1)
        end = time.perf_counter() + PYTHON_SECONDS
        while time.perf_counter() < end:
            pass


@dataclass(eq=False)
class EmulatedVideo:
    """A source whose frames take as long as decoding."""

    name: str
    count: int
    live, moving, rate, paths, audio_from = False, True, Fraction(30), (), None

    def captures(self) -> Generator[Capture, None, None]:
        for i in range(self.count):
            call(CODEC_CALLS)
            time.sleep(DECODE_SECONDS)
            yield Capture(FRAME, self.name, i, i / 30, time.monotonic(), total=self.count)


class EmulatedEngine(Engine):
    """An engine that takes as long as the fast engine on a GPU, and waits for it if nothing else does."""

    classes, widths, context_shape = len(streamseg.CAMVID), (0, 0, 0, 0), (0, 0)
    device = torch.device("cpu")

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        call(NETWORK_CALLS)
        labels = [Prediction(torch.zeros(size, dtype=torch.uint8)) for size in batch.sizes]
        return labels, torch.zeros(len(labels), 0, 0)


@contextmanager
def open_emulated_writer(*_: object) -> Iterator[Callable[[object], None]]:
    """Give a function that takes as long as encoding."""

    def write(_: object) -> None:
        call(CODEC_CALLS)
        time.sleep(ENCODE_SECONDS)

    yield write


def after(function: Callable, calls: int, seconds: float = 0.0) -> Callable:
    """Return a function that also makes calls to the GPU, and waits for it."""

    def both(*given: object, **options: object) -> object:
        call(calls)
        time.sleep(seconds) if seconds else None
        return function(*given, **options)

    return both


@contextmanager
def gpu_calls(together: bool) -> Iterator[None]:
    """Add the calls to the GPU, where segment makes them now, or where it made them before."""
    stream, work = SourceStream, device_work.DeviceWork
    changes = [patch.object(source_writer, "open_writer", open_emulated_writer)]
    if together:
        changes += [
            patch.object(source_threads, "works_on_device", lambda device: True),
            patch.object(device_work, "upload", after(device_work.upload, UPLOAD_CALLS // 2)),
            patch.object(device_work, "start_download", after(device_work.start_download, 3)),
            patch.object(stream, "paint", after(stream.paint, DRAW_CALLS // 2)),
            patch.object(work, "wait", after(work.wait, 1, GPU_SECONDS + 2 * COPY_SECONDS)),
        ]
    else:
        changes += [
            patch.object(stream, "new_job", after(stream.new_job, UPLOAD_CALLS, COPY_SECONDS)),
            patch.object(source_threads, "count_labels", after(source_threads.count_labels, 2 * DOWNLOAD_CALLS, COPY_SECONDS)),
            patch.object(stream, "fetch_picture", after(stream.fetch_picture, DRAW_CALLS, GPU_SECONDS + COPY_SECONDS)),
        ]
    with contextmanager(enter_all)(changes):
        yield


def enter_all(changes: list) -> Iterator[None]:
    for change in changes:
        change.start()
    try:
        yield
    finally:
        for change in reversed(changes):
            change.stop()


def run_bare(streams: int, frames: int) -> dict:
    """Decode and encode without a network, a decoder and an encoder for each stream."""
    group = ThreadGroup()

    def decode(queue: BoundedQueue) -> None:
        for capture in EmulatedVideo("", frames // streams).captures():
            queue.put(capture)
        queue.close()

    def encode(queue: BoundedQueue) -> None:
        with open_emulated_writer() as write:
            for capture in queue:
                write(capture)

    queues = [BoundedQueue(group, QUEUE_SIZE) for _ in range(streams)]
    begin = time.perf_counter()
    with LockProbe() as probe:
        threads = [group.start("codec", work, queue) for queue in queues for work in (decode, encode)]
        for thread in threads:
            thread.join()
    return {"fps": frames // streams * streams / (time.perf_counter() - begin), "lock_ms": probe.milliseconds()}


def run_segment(streams: int, frames: int, together: bool) -> dict:
    """Run the pipeline of segment, with overlays."""
    sources = [EmulatedVideo(f"video {i}", frames // streams) for i in range(streams)]
    settings, meter = LabelSettings(EmulatedEngine(), streamseg.CAMVID, LastFrames(1), size=(32, 32)), Meter()
    pairs = [(source, OutputFiles(Path(f"{source.name}.mp4"))) for source in sources]
    with gpu_calls(together), LockProbe() as probe:
        result = Pipeline(pairs, settings, DrawStyle(), meter).run()  # type: ignore[arg-type]
    if result.signal:
        raise KeyboardInterrupt
    summary = meter.summary()
    stages = {name: 1000 * stage.mean for name, stage in summary.stages.items()}
    return {"fps": summary.output_fps, "lock_ms": probe.milliseconds(), "stages_ms": stages}


def measure(streams: int, frames: int, rounds: int) -> dict:
    """Run the three ways in turn."""
    ways: dict[str, Callable[[], dict]] = {
        "bare": lambda: run_bare(streams, frames),
        "threads": lambda: run_segment(streams, frames, together=False),
        "together": lambda: run_segment(streams, frames, together=True),
    }
    runs: dict[str, list[dict]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, work in ways.items():
            runs[way].append(work())
    ratios = {
        way: median(one["fps"] / bare["fps"] for one, bare in zip(found, runs["bare"], strict=True))
        for way, found in runs.items()
    }
    return {"streams": streams, "of_bare": ratios, "runs": runs}


def report(figures: dict) -> str:
    """Return the figures of a number of streams in a few lines."""
    lines = [f"{figures['streams']} streams"]
    for way, runs in figures["runs"].items():
        fps, lock = median(run["fps"] for run in runs), median(run["lock_ms"]["mean"] for run in runs)
        stages = runs[-1].get("stages_ms", {})
        text = ", ".join(f"{name} {value:.2f}" for name, value in stages.items())
        ratio = figures["of_bare"][way]
        lines.append(f"  {way:9}{fps:7.0f} frames/s {ratio:6.2f} of bare, lock {lock:.2f} ms" + f"; {text}" * bool(text))
    return "\n".join(lines)


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8], help="at most 8 are read at once")
    parser.add_argument("--frames", type=int, default=400, help="of all streams together")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--interval", type=float, default=1000 * sys.getswitchinterval(), help="of Python's lock, in ms")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(options.interval / 1000)
    found = []
    for streams in options.streams:
        found.append(measure(streams, options.frames, options.rounds))
        print(report(found[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
