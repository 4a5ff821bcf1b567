"""What one source needs besides the network, mostly as threads: a reader before it, a drawer and a writer behind it.

    read ──▶ inbox ──▶ network thread ──▶ labelled ──▶ draw ──▶ drawn ──▶ write

The queues are short, so that memory does not grow with the length of a video. A file waits for the network; a live
source replaces the frame that waits by a newer one, and replaced frames count as dropped.

Shapes: H height, W width.
"""

import json
import math
import os
import threading
import time
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import torch
from torch import Tensor

from streamseg import draw
from streamseg.checks import CutShort
from streamseg.engine import kernels
from streamseg.engine.labels import count_labels
from streamseg.io import codec_pool
from streamseg.io.line_thread import LineWriter
from streamseg.io.outputs import Output
from streamseg.io.sources import Capture, Decoding, LiveSource, PlayedVideo, Source, VideoFile
from streamseg.io.yuv import Yuv420, default_matrix
from streamseg.parallel.threads import BoundedQueue, GroupThread, ThreadGroup
from streamseg.stream.deadline import Deadline
from streamseg.stream.latency import Meter
from streamseg.stream.legend import LegendCache
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.region_outputs import RegionOutputs, RegionSettings
from streamseg.stream.settings import DrawStyle, LabelSettings, SourceSettings
from streamseg.stream.source_writer import SourceWriter
from streamseg.stream.state import State
from streamseg.stream.transfers import download, pin

if TYPE_CHECKING:
    from streamseg.io.codec_client import ProcessVideo
    from streamseg.io.video_reading import Video

QUEUE_SIZE = 3
"""Frames that may wait in each queue of a file; a live source has room for one."""
STALL_SECONDS = 5.0
"""After this time without a frame a message says that a live source has stalled."""
OPENING_SECONDS = 15.0
"""The same before its first frame: longer than it takes until a dead address fails by itself."""
MAX_SIZE_CHANGES = 20
"""How often a live source may change its size while it is written to videos: each change begins another file. Of
further ones nothing is said."""


@dataclass(eq=False)
class SharedRun:
    """The state that all threads of a run share."""

    settings: LabelSettings
    style: DrawStyle
    meter: Meter
    deadline: Deadline
    observer: PipelineObserver
    device: torch.device
    live: bool
    """Whether any source is live."""
    several: bool
    """Whether there is more than one source."""
    shows: bool
    """Whether the frames are shown in a window."""
    records: LineWriter | None
    """Receives a line of JSON for each frame."""
    records_labels: bool
    """Whether these lines hold the labels."""
    raw: BinaryIO | None
    """Receives the labels of each frame as bytes."""
    regions: RegionSettings | None = None
    """What to do with regions and zones."""
    group: ThreadGroup = field(default_factory=ThreadGroup)
    # not the group's: torch and files give other threads a turn, which would all wait for a lock of the queues
    totals_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while class_pixels change."""
    records_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a line is written to records."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each source that failed."""
    reported: dict[str, str] = field(default_factory=dict)
    """Those of them that the observer has received already, by the name of the source."""
    class_pixels: list[int] = field(init=False)
    """How many pixels of all frames have each class."""
    hardware: str = ""
    """The hardware decoder of videos; empty for none."""
    on_device: bool = field(init=False)
    """Whether the network thread also copies, converts and draws frames (device_work.py), as on a GPU. Videos are read
    and written as planes then."""
    codec_processes: bool = field(init=False)
    """Whether video files are decoded and encoded by processes of their own."""

    def __post_init__(self) -> None:
        self.on_device = works_on_device(self.device)
        self.codec_processes = uses_codec_processes(self.on_device)
        self.class_pixels = [0] * len(self.settings.classes)

    @property
    def decoding(self) -> Decoding:
        """How videos are decoded."""
        # a hardware decoder takes memory of the GPU in each process
        in_process = self.codec_processes and not self.hardware
        return Decoding(self.on_device, self.device.type == "cuda", self.hardware, in_process)

    def add_labels(self, job: "FrameJob", counts: list[int]) -> None:
        """Take how many pixels of a frame have each class."""
        seen = max(1, sum(counts))  # pixels that are not masked
        job.shares = [count / seen for count in counts]
        with self.totals_lock:
            for i, count in enumerate(counts):
                self.class_pixels[i] += count

    def write_record(self, entry: dict[str, object]) -> None:
        """Write a line of JSON, which were asked for."""
        assert self.records is not None
        line = json.dumps(entry) + "\n"
        with self.records_lock:
            self.records.write(line)

    def add_latency(self, job: "FrameJob") -> None:
        """Take the latency of a frame, which ends with its labels on the host."""
        self.meter.labelled(job.latency, job.stream.source.name)
        self.deadline.record(job.latency, job.scale, job.network_seconds, job.prepared)


