"""Measure how long frames take and which stage is the bottleneck, in constant memory.

All times are seconds; they are shown as milliseconds.
"""

import math
import textwrap
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate

STAGES = ("decode", "upload", "network", "download", "draw", "encode")
"""The stages of a frame, in order. A live source has no decode stage: waiting for a camera is not decoding."""

SINGLE_THREAD_STAGE = "network"
"""The stage that runs in a single thread, though several threads report its times."""

ADVICE = {
    "decode": "use fewer pixels, or a codec that is fast to decode, such as H.264",
    "upload": "use a source with fewer pixels",
    "network": "use a smaller --size, on a CPU --precision int8 (exported files: export --int8), or a faster --device",
    "download": "use a source with fewer pixels",
    "draw": "use smaller frames, or write labels only",
    "encode": "use smaller frames, or a format that is fast to write, such as JPEG instead of PNG",
}
"""What makes each stage faster."""

MAX_DROPPED_SHARE = 0.01
"""The share of dropped frames up to which a run keeps up with a live source."""
MAX_STREAM_ROWS = 12
"""The largest number of streams in the table."""
MIN_SILENCE = 0.5
"""Seconds without a frame after which a live source counts as silent."""
MAX_SILENT_SHARE = 0.1
"""The share of the time above which a silent live source is the bottleneck."""


@dataclass(frozen=True)
class Spread:
    """The distribution of a time: percentiles to 1 %, and the exact maximum."""

    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Stage:
    """The time of a stage."""

    mean: float
    """For one frame; the frames of a batch share its time."""
    share: float
    """The share of the wall time in which it was busy; the mean over threads that do the same."""


@dataclass(frozen=True)
class Summary:
    """The measurements of a run so far."""

    wall: float
    read: int
    """Frames that were read, including dropped ones."""
    labelled: int
    written: int
    """Frames that were written or shown."""
    dropped: int
    latency: Spread | None
    """From the capture of a frame to its labels; None before the first."""
    age: Spread | None
    """From the capture of a frame until it is written or shown with its labels; None before the first."""
    stages: dict[str, Stage]
    """By name; only those that did any work."""
    streams: dict[str, tuple[int, int]]
    """Frames read and dropped, by the name of the stream."""
    silent: dict[str, float]
    """For how long live streams were silent, by name; only those that were."""
    preparation: float = 0.0
    """Seconds that files waited while the engine was prepared for input sizes; not part of `wall`."""

    @property
    def source_fps(self) -> float:
        return self.read / self.wall if self.wall else 0.0

    @property
    def network_fps(self) -> float:
        """Frames a second that the network alone could label."""
        mean = self.stages["network"].mean if "network" in self.stages else 0.0
        return 1 / mean if mean else 0.0

    @property
    def output_fps(self) -> float:
        return self.written / self.wall if self.wall else 0.0


@dataclass(frozen=True)
class StreamSummary:
    """The measurements of one stream so far."""

    read: int
    labelled: int
    dropped: int
    latency: Spread | None
    reconnects: int
    """How often it was lost and came back."""
    silent: float
    """For how many seconds it sent nothing."""
    live: bool


class Histogram:
    """A histogram of times with bins that grow by 2 %, from 1 µs to 12 days."""

    def __init__(self) -> None:
        self.counts = [0] * 1400
        self.least, self.most = math.inf, 0.0

    def add(self, seconds: float) -> None:
        number = int(math.log(max(seconds, 1e-6) / 1e-6) / math.log(1.02))
        self.counts[min(number, len(self.counts) - 1)] += 1
        self.least, self.most = min(self.least, seconds), max(self.most, seconds)

    def copy(self) -> "Histogram":
        """Return a copy, which can be looked at while others add times."""
        other = Histogram()
        other.counts, other.least, other.most = self.counts.copy(), self.least, self.most
        return other

    def spread(self) -> Spread | None:
        """Return percentiles: the times that a percentage of all times does not exceed."""
        so_far = list(accumulate(self.counts))
        if not so_far[-1]:
            return None

        def percentile(percent: int) -> float:
            number = bisect_left(so_far, math.ceil(so_far[-1] * percent / 100))
            return min(max(1e-6 * 1.02 ** (number + 0.5), self.least), self.most)

        return Spread(percentile(50), percentile(95), percentile(99), self.most)


