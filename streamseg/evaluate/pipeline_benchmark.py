"""Speed of `segment` from file to file, beside that of bare decoding and encoding in the same run.

Every case reads the same frames and writes the same kinds of files. The cases run in turn, so that any disturbance
affects all of them, and each is timed from the opening of its first file to the closing of its last.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median

import torch

from streamseg.engine import kernels
from streamseg.engine.engine import FrameBatch
from streamseg.engine.prepare import PreparingEngine
from streamseg.evaluate.bare_video import (
    VideoInfo,
    copy_start,
    count_frames,
    describe_video,
    encode_labels,
    to_label_frames,
    transcode,
)
from streamseg.evaluate.lock_probe import summarise_waits
from streamseg.evaluate.pipeline_samples import Samples, describe_queue, sampled
from streamseg.io.codec_pool import IDLE
from streamseg.io.outputs import OutputFiles
from streamseg.io.resolve import resolve_sources
from streamseg.io.sources import LiveSource, VideoFile
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.io.web import is_address, redact
from streamseg.parallel.threads import ThreadGroup
from streamseg.stream.batch_limit import BatchLimit
from streamseg.stream.device_work import DeviceTimes
from streamseg.stream.label_frames import label_frame, network_size, pick_steadiness
from streamseg.stream.latency import Meter, Summary, bottleneck
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import State

MIN_FRAMES = 8
"""The fewest frames that a video must have to be measured."""
WARM_UP_FRAMES = 16
"""The length of the clip with which everything runs once before it is timed: int8 is calibrated with eight frames."""
PREPARATION_SECONDS = 120.0
"""How long to wait for an engine that prepares itself in the background."""

DECODE, TRANSCODE, LABEL_ENCODE = "decode", "decode, encode", "decode, encode labels"
NETWORK, LABELS, OVERLAY = "network", "labels", "overlay"
IN_ONE_THREAD = "one thread does all stages, one after the other, beside the processes of the codecs"


@dataclass(frozen=True)
class Run:
    """One run of one case."""

    frames: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of all threads, and of the processes of codecs."""
    summary: Summary | None = None
    """What the pipeline measured; None for a bare case."""
    samples: Samples = field(default_factory=Samples)
    """What was seen of the pipeline while it ran."""
    device: DeviceTimes | None = None
    """What the network thread did on a GPU; None for a bare case, and on the CPU."""
    alone: bool = False
    """Whether that thread did all stages."""

    @property
    def queues(self) -> dict[str, float]:
        """How full the queues between the stages were on average, from 0 to 1."""
        return self.samples.fills()

    @property
    def first_labels(self) -> float:
        """Seconds from the start to the first labels."""
        return self.samples.first_labels

    @property
    def fps(self) -> float:
        return self.frames / self.seconds


@dataclass(frozen=True)
class Case:
    """What is measured: a bare codec, the network alone, or `segment`."""

    name: str
    run: Callable[[], Run]
    bare: str = ""
    """The bare case that `segment` is compared with."""


@dataclass(frozen=True)
class Speed:
    """The speed of a case over all rounds."""

    way: str
    """The name of the case."""
    fps: float
    """Frames a second, the median of the rounds."""
    rounds: tuple[float, ...]
    """Frames a second in each round."""
    cores: float
    """How many cores were busy on average."""
    bare: str = ""
    of_bare: float | None = None
    """Speed relative to the bare case, the median of the rounds."""
    of_network: float | None = None
    """Speed relative to the network alone, the median of the rounds."""


@dataclass(frozen=True)
class StageTimes:
    """Where the time of a case of `segment` goes, the mean of the rounds."""

    way: str
    """The name of the case."""
    ms: dict[str, float]
    """Milliseconds a frame, by stage."""
    busy: dict[str, float]
    """Share of the run in which a stage works, by stage; the mean over threads that do the same."""
    queues: dict[str, float]
    """How full the queues between the stages are, from 0 to 1."""
    waits: tuple[str, ...]
    """Which stage waits for which, or that one thread does all of them."""
    ms_per_frame: float
    """Milliseconds a frame of the whole run."""
    slowest: str
    """The stage that is busy for most of the run."""
    of_slowest: float
    """Speed of the whole relative to its slowest stage."""
    bottleneck: str
    """A sentence on the round of median speed."""
    lock_ms: dict[str, float] = field(default_factory=dict)
    """How long a further thread waits for Python's lock, the mean and the 95th percentile of samples."""
    host_ms: dict[str, float] = field(default_factory=dict)
    """What a batch takes the network thread on a GPU: work on the device by its own clock, `enqueue` in Python, and
    `wait` for the device; with `frames` of a batch and `waits` for the device in all. Empty on the CPU."""


