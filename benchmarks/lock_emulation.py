"""Emulate the pipeline of `streamseg segment` on a machine with a GPU and many cores, to study Python's lock:

    python benchmarks/lock_emulation.py [--streams 1 4 8] [--decode 8] [--encode 13.5] [--json FILE]
    python benchmarks/lock_emulation.py --cameras 16 --rate 30 --seconds 10

This is an emulation, not a measurement of any GPU: its ratios show how threads disturb each other, its frames a second
mean nothing. Codecs are waits without Python's lock, with the few short calls of PyAV around them, so that two cores
are enough for many streams; other programs on these cores spoil the figures. The GPU is a wait of 0.5 ms for a batch.
A call to it is a small operator of torch, which gives up the lock and takes it back, and 5 µs of Python. It works from
the last call of a batch on. The threads, the queues and the meter are those of `segment`.

bare          the codecs alone, a thread for each decoder and each encoder
many threads  calls to the GPU from readers, network and drawers, as `segment` made them before
one thread    calls to the GPU from the network thread alone, a batch at a time, as it makes them now
processes     as one thread, with the codecs in processes of their own, which take a few calls to talk to
alone         as processes; the network thread also reads and writes, as it does now for a single video

For each: frames a second, the ratio to bare in the same round, milliseconds a frame of each stage, and how long a
further thread waits for Python's lock. For cameras, which are neither decoded nor written: frames that were labelled,
and the time from capture to labels.
"""

import argparse
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
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
from streamseg.io.codec_process import SLOTS
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.parallel.threads import BoundedQueue, ThreadGroup
from streamseg.stream import device_work, pipeline, shared_run, source_threads, source_writer
from streamseg.stream.latency import Meter
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.source_threads import QUEUE_SIZE, SourceStream
from streamseg.stream.state import LastFrames

GPU_SECONDS, COPY_SECONDS = 0.3e-3, 0.1e-3
CODEC_CALLS, PROCESS_CALLS = 12, 4
NETWORK_CALLS, UPLOAD_CALLS, DOWNLOAD_CALLS, DRAW_CALLS = 40, 12, 8, 25
PYTHON_SECONDS = 5e-6
"""What a call takes in Python, with the lock."""
MANY_THREADS, ONE_THREAD, PROCESSES, ALONE = "many threads", "one thread", "processes", "alone"
FRAME = torch.zeros(3, 8, 8, dtype=torch.uint8)
WAIT = device_work.DeviceWork.wait


def call(count: int) -> None:
    """Make short calls as to a GPU or to FFmpeg."""
    x = torch.zeros(1000)
    for _ in range(count):
        x.add_(1)
        end = time.perf_counter() + PYTHON_SECONDS
        while time.perf_counter() < end:
            pass


class EmulatedProcess:
    """A codec in another process: it works on one frame after the other, at most SLOTS ahead or behind."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.done = 0.0
        """When it is done with the last frame that it was given."""
        self.taken = deque([0.0] * SLOTS, SLOTS)
        """When the last frames were taken from a decoder, or begun by an encoder."""

    def decode(self) -> None:
        """Wait for the next frame."""
        self.done = max(self.done, self.taken[0]) + self.seconds if self.done else time.perf_counter() + self.seconds
        time.sleep(max(0.0, self.done - time.perf_counter()))
        call(PROCESS_CALLS)
        self.taken.append(time.perf_counter())

    def encode(self) -> None:
        """Hand over a frame, once there is a slot."""
        call(PROCESS_CALLS)
        time.sleep(max(0.0, self.taken[0] - time.perf_counter()))
        begin = max(self.done, time.perf_counter())
        self.taken.append(begin)
        self.done = begin + self.seconds

    def finish(self) -> None:
        """Wait for the last frame."""
        time.sleep(max(0.0, self.done - time.perf_counter()))


@dataclass(eq=False)
class EmulatedVideo:
    """A source whose frames take as long as decoding."""

    name: str
    count: int
    seconds: float
    """What decoding a frame takes."""
    apart: bool = False
    """Whether a process of its own decodes."""
    live, moving, rate, paths, audio_from = False, True, Fraction(30), (), None

    def captures(self) -> Generator[Capture, None, None]:
        process = EmulatedProcess(self.seconds)
        for i in range(self.count):
            if self.apart:
                process.decode()
            else:
                call(CODEC_CALLS)
                time.sleep(self.seconds)
            yield Capture(FRAME, self.name, i, i / 30, time.monotonic(), total=self.count)


@dataclass(eq=False)
class EmulatedCamera:
    """A live source whose frames come on a clock. A frame's latency begins when it is due."""

    name: str
    count: int
    rate: Fraction
    begin: float
    """The time.monotonic() of its first frame."""
    live, moving, paths, audio_from = True, True, (), None

    def captures(self) -> Generator[Capture, None, None]:
        for i in range(self.count):
            due = self.begin + float(i / self.rate)
            time.sleep(max(0.0, due - time.monotonic()))
            yield Capture(FRAME, self.name, i, float(i / self.rate), due)