def works_on_device(device: torch.device) -> bool:
    """Return whether one thread does all work on a device besides the codecs."""
    return device.type == "cuda"


def uses_codec_processes(on_device: bool) -> bool:
    """Return whether codecs run in processes of their own: beside a GPU, whose thread they would hold up.

    The environment variable STREAMSEG_CODECS, processes or threads, decides otherwise, to compare them.
    """
    if os.environ.get("STREAMSEG_CODECS", "processes" if on_device else "threads") != "processes":
        return False
    return codec_pool.are_possible()


NOTHING = torch.empty(0)
"""Stands for a tensor that is not there. To make one for each frame would be a call more, after which a thread may have
to wait for Python's lock."""


@dataclass(eq=False)
class FrameJob:
    """A frame on its way through the pipeline."""

    stream: "SourceStream"
    capture: Capture
    started: float
    """When its latency begins: at the capture of a live source, at the network for a file, which has no clock."""
    frame: Tensor = NOTHING
    """(3, H, W), on the network's device; empty before it is copied to a GPU, or is needed, and after it was drawn."""
    scale: float = 1.0
    """The scale of the network input that the deadline chose."""
    size: tuple[int, int] = (0, 0)
    """Height and width of the network input."""
    labels: Tensor = NOTHING
    """(H, W), on the network's device until DeviceWork or the drawer has fetched them."""
    device_labels: Tensor | None = None
    """The labels on the network's device, if the drawer needs them there."""
    confidence: Tensor | None = None
    prepared: bool = False
    """Whether the engine was prepared for this batch size and input size."""
    network_seconds: float = 0.0
    """The network's part of the latency."""
    latency: float = 0.0
    counts: list[int] | None = None
    """How many pixels have each class, once they are counted."""
    shares: list[float] = field(default_factory=list)
    """The share of each class."""
    picture: Tensor | Yuv420 | None = None
    """RGB, or planes if it only goes into a video."""
    colours: Tensor | Yuv420 | None = None
    """The colours of the labels alone."""

    @property
    def shape(self) -> torch.Size:
        """The shape (3, H, W) of the frame, wherever it is."""
        return self.capture.pixels.shape


