"""The writer of a source: to files, to an address, and as lines of JSON."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from torch import Tensor

from streamseg.io.live_sender import LiveSender
from streamseg.io.outputs import FrameOutput, LiveOutput, Output, OutputFiles, open_writer
from streamseg.io.packed_labels import pack_labels

if TYPE_CHECKING:
    from streamseg.io.live_video import LiveFrame
    from streamseg.stream.shared_run import FrameJob
    from streamseg.stream.source_threads import SourceStream


class SourceWriter:
    """Writes the drawn frames of a source; `work` is its thread, if it has one."""

    def __init__(self, stream: "SourceStream"):
        self.stream, self.source, self.shared = stream, stream.source, stream.shared
        self.written = 0
        """How many frames were written."""
        self.parts: list[Output] = [stream.results]
        """The files so far: a live source that changes its size goes on in another video."""
        self.sender: LiveSender[LiveFrame] | None = None
        """Sends the frames, if they go to an address."""
        self.picture: Tensor | None = None
        """The newest picture, for the window."""

    def work(self) -> None:
        """Write the drawn frames; the thread."""
        self.write(iter(self.stream.drawn))

    def write(self, jobs: "Iterator[FrameJob]") -> None:
        """Write each frame, and report it."""
        try:
            job = next(jobs, None)
            while job:
                job = self.write_part(job, jobs)
        except (ValueError, OSError) as problem:
            if not (self.shared.live and self.shared.several):
                raise
            self.stream.report(problem)  # the other sources go on
            self.stream.inbox.close()
            for _ in self.stream.drawn:
                pass

    def write_part(self, job: "FrameJob | None", jobs: "Iterator[FrameJob]") -> "FrameJob | None":
        """Write the frames up to a change of size, after which videos need other files; return the next frame."""
        results = self.stream.results
        if job and self.written and isinstance(results, OutputFiles) and results.are_videos:
            self.parts.append(results.next_part())
        size = job and job.labels.shape
        with self.open_output(self.parts[-1]) as write_frame:
            while job and (job.labels.shape == size or not results.are_videos):
                self.write_job(job, write_frame)
                job = next(jobs, None)
        return job

    @contextmanager
    def open_output(self, output: Output) -> Iterator[Callable[[FrameOutput], None]]:
        """Give a function that writes frames to files, or sends them to an address."""
        if isinstance(output, OutputFiles):
            shared = self.shared
            with open_writer(output, self.source, shared.settings.classes, shared.codec_processes) as write_frame:
                yield write_frame
        elif output.address:
            with self.open_sender(output) as send_frame:
                yield send_frame
        else:
            yield lambda frame: None

    @contextmanager
    def open_sender(self, output: LiveOutput) -> Iterator[Callable[[FrameOutput], None]]:
        """Give a function that sends frames to an address; at the end those that wait are sent."""
        from streamseg.io.live_video import LiveFrame, video_sender  # with PyAV, for which no first label waits

        name, rate = self.source.name, self.source.rate
        sender = self.sender = video_sender(name, output.address, rate, self.shared.observer.message)

        def send_frame(frame: FrameOutput) -> None:
            picture = frame.colours if frame.overlay is None else frame.overlay
            assert picture is not None
            sender.put(LiveFrame(picture, frame.capture.seconds))

        try:
            yield send_frame
            sender.close()
        finally:
            sender.abort()
        if sender.problem:
            self.shared.problems.append(sender.problem)

    def write_job(self, job: "FrameJob", write_frame: Callable[[FrameOutput], None]) -> None:
        """Write one frame, and report it."""
        shared, begin = self.shared, time.perf_counter()
        write_frame(FrameOutput(job.capture, job.picture, job.labels, job.confidence, job.colours))
        if shared.raw:
            write_raw_labels(shared.raw, job.labels)
        age = time.monotonic() - job.started
        if shared.records is not None:
            shared.write_record(self.make_record(job, age))
        shared.meter.stage("encode", time.perf_counter() - begin)
        shared.meter.shown(age)
        self.written += 1
        if isinstance(job.picture, Tensor):
            self.picture = job.picture
        shared.observer.frame_written(job.capture, job.shares, self.parts[-1])

    def make_record(self, job: "FrameJob", age: float) -> dict[str, object]:
        """Return what the line of JSON about a frame says."""
        shares = zip(self.shared.settings.classes.names, job.shares, strict=True)
        record: dict[str, object] = {
            "source": self.source.name,
            "name": job.capture.name,
            "frame": job.capture.index,
            "seconds": job.capture.seconds,
            "latency_ms": 1000 * job.latency,
            "mask_age_ms": 1000 * age,
            "size": job.size,
            "shares": {name: share for name, share in shares if share},
        }
        if self.shared.records_labels:
            height, width = job.labels.shape
            record |= {"height": height, "width": width, "labels": pack_labels(job.labels)}
        return record


def write_raw_labels(file: BinaryIO, labels: Tensor) -> None:
    """Write labels (H, W) as bytes to standard output."""
    try:
        file.write(labels.numpy().tobytes())
        file.flush()
    except BrokenPipeError:  # no fault: the reader has closed the pipe
        raise
    except OSError as error:
        raise OSError(f"Could not write to standard output: {error.strerror}.") from error