class Meter:
    """Measures a run from its construction on. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.begin = clock()
        self.lock = threading.Lock()
        self.frames_read: Counter[str] = Counter()
        self.frames_dropped: Counter[str] = Counter()
        self.latencies: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.reconnects: Counter[str] = Counter()
        self.live: set[str] = set()
        self.silent: dict[str, float] = {}
        self.preparation = 0.0
        self.frames_labelled = 0
        self.frames_written = 0
        self.latency, self.age = Histogram(), Histogram()
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.frames = dict.fromkeys(STAGES, 0)
        self.threads: dict[str, set[str]] = {name: set() for name in STAGES}

    def read(self, stream: str = "") -> None:
        """Count a frame that a stream delivered."""
        with self.lock:
            self.frames_read[stream] += 1

    def dropped(self, count: int, stream: str = "") -> None:
        """Count frames of a stream that newer ones replaced."""
        with self.lock:
            self.frames_dropped[stream] += count

    def waited(self, seconds: float, stream: str = "") -> None:
        """Add the time for which a live stream delivered no frame; before its first frame it is being opened."""
        with self.lock:
            self.live.add(stream)
            if seconds > MIN_SILENCE and self.frames_read[stream]:
                self.silent[stream] = self.silent.get(stream, 0.0) + seconds

    def stage(self, name: str, seconds: float, frames: int = 1) -> None:
        """Add the time that a stage took for a frame, or for several at once."""
        with self.lock:
            self.seconds[name] += seconds
            self.frames[name] += frames
            # by name: threads of the same name work one after the other
            self.threads[name].add(threading.current_thread().name)

    def reconnected(self, stream: str = "") -> None:
        """Count a stream that was lost and has come back."""
        with self.lock:
            self.reconnects[stream] += 1

    def labelled(self, latency: float, stream: str = "") -> None:
        """Add the latency of a labelled frame."""
        with self.lock:
            self.frames_labelled += 1
            self.latency.add(latency)
            self.latencies[stream].add(latency)

    def shown(self, age: float) -> None:
        """Add the age at which a frame was written or shown."""
        with self.lock:
            self.frames_written += 1
            self.age.add(age)

    def workers(self, name: str) -> int:
        """Return how many threads do the work of a stage at once."""
        return 1 if name == SINGLE_THREAD_STAGE else len(self.threads[name])

    def prepared(self, seconds: float) -> None:
        """Report that the engine was prepared for this long, while no frame was labelled."""
        with self.lock:
            self.preparation += seconds

    def summary(self) -> Summary:
        with self.lock:
            wall = self.clock() - self.begin - self.preparation
            return Summary(
                wall=wall,
                read=self.frames_read.total(),
                labelled=self.frames_labelled,
                written=self.frames_written,
                dropped=self.frames_dropped.total(),
                latency=self.latency.spread(),
                age=self.age.spread(),
                stages={
                    name: Stage(
                        mean=self.seconds[name] / self.frames[name],
                        share=self.seconds[name] / (wall * self.workers(name)) if wall else 0.0,
                    )
                    for name in STAGES
                    if self.frames[name]
                },
                streams={name: (count, self.frames_dropped[name]) for name, count in self.frames_read.items()},
                silent=dict(self.silent),
                preparation=self.preparation,
            )

    def stream_summaries(self) -> dict[str, StreamSummary]:
        """Return the measurements of each stream that was opened, by name; slower than the summary of all."""
        with self.lock:
            names = [*self.frames_read, *sorted(self.live - self.frames_read.keys())]
            latencies = {name: self.latencies[name].copy() for name in names}
            read, dropped, reconnects = self.frames_read.copy(), self.frames_dropped.copy(), self.reconnects.copy()
            silent, live = self.silent.copy(), self.live.copy()
        # without the lock: of many streams it takes as long as a frame
        return {
            name: StreamSummary(
                read=read[name],
                labelled=sum(latencies[name].counts),
                dropped=dropped[name],
                latency=latencies[name].spread(),
                reconnects=reconnects[name],
                silent=silent.get(name, 0.0),
                live=name in live,
            )
            for name in names
        }


def bottleneck(summary: Summary) -> str:
    """Return a sentence on the bottleneck of a run, and how to remove it."""
    if not summary.labelled:
        return "No frame was labelled."
    live = "decode" not in summary.stages
    away, stream = max(((seconds, name) for name, seconds in summary.silent.items()), default=(0.0, ""))
    if live and away > MAX_SILENT_SHARE * summary.wall:
        return f"Bottleneck: the source {stream}, which was silent for {away:.1f} of {summary.wall:.1f} s."
    if not summary.stages or (live and summary.dropped <= MAX_DROPPED_SHARE * summary.read):
        return f"Bottleneck: the source, at {summary.source_fps:.1f} frames a second; the rest keeps up."
    name, stage = max(summary.stages.items(), key=lambda item: item[1].share)
    return f"Bottleneck: {name}, busy {100 * stage.share:.0f} % of the time; {ADVICE[name]}."


def format_summary(summary: Summary, streams: Mapping[str, StreamSummary] | None = None) -> str:
    """Return a summary as a table for the terminal, with one of the streams if several are given and any is live."""
    counts = f"{summary.read:,} read, {summary.labelled:,} labelled, {summary.written:,} written"
    if summary.dropped:
        counts += f", {summary.dropped:,} dropped ({100 * summary.dropped / max(1, summary.read):.1f} %)"
    speeds = {"source": summary.source_fps, "network": summary.network_fps, "output": summary.output_fps}
    rates = ", ".join(f"{name} {fps:.1f}" for name, fps in speeds.items() if fps)
    lines = format_row("frames", counts)
    before = f" after {summary.preparation:.1f} s of preparation" if summary.preparation >= 0.05 else ""
    lines += format_row("fps", f"{rates or '-'}, in {summary.wall:.1f} s{before}")
    spreads = {"latency": summary.latency, "mask age": summary.age}
    if any(spreads.values()):
        lines += ["", f"{'':10}" + "".join(f"{name:>12}" for name in ("p50", "p95", "p99", "max"))]
    for name, spread in spreads.items():
        if spread:
            lines.append(
                f"{name:10}" + "".join(f"{format_duration(seconds):>12}" for seconds in asdict(spread).values())
            )
    if summary.stages:
        lines += ["", f"{'':10}{'a frame':>12}{'busy':>12}"]
    for name, stage in summary.stages.items():
        bar = "█" * round(40 * min(stage.share, 1))
        lines.append(f"{name:10}{format_duration(stage.mean):>12}{100 * stage.share:>10.0f} %  {bar}".rstrip())
    if streams and len(streams) > 1 and any(stream.live for stream in streams.values()):
        lines += ["", *format_streams(streams)]
    return "\n".join([*lines, "", *textwrap.wrap(bottleneck(summary), 80)])


def format_streams(streams: Mapping[str, StreamSummary]) -> list[str]:
    """Return the lines of a table of streams; of many, those with the most dropped frames and the longest latency."""

    def badness(name: str) -> tuple[float, float]:
        stream = streams[name]
        return stream.dropped / max(1, stream.read), stream.latency.p95 if stream.latency else math.inf

    worst = sorted(streams, key=badness, reverse=True)[:MAX_STREAM_ROWS]
    shown = [name for name in streams if name in worst]  # in the order given
    lines = [f"{'stream':26}{'frames':>12}{'dropped':>10}{'p50':>10}{'p95':>10}{'reconnects':>12}"]
    for name in shown:
        stream = streams[name]
        times = [stream.latency.p50, stream.latency.p95] if stream.latency else []
        spread = [format_duration(seconds) for seconds in times] or ["-", "-"]
        dropped = f"{100 * stream.dropped / max(1, stream.read):.1f} %"
        cells = "".join(f"{cell:>10}" for cell in (dropped, *spread))
        lines.append(f"{shorten(name, 25):26}{stream.read:>12,}{cells}{stream.reconnects:>12,}")
    if more := len(streams) - len(shown):
        lines.append(f"and {more} more with fewer dropped frames; --json has all of them")
    return lines


def shorten(name: str, width: int) -> str:
    """Return a name that fits a column: the end of a long name says more than its beginning."""
    return name if len(name) <= width else "…" + name[1 - width :]


def format_row(name: str, text: str) -> list[str]:
    """Return the lines of a row of the table, up to three."""
    return textwrap.wrap(
        text, 80, initial_indent=f"{name:12}", subsequent_indent=" " * 12, max_lines=3, placeholder=" …"
    )


def format_progress(summary: Summary, total: int | None = None) -> str:
    """Return a line of progress that fits a terminal, with a percentage if the total of frames is known."""
    fps = summary.output_fps or (summary.labelled / summary.wall if summary.wall else 0.0)
    done = f"frame {summary.labelled}"
    if total and summary.labelled <= total:  # a video may declare a wrong number
        done += f"/{total} ({100 * summary.labelled // total} %)"
    parts = [done, f"{fps:.1f} fps"]
    if summary.latency:
        # the same unit for both
        unit, scale = ("ms", 1000) if summary.latency.p95 < 10 else ("s", 1)
        parts.append(f"latency {scale * summary.latency.p50:.0f} {unit} (p95 {scale * summary.latency.p95:.0f})")
    if summary.age:
        parts.append(f"mask age {format_duration(summary.age.p50, digits=0)}")
    if summary.dropped:
        parts.append(f"dropped {summary.dropped}")
    while len(" · ".join(parts)) > 79:  # the number of dropped frames stays longest
        del parts[-2]
    return " · ".join(parts)


def format_duration(seconds: float, digits: int = 1) -> str:
    return f"{1000 * seconds:.{digits}f} ms" if seconds < 10 else f"{seconds:.{digits}f} s"


def summary_to_json(summary: Summary, streams: Mapping[str, StreamSummary] | None = None) -> dict:
    """Return a summary and those of the streams for JSON: milliseconds, and null for what was not measured."""

    def milliseconds(spread: Spread | None) -> dict[str, float] | None:
        return {name: 1000 * seconds for name, seconds in asdict(spread).items()} if spread else None

    return {
        "wall_seconds": summary.wall,
        "preparation_seconds": summary.preparation,
        "frames": {name: getattr(summary, name) for name in ("read", "labelled", "written", "dropped")},
        "fps": {
            "source": summary.source_fps,
            "network": summary.network_fps or None,
            "output": summary.output_fps,
        },
        "latency_ms": milliseconds(summary.latency),
        "mask_age_ms": milliseconds(summary.age),
        "stages": {
            name: {"ms_per_frame": 1000 * stage.mean, "busy": stage.share} for name, stage in summary.stages.items()
        },
        "streams": {
            name: {
                "read": stream.read,
                "labelled": stream.labelled,
                "dropped": stream.dropped,
                "latency_ms": milliseconds(stream.latency),
                "reconnects": stream.reconnects,
                "silent_seconds": stream.silent,
            }
            for name, stream in (streams or {}).items()
        },
        "bottleneck": bottleneck(summary),
    }
