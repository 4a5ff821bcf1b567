"""The verb segment: pictures, videos and cameras, here or on a cluster."""

import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import tyro

from streamseg.checks import check_choice, check_positive
from streamseg.cli.options import (
    Device,
    Json,
    Quiet,
    check_exported,
    check_weights,
    optional_arg,
    parse_size,
    pick_device,
    pick_policy,
)
from streamseg.cli.say import STANDARD_OUTPUT, clear_line, fail, loading, open_messages, print_error
from streamseg.io.files import written_whole

if TYPE_CHECKING:
    import torch

    from streamseg.deploy.archive import ArchiveSettings
    from streamseg.stream.pipeline import Pipeline, RunResult
    from streamseg.stream.settings import DrawStyle, LabelSettings
    from streamseg.stream.state import Policy

MAY_BE_LATE = 0.05
"""The share of the frames that may be late where a deadline is held."""


def segment(
    names: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE... [OUT]", help_behavior_hint="(required)")],
    /,
    *,
    weights: Annotated[Path | None, optional_arg("FILE", "those that ship")] = None,
    overlay: bool = True,
    labels: bool = False,
    confidence: bool = False,
    side_by_side: bool = False,
    legend: bool = False,
    classes: Annotated[str, optional_arg("NAME,...", "all")] = "",
    alpha: float = 0.5,
    json: Json = None,
    show: bool = False,
    window: Annotated[int | None, optional_arg("FRAMES", "what the weights were trained with")] = None,
    half_life: Annotated[float | None, optional_arg("SECONDS", "the exact window")] = None,
    cut: Annotated[float | None, optional_arg("DISTANCE", "off")] = None,
    steady: Annotated[float, optional_arg("MARGIN", "0, off")] = 0.0,
    deadline: Annotated[float | None, optional_arg("MS", "none")] = None,
    size: Annotated[str, optional_arg("HEIGHTxWIDTH", "the frames' own, up to 1024 x 2048 pixels")] = "",
    tile: bool = False,
    raw_size: Annotated[str, optional_arg("HEIGHTxWIDTH", "none")] = "",
    rate: Annotated[float | None, optional_arg("FPS", "25")] = None,
    device: Device = "",
    precision: Annotated[str, optional_arg("{fp32,fp16,bf16,int8}", "fp16 on a GPU, fp32 on the CPU")] = "",
    trust: bool = False,
    ray: Annotated[str, optional_arg("[ADDRESS]", "off; without ADDRESS this machine alone")] = "",
    quiet: Quiet = False,
) -> None:
    """Label every pixel of pictures, videos, cameras and streams.

    Args:
        names: What to label: pictures, a folder, a pattern ('*.jpg'), a list (.txt), a video, numbered pictures
            (frame_%04d.png), an http or rtsp address, a camera (0), or - for raw frames on standard input. Behind it,
            where to write: a picture or a video, a folder, numbered pictures, or - for raw labels on standard output;
            without it, NAME-overlay.png or .mp4 in this folder.
        weights: A checkpoint, or a file that export wrote (.onnx, .xml, .pt2).
        overlay: Write the overlay: a picture, or a video.
        labels: Write the labels too: NAME-labels.png, indexed, or NAME-labels.mkv, lossless; a pixel is its class.
        confidence: Write how sure the network is too, 0 to 255: NAME-confidence.png or .mkv, lossless.
        side_by_side: Put the frame itself beside the overlay.
        legend: Name the colours.
        classes: Highlight these alone, such as road,car.
        alpha: Share of the colours in the overlay, 0 to 1.
        json: A file for a line of JSON a frame: shares of the classes, latency, age of the mask, size it was seen at;
            - for standard output.
        show: Show the overlay of one source in a window, of pictures the last until it is closed; q closes it.
        window: How many frames of a video the network looks at; more than 1 is for networks trained so.
        half_life: Instead of a window, let the past fade by half in so many seconds, whatever frames were dropped.
        cut: Forget the past at a change of scene: where contexts differ by more than this.
        steady: Let a pixel change its class only if the new one scores so much higher, against flicker: such as 1, at
            15 frames a second or more.
        deadline: See frames smaller if need be, so that labels come within so many milliseconds.
        size: See frames at this size; labels have the frames' own all the same.
        tile: See large pictures whole, tile by tile, instead of smaller.
        raw_size: The size of raw frames on standard input: RGB, 8 bits.
        rate: Frames a second of numbered pictures and raw frames.
        device: cuda or cpu.
        precision: What the network computes in; int8 is 1.2 to 1.8 times as fast on a CPU, with nearly the same labels.
        trust: Open a .pt2 file, which is a program and can do whatever it likes.
        ray: Spread videos over a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT. Into OUT go labels and
            statistics of each video, and an overlay with --overlay; started again, it goes on where it ended.
        quiet: Print nothing but warnings and errors.

    Examples:
        streamseg segment photo.jpg
        streamseg segment photos out --labels --legend
        streamseg segment drive.mp4 labelled.mp4 --size 360x640 --precision int8
        streamseg segment 0 --show
    """
    from contextlib import ExitStack
    from json import dumps
    from time import monotonic

    from streamseg.io.outputs import OutputFiles, check_json_lines, plan_outputs
    from streamseg.io.resolve import resolve_sources
    from streamseg.io.sources import Capture
    from streamseg.stream import latency

    given, out = (names[:-1], names[-1]) if len(names) > 1 else (names, "")
    raw, streamed = out == "-", json == STANDARD_OUTPUT
    if raw and streamed:
        raise ValueError("Raw labels and lines of JSON cannot share standard output: give --json the name of a file.")
    if precision:
        check_choice("precision", precision, ("fp32", "fp16", "bf16", "int8"))
    if tile and (confidence or (window or 1) > 1 or half_life or steady or deadline or size):
        raise ValueError(
            "--tile sees single pictures at full size: leave out --confidence, --window, --half-life, --steady, "
            "--deadline and --size."
        )
    for option, number in (("deadline", deadline), ("cut", cut)):
        if number is not None:
            check_positive(option, number)
    check_weights(weights)
    if tile:
        with loading(quiet):  # before the names are looked at, for which a picture may be read
            from streamseg.io.images import allow_large_pictures

        allow_large_pictures()

    def labeller_and_style() -> tuple["LabelSettings", "DrawStyle"]:
        from streamseg.engine import runtime
        from streamseg.stream.settings import DrawStyle

        policy = pick_policy(window, half_life, steady)
        labeller = open_labeller(
            weights,
            pick_device(device or runtime.default_device(weights)),
            policy,
            cut=cut,
            steady=steady,
            size=parse_size("--size", size),
            tile=tile,
            deadline=deadline,
            precision=precision,
            confidence=confidence,
            trust=trust,
        )
        only = tuple(find_class(name, labeller.classes.names) for name in classes.split(",") if name.strip())
        return labeller, DrawStyle(alpha, only, legend, side_by_side)

    if ray:
        if json or show or tile or raw or deadline is not None or raw_size or rate or not out:
            raise ValueError(
                "--ray reads videos and writes a folder, which comes last: leave out --json, --show, --tile, "
                "--deadline, --raw-size, --rate and -."
            )
        with loading(quiet):
            from streamseg.deploy.archive import ArchiveSettings
            from streamseg.engine import runtime

            labeller, style = labeller_and_style()  # as each worker will have it: what is wrong is told at once
        path = weights and weights.absolute()
        orders = ArchiveSettings(
            path, labeller.window, precision, cut, labeller.size, overlay, labels, confidence, style, trust
        )
        gpus = (device or runtime.default_device(weights)) != "cpu"
        segment_archive(given, out, orders, ray, gpus=gpus, quiet=quiet)
        return
    sources, missing = resolve_sources(given, raw_size=parse_size("--raw-size", raw_size), rate=rate)
    if not sources:
        raise missing[0]
    results = plan_outputs(sources, out, overlay=overlay, labels=labels, confidence=confidence, missing=len(missing))
    if not (overlay or labels or confidence or json or raw or show):
        raise ValueError("There is nothing to write with --no-overlay alone: add --labels, --confidence or --json.")
    if show and len(sources) > 1:
        raise ValueError(f"--show has one window, and there are {len(sources)} sources: give one, or leave it out.")
    if json and not streamed:
        check_json_lines(json, sources, results)
    with loading(quiet):
        from streamseg.io.window import Window
        from streamseg.stream.observer import PipelineObserver
        from streamseg.stream.pipeline import Pipeline

        labeller, style = labeller_and_style()

    words = open_messages(quiet, out, json)
    meter = latency.Meter()
    last = monotonic()

    class Terminal(PipelineObserver):
        def message(self, sentence: str) -> None:
            print_error(sentence)

        def frame_written(self, capture: Capture, shares: list[float], files: OutputFiles) -> None:
            if files.are_pictures and files.paths and not quiet:
                clear_line()
                print(f"{capture.name}: {describe_shares(labeller.classes.names, shares)}", file=words)
                print("  " + "  ".join(map(str, files.of(capture).paths)), file=words)

        def tick(self) -> None:
            nonlocal last
            if not quiet and sys.stderr.isatty() and monotonic() - last > 0.25:
                last = monotonic()
                told = latency.format_progress(meter.summary(), pipeline.total)
                print(f"\r\x1b[K{told}", end="", file=sys.stderr, flush=True)

    screen = Window("streamseg") if show else None
    with ExitStack() as files:
        records: TextIO | None = sys.stdout if streamed else None
        if isinstance(records, TextIOWrapper):
            records.reconfigure(line_buffering=True)  # whoever reads on has each line at once
        if json and not streamed:
            records = files.enter_context(files.enter_context(written_whole(json)).open("w", encoding="utf-8"))
        pipeline = Pipeline(
            list(zip(sources, results, strict=True)),
            labeller,
            style,
            meter,
            deadline=None if deadline is None else deadline / 1000,
            records=records,
            raw=sys.stdout.buffer if raw else None,
            window=screen,
            observer=Terminal(),
        )
        outcome = pipeline.run()
        summary = meter.summary()
        problems = [*map(str, missing), *outcome.problems]
        if not outcome.frames and problems:
            fail(problems[0])
        if records:
            records.write(dumps({"summary": latency.summary_to_json(summary)}) + "\n")

    if not quiet:
        clear_line()
    for line in report(pipeline, outcome, deadline):
        print(line, file=words)
    if outcome.frames > 1:
        print(latency.format_summary(summary), file=words)
    for problem in problems:
        print_error(problem)
    if outcome.signal:
        print_error(f"Stopped after {outcome.frames} frames: what was written holds those.")
    if screen and outcome.frames and not outcome.signal and not any(source.moving for source in sources):
        screen.wait()  # pictures would be gone before anybody saw them
    if outcome.signal or problems:
        sys.exit(128 + outcome.signal if outcome.signal else 1)


