"""The network thread: takes frames of all sources in turn, labels them in batches and hands them to the drawers.

A video that is the only source of a run may have no other thread; this one then reads, labels and writes it.
"""

import math
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import count, islice

import torch

from streamseg.engine.engine import EagerEngine, Engine, FrameBatch, VideoEngine, resize_frames
from streamseg.engine.prepare import PreparingEngine, is_preparing
from streamseg.engine.tiles import label_tiled
from streamseg.io.codec_client import ProcessVideo
from streamseg.io.masks import paint_over
from streamseg.stream.batch_limit import BATCH_SECONDS, BatchLimit, floor_power_of_two
from streamseg.stream.deadline import MIN_SCALE, POOR_SCALE, WARM_UP_PASSES, scale_size
from streamseg.stream.device_work import DeviceWork
from streamseg.stream.label_frames import MAX_PIXELS, finish_state, network_size, pick_steadiness, step_batch
from streamseg.stream.shared_run import NOTHING, FrameJob, SharedRun
from streamseg.stream.source_threads import SourceStream
from streamseg.stream.state import State
from streamseg.stream.together import check_one_size, pixel_shares

KEPT_BATCHES = 64
"""The most batches without images that are kept."""
ABSENT_SECONDS = 0.5
"""A live camera that has sent nothing for this long is not waited for by those that it looks together with."""
LISTEN_SECONDS = 0.1
"""How long a thread that reads a video itself waits for its decoder before it looks whether the run was stopped."""


class LabellingError(Exception):
    """An error of the network on its way through a writer, which would take it for its own."""

    def __init__(self, error: OSError):
        super().__init__(str(error))
        self.error = error


