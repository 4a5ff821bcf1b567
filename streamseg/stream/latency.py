"""How long frames take, and what holds them up: measured while a stream runs, in memory that does not grow with it.

All times are seconds, until they are shown.
"""

import math
import textwrap
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate

STAGES = ("decode", "upload", "network", "download", "draw", "encode")
"""What is done with a frame, in this order; of a live source decode is left out, since its pace is not our work."""

SINGLE_THREAD_STAGE = "network"
"""The stage that there is one of, however many threads tell of it."""

# what would make a stage faster
ADVICE = {
    "decode": "fewer pixels would help, or a codec that is easy to decode, such as H.264",
    "upload": "a source of fewer pixels would help",
    "network": "a smaller --size would help, on a CPU --precision int8 (a file: export --int8), or a faster --device",
    "download": "a source of fewer pixels would help",
    "draw": "a smaller picture would help, or to write labels alone",
    "encode": "a smaller picture would help, or a format that is quick to write: JPEG rather than PNG",
}

MAX_DROPPED_SHARE = 0.01
"""The most frames of a live source, as a share, that may be dropped without calling anything too slow for it."""
MIN_SILENCE = 0.5
"""Seconds without a frame after which a live source counts as silent."""
MAX_SILENT_SHARE = 0.1
"""The share of the time for which a live source may be silent without being what holds a run up."""


@dataclass(frozen=True)
class Spread:
    """How a time differs from frame to frame: percentiles to 1 %, and the longest exactly."""

    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Stage:
    """How much time a stage takes."""

    mean: float
    """Of one frame; frames that were worked on together share their time."""
    share: float
    """Of the wall time, in which it worked; where several threads do the same, the mean over them."""


@dataclass(frozen=True)
class Summary:
    """How a run went, or goes."""

    wall: float
    read: int
    """Frames that the sources gave, those that were dropped afterwards among them."""
    labelled: int
    written: int
    """Frames that were written or shown."""
    dropped: int
    latency: Spread | None
    """From the capture of a frame to its labels; None before the first."""
    age: Spread | None
    """From the capture of a frame until it is written or shown with its labels: how old what is seen is."""
    stages: dict[str, Stage]
    """By name, those that had something to do."""
    streams: dict[str, tuple[int, int]]
    """Frames read and dropped, by the name of their stream."""
    silent: dict[str, float]
    """How long live streams gave no frame, by name, those that were silent at all."""

    @property
    def source_fps(self) -> float:
        return self.read / self.wall if self.wall else 0.0

    @property
    def network_fps(self) -> float:
        """How many frames a second the network could label, if it had nothing to wait for."""
        mean = self.stages["network"].mean if "network" in self.stages else 0.0
        return 1 / mean if mean else 0.0

    @property
    def output_fps(self) -> float:
        return self.written / self.wall if self.wall else 0.0


class Histogram:
    """Times, counted in bins of which each is 2 % wider than the one before: 1 µs is the first, 12 days the last."""

    def __init__(self) -> None:
        self.counts = [0] * 1400
        self.least, self.most = math.inf, 0.0

    def add(self, seconds: float) -> None:
        number = int(math.log(max(seconds, 1e-6) / 1e-6) / math.log(1.02))
        self.counts[min(number, len(self.counts) - 1)] += 1
        self.least, self.most = min(self.least, seconds), max(self.most, seconds)

    def percentile(self, percent: int) -> float:
        """The time that so many percent of all times do not exceed."""
        so_far = list(accumulate(self.counts))
        number = bisect_left(so_far, math.ceil(so_far[-1] * percent / 100))
        return min(max(1e-6 * 1.02 ** (number + 0.5), self.least), self.most)

    def spread(self) -> Spread | None:
        if not any(self.counts):
            return None
        return Spread(self.percentile(50), self.percentile(95), self.percentile(99), self.most)