@dataclass(frozen=True)
class PipelineFigures:
    """All that was measured on a video."""

    video: VideoInfo
    frames: int
    streams: int
    rounds: int
    first_labels_seconds: float
    """From the start of the first run to its first labels: the engine prepares itself then."""
    next_first_labels_seconds: float
    """The same in a later run, the median."""
    speeds: tuple[Speed, ...]
    stages: tuple[StageTimes, ...]


def check_video(name: str) -> Path:
    """Return the path of a video; an error if a name stands for anything else."""
    if is_address(name):
        raise ValueError(f"{redact(name)} is an address, whose speed is the network's: give a video file.")
    sources, problems = resolve_sources([name])
    if problems:
        raise problems[0]
    source, *others = sources
    if others or not isinstance(source, VideoFile):
        found = f"{len(sources)} sources" if others else "a camera" if isinstance(source, LiveSource) else "no video"
        raise ValueError(f"{name} is {found}: the pipeline is measured on one video file, such as drive.mp4.")
    return Path(source.address)


def measure_pipeline(
    video: Path,
    settings: LabelSettings,
    style: DrawStyle,
    *,
    frames: int,
    streams: int = 4,
    rounds: int = 2,
    progress: Callable[[int, int], None] = lambda done, total: None,
    each: Callable[[PipelineFigures], None] = lambda figures: None,
) -> PipelineFigures:
    """Measure `segment` on the first frames of a video, and what bare codecs take for the same.

    Args:
        frames: How many frames each case takes; fewer if the video is shorter.
        streams: How many streams are read at once where many are measured; they have as many frames together.
        rounds: How often each case runs.
        each: Receives the figures so far after each run of a case.
    """
    info = describe_video(video)
    with tempfile.TemporaryDirectory(prefix="streamseg-") as name:
        folder = Path(name)
        clip = shorten(video, folder / "clip.mkv", frames)
        count = count_frames(clip)
        if count < max(MIN_FRAMES, streams):
            needed = f"at least {max(MIN_FRAMES, streams)}"
            raise ValueError(f"{video.name} has {count} frames, too few to measure: give a video of {needed}.")
        start = shorten(clip, folder / "start.mkv", WARM_UP_FRAMES)
        segment = partial(run_segment, settings=settings, style=style, folder=folder)
        first = segment([start], LABELS)
        labels = to_label_frames(labels for labels, _ in read_label_video(folder / "labels-0.mkv"))
        request_batch_sizes(settings, (info.height, info.width), streams)
        for _ in range(2):  # with and without the prepared engine, everything has run once
            wait_until_prepared(settings)
            segment([start] * streams, OVERLAY)
        wait_until_prepared(settings)
        part = shorten(clip, folder / "part.mkv", count // streams)
        rate = info.rate

        def transcode_several() -> Run:
            with ThreadPoolExecutor(streams) as pool:
                outs = [folder / f"bare-{i}.mp4" for i in range(streams)]
                return Run(sum(pool.map(lambda out: transcode(part, out, rate), outs)))

        several = f"{streams} x {TRANSCODE}"
        cases = [
            Case(DECODE, lambda: Run(count_frames(clip))),
            Case(NETWORK, partial(run_network, clip, settings, count)),
            Case(LABEL_ENCODE, lambda: Run(encode_labels(clip, labels, folder / "bare.mkv", rate))),
            Case(LABELS, lambda: segment([clip], LABELS), LABEL_ENCODE),
            Case(TRANSCODE, lambda: Run(transcode(clip, folder / "bare.mp4", rate))),
            Case(OVERLAY, lambda: segment([clip], OVERLAY), TRANSCODE),
            Case(several, transcode_several),
            Case(f"{OVERLAY}, {streams} streams", lambda: segment([part] * streams, OVERLAY), several),
        ]
        figures = partial(summarise, info, count, streams, rounds, first.first_labels, cases)
        runs: dict[str, list[Run]] = {}
        for runs in run_in_turn(cases, rounds, progress):
            each(figures(runs))
    return figures(runs)


def summarise(
    info: VideoInfo,
    count: int,
    streams: int,
    rounds: int,
    first_labels: float,
    cases: Sequence[Case],
    runs: dict[str, list[Run]],
) -> PipelineFigures:
    """Return the figures of the cases that have run."""
    later = [run.first_labels for found in runs.values() for run in found if run.first_labels]
    done = [case for case in cases if case.name in runs]
    return PipelineFigures(
        info,
        count,
        streams,
        rounds,
        first_labels,
        median(later or [0.0]),
        tuple(summarise_speed(case, runs) for case in done),
        tuple(summarise_stages(case.name, runs[case.name]) for case in done if case.bare),
    )


def shorten(video: Path, out: Path, frames: int) -> Path:
    """Return a video with the first frames of another; itself, if it has no more."""
    with open_video(video) as opened:
        length = opened.length
    if length is not None and length <= frames:
        return video
    copy_start(video, out, frames)
    return out


def request_batch_sizes(settings: LabelSettings, size: tuple[int, int], streams: int) -> None:
    """Ask an engine that prepares itself in the background for all batch sizes of streams of frames of a size.

    By itself it prepares those that come, and one that comes late would be prepared while others are timed.
    """
    if not isinstance(settings.model, PreparingEngine):
        return
    wanted = settings.size or network_size(*size)
    count, most = 1, min(streams, BatchLimit(math.inf).frames(wanted))
    while count <= most:
        images = torch.empty(count, 3, *wanted, dtype=torch.uint8, device="meta")
        more = (settings.with_confidence, pick_steadiness(settings.policy, settings.cut))
        settings.model.request(FrameBatch(images, None, [0.0] * count, [size] * count, *more))
        count *= 2


def wait_until_prepared(settings: LabelSettings) -> None:
    """Wait for an engine that prepares itself in the background; raise an OSError if it does not get ready."""
    kernels.wait_until_compiled()  # those that convert and draw frames
    preparation, end = getattr(settings.model, "preparation", None), time.monotonic() + PREPARATION_SECONDS
    if preparation is None:
        return
    while preparation.waiting and time.monotonic() < end:
        time.sleep(0.05)
    if preparation.waiting:
        raise OSError(
            f"The fast engine was not prepared within {PREPARATION_SECONDS:.0f} s, so that its speed cannot be "
            "measured: compile its kernels first with streamseg warm."
        )
    if preparation.failed:
        raise OSError(
            "The fast engine could not be prepared, so that its speed cannot be measured: see the warning above."
        )


def run_in_turn(
    cases: Sequence[Case], rounds: int, progress: Callable[[int, int], None]
) -> Iterator[dict[str, list[Run]]]:
    """Run each case once in each round; yield the runs so far after each, by the name of the case."""
    runs: dict[str, list[Run]] = {}
    for number in range(rounds):
        for place, case in enumerate(cases):
            progress(number * len(cases) + place, rounds * len(cases))
            runs.setdefault(case.name, []).append(case.run() if case.name == NETWORK else timed(case.run))
            yield runs


def processor_seconds() -> float:
    """Return the processor time so far of this process, and of those of codecs, which all wait between runs."""
    return time.process_time() + sum(process.cpu_seconds for process in IDLE.processes if process.alive)


def timed(work: Callable[[], Run]) -> Run:
    """Return a run with its wall time and processor time."""
    cpu, start = processor_seconds(), time.perf_counter()
    run = work()
    seconds, cpu_seconds = time.perf_counter() - start, processor_seconds() - cpu
    return replace(run, seconds=seconds, cpu_seconds=cpu_seconds)


def run_network(clip: Path, settings: LabelSettings, count: int) -> Run:
    """Label frames that are on the network's device already, one at a time, in a thread as the pipeline's.

    Only the labelling is timed. The thread counts: OpenMP's threads of the main thread spin while they wait, which
    takes ten times as long where other programs use the cores.
    """
    device = settings.device
    with open_video(clip) as video:
        ready = [frame.to(device) for frame, _ in islice(video, WARM_UP_FRAMES)]

    found: list[Run] = []

    def label(frames: int) -> Run:
        state: State | None = None
        for frame in islice(cycle(ready), frames):
            _, state = label_frame(settings.model, frame, state, settings.policy, size=settings.size)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return Run(frames)

    def work() -> None:
        with torch.inference_mode():
            label(2)  # another thread has prepared the engine
            found.append(timed(lambda: label(count)))

    group = ThreadGroup()
    group.start("network", work, threads=torch.get_num_threads()).join()
    if group.failure:
        raise group.failure
    return found[0]


def run_segment(videos: Sequence[Path], kind: str, settings: LabelSettings, style: DrawStyle, folder: Path) -> Run:
    """Run the pipeline of `segment` over videos, each of which is a stream, to overlays or to labels."""
    pairs = []
    for i, video in enumerate(videos):
        overlay, labels = folder / f"{OVERLAY}-{i}.mp4", folder / f"{LABELS}-{i}.mkv"
        files = OutputFiles(overlay=overlay) if kind == OVERLAY else OutputFiles(labels=labels)
        pairs.append((VideoFile(f"stream {i}", str(video)), files))
    meter = Meter()
    pipeline = Pipeline(pairs, settings, style, meter)
    with sampled(pipeline, meter) as samples:
        result = pipeline.run()
        summary = meter.summary()
    if result.signal:
        raise KeyboardInterrupt
    if result.problems:
        raise ValueError(result.problems[0])
    work = pipeline.network.device_work
    times = work.times if work else None
    return Run(result.frames, summary=summary, samples=samples, device=times, alone=pipeline.alone)


def summarise_speed(case: Case, runs: dict[str, list[Run]]) -> Speed:
    """Return the speed of a case, and how it compares with others in the same round."""
    own = runs[case.name]

    def ratio(other: str) -> float:
        return median(one.fps / two.fps for one, two in zip(own, runs[other], strict=False))

    return Speed(
        case.name,
        median(run.fps for run in own),
        tuple(run.fps for run in own),
        fmean(run.cpu_seconds / run.seconds for run in own),
        case.bare,
        ratio(case.bare) if case.bare else None,
        ratio(NETWORK) if case.bare else None,
    )


def summarise_stages(case: str, runs: Sequence[Run]) -> StageTimes:
    """Return where the time of a case of `segment` goes."""
    summaries = [run.summary for run in runs if run.summary]
    names = summaries[0].stages
    busy = {name: fmean(summary.stages[name].share for summary in summaries) for name in names}
    queues = {name: fmean(run.queues[name] for run in runs if name in run.queues) for name in joint_names(runs)}
    slowest = max(busy, key=lambda name: busy[name])
    ranked = sorted((run for run in runs if run.summary), key=lambda run: run.fps)
    typical = ranked[len(ranked) // 2].summary
    assert typical
    return StageTimes(
        case,
        {name: 1000 * fmean(summary.stages[name].mean for summary in summaries) for name in names},
        busy,
        queues,
        (IN_ONE_THREAD,) if runs[0].alone else tuple(describe_queue(name, fill) for name, fill in queues.items()),
        1000 * fmean(run.seconds / run.frames for run in runs),
        slowest,
        busy[slowest],
        bottleneck(typical),
        summarise_waits([wait for run in runs for wait in run.samples.lock_waits]),
        host_times([run.device for run in runs if run.device]),
    )


def host_times(found: Sequence[DeviceTimes]) -> dict[str, float]:
    """Return what a batch takes the network thread on a GPU, in milliseconds."""
    batches = sum(times.batches for times in found)
    if not batches:
        return {}
    names = ("device", "enqueue", "wait")
    means = {name: 1000 * sum(getattr(times, name) for times in found) / batches for name in names}
    return means | {"frames": sum(times.frames for times in found) / batches, "waits": batches}


def joint_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the queues that were seen in any run, in order; a short run may not show all."""
    return list(dict.fromkeys(name for run in runs for name in run.queues))
