"""What one source needs besides the network, mostly as threads: a reader before it, a drawer and a writer behind it.

    read ──▶ inbox ──▶ network thread ──▶ labelled ──▶ draw ──▶ drawn ──▶ write

The queues are short, so that memory does not grow with the length of a video. A file waits for the network; a live
source replaces the frame that waits by a newer one, and replaced frames count as dropped.

Shapes: H height, W width.
"""

import math
import time
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streamseg import draw
from streamseg.checks import CutShort
from streamseg.engine import kernels
from streamseg.engine.labels import count_labels
from streamseg.io.outputs import Output
from streamseg.io.sources import Capture, LiveSource, PlayedVideo, Source, VideoFile
from streamseg.io.yuv import Yuv420, default_matrix
from streamseg.parallel.threads import BoundedQueue, GroupThread
from streamseg.stream.legend import LegendCache
from streamseg.stream.region_outputs import RegionOutputs
from streamseg.stream.settings import SourceSettings
from streamseg.stream.shared_run import NOTHING, FrameJob, SharedRun
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
