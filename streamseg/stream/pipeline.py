"""The pipeline from sources to files: reading, network, drawing and writing run at the same time.

    reader ──▶ inbox ──▶ network ──▶ labelled ──▶ drawer ──▶ drawn ──▶ writer

Each source has a reader, a drawer and a writer (source_threads.py). One network thread labels the frames of all
sources in batches (network_thread.py). This module starts the threads, waits for them and ends the run in good order.
Beside a GPU, processes decode and encode videos; if there is only one, the network thread also reads and writes it.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO

import torch
from torch import Tensor

from streamseg.engine.engine import to_engine
from streamseg.io.codec_pool import IDLE
from streamseg.io.display import DisplayWindow
from streamseg.io.grid import GridView
from streamseg.io.line_thread import LineThread, LineWriter
from streamseg.io.live_lines import LineSender
from streamseg.io.outputs import Output, OutputFiles, share_plan
from streamseg.io.sources import Source, VideoFile
from streamseg.io.web import is_address
from streamseg.parallel.signals import StopSignals
from streamseg.parallel.threads import GroupThread, short_turns
from streamseg.stream.deadline import Deadline
from streamseg.stream.latency import Meter, StreamSummary, summary_to_json
from streamseg.stream.network_thread import NetworkThread
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.region_outputs import RegionSettings
from streamseg.stream.settings import DrawStyle, LabelSettings, SourceSettings
from streamseg.stream.shared_run import SharedRun
from streamseg.stream.source_threads import SourceStream

STOP_TIMEOUT = 5.0
"""Seconds that each thread has to end when a run is aborted."""
STATISTICS_SECONDS = 10.0
"""The time between two lines of JSON with the statistics of live sources."""
GRID_SECONDS = 0.1
"""The time between two pictures of the grid of several sources."""
MAX_FILES = 8
"""The most files that are read at once."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    frames: int
    """How many frames were labelled and written."""
    shares: list[float]
    """The share of each class in all frames."""
    problems: list[str]
    """A sentence for each source that failed; its frames up to then are written."""
    reported: dict[str, str]
    """Those of them that the observer has received during the run, by the name of the source."""
    signal: int
    """The signal that stopped the run; 0 for none."""
    size: tuple[int, int]
    """Height and width of the last network input."""
    sizes: dict[tuple[int, int], int]
    """How many frames were labelled at each network input size, largest first."""
    late: int
    """How many frames were labelled after the deadline."""

    @property
    def smallest(self) -> tuple[int, int]:
        """Height and width of the smallest network input."""
        return min(self.sizes, key=math.prod, default=self.size)