class EmulatedEngine(Engine):
    """An engine that takes as long as the fast engine on a GPU, and waits for it if nothing else does."""

    classes, widths, context_shape = len(streamseg.CAMVID), (0, 0, 0, 0), (0, 0)
    device = torch.device("cpu")

    def predict(self, batch: FrameBatch) -> tuple[list[Prediction], Tensor]:
        call(NETWORK_CALLS)
        labels = [Prediction(torch.zeros(size, dtype=torch.uint8)) for size in batch.sizes]
        return labels, torch.zeros(len(labels), 0, 0)


def emulated_writer(seconds: float, apart: bool = False) -> Callable:
    """Return what opens a writer that takes as long as encoding, in a process of its own or not."""

    @contextmanager
    def open_emulated(*_: object) -> Iterator[Callable[[object], None]]:
        process = EmulatedProcess(seconds)

        def write(_: object) -> None:
            if apart:
                process.encode()
            else:
                call(CODEC_CALLS)
                time.sleep(seconds)

        yield write
        process.finish()

    return open_emulated


def after(function: Callable, calls: int, seconds: float = 0.0) -> Callable:
    """Return a function that also makes calls to the GPU, and waits for it."""

    def both(*given: object, **options: object) -> object:
        call(calls)
        if seconds:
            time.sleep(seconds)
        return function(*given, **options)

    return both


def wait_for_gpu(work: device_work.DeviceWork, frames: int, meanwhile: Callable[[], None]) -> None:
    """Wait as DeviceWork.wait does, for a GPU that works from now on."""
    call(1)
    end = time.perf_counter() + GPU_SECONDS + 2 * COPY_SECONDS
    WAIT(work, frames, meanwhile)
    time.sleep(max(0.0, end - time.perf_counter()))