class NetworkThread:
    """Labels the frames of all sources; `work` is the thread, or `work_alone`."""

    def __init__(self, engine: Engine, streams: Sequence[SourceStream], shared: SharedRun):
        self.engine, self.streams, self.shared = engine, streams, shared
        self.cuda = shared.device.type == "cuda"
        self.device_work = DeviceWork(shared) if shared.on_device else None
        if isinstance(engine, PreparingEngine):
            engine.preparation.gives_way = shared.live
        self.reading: Generator[FrameJob, None, None] | None = None
        """Reads the frames of the only source, if this thread does so."""
        self.started = self.prepared = self.warned = False
        self.was_preparing = False
        """Whether the engine was being prepared for the frames of a batch when it began."""
        self.together = shared.settings.together
        deadline = shared.deadline.seconds
        self.limit = BatchLimit((deadline / 2 if deadline else BATCH_SECONDS) if shared.live else math.inf)
        self.last_size = (0, 0)
        """The last network input size."""
        self.sizes: Counter[tuple[int, int]] = Counter()
        """How many frames were labelled at each network input size."""
        self.passes: Counter[tuple[int, tuple[int, int]]] = Counter()
        """How often the engine ran with each batch size and input size."""
        self.empty_batches: dict[tuple[int, tuple[int, int], tuple[int, int], bool], FrameBatch] = {}
        """Batches without images, by the number of frames, their sizes in the network and outside, and masks."""

    @property
    def calibrating(self) -> bool:
        """Whether the engine still collects frames to calibrate int8."""
        return getattr(self.engine, "calibrating", False)

    def work(self) -> None:
        """Label frames until all sources have ended."""
        with closing(self.label_batches()) as batches:
            for jobs in batches:
                for job in jobs:
                    job.stream.output.put(job)

    def work_alone(self) -> None:
        """Read, label and write the frames of the only source; processes decode and encode them meanwhile."""
        (stream,) = self.streams
        self.reading = stream.frames()
        with closing(self.reading), closing(self.label_batches()) as batches:
            try:
                stream.writer.write(one_by_one(batches))
            except LabellingError as failure:
                raise failure.error from None

    def read_frame(self, seconds: float = 0.0) -> None:
        """Take the next frame from its decoder, if no other thread does and it comes within some seconds."""
        if self.reading is None:
            return
        (stream,) = self.streams
        if stream.inbox.waiting or stream.inbox.closed:
            return
        if isinstance(stream.video, ProcessVideo):
            begin = time.perf_counter()
            is_ready = stream.video.is_ready(seconds)
            if seconds:
                self.shared.meter.stage("decode", time.perf_counter() - begin, 0)
            if not is_ready:
                return
        job = next(self.reading, None)
        if job is None or not stream.enqueue(job):
            stream.inbox.close()

    def label_batches(self) -> Generator[list[FrameJob], None, None]:
        """Yield batches of labelled frames until all sources have ended."""
        shared = self.shared
        # events and streams belong to the thread's current device, by default the first GPU
        with torch.cuda.device(shared.device) if self.cuda else nullcontext(), torch.inference_mode():
            for jobs in self.batches():
                for job in jobs:
                    job.stream.follow_size(job.shape)
                if shared.live or shared.deadline.seconds:
                    begin = time.perf_counter()
                    if self.prepare(jobs):
                        if not shared.live:  # files wait meanwhile, live sources go on
                            shared.meter.prepared(time.perf_counter() - begin)
                        jobs = [self.newest(job) for job in jobs]
                scale = shared.deadline.scale
                begin = self.start_clock(jobs)
                for job, state in zip(jobs, self.predict(jobs, scale), strict=True):
                    job.stream.state = state
                self.stop_clock(jobs, begin)
                self.last_size = jobs[0].size
                self.sizes[self.last_size] += len(jobs)
                if scale < POOR_SCALE and not self.warned:
                    self.warn(jobs[0])
                yield jobs
                if isinstance(self.engine, VideoEngine):
                    self.finish(jobs)

    def batches(self) -> Iterator[list[FrameJob]]:
        """Yield batches: a frame of the source whose turn is longest ago, and those of others of the same input size.

        A source whose drawer is behind is skipped, so that it delays no other; a live one then has a newer frame later.
        """
        group = self.shared.group
        for number in count():
            while self.reading and not (self.can_continue() or group.failure):
                self.read_frame(LISTEN_SECONDS)
            with group.change:
                group.wait_until(self.can_continue)
                if not (streams := self.waiting()):
                    return
                streams.sort(key=lambda stream: stream.last_batch)
                first = streams[0].inbox.waiting[0]
                chosen = streams if self.together else self.choose(streams, first)
                jobs = [stream.inbox.take() for stream in chosen]
                for stream in chosen:
                    stream.last_batch = number
            if jobs := [job for job in jobs if self.convert(job)]:
                yield jobs

    def convert(self, job: FrameJob) -> bool:
        """Convert a live frame to RGB, unless a GPU does that; return False if it fails, which ends its source only."""
        if self.device_work or job.frame is not NOTHING:
            return True
        try:
            job.frame = job.capture.frame
        except (ValueError, OSError) as problem:
            job.stream.report(problem)
            job.stream.inbox.close()
            return False
        return True

    def choose(self, streams: Sequence[SourceStream], first: FrameJob) -> list[SourceStream]:
        """Return the sources of a batch: those whose next frame is of the kind of the first, within the time limit."""
        kind, size = self.kind(first), self.input_size(first, self.shared.deadline.scale)
        most = self.limit.most_frames(size) if is_preparing(self.engine, size) else self.limit.frames(size)
        alike = (stream for stream in streams if self.kind(stream.inbox.waiting[0]) == kind)
        chosen = list(islice(alike, most))
        if self.cuda:
            del chosen[floor_power_of_two(len(chosen)) :]
        return chosen

    def kind(self, job: FrameJob) -> tuple[tuple[int, int], bool]:
        """Return what frames of a batch have in common: the network input size, and whether they are tiled."""
        return self.input_size(job, 1.0), self.is_tiled(job)

    def is_tiled(self, job: FrameJob) -> bool:
        """Return whether a frame is labelled tile by tile."""
        return self.shared.settings.tiled and math.prod(job.shape[1:]) > MAX_PIXELS

    def waiting(self) -> list[SourceStream]:
        """Return the sources with a frame to label and room for its labels."""
        return [stream for stream in self.streams if stream.inbox.waiting and not stream.output.full]

    def can_continue(self) -> bool:
        """Return whether there is a frame to label or all sources have ended. Closes the queues of ended sources."""
        for stream in self.streams:
            if stream.inbox.ended and not stream.labelled.closed:
                stream.labelled.close()  # so that its video is finished now, not at the end of the run
        waiting = self.waiting()
        if self.together and any(self.is_awaited(stream) for stream in self.streams if stream not in waiting):
            return False
        return bool(waiting) or all(stream.inbox.ended for stream in self.streams)

    def is_awaited(self, stream: SourceStream) -> bool:
        """Return whether the other cameras wait for one that has no frame: a file, or a camera that is not silent."""
        silent = time.monotonic() - stream.last_capture
        return not stream.inbox.ended and not (stream.source.live and silent > ABSENT_SECONDS)

    def newest(self, job: FrameJob) -> FrameJob:
        """Return the frame that a live source has delivered since, or else the job itself."""
        with self.shared.group.change:
            inbox = job.stream.inbox
            if not (job.stream.source.live and inbox.waiting and self.kind(inbox.waiting[0]) == self.kind(job)):
                return job
            newer = inbox.take()
        if not self.convert(newer):
            return job
        self.shared.meter.dropped(1, job.stream.source.name)
        newer.stream.follow_size(newer.shape)
        return newer

    def prepare(self, jobs: list[FrameJob]) -> bool:
        """Run the engine at the sizes that may be needed, so that no frame is late because of its setup.

        Sizes that an engine prepares in the background are run when they are ready; until then frames go on.

        Returns whether anything has been run.
        """
        deadline, runs = self.shared.deadline, list[float]()

        def run_network(scale: float) -> None:
            self.predict(jobs, scale)
            self.synchronize()
            runs.append(scale)

        if self.calibrating:  # on frames of the stream, not on repeated ones; and it is slow meanwhile
            return False
        if not self.started:
            self.started = True
            self.passes.clear()
            if isinstance(self.engine, PreparingEngine):
                run_network(1.0)  # libraries are loaded with the first frame
                self.prepared = deadline.seconds is None
                return True
        if not self.prepared:
            if isinstance(self.engine, PreparingEngine):
                jobs = jobs[:1]  # all sizes are measured with as many frames
            ready = partial(self.request_size, jobs)
            self.prepared = deadline.prepare(self.input_size(jobs[0], 1.0), run_network, time.perf_counter, ready)
            return bool(runs)
        size = self.input_size(jobs[0], deadline.scale)
        known = any(size == other for _, other in self.passes) or not self.is_settled(jobs, size)
        if known or not (deadline.seconds and jobs[0].stream.source.moving):
            return False
        for _ in range(WARM_UP_PASSES - 1):
            run_network(deadline.scale)
        return True

    def is_settled(self, jobs: list[FrameJob], size: tuple[int, int]) -> bool:
        """Return whether the engine is not about to become faster for frames at a network input size."""
        return not isinstance(self.engine, PreparingEngine) or self.engine.is_settled(self.empty_batch(jobs, size))

    def request_size(self, jobs: list[FrameJob], scale: float) -> bool:
        """Return whether the engine is prepared for frames at a scale; if not, ask for it."""
        size = self.input_size(jobs[0], scale)
        settled = self.is_settled(jobs, size)
        if not settled and isinstance(self.engine, PreparingEngine):
            self.engine.request(self.empty_batch(jobs, size))
        return settled

    def empty_batch(self, jobs: list[FrameJob], size: tuple[int, int]) -> FrameBatch:
        """Return a batch as predict makes it for a network input size, without images; kept for the next frames."""
        height, width = jobs[0].shape[1:]
        masked = any(job.stream.mask for job in jobs)
        key = len(jobs), size, (height, width), masked
        if key not in self.empty_batches:
            if len(self.empty_batches) == KEPT_BATCHES:
                self.empty_batches.clear()
            self.empty_batches[key] = self.make_empty_batch(*key)
        return self.empty_batches[key]

    def make_empty_batch(
        self, count: int, size: tuple[int, int], frame_size: tuple[int, int], masked: bool
    ) -> FrameBatch:
        """Return a batch without images for frames of a size."""
        settings = self.shared.settings
        images = torch.empty(count, 3, *size, dtype=torch.uint8, device="meta")
        sizes = [frame_size] * count
        steady = pick_steadiness(settings.policy, settings.cut)
        batch = FrameBatch(images, None, [0.0] * count, sizes, settings.with_confidence, steady)
        return batch._replace(
            mask=torch.empty(count, *size, device="meta") if masked else None,
            shares=torch.empty(count, device="meta") if settings.together else None,
        )

    def input_size(self, job: FrameJob, scale: float) -> tuple[int, int]:
        """Return the network input's height and width for a frame, at a scale."""
        return scale_size(job.stream.size or network_size(*job.shape[1:]), scale)

    def predict(self, jobs: list[FrameJob], scale: float) -> list[State | None]:
        """Label frames of one kind, and return the states of their streams after them."""
        settings = self.shared.settings
        if self.device_work:
            self.device_work.upload(jobs)
        if self.is_tiled(jobs[0]) and isinstance(self.engine, EagerEngine):
            for job in jobs:
                job.scale, job.size = scale, (job.shape[1], job.shape[2])
                job.labels, _ = label_tiled(self.engine.model, job.frame, mask=job.stream.mask)
            return [None for _ in jobs]
        size = self.input_size(jobs[0], scale)
        if self.together:
            check_one_size([self.input_size(job, scale) for job in jobs])
        settled = self.is_settled(jobs, size)
        prepared = settled and self.passes[len(jobs), size] >= WARM_UP_PASSES - 1 and not self.calibrating
        if isinstance(self.engine, PreparingEngine):  # no time counts before the deadline has chosen the first size
            prepared = prepared and self.prepared
        if settled:
            self.passes[len(jobs), size] += 1
        masks = [job.stream.mask for job in jobs]
        images = [resize_frames(paint_over(job.frame[None], job.stream.mask), size) for job in jobs]
        predictions, states = step_batch(
            self.engine,
            torch.cat(images) if len(images) > 1 else images[0],
            [job.stream.state for job in jobs],
            settings.policy,
            sizes=[(job.shape[1], job.shape[2]) for job in jobs],
            with_confidence=settings.with_confidence,
            times=[job.capture.seconds for job in jobs],
            cut=settings.cut,
            masks=masks,
            shares=pixel_shares([size] * len(jobs), masks, self.shared.device) if settings.together else None,
        )
        for job, prediction in zip(jobs, predictions, strict=True):
            job.scale, job.size = scale, size
            job.labels, job.confidence = prediction.labels, prediction.confidence
            # single pictures may all differ in size: setup is part of what each of them takes
            job.prepared = prepared or not job.stream.source.moving
        return [state if job.stream.source.moving else None for job, state in zip(jobs, states, strict=True)]

    def start_clock(self, jobs: list[FrameJob]) -> float:
        """Begin to measure a batch; returns the time."""
        begin = time.perf_counter()
        self.was_preparing = is_preparing(self.engine, self.input_size(jobs[0], self.shared.deadline.scale))
        for job in jobs:
            if not job.stream.source.live:
                job.started = time.monotonic()
        if self.device_work:
            self.device_work.start()
        return begin

    def stop_clock(self, jobs: list[FrameJob], begin: float) -> None:
        """End a batch and its measurement. On a GPU that is when all of it is on the host."""
        shared = self.shared
        if self.device_work:
            self.device_work.finish(jobs, self.read_frame)
        seconds = time.perf_counter() - begin
        for job in jobs:
            job.latency, job.network_seconds = time.monotonic() - job.started, seconds
        if shared.live and not (self.was_preparing or is_preparing(self.engine, jobs[0].size)):
            self.limit.record(jobs[0].size, len(jobs), seconds)
        if not self.device_work:
            shared.meter.stage("network", seconds, len(jobs))
            return
        self.device_work.record(jobs)
        for job in jobs:
            assert job.counts is not None
            shared.add_latency(job)
            shared.add_labels(job, job.counts)

    def finish(self, jobs: list[FrameJob]) -> None:
        """Do the work that a video method has left for the time after the labels; it counts as the network's."""
        begin, done = time.perf_counter(), False
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.cuda else []
        for mark in marks[:1]:
            mark.record()
        for job in jobs:
            state = finish_state(self.engine, job.stream.state)
            done = done or state is not job.stream.state
            job.stream.state = state
        if not done:
            return
        seconds = time.perf_counter() - begin
        if self.cuda:
            marks[1].record()
            marks[1].synchronize()
            seconds = marks[0].elapsed_time(marks[1]) / 1000
        self.shared.meter.stage("network", seconds, 0)

    def synchronize(self) -> None:
        """Wait until the GPU has finished."""
        if self.cuda:
            torch.cuda.current_stream().synchronize()

    def warn(self, job: FrameJob) -> None:
        """Tell the user once that the network input has become too small for good labels."""
        self.warned = True
        (height, width), least = job.size, self.input_size(job, MIN_SCALE)
        self.shared.observer.message(
            f"To meet the deadline, the network input is now {height} x {width}, where labels are poor; the smallest "
            f"is {least[0]} x {least[1]}."
        )


def one_by_one(batches: Iterator[list[FrameJob]]) -> Iterator[FrameJob]:
    """Yield the frames of batches to a writer."""
    try:
        for jobs in batches:
            yield from jobs
    except OSError as error:
        raise LabellingError(error) from error