class Pipeline:
    """A run over sources; `run` does all of it."""

    def __init__(
        self,
        sources: Sequence[tuple[Source, Output]],
        settings: LabelSettings,
        style: DrawStyle,
        meter: Meter,
        *,
        deadline: float | None = None,
        records: LineWriter | None = None,
        records_labels: bool = False,
        raw: BinaryIO | None = None,
        regions: RegionSettings | None = None,
        display: DisplayWindow | None = None,
        observer: PipelineObserver | None = None,
        own: Mapping[str, SourceSettings] | None = None,
        hardware: str = "",
    ):
        """
        Args:
            deadline: Seconds within which a frame should be labelled; the network input shrinks if necessary.
            records: Receives a line of JSON for each frame; of live sources also one with statistics now and then.
            records_labels: Whether the lines of frames hold their labels.
            raw: Receives the labels of each frame as bytes.
            regions: What to do with regions and zones.
            display: Shows the frames.
            observer: Receives messages, written frames and ticks.
            own: Settings of single sources, by name; the others have those of all.
            hardware: The hardware decoder of videos: cuda, vaapi, videotoolbox or auto; empty for none.
        """
        engine = to_engine(settings.model)
        self.shared = SharedRun(
            settings=settings,
            style=style,
            meter=meter,
            deadline=Deadline(deadline),
            observer=observer or PipelineObserver(),
            device=engine.device,
            live=any(source.live for source, _ in sources),
            several=len(sources) > 1,
            shows=display is not None,
            records=records,
            records_labels=records_labels,
            raw=raw,
            regions=regions,
            hardware=hardware,
        )
        self.settings, self.display, self.group = settings, display, self.shared.group
        outputs = share_plan([output for _, output in sources])
        self.streams = [
            SourceStream(source, output, self.shared, (own or {}).get(source.name))
            for (source, _), output in zip(sources, outputs, strict=True)
        ]
        self.network = NetworkThread(engine, self.streams, self.shared)
        self.stopped = False
        self.alone = False
        """Whether the network thread is the only one."""
        self.shown: Tensor | None = None
        names = [stream.source.name for stream in self.streams]
        self.grid = GridView(names, display.room) if display and len(names) > 1 else None
        self.next_grid = 0.0
        """When the grid is drawn again, by time.monotonic()."""
        self.next_statistics = math.inf
        """When statistics are written again, by time.monotonic()."""

    def run(self) -> RunResult:
        """Read, label, draw and write every frame, or all until Ctrl-C; frames that were begun are then finished."""
        threads = torch.get_num_threads()
        self.start_codecs()
        if self.shared.live and self.shared.records is not None:
            self.next_statistics = time.monotonic() + STATISTICS_SECONDS
        with StopSignals() as stop, short_turns(self.shared.on_device):
            self.alone = len(self.streams) == 1 and not needs_threads(self.streams[0])
            work = self.network.work_alone if self.alone else self.network.work
            network = self.group.start("network", work, threads=threads)
            try:
                while alive := [thread for thread in self.awaited(network) if not thread.ended.is_set()]:
                    if not self.alone:
                        self.start_streams()
                    self.supervise(stop.signal)
                    alive[0].ended.wait(0.02 if self.display else 0.1)
                self.next_grid = 0.0
                self.refresh_display()
            except BaseException as error:  # a second Ctrl-C
                self.group.fail(error)
                for thread in self.awaited(network):  # they remove unfinished files; one may hang in a pipe
                    thread.ended.wait(STOP_TIMEOUT)
                raise
            finally:
                torch.set_num_threads(threads)
        if self.group.failure:
            raise self.group.failure
        return self.result(stop.signal)

    def result(self, signal: int) -> RunResult:
        """Return how the run ended."""
        pixels, sizes = self.shared.class_pixels, self.network.sizes
        return RunResult(
            frames=sum(stream.writer.written for stream in self.streams),
            shares=[count / max(1, sum(pixels)) for count in pixels],
            problems=list(self.shared.problems),
            reported=dict(self.shared.reported),
            signal=signal,
            size=self.network.last_size,
            sizes={size: sizes[size] for size in sorted(sizes, key=math.prod, reverse=True)},
            late=self.shared.deadline.late,
        )

    def summarize(self) -> dict[str, object]:
        """Return the measurements so far, of all sources and of each, for JSON."""
        records = self.shared.records
        summary = summary_to_json(self.shared.meter.summary(), self.stream_summaries())
        return summary | ({"lines_dropped": records.dropped} if isinstance(records, LineThread | LineSender) else {})

    def stream_summaries(self) -> dict[str, StreamSummary]:
        """Return the measurements of each source that was opened, in their order."""
        measured = self.shared.meter.stream_summaries()
        return {name: measured[name] for stream in self.streams if (name := stream.source.name) in measured}

    @property
    def total(self) -> int | None:
        """How many frames all sources have; None while one is unknown, as that of a camera always is."""
        totals = [stream.total for stream in self.streams]
        return None if None in totals else sum(filter(None, totals))

    def awaited(self, network: GroupThread) -> list[GroupThread]:
        """Return the started threads that the end of a run waits for."""
        return [network, *(thread for stream in self.streams for thread in stream.threads)]

    def start_codecs(self) -> None:
        """Start the processes of codecs ahead: a decoder for each video, and an encoder for each that is written."""
        if not self.shared.codec_processes:
            IDLE.drop_begun()  # a GPU was expected that torch cannot use
            return
        videos = [stream for stream in self.streams if isinstance(stream.source, VideoFile)][:MAX_FILES]
        written = sum(len(stream.results.paths) for stream in videos if stream.results.are_videos)
        try:
            IDLE.start(len(videos) + written)
        except OSError as error:
            self.shared.codec_processes = False
            self.shared.observer.message(f"Videos are decoded and encoded in threads: no process starts ({error}).")

    def start_streams(self) -> None:
        """Start to read sources: all live ones at once, files a few at a time, so that memory stays flat."""
        todo = [stream for stream in self.streams if not stream.threads]
        if not todo or self.stopped or self.group.failure:
            return
        running = [stream for stream in self.streams if stream.running]
        files, taken = sum(not stream.source.live for stream in running), {stream.slot for stream in running}
        free = (slot for slot in count() if slot not in taken)
        for stream in todo:
            if stream.source.live or files < MAX_FILES:
                stream.start(next(free))
                files += not stream.source.live

    def supervise(self, signal: int) -> None:
        """Do the work of the main thread: report, show frames, and stop when asked to."""
        self.shared.observer.tick()
        now = time.monotonic()
        for stream in self.streams:
            stream.watch(now)
        if now >= self.next_statistics and not self.stopped and any(stream.writer.written for stream in self.streams):
            self.next_statistics = now + STATISTICS_SECONDS
            self.shared.write_record({"statistics": self.summarize()})
        self.refresh_display()
        if (signal or (self.display and self.display.closed)) and not self.stopped:
            self.stopped = True
            for stream in self.streams:
                stream.inbox.close()

    def refresh_display(self) -> None:
        """Show the newest frame, or a grid of the newest ones of several sources, and handle keys and clicks."""
        if not self.display:
            return
        newest = self.draw_grid() if self.grid else self.streams[0].writer.picture
        if newest is not None and newest is not self.shown:
            self.display.show(newest)
            self.shown = None if self.grid else newest
        else:
            self.display.update()

    def draw_grid(self) -> Tensor | None:
        """Return the grid if it has changed; a few times a second, as each of many tiles takes time."""
        if not self.grid or time.monotonic() < self.next_grid:
            return None
        # each read once: a writer may replace it at any moment
        changed = self.grid.draw(
            [stream.writer.picture for stream in self.streams], [stream.writer.written for stream in self.streams]
        )
        self.next_grid = time.monotonic() + GRID_SECONDS
        return self.grid.canvas if changed else None


def needs_threads(stream: SourceStream) -> bool:
    """Return whether reader, drawer and writer of a run's only source are threads of their own.

    Those of a video whose codecs are processes are not: the network thread then takes frames from the one process and
    gives labels to the other. As threads they would do little but make it wait for Python's lock.
    """
    shared, source, results = stream.shared, stream.source, stream.results
    if not (isinstance(source, VideoFile) and isinstance(results, OutputFiles) and results.are_videos):
        return True
    if not (shared.decoding.process and stream.drawn_early):
        return True
    # standard output, a window or a web server may let one wait, and labels as text take as long as a frame
    return bool(shared.raw) or shared.shows or shared.records_labels or is_address(source.address)
