"""From sources to files: reading, network, drawing and writing at the same time, each in a thread of its own.

    reader ──▶ inbox ──▶ network ──▶ labelled ──▶ drawer ──▶ drawn ──▶ writer

Each source has its own reader, drawer and writer; one network serves all of them and batches their frames. The queues
between them are short, and of many files some are read at a time, so that memory stays flat. A file waits for the
network; of a live source the newest frame wins, and the older ones are counted as dropped.

Shapes: H height, W width.
"""

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import IO, BinaryIO

import torch
from torch import Tensor

from streamseg import draw
from streamseg.checks import CutShort
from streamseg.classes import IGNORE, Classes
from streamseg.engine.engine import EagerEngine, Engine, resize_frames, to_engine
from streamseg.engine.tiles import label_tiled
from streamseg.io.images import render_legend
from streamseg.io.outputs import FrameOutput, OutputFiles, open_writer
from streamseg.io.sources import Capture, Source
from streamseg.io.window import Window
from streamseg.models.fanet import FANet
from streamseg.parallel.signals import StopSignals
from streamseg.parallel.threads import BoundedQueue, ThreadGroup
from streamseg.stream.deadline import LEAST, PASSES, POOR, Deadline, smaller
from streamseg.stream.label_frames import MAX_PIXELS, network_size, step_batch
from streamseg.stream.latency import Meter
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.state import Policy, State

QUEUE_SIZE = 3
"""Frames that may wait in each queue."""
MAX_BATCH = 8
"""The most frames that the network sees at once, each of another source; and the most files that are read at once."""
STOP_TIMEOUT = 5.0
"""Seconds that each thread has to leave when a run is broken off."""


@dataclass(frozen=True)
class DrawStyle:
    """How labels are drawn over a frame."""

    alpha: float = 0.5
    only: tuple[int, ...] = ()
    """The classes to highlight; all if empty."""
    legend: bool = False
    side_by_side: bool = False


@dataclass(frozen=True)
class LabelSettings:
    """A network, and how it sees frames."""

    model: FANet | Engine
    classes: Classes
    window: Policy
    cut: float | None = None
    """The distance of contexts at which a scene has changed and the past is forgotten."""
    size: tuple[int, int] | None = None
    """The height and width that frames are seen at; None for their own, up to a limit."""
    tiled: bool = False
    """Whether frames beyond that limit are seen whole, tile by tile, for which the model must be a plain one."""
    confident: bool = False
    """Whether the probability of each label is wanted too."""

    @property
    def device(self) -> torch.device:
        return to_engine(self.model).device


@dataclass(eq=False)
class FrameJob:
    """A frame on its way through the pipeline."""

    stream: "Stream"
    capture: Capture
    frame: Tensor
    started: float
    """When its clock began: at the capture of a live source, at the network for a file, which has no clock."""
    scale: float = 1.0
    size: tuple[int, int] = (0, 0)
    """The height and width that the network saw it at."""
    labels: Tensor = field(default_factory=lambda: torch.empty(0))
    confidence: Tensor | None = None
    begun: "torch.cuda.Event | None" = None
    done: "torch.cuda.Event | None" = None
    companions: int = 1
    """How many frames the network saw together, this one among them; 0 for all but the first of them."""
    prepared: bool = False
    """Whether the engine had seen as many frames of this size before, so that it had nothing to set up."""
    network: float = 0.0
    """The network's share of its latency."""
    latency: float = 0.0
    shares: list[float] = field(default_factory=list)
    picture: Tensor | None = None