@contextmanager
def gpu_calls(one_thread: bool) -> Iterator[None]:
    """Add the calls to the GPU, where segment makes them now, or where it made them before."""
    stream, work, count = SourceStream, device_work.DeviceWork, source_threads.count_labels
    if one_thread:
        changes = [
            patch.object(shared_run, "works_on_device", lambda device: True),
            patch.object(device_work, "upload", after(device_work.upload, UPLOAD_CALLS // 2)),
            patch.object(device_work, "count_batch", after(device_work.count_batch, 3)),
            patch.object(device_work, "start_download", after(device_work.start_download, 3)),
            patch.object(stream, "paint", after(stream.paint, DRAW_CALLS // 2)),
            patch.object(work, "wait", wait_for_gpu),
        ]
    else:
        changes = [
            patch.object(stream, "new_job", after(stream.new_job, UPLOAD_CALLS, COPY_SECONDS)),
            patch.object(source_threads, "count_labels", after(count, 2 * DOWNLOAD_CALLS, COPY_SECONDS)),
            patch.object(stream, "fetch_picture", after(stream.fetch_picture, DRAW_CALLS, GPU_SECONDS + COPY_SECONDS)),
        ]
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


def run_bare(streams: int, frames: int, decode_seconds: float, encode_seconds: float) -> dict:
    """Decode and encode without a network, a decoder and an encoder for each stream."""
    group = ThreadGroup()

    def decode(queue: BoundedQueue) -> None:
        for capture in EmulatedVideo("", frames // streams, decode_seconds).captures():
            queue.put(capture)
        queue.close()

    def encode(queue: BoundedQueue) -> None:
        with emulated_writer(encode_seconds)() as write:
            for capture in queue:
                write(capture)

    queues: list[BoundedQueue] = [BoundedQueue(group, QUEUE_SIZE) for _ in range(streams)]
    begin = time.perf_counter()
    with LockProbe() as probe:
        threads = [group.start("codec", work, queue) for queue in queues for work in (decode, encode)]
        for thread in threads:
            thread.join()
    return {"fps": frames // streams * streams / (time.perf_counter() - begin), "lock_ms": probe.milliseconds()}


def run_segment(sources: Sequence, overlay: bool, encode_seconds: float, way: str) -> dict:
    """Run the pipeline of segment."""
    settings, meter = LabelSettings(EmulatedEngine(), streamseg.CAMVID, LastFrames(1), size=(32, 32)), Meter()
    pairs = [(source, OutputFiles(Path(f"{source.name}.mp4") if overlay else None)) for source in sources]
    writer = emulated_writer(encode_seconds, way in (PROCESSES, ALONE))
    codec = patch.object(source_writer, "open_writer", writer) if overlay else nullcontext()
    alone = patch.object(pipeline, "needs_threads", lambda stream: way != ALONE)
    with codec, alone, gpu_calls(way != MANY_THREADS), LockProbe() as probe:
        result = Pipeline(pairs, settings, DrawStyle(), meter).run()
    if result.signal:
        raise KeyboardInterrupt
    summary = meter.summary()
    stages = {name: 1000 * stage.mean for name, stage in summary.stages.items()}
    found = {"fps": summary.output_fps, "lock_ms": probe.milliseconds(), "stages_ms": stages}
    if summary.latency:
        found |= {"read": summary.read, "labelled": summary.labelled, "p50_ms": 1000 * summary.latency.p50}
        found |= {"p95_ms": 1000 * summary.latency.p95}
    return found


def measure_files(streams: int, options: argparse.Namespace) -> dict:
    """Run the ways in turn."""
    seconds = options.decode / 1000, options.encode / 1000

    def segment(way: str) -> dict:
        count, apart = options.frames // streams, way in (PROCESSES, ALONE)
        videos = [EmulatedVideo(f"video {i}", count, seconds[0], apart) for i in range(streams)]
        return run_segment(videos, True, seconds[1], way)

    ways = [MANY_THREADS, ONE_THREAD, PROCESSES, *([ALONE] if streams == 1 else [])]
    runs: dict[str, list[dict]] = {"bare": [], **{way: [] for way in ways}}
    for _ in range(options.rounds):
        runs["bare"].append(run_bare(streams, options.frames, *seconds))
        for way in ways:
            runs[way].append(segment(way))
    ratios = {
        way: median(one["fps"] / bare["fps"] for one, bare in zip(found, runs["bare"], strict=True))
        for way, found in runs.items()
    }
    return {"streams": streams, "of_bare": ratios, "runs": runs}


def measure_cameras(options: argparse.Namespace) -> dict:
    """Run cameras both ways in turn."""
    runs: dict[str, list[dict]] = {MANY_THREADS: [], ONE_THREAD: []}
    rate, dice = Fraction(options.rate).limit_denominator(1000), random.Random(0)
    for _ in range(options.rounds):
        for way, found in runs.items():
            begin = time.monotonic() + 0.5
            cameras = [
                EmulatedCamera(f"camera {i}", round(options.seconds * rate), rate, begin + dice.random() / float(rate))
                for i in range(options.cameras)
            ]
            found.append(run_segment(cameras, False, 0.0, way))
    return {"cameras": options.cameras, "rate": options.rate, "seconds": options.seconds, "runs": runs}


def report(figures: dict) -> str:
    """Return the figures of a number of streams in a few lines."""
    lines = [f"{figures['streams']} streams" if "streams" in figures else f"{figures['cameras']} cameras"]
    for way, runs in figures["runs"].items():
        run = sorted(runs, key=lambda run: run["fps"])[len(runs) // 2]
        text = f"  {way:14}{run['fps']:7.0f} frames/s, waits {run['lock_ms']['mean']:.2f} ms for the lock"
        if "streams" in figures:
            text += f", {figures['of_bare'][way]:.2f} of bare"
        else:
            text += f", {run['labelled']:,} of {run['read']:,} labelled"
            text += f", p50 {run['p50_ms']:.1f}, p95 {run['p95_ms']:.1f} ms"
        stages = ", ".join(f"{name} {value:.2f}" for name, value in run.get("stages_ms", {}).items())
        lines += [text, *([f"{'':16}{stages}"] if stages else [])]
    return "\n".join(lines)


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8], help="files; at most 8 are read at once")
    parser.add_argument("--frames", type=int, default=400, help="of all files together")
    parser.add_argument("--decode", type=float, default=2.0, help="ms to decode a frame")
    parser.add_argument("--encode", type=float, default=3.5, help="ms to encode a frame")
    parser.add_argument("--cameras", type=int, help="emulate cameras instead of files")
    parser.add_argument("--rate", type=float, default=30.0, help="frames a second of each camera")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the cameras run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--interval", type=float, help="ms after which Python's lock changes hands; 5 by default")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.interval:
        sys.setswitchinterval(options.interval / 1000)
    found = []
    for streams in [None] if options.cameras else options.streams:
        found.append(measure_files(streams, options) if streams else measure_cameras(options))
        print(report(found[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