def open_labeller(
    weights: Path | None,
    place: "torch.device",
    policy: "Policy | None",
    *,
    cut: float | None,
    steady: float,
    size: tuple[int, int] | None,
    tile: bool,
    deadline: float | None,
    precision: str,
    confidence: bool,
    trust: bool,
) -> "LabelSettings":
    """A network, and how it is to see frames; a ValueError says what it cannot do, if that is asked for."""
    from streamseg.engine import runtime
    from streamseg.engine.engine import ImageEngine
    from streamseg.engine.open import open_engine
    from streamseg.models import checkpoint
    from streamseg.stream.label_frames import check_window
    from streamseg.stream.settings import LabelSettings
    from streamseg.stream.state import LastFrames

    engine, classes, trained = open_engine(weights, place, precision, eager=tile, trust=trust)
    if isinstance(engine, runtime.ExportedEngine):
        check_exported(
            engine,
            policy,
            size=size,
            tile=tile,
            deadline=deadline,
            precision=precision,
            confidence=confidence,
            steady=steady,
        )
        size = engine.manifest.size or size
    elif tile and isinstance(engine, ImageEngine):
        checkpoint.require_fanet(engine.model, "--tile")
    policy = policy or LastFrames(1 if tile else trained, steady=steady)
    check_window(engine, policy)
    return LabelSettings(engine, classes, policy, cut, size, tile, confidence)