class Meter:
    """Measures one run, from when it is made; any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.begin = clock()
        self.lock = threading.Lock()
        self.frames_read: Counter[str] = Counter()
        self.frames_dropped: Counter[str] = Counter()
        self.silent: dict[str, float] = {}
        self.frames_labelled = 0
        self.frames_written = 0
        self.latency, self.age = Histogram(), Histogram()
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.frames = dict.fromkeys(STAGES, 0)
        self.threads: dict[str, set[str]] = {name: set() for name in STAGES}

    def read(self, stream: str = "") -> None:
        """A stream gave a frame."""
        with self.lock:
            self.frames_read[stream] += 1

    def dropped(self, count: int, stream: str = "") -> None:
        """Frames that a stream gave were left out, for newer ones had come."""
        with self.lock:
            self.frames_dropped[stream] += count

    def waited(self, seconds: float, stream: str = "") -> None:
        """A live stream let us wait so long for its next frame, or for none; before its first it was being opened."""
        with self.lock:
            if seconds > MIN_SILENCE and self.frames_read[stream]:
                self.silent[stream] = self.silent.get(stream, 0.0) + seconds

    def stage(self, name: str, seconds: float, frames: int = 1) -> None:
        """A stage worked for a time on a frame, or on several at once."""
        with self.lock:
            self.seconds[name] += seconds
            self.frames[name] += frames
            # by name: threads of one name work one after the other
            self.threads[name].add(threading.current_thread().name)

    def labelled(self, latency: float) -> None:
        """The labels of a frame are there, so long after its capture."""
        with self.lock:
            self.frames_labelled += 1
            self.latency.add(latency)

    def shown(self, age: float) -> None:
        """A frame was written or shown with its labels, so long after its capture."""
        with self.lock:
            self.frames_written += 1
            self.age.add(age)

    def workers(self, name: str) -> int:
        """How many do the work of a stage at once."""
        return 1 if name == SINGLE_THREAD_STAGE else len(self.threads[name])

    def summary(self) -> Summary:
        with self.lock:
            wall = self.clock() - self.begin
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
            )


def bottleneck(summary: Summary) -> str:
    """What holds a run up, and what would help, in a sentence."""
    if not summary.labelled:
        return "No frame was labelled."
    live = "decode" not in summary.stages
    away, stream = max(((seconds, name) for name, seconds in summary.silent.items()), default=(0.0, ""))
    if live and away > MAX_SILENT_SHARE * summary.wall:
        return f"Bottleneck: the source {stream}, which gave no frame for {away:.1f} of {summary.wall:.1f} s."
    if not summary.stages or (live and summary.dropped <= MAX_DROPPED_SHARE * summary.read):
        return (
            f"Bottleneck: the source, which gives {summary.source_fps:.1f} frames a second; there is nothing to gain."
        )
    name, stage = max(summary.stages.items(), key=lambda item: item[1].share)
    return f"Bottleneck: {name}, busy {100 * stage.share:.0f} % of the time; {ADVICE[name]}."


def format_summary(summary: Summary) -> str:
    """A summary as a table for the terminal."""
    counts = f"{summary.read:,} read, {summary.labelled:,} labelled, {summary.written:,} written"
    if summary.dropped:
        counts += f", {summary.dropped:,} dropped ({100 * summary.dropped / max(1, summary.read):.1f} %)"
    speeds = {"source": summary.source_fps, "network": summary.network_fps, "output": summary.output_fps}
    rates = ", ".join(f"{name} {fps:.1f}" for name, fps in speeds.items() if fps)
    lines = format_row("frames", counts)
    if len(summary.streams) > 1 and summary.dropped:
        lines += format_row(
            "dropped", ", ".join(f"{name} {out:,} of {read:,}" for name, (read, out) in summary.streams.items())
        )
    lines += format_row("fps", f"{rates or '-'}, in {summary.wall:.1f} s")
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
    return "\n".join([*lines, "", *textwrap.wrap(bottleneck(summary), 80)])


def format_row(name: str, text: str) -> list[str]:
    """A row of a table, in as many lines as it needs, up to three."""
    return textwrap.wrap(
        text, 80, initial_indent=f"{name:12}", subsequent_indent=" " * 12, max_lines=3, placeholder=" …"
    )


def format_progress(summary: Summary, total: int | None = None) -> str:
    """Where a run stands, in a line that fits a terminal; with a total of frames, how far it is."""
    fps = summary.output_fps or (summary.labelled / summary.wall if summary.wall else 0.0)
    done = f"frame {summary.labelled}"
    if total and summary.labelled <= total:  # which a video may be wrong about
        done += f"/{total} ({100 * summary.labelled // total} %)"
    parts = [done, f"{fps:.1f} fps"]
    if summary.latency:
        # one unit for both
        unit, scale = ("ms", 1000) if summary.latency.p95 < 10 else ("s", 1)
        parts.append(f"latency {scale * summary.latency.p50:.0f} {unit} (p95 {scale * summary.latency.p95:.0f})")
    if summary.age:
        parts.append(f"mask age {format_duration(summary.age.p50, digits=0)}")
    if summary.dropped:
        parts.append(f"dropped {summary.dropped}")
    while len(" · ".join(parts)) > 79:  # how many were dropped is the last that may go
        del parts[-2]
    return " · ".join(parts)


def format_duration(seconds: float, digits: int = 1) -> str:
    return f"{1000 * seconds:.{digits}f} ms" if seconds < 10 else f"{seconds:.{digits}f} s"


def summary_to_json(summary: Summary) -> dict:
    """A summary as JSON can hold it: milliseconds, and null for what was not measured."""

    def milliseconds(spread: Spread | None) -> dict[str, float] | None:
        return {name: 1000 * seconds for name, seconds in asdict(spread).items()} if spread else None

    return {
        "wall_seconds": summary.wall,
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
        "streams": {name: {"read": read, "dropped": dropped} for name, (read, dropped) in summary.streams.items()},
        "bottleneck": bottleneck(summary),
    }
