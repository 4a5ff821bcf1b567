"""What frames need from a GPU besides the network: they are copied there, counted, drawn and copied back.

    upload ──▶ network ──▶ count, draw ──▶ download ──▶ one wait

The network thread does all of it, for a whole batch at a time. Readers, drawers and writers make no call to the GPU:
calls of many threads wait for each other, and each gives up Python's lock and has to get it back, so that with many
threads every stage takes several times as long while most cores are idle (benchmarks/lock_emulation.py).

Shapes: B frames of a batch, K classes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from streamseg.engine.labels import count_batch
from streamseg.io.yuv import Yuv420
from streamseg.stream.shared_run import NOTHING, FrameJob, SharedRun
from streamseg.stream.transfers import start_download, upload

STAGES = ("upload", "network", "draw", "download")
"""The stages of a batch on the device, in order."""
DETAILED_INTERVAL = 16
"""All stages of the first 16 batches are marked, and then those of every 16th."""


class StageMarks:
    """Marks between the stages of a batch, by the clock of its device; events are reused from batch to batch.

    A GPU marks where each batch begins and ends, and the stages between in some: each mark is a call, after which
    the thread may have to wait for Python's lock. In another batch all stages but the network are taken to last
    as long as they did then, for each frame; the network, which may skip work in some frames, has the rest.
    """

    def __init__(self, device: torch.device):
        is_cuda = device.type == "cuda"
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(len(STAGES) + 1)] if is_cuda else []
        self.times = [0.0] * (len(STAGES) + 1)
        self.count = self.batches = 0
        self.detailed = True
        """Whether all stages of this batch are marked."""
        self.frame_seconds = dict.fromkeys(STAGES, 0.0)
        """What each stage took for a frame of the last batch whose stages were marked."""

    def start(self) -> None:
        """Begin a batch."""
        self.detailed = self.batches < DETAILED_INTERVAL or self.batches % DETAILED_INTERVAL == 0
        self.count = 0
        self.batches += 1
        self.end_stage()

    def end_stage(self) -> None:
        """Mark the end of a stage. Those after the last one are ignored, as of a network that runs several times."""
        if self.count < len(self.times):
            if self.events and (self.detailed or self.count in (0, len(STAGES))):
                self.events[self.count].record()
            self.times[self.count] = time.perf_counter()
            self.count += 1

    def seconds(self, frames: int) -> dict[str, float]:
        """Return what each stage took for the frames of the batch; the device has finished."""
        if not self.events:
            return {name: b - a for name, a, b in zip(STAGES, self.times, self.times[1:], strict=False)}
        if self.detailed:
            pairs = zip(self.events, self.events[1:], strict=False)
            found = {name: a.elapsed_time(b) / 1000 for name, (a, b) in zip(STAGES, pairs, strict=True)}
            self.frame_seconds = {name: seconds / frames for name, seconds in found.items()}
            return found
        rest = self.events[0].elapsed_time(self.events[-1]) / 1000
        found = {}
        for name in STAGES:
            if name != "network":
                found[name] = min(rest, self.frame_seconds[name] * frames)
                rest -= found[name]
        return found | {"network": rest}


@dataclass
class DeviceTimes:
    """Sums over the batches of a run, which tell apart what keeps the network thread."""

    batches: int = 0
    frames: int = 0
    device: float = 0.0
    """Seconds from the first to the last mark of each batch, by the device's clock."""
    enqueue: float = 0.0
    """Seconds until all work of a batch was given to the device: Python, and its waits for Python's lock."""
    wait: float = 0.0
    """Seconds in which the thread then waited for the device."""