def segment_archive(
    names: Sequence[str], out: str, orders: "ArchiveSettings", address: str, *, gpus: bool, quiet: bool
) -> None:
    """Label videos on a Ray cluster, and tell how far it is and how it went. Exit status 1 if any had a problem."""
    from time import monotonic

    from streamseg.deploy import archive

    last = monotonic()

    def progress(report: archive.Report) -> None:
        nonlocal last
        terminal = sys.stderr.isatty()
        if not quiet and monotonic() - last > (0.25 if terminal else 60):
            last = monotonic()
            start, end = ("\r\x1b[K", "") if terminal else ("", "\n")
            print(f"{start}{archive.format_report(report)}", end=end, file=sys.stderr, flush=True)

    report = archive.segment_archive(names, out, orders, address, gpus=gpus, progress=progress)
    if not quiet:
        clear_line()
        print(archive.format_report(report))
        print(out)
    for problem in report.problems.values():
        print_error(problem)
    if report.problems:
        sys.exit(1)


def report(pipeline: "Pipeline", outcome: "RunResult", deadline: float | None) -> Iterator[str]:
    """What a run wrote and saw, in lines."""
    for stream in pipeline.streams:
        if stream.written and not stream.results.are_pictures:
            yield f"{stream.source.name}: {'  '.join(map(str, stream.results.paths))}"
    if outcome.frames > 1:
        yield f"\nall frames: {describe_shares(pipeline.settings.classes.names, outcome.shares)}"
        yield f"seen at {outcome.size[0]} x {outcome.size[1]}\n"
        if deadline is not None:
            yield f"{describe_deadline(deadline, outcome)}\n"