class Stream:
    """A source, its files, and what the network has seen of it."""

    def __init__(self, source: Source, results: OutputFiles, group: ThreadGroup):
        self.source = source
        self.results = results
        self.state: State | None = None
        self.legend = LegendCache()
        room = 1 if source.live else QUEUE_SIZE
        self.inbox: BoundedQueue[FrameJob] = BoundedQueue(group, room)
        self.labelled: BoundedQueue[FrameJob] = BoundedQueue(group, room)
        self.drawn: BoundedQueue[FrameJob] = BoundedQueue(group, room)
        self.total: int | None = None
        """How many frames it will give, once it has told."""
        self.turn = -1
        """When the network last saw a frame of it, in batches."""
        self.seat = -1
        """Which of the sources that are read at once it is; a file takes over the seat of one that is done."""
        self.team: list[threading.Thread] = []
        """Its drawer and its writer, once it has begun; its reader, which may hang in a device, is not waited for."""
        self.written = 0

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self.team)


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    frames: int
    """How many frames were labelled and written."""
    shares: list[float]
    """Of each class in all frames."""
    problems: list[str]
    """What went wrong with sources, a sentence each; what they gave before is written."""
    signal: int
    """The signal that stopped the run; 0 for none."""
    size: tuple[int, int]
    """The height and width that the network saw the last frame at."""
    sizes: dict[tuple[int, int], int]
    """How many frames it saw at each height and width, the largest first."""
    late: int
    """Frames whose labels came after the deadline."""

    @property
    def smallest(self) -> tuple[int, int]:
        """The height and width of the smallest that it saw."""
        return min(self.sizes, key=math.prod, default=self.size)