class SourceStream:
    """A source with its output files, its queues and its threads."""

    def __init__(self, source: Source, results: Output, shared: SharedRun, own: SourceSettings | None = None):
        self.source, self.results, self.shared = source, results, shared
        self.style = own.style if own else shared.style
        self.state: State | None = None
        self.size = own.size if own else shared.settings.size
        """Height and width of the network input; None for the frame's own, up to a limit."""
        self.mask = own.mask if own else shared.settings.mask
        """Pixels to ignore; None for none."""
        self.shape: torch.Size | None = None
        """The shape of the last frame that was labelled."""
        self.legend = LegendCache()
        self.region_outputs = RegionOutputs(shared.regions, source) if shared.regions else None
        room = 1 if source.live else QUEUE_SIZE
        # the network thread waits for all of these at once
        self.inbox: BoundedQueue[FrameJob] = BoundedQueue(shared.group, room, shared.group.change)
        self.labelled: BoundedQueue[FrameJob] = BoundedQueue(shared.group, room, shared.group.change)
        self.drawn: BoundedQueue[FrameJob] = BoundedQueue(shared.group, room, shared.group.change)
        self.draws_picture = bool(results.overlay) or shared.shows
        """Whether the labels are drawn over the frame."""
        depends = self.region_outputs is not None or (self.style.legend and not source.moving)
        self.drawn_early = shared.on_device and not depends
        """Whether the network thread draws: nothing in the picture depends on labels on the host."""
        self.output = self.drawn if self.drawn_early else self.labelled
        """Where the network thread puts labelled frames."""
        self.total: int | None = None
        """How many frames the source has, once that is known."""
        self.last_batch = -1
        """The number of the last batch with a frame of this source."""
        self.slot = -1
        """Which of the sources that are read at once this is; a file takes over the slot of a finished one."""
        self.threads: list[GroupThread] = []
        """Drawer and writer, once started. The reader, which may hang in a device, is not waited for."""
        self.writer = SourceWriter(self)
        self.last_capture = math.inf
        """The time.monotonic() of the last frame, or of the start."""
        self.stalled = self.begun = False
        self.video: Video | ProcessVideo | None = None
        """The video file that is being read, once it is open."""
        self.read_shape: torch.Size | None = None
        """The shape of the last frame that was read."""
        self.size_changes = 0

    @property
    def running(self) -> bool:
        return any(not thread.ended.is_set() for thread in self.threads)

    def start(self, slot: int) -> None:
        """Start the three threads. Their names tell the meter which threads work one after the other."""
        self.slot, self.last_capture = slot, time.monotonic()
        self.shared.group.start(f"read {slot}", self.read)
        self.threads = [
            self.shared.group.start(f"draw {slot}", self.draw),
            self.shared.group.start(f"write {slot}", self.writer.work),
        ]

    def read(self) -> None:
        """Put the source's frames into the inbox."""
        with closing(self.frames()) as jobs:
            for job in jobs:
                if not self.enqueue(job):
                    break
        self.inbox.close()

    def frames(self) -> Generator[FrameJob, None, None]:
        """Decode the source's frames, from where a GPU can copy them. An error ends them, and is reported."""
        shared, source = self.shared, self.source
        try:
            with closing(self.captures()) as captures:
                while True:
                    begin = time.perf_counter()
                    try:
                        capture = next(captures, None)
                    finally:
                        seconds = time.perf_counter() - begin
                        if source.live:  # waiting for a camera is not decoding time
                            shared.meter.waited(seconds, source.name)
                    if capture is None:
                        break
                    if not source.live:
                        shared.meter.stage("decode", seconds)
                    self.note_arrival(capture)
                    self.total = capture.total
                    self.check_size(capture)
                    yield self.new_job(capture)
        except (ValueError, OSError) as problem:  # the other sources go on, and the frames so far are good
            self.report(problem)

    def report(self, problem: Exception) -> None:
        """Note that this source failed; of several live ones the user is told now, as the others may go on for days."""
        sentence = self.with_name(str(problem))
        self.shared.problems.append(sentence)
        if self.source.live and self.shared.several:
            self.shared.reported[self.source.name] = sentence
            self.shared.observer.message(sentence)

    def with_name(self, sentence: str) -> str:
        """Return a sentence about this source that names it, if there are others."""
        name = self.source.name
        named = not (self.source.live and self.shared.several) or sentence.startswith((f"{name} ", f"{name}: "))
        return sentence if named else f"{name}: {sentence}"

    def note_arrival(self, capture: Capture) -> None:
        """Pass on what a capture says about its source, and that the source is back."""
        message = capture.note
        if self.stalled and not message:
            message = f"{self.source.name} sends frames again, after {capture.captured - self.last_capture:.0f} s."
        self.stalled, self.begun, self.last_capture = False, True, capture.captured
        if capture.reconnected:
            self.shared.meter.reconnected(self.source.name)
        if message:
            self.shared.observer.message(self.with_name(message))

    def watch(self, now: float) -> None:
        """Tell the user once if a live source has stalled; the main thread calls this regularly."""
        silent = now - self.last_capture
        if self.source.live and not self.stalled and silent > (STALL_SECONDS if self.begun else OPENING_SECONDS):
            self.stalled = True
            if not self.inbox.closed:
                frame = "no frame" if self.begun else "no first frame"
                others = "; the others go on" if self.shared.several else ""
                self.shared.observer.message(f"{self.source.name} has sent {frame} for {silent:.0f} s{others}.")

    def check_size(self, capture: Capture) -> None:
        """Check that a frame has the size of those before it.

        A file ends where its frames change their size. A live source goes on, in another video if it is written to
        one; only raw labels cannot say that their size changed.
        """
        shape, self.read_shape = self.read_shape, capture.pixels.shape
        if self.mask and shape != self.read_shape:
            self.mask.check_fits(self.read_shape[1], self.read_shape[2])
        if not self.source.moving or shape in (None, self.read_shape):
            return
        assert shape is not None
        self.size_changes += 1
        too_many = self.size_changes > MAX_SIZE_CHANGES
        ends = not self.source.live or self.shared.raw or (too_many and self.results.are_videos)
        if ends or (self.shared.settings.together and self.size is None):  # the others keep their network input size
            raise changed_size(self.source.name, capture, shape)
        if too_many:
            return
        _, height, width = self.read_shape
        then = "another video file begins" if self.results.are_videos else "it goes on with these"
        self.shared.observer.message(
            f"{self.source.name} now sends frames of {height} x {width} pixels, not {shape[1]} x {shape[2]}: {then}."
        )

    def captures(self) -> Generator[Capture, None, None]:
        """Yield the source's frames, for a GPU as the planes that a video stores."""
        if isinstance(self.source, VideoFile):
            return self.source.captures(self.shared.decoding, partial(setattr, self, "video"))
        if isinstance(self.source, LiveSource | PlayedVideo):
            return self.source.captures(self.shared.decoding)
        return self.source.captures()

    def new_job(self, capture: Capture) -> FrameJob:
        """Return a job for a captured frame, from where a GPU can copy it."""
        if not self.shared.on_device:
            # a live frame that is dropped is never converted to RGB
            return FrameJob(self, capture, capture.captured, NOTHING if self.source.live else capture.frame)
        if self.shared.device.type == "cuda":
            pixels = pin(capture.pixels)
            capture = capture if pixels is capture.pixels else replace(capture, pixels=pixels)
        return FrameJob(self, capture, capture.captured)

    def enqueue(self, job: FrameJob) -> bool:
        """Put a frame into the inbox; return False if the inbox is closed."""
        meter, name = self.shared.meter, self.source.name
        if self.source.live:
            replaced = self.inbox.replace(job)
            if replaced is None:
                return False
            meter.dropped(replaced, name)
        elif not self.inbox.put(job):
            return False
        meter.read(name)
        return True

    def follow_size(self, shape: torch.Size) -> None:
        """Drop the state where frames change their size: another lens, zoom or camera is another scene."""
        if self.shape not in (None, shape):
            self.state = None
        self.shape = shape

    def draw(self) -> None:
        """Count the classes of each frame and draw it, unless the network thread has done so."""
        shared, device = self.shared, self.shared.device
        draws_on_gpu = device.type == "cuda" and not self.drawn_early
        gpu_stream = torch.cuda.stream(torch.cuda.Stream(device)) if draws_on_gpu else nullcontext()
        with gpu_stream, torch.inference_mode():
            for job in self.labelled:
                begin = time.perf_counter()
                if job.counts is None:
                    shared.add_latency(job)
                if not self.examine(job, job.labels):
                    break
                if job.counts is None:
                    shared.add_labels(job, count_labels(job.labels, len(shared.class_pixels)).tolist())
                if self.draws_picture:
                    job.picture = self.fetch_picture(self.paint(job))
                if self.results.colours:
                    job.colours = self.fetch_picture(self.paint_colours(job))
                job.frame, job.device_labels = NOTHING, None
                shared.meter.stage("draw", time.perf_counter() - begin)
                self.drawn.put(job)
        self.drawn.close()

    def examine(self, job: FrameJob, labels: Tensor) -> bool:
        """Write the regions and events of a frame; return False if that failed, which ends this source only."""
        if not self.region_outputs:
            return True
        try:
            self.region_outputs.examine(job.capture, labels)
        except BrokenPipeError:  # no fault: the reader of standard output has closed it
            raise
        except (ValueError, OSError) as problem:
            self.report(ValueError(f"{self.source.name}: {problem}") if self.shared.several else problem)
            self.inbox.close()
            for _ in self.labelled:  # the network may have more
                pass
            return False
        return True

    def paint(self, job: FrameJob) -> Tensor:
        """Return a frame with its labels, drawn on the frame's device."""
        style = self.style
        classes = style.classes or self.shared.settings.classes
        labels = job.labels if job.device_labels is None else job.device_labels
        picture = draw.overlay(job.frame, labels, classes, style.alpha, style.only, borders=style.borders)
        if self.region_outputs:
            picture = self.region_outputs.draw(picture)
        if style.legend:
            # all classes for a video, or the legend would flicker
            present = [i for i in range(len(classes)) if self.source.moving or job.shares[i]]
            numbers = tuple(i for i in present if not style.only or i in style.only)
            legend = self.legend.get(draw.blended_classes(classes, style.alpha), numbers, picture)
            picture = draw.add_legend(picture, legend)
        return draw.side_by_side(job.frame, picture) if style.side_by_side else picture

    def paint_colours(self, job: FrameJob) -> Tensor:
        """Return the colours of a frame's labels, on their device."""
        labels = job.labels if job.device_labels is None else job.device_labels
        return draw.paint_labels(labels, self.style.classes or self.shared.settings.classes)

    def to_output(self, picture: Tensor) -> Tensor | Yuv420:
        """Return a drawn picture (3, H, W) on its device, as planes if it only goes into a video or to an address."""
        shared = self.shared
        if not shared.on_device or shared.shows or self.results.are_pictures:
            return picture
        return kernels.to_yuv(picture, default_matrix(picture.shape[1]))

    def fetch_picture(self, picture: Tensor) -> Tensor | Yuv420:
        """Return a drawn picture on the CPU. It waits for the GPU: frame and labels may be freed then."""
        output = self.to_output(picture)
        if isinstance(output, Yuv420):
            return output.with_pixels(download(output.pixels)[0])
        return download(output)[0]


def changed_size(name: str, capture: Capture, shape: torch.Size) -> CutShort:
    """Return the error for a video whose frames change size, which no output video can hold."""
    _, height, width = capture.pixels.shape
    return CutShort(
        f"{name} ends after {capture.index} frames: the next one has {height} x {width} pixels, not "
        f"{shape[1]} x {shape[2]}; scale all of them to one size."
    )