def find_class(name: str, names: tuple[str, ...]) -> int:
    """The number of a class by its name, in small letters or large."""
    for number, known in enumerate(names):
        if known.lower() == name.strip().lower():
            return number
    raise ValueError(f"No class is called {name.strip()!r:.80}; there are {', '.join(names)}.")


def describe_shares(names: tuple[str, ...], shares: list[float]) -> str:
    """The largest classes of a frame and their shares of it."""
    largest = sorted(zip(shares, names, strict=True), reverse=True)[:5]
    return ", ".join(f"{name} {share:.0%}" for share, name in largest if share > 0.005)


def describe_deadline(milliseconds: float, outcome: "RunResult") -> str:
    """How many frames held a deadline, and how small they had to be seen for it."""
    late, (height, width) = outcome.late / outcome.frames, outcome.smallest
    told = f"deadline of {milliseconds:g} ms"
    sizes = ", ".join(f"{tall} x {wide} in {frames} frames" for (tall, wide), frames in outcome.sizes.items())
    if late > MAY_BE_LATE:
        return (
            f"{told} could not be held: {100 * late:.1f} % of the frames were late, though seen as small as "
            f"{height} x {width} ({sizes}); give a longer one, a smaller --size or a faster --device"
        )
    held = f"{told} held by {100 - 100 * late:.1f} % of the frames, the smallest of them seen at {height} x {width}"
    return f"{held} ({sizes})" if len(outcome.sizes) > 1 else held