class Pipeline:
    """A run over sources; `run` does it all."""

    def __init__(
        self,
        sources: Sequence[tuple[Source, OutputFiles]],
        settings: LabelSettings,
        style: DrawStyle,
        meter: Meter,
        *,
        deadline: float | None = None,
        records: IO[str] | None = None,
        raw: BinaryIO | None = None,
        window: Window | None = None,
        observer: PipelineObserver | None = None,
    ):
        """
        Args:
            deadline: Seconds within which labels should be there; frames are seen smaller if need be.
            records: Where a line of JSON for each frame goes.
            raw: Where the labels of each frame go as bytes.
            window: Where the frames are shown.
            observer: Receives messages, written frames and ticks.
        """
        self.group = ThreadGroup()
        self.streams = [Stream(source, results, self.group) for source, results in sources]
        self.settings, self.style, self.meter, self.deadline = settings, style, meter, Deadline(deadline)
        self.records, self.raw, self.window = records, raw, window
        self.observer = observer or PipelineObserver()
        self.live = any(source.live for source, _ in sources)
        self.stopped = False
        self.problems: list[str] = []
        self.pixels = torch.zeros(len(settings.classes), dtype=torch.int64)
        self.seen_at = (0, 0)
        self.sizes: Counter[tuple[int, int]] = Counter()
        self.passes: Counter[tuple[int, tuple[int, int]]] = Counter()
        """How often the engine has seen so many frames at once of a size."""
        self.prepared = self.warned = False
        self.newest_picture: Tensor | None = None
        self.shown: Tensor | None = None

    def run(self) -> RunResult:
        """Read, label, draw and write every frame, or all until Ctrl-C; whatever was begun is then finished."""
        threads = torch.get_num_threads()
        with StopSignals() as stop:
            network = self.group.start("network", self.label_all, threads=threads)
            try:
                while alive := [thread for thread in self.awaited(network) if thread.is_alive()]:
                    self.begin_streams()
                    self.supervise(stop.signal)
                    alive[0].join(0.02 if self.window else 0.1)
                self.refresh()
            except BaseException as error:  # a second Ctrl-C
                self.group.fail(error)
                for thread in self.awaited(network):  # so that they remove what is unfinished; one may hang in a pipe
                    thread.join(STOP_TIMEOUT)
                raise
            finally:
                torch.set_num_threads(threads)
        if self.group.failure:
            raise self.group.failure
        total = max(1, int(self.pixels.sum()))
        return RunResult(
            frames=sum(stream.written for stream in self.streams),
            shares=(self.pixels / total).tolist(),
            problems=list(self.problems),
            signal=stop.signal,
            size=self.seen_at,
            sizes={size: self.sizes[size] for size in sorted(self.sizes, key=math.prod, reverse=True)},
            late=self.deadline.late,
        )

    @property
    def total(self) -> int | None:
        """How many frames all sources will give; None until each has told, which a live one never does."""
        totals = [stream.total for stream in self.streams]
        return None if None in totals else sum(filter(None, totals))

    def awaited(self, network: threading.Thread) -> list[threading.Thread]:
        """The threads that have begun, and that the end of a run waits for."""
        return [network, *(thread for stream in self.streams for thread in stream.team)]

    def begin_streams(self) -> None:
        """Start to read the sources whose turn has come: live ones at once, of files a few at a time."""
        busy = [stream for stream in self.streams if stream.busy]
        for stream in self.streams:
            files = sum(not other.source.live for other in busy)
            if stream.team or self.stopped or self.group.failure or (files >= MAX_BATCH and not stream.source.live):
                continue
            stream.seat = next(seat for seat in count() if seat not in {other.seat for other in busy})
            # by their names the meter knows who works one after the other
            self.group.start(f"read {stream.seat}", self.read, stream)
            stream.team = [
                self.group.start(f"draw {stream.seat}", self.draw, stream),
                self.group.start(f"write {stream.seat}", self.write, stream),
            ]
            busy.append(stream)

    def refresh(self) -> None:
        """Show the newest frame, and hear what the user does with the window."""
        if self.window:
            newest = self.newest_picture  # a writer may have another one at any moment
            if newest is not None and newest is not self.shown:
                self.window.show(newest)
                self.shown = newest
            else:
                self.window.update()

    def supervise(self, signal: int) -> None:
        """What the main thread does meanwhile: show frames, and stop when asked to."""
        self.observer.tick()
        self.refresh()
        if (signal or (self.window and self.window.closed)) and not self.stopped:
            self.stopped = True
            for stream in self.streams:
                stream.inbox.close()

    # reading

    def read(self, stream: Stream) -> None:
        """Decode a source's frames and bring them to the device."""
        device = self.settings.device
        lane = torch.cuda.Stream(device) if device.type == "cuda" else None
        size = None
        try:
            with closing(stream.source.captures()) as captures:
                while capture := self.decode(stream, captures):
                    if capture.note:
                        self.observer.message(capture.note)
                    stream.total = capture.total
                    size = size or capture.frame.shape
                    if stream.source.moving and capture.frame.shape != size:  # no video holds both
                        raise CutShort(
                            f"{stream.source.name} ends after {capture.index} frames: what follows has "
                            f"{capture.frame.shape[2]} x {capture.frame.shape[1]} pixels, and what came before "
                            f"{size[2]} x {size[1]}; make all of them one size."
                        )
                    job = FrameJob(stream, capture, capture.frame, capture.captured)
                    if lane:
                        self.upload(job, lane)
                    if not self.pass_on(job):
                        break
                    self.meter.read(stream.source.name)
        except (ValueError, OSError) as problem:  # the other sources go on, and what came before is good
            self.problems.append(str(problem))
        stream.inbox.close()

    def decode(self, stream: Stream, captures: Iterator[Capture]) -> Capture | None:
        """A source's next frame; None after the last."""
        begin = time.perf_counter()
        try:
            capture = next(captures, None)
        finally:
            seconds = time.perf_counter() - begin
            if stream.source.live:  # its pace is not our work
                self.meter.waited(seconds, stream.source.name)
        if capture and not stream.source.live:
            self.meter.stage("decode", seconds)
        return capture

    def pass_on(self, job: FrameJob) -> bool:
        """Leave a frame to the network: once there is room, or of a live source in place of what waits.

        False if no more are wanted.
        """
        if not job.stream.source.live:
            return job.stream.inbox.put(job)
        replaced = job.stream.inbox.replace(job)
        if replaced is None:
            return False
        self.meter.dropped(replaced, job.stream.source.name)
        return True

    def upload(self, job: FrameJob, lane: "torch.cuda.Stream") -> None:
        """Copy a frame to the GPU, beside whatever is computed there."""
        begin = time.perf_counter()
        with torch.cuda.stream(lane):
            job.frame = job.frame.pin_memory().to(self.settings.device, non_blocking=True)
        lane.synchronize()  # which holds up this reader alone
        self.meter.stage("upload", time.perf_counter() - begin)

    # the network

    def label_all(self) -> None:
        """Label frames as they come."""
        device = self.settings.device
        # events and streams are those of the thread's device, which is the first GPU unless told otherwise
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext(), torch.inference_mode():
            for jobs in self.batches():
                if (self.live or self.deadline.seconds) and self.prepare(jobs):
                    jobs = [self.newest(job) for job in jobs]
                self.label(jobs)
                for job in jobs:
                    job.stream.labelled.put(job)

    def prepare(self, jobs: list[FrameJob]) -> bool:
        """Let the engine set itself up for a size, which no frame should be late for; False if it had done so."""

        def see(scale: float) -> None:
            for job in jobs:
                job.scale = scale
            self.see(jobs)
            self.catch_up()

        if self.learning:  # it must learn from the stream, and is slower than it will be
            return False
        if not self.prepared:
            self.prepared = True
            self.passes.clear()
            self.deadline.prepare(self.choose_size(jobs[0], 1.0), see, time.perf_counter)
            return True
        size = self.choose_size(jobs[0], self.deadline.scale)
        met = any(size == known for _, known in self.passes)
        if met or not (self.deadline.seconds and jobs[0].stream.source.moving):
            return False
        for _ in range(PASSES - 1):
            see(self.deadline.scale)
        return True

    @property
    def learning(self) -> bool:
        """Whether the engine still learns the ranges of int8 from the frames that it sees."""
        return getattr(self.settings.model, "calibrating", False)

    def batches(self) -> Iterator[list[FrameJob]]:
        """Frames for the network: of the source whose turn it is, and those of other sources that have its size.

        A source whose drawer is behind is passed over, so that it holds up no other, and so that of a live one a newer
        frame is taken later.
        """
        for turn in count():
            with self.group.change:
                self.group.wait_until(self.go_on)
                if not (streams := self.waiting()):
                    return
                streams.sort(key=lambda stream: stream.turn)
                shape = streams[0].inbox.waiting[0].frame.shape
                chosen = [stream for stream in streams if stream.inbox.waiting[0].frame.shape == shape][:MAX_BATCH]
                jobs = [stream.inbox.take() for stream in chosen]
                for stream in chosen:
                    stream.turn = turn
            yield jobs

    def waiting(self) -> list[Stream]:
        """The sources with a frame for whose labels there is room."""
        return [stream for stream in self.streams if stream.inbox.waiting and not stream.labelled.full]

    def go_on(self) -> bool:
        """Whether there is a frame for the network, or none will come; drawers are told that theirs was the last."""
        for stream in self.streams:
            if stream.inbox.ended and not stream.labelled.closed:
                stream.labelled.close()  # so that each video is there when it is done
        return bool(self.waiting()) or all(stream.inbox.ended for stream in self.streams)

    def newest(self, job: FrameJob) -> FrameJob:
        """A frame, or of a live source the one that has come in since."""
        with self.group.change:
            inbox = job.stream.inbox
            if not (job.stream.source.live and inbox.waiting):
                return job
            self.meter.dropped(1, job.stream.source.name)
            return inbox.take()

    def label(self, jobs: list[FrameJob]) -> None:
        """Label frames, one of each of several sources, and move the sources' states on."""
        begin = time.perf_counter()
        cuda, scale = self.settings.device.type == "cuda", self.deadline.scale
        for job in jobs:
            if not job.stream.source.live:
                job.started = time.monotonic()
            job.scale, job.companions = scale, 0
            if cuda:
                job.begun, job.done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                job.begun.record()
        jobs[0].companions = len(jobs)
        for job, state in zip(jobs, self.see(jobs), strict=True):
            job.stream.state = state
            if job.done:
                job.done.record()
        if not cuda:
            seconds = time.perf_counter() - begin
            self.meter.stage("network", seconds, len(jobs))
            for job in jobs:
                job.network = seconds
        elif self.live:  # the newest frame must not wait behind others that the GPU was given
            self.catch_up()
        for job in jobs:
            job.latency = time.monotonic() - job.started
        self.seen_at = jobs[0].size
        self.sizes[self.seen_at] += len(jobs)
        if scale < POOR and not self.warned:
            self.warned = True
            least = self.choose_size(jobs[0], LEAST)
            self.observer.message(
                f"To hold the deadline frames are now seen at {self.seen_at[0]} x {self.seen_at[1]}, where labels get "
                f"poor; the smallest is {least[0]} x {least[1]}."
            )

    def catch_up(self) -> None:
        """Wait until a GPU has done what it was told to."""
        if self.settings.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def see(self, jobs: list[FrameJob]) -> list[State | None]:
        """Labels, and confidence if wanted, of frames of one size; returns the states of their streams after them."""
        settings, (height, width) = self.settings, jobs[0].frame.shape[1:]
        if settings.device.type == "cuda":
            for job in jobs:  # or the reader's stream might take the memory of a frame that is still looked at
                job.frame.record_stream(torch.cuda.current_stream())
        engine = to_engine(settings.model)
        if settings.tiled and height * width > MAX_PIXELS and isinstance(engine, EagerEngine):
            for job in jobs:
                job.size = (height, width)
                job.labels, _ = label_tiled(engine.model, job.frame)
            return [None for _ in jobs]
        size = self.choose_size(jobs[0], jobs[0].scale)
        prepared = self.passes[len(jobs), size] >= PASSES - 1 and not self.learning
        self.passes[len(jobs), size] += 1
        predictions, states = step_batch(
            engine,
            torch.cat([resize_frames(job.frame[None], size) for job in jobs]),
            [job.stream.state for job in jobs],
            settings.window,
            sizes=[(height, width) for _ in jobs],
            with_confidence=settings.confident,
            times=[job.capture.seconds for job in jobs],
            cut=settings.cut,
        )
        for job, prediction in zip(jobs, predictions, strict=True):
            job.size, job.labels, job.confidence = size, prediction.labels, prediction.confidence
            # single pictures may all have other sizes: there preparing is what each takes
            job.prepared = prepared or not job.stream.source.moving
        return [state if job.stream.source.moving else None for job, state in zip(jobs, states, strict=True)]

    def choose_size(self, job: FrameJob, scale: float) -> tuple[int, int]:
        """The height and width at which the network sees a frame, if the deadline wants it scaled."""
        return smaller(self.settings.size or network_size(*job.frame.shape[1:]), scale)

    # drawing and writing

    def draw(self, stream: Stream) -> None:
        """Fetch the labels of a source's frames and draw them."""
        device = self.settings.device
        lane = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
        with lane, torch.inference_mode():
            for job in stream.labelled:
                labels = self.fetch(job)
                begin = time.perf_counter()
                self.tally(job, labels)
                if stream.results.overlay or self.window:
                    job.picture = self.paint(job).cpu()  # which waits: frame and labels may go
                job.labels = labels
                self.meter.stage("draw", time.perf_counter() - begin)
                stream.drawn.put(job)
        stream.drawn.close()

    def fetch(self, job: FrameJob) -> Tensor:
        """A frame's labels, on the CPU, which is part of its latency; that drawing is behind is not."""
        if job.begun and job.done:
            job.done.synchronize()
            seconds = job.begun.elapsed_time(job.done) / 1000
            if job.companions:
                self.meter.stage("network", seconds, job.companions)
            job.network = seconds
            if not self.live:  # the GPU had not begun yet when it was told to
                job.latency = seconds
        begin = time.perf_counter()
        labels = job.labels.cpu()
        if job.confidence is not None:
            job.confidence = job.confidence.cpu()
        if job.done:
            download = time.perf_counter() - begin
            self.meter.stage("download", download)
            job.latency += download
        self.meter.labelled(job.latency)
        self.deadline.took(job.latency, job.scale, job.network, job.prepared)
        return labels

    def tally(self, job: FrameJob, labels: Tensor) -> None:
        """Count the pixels of each class."""
        counts = torch.bincount(labels.flatten(), minlength=IGNORE + 1)[: len(self.settings.classes)]
        job.shares = (counts / labels.numel()).tolist()
        with self.group.change:
            self.pixels += counts

    def paint(self, job: FrameJob) -> Tensor:
        """A frame under the colours of its labels."""
        style, classes = self.style, self.settings.classes
        picture = draw.overlay(job.frame, job.labels, classes, style.alpha, style.only)
        if style.legend:
            # of a video all classes, or the legend would flicker
            present = [i for i, share in enumerate(job.shares) if share or job.stream.source.moving]
            numbers = tuple(i for i in present if not style.only or i in style.only)
            picture = draw.add_legend(picture, job.stream.legend.of(classes, numbers, picture).to(picture.device))
        return draw.side_by_side(job.frame, picture) if style.side_by_side else picture

    def write(self, stream: Stream) -> None:
        """Write what was drawn of a source."""
        with open_writer(stream.results, stream.source, self.settings.classes) as keep:
            for job in stream.drawn:
                begin = time.perf_counter()
                keep(FrameOutput(job.capture, job.labels, job.picture, job.confidence))
                if self.raw:
                    write_raw_labels(self.raw, job.labels)
                self.meter.stage("encode", time.perf_counter() - begin)
                age = time.monotonic() - job.started
                self.meter.shown(age)
                stream.written += 1
                self.newest_picture = job.picture
                if self.records:
                    self.record(self.records, job, age)
                self.observer.frame_written(job.capture, job.shares, stream.results)

    def record(self, records: IO[str], job: FrameJob, age: float) -> None:
        """A line of JSON about a frame."""
        shares = zip(self.settings.classes.names, job.shares, strict=True)
        entry = {
            "source": job.stream.source.name,
            "name": job.capture.name,
            "frame": job.capture.index,
            "seconds": job.capture.seconds,
            "latency_ms": 1000 * job.latency,
            "mask_age_ms": 1000 * age,
            "size": job.size,
            "shares": {name: share for name, share in shares if share},
        }
        line = json.dumps(entry) + "\n"
        with self.group.change:
            records.write(line)


class LegendCache:
    """The legend that was drawn last, so that frames which need the same one share it."""

    def __init__(self) -> None:
        self.key: tuple[tuple[int, ...], int, int] = ((), 0, 0)
        self.panel = torch.empty(3, 0, 0, dtype=torch.uint8)

    def of(self, classes: Classes, numbers: tuple[int, ...], picture: Tensor) -> Tensor:
        """A legend of classes, of a size that fits a picture (3, H, W)."""
        key = (numbers, *picture.shape[1:])
        if key != self.key:
            self.key, self.panel = key, render_legend(classes, numbers, *picture.shape[1:])
        return self.panel


def write_raw_labels(file: BinaryIO, labels: Tensor) -> None:
    """Write labels (H, W) as bytes to standard output."""
    try:
        file.write(labels.numpy().tobytes())
        file.flush()
    except BrokenPipeError:  # no fault: who reads it has seen enough
        raise
    except OSError as error:
        raise OSError(f"Could not write to standard output: {error.strerror}.") from error