class DeviceWork:
    """The work of the network thread on a device besides the network. The caller is in the thread's CUDA stream."""

    def __init__(self, shared: SharedRun):
        self.shared = shared
        self.marks = StageMarks(shared.device)
        self.times = DeviceTimes()
        self.seconds: dict[str, float] = {}
        """What each stage of the last finished batch took."""
        self.begin = 0.0
        self.host_counts: dict[int, Tensor] = {}
        """Where the counts of a number of frames are copied to."""

    def start(self) -> None:
        """Begin a batch."""
        self.begin = time.perf_counter()
        self.marks.start()

    def upload(self, jobs: Sequence[FrameJob]) -> None:
        """Copy frames to the device, as RGB there; those that are there already stay."""
        for job in jobs:
            if job.frame is NOTHING:
                job.frame = upload(job.capture.pixels, self.shared.device)
        self.marks.end_stage()

    def finish(self, jobs: Sequence[FrameJob], meanwhile: Callable[[], None]) -> None:
        """Count and draw labelled frames, copy all that was asked for to the host, and wait for it.

        Args:
            meanwhile: What the thread does while the device works.
        """
        self.marks.end_stage()
        counts = count_batch([job.labels for job in jobs])
        pictures = [self.draw(job) for job in jobs]
        self.marks.end_stage()
        host_counts = self.host_counts.get(len(jobs))
        if host_counts is None:
            host_counts = self.host_counts[len(jobs)] = start_download(counts)
        else:
            host_counts.copy_(counts, non_blocking=True)
        for job, (picture, colours) in zip(jobs, pictures, strict=True):
            if not job.stream.drawn_early:
                job.device_labels = job.labels
            job.labels = start_download(job.labels)
            if job.confidence is not None:
                job.confidence = start_download(job.confidence)
            job.picture, job.colours = fetch(picture), fetch(colours)
        self.marks.end_stage()
        self.wait(len(jobs), meanwhile)
        numbers, classes = host_counts.tolist(), len(self.shared.class_pixels)
        for i, job in enumerate(jobs):
            job.counts = numbers[256 * i : 256 * i + classes]
            if job.stream.drawn_early:
                job.frame = NOTHING  # its memory on the device is free for the next batch

    def draw(self, job: FrameJob) -> tuple[Tensor | Yuv420 | None, Tensor | Yuv420 | None]:
        """Return the picture and the colours of a frame on the device, if they are asked for and need nothing else."""
        stream = job.stream
        if not stream.drawn_early:
            return None, None
        picture = stream.to_output(stream.paint(job)) if stream.draws_picture else None
        return picture, stream.to_output(stream.paint_colours(job)) if stream.results.colours else None

    def wait(self, frames: int, meanwhile: Callable[[], None]) -> None:
        """Wait for the device, once for all frames of a batch, and add up the times."""
        times, enqueued = self.times, time.perf_counter()
        meanwhile()
        waiting = time.perf_counter()
        if self.shared.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        done = time.perf_counter()
        times.batches += 1
        times.frames += frames
        times.enqueue += enqueued - self.begin
        times.wait += done - waiting
        self.begin += waiting - enqueued  # what it did meanwhile is no part of the batch
        self.seconds = self.marks.seconds(frames)
        times.device += sum(self.seconds.values())

    def record(self, jobs: Sequence[FrameJob]) -> None:
        """Report the stages of a finished batch. The network's includes what Python took to start everything."""
        seconds, meter = self.seconds, self.shared.meter
        whole = time.perf_counter() - self.begin
        network = max(seconds["network"], whole - sum(seconds.values()) + seconds["network"])
        frames = dict.fromkeys(STAGES, len(jobs)) | {"draw": sum(job.stream.drawn_early for job in jobs)}
        for name in STAGES:
            if frames[name]:  # the drawers report what they draw
                meter.stage(name, network if name == "network" else seconds[name], frames[name])
        for job in jobs:
            job.network_seconds = network
            if not self.shared.live:  # a file has no clock; what its reader and writer take does not count
                job.latency = network + seconds["download"]


def fetch(picture: Tensor | Yuv420 | None) -> Tensor | Yuv420 | None:
    """Return a picture in the host's memory, complete once the device has finished."""
    if isinstance(picture, Yuv420):
        return picture.with_pixels(start_download(picture.pixels))
    return None if picture is None else start_download(picture)
