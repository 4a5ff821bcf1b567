"""The verb segment: pictures, videos and cameras, on this machine or on a cluster."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from streamseg.checks import check_positive
from streamseg.cli import starting
from streamseg.cli.masks import check_cameras, check_mask_file, read_mask_option
from streamseg.cli.messages import STANDARD_OUTPUT, clear_line, loading, open_messages, print_error
from streamseg.cli.options import (
    Device,
    HardwareDecoder,
    Palette,
    Precision,
    Quiet,
    Ray,
    check_exported,
    check_weights,
    default_device,
    leave_core,
    option,
    parse_size,
    parse_steady,
    pick_device,
    pick_palette,
    pick_policy,
    set_key_interval,
    steady_by_default,
)
from streamseg.cli.records import TextOpener, open_live_text, open_records, open_text
from streamseg.cli.regions import NO_REGIONS, RegionOptions, check_region_options, open_region_outputs
from streamseg.cli.reports import count_sent, list_results
from streamseg.io.web import is_address
from streamseg.models.bundled import DEFAULT, find_weights

if TYPE_CHECKING:
    from streamseg.io.display import DisplayWindow
    from streamseg.io.fleet import Camera
    from streamseg.io.outputs import Output
    from streamseg.io.sources import Source
    from streamseg.stream.pipeline import RunResult
    from streamseg.stream.settings import DrawStyle, LabelSettings


@dataclass(frozen=True, kw_only=True)
class SegmentOptions:
    """The options of segment."""

    out: Annotated[str, Parameter(name=("--out", "-o"), metavar="OUT", show_default="the last name")] = ""
    """Where to write; all names are then sources, as in: segment *.jpg -o out."""
    fleet: Annotated[Path | None, option("FILE", "none")] = None
    """Instead of names, a TOML file with a table [[camera]] for each: name, address, size, classes, out, labels. These
    options are the defaults of such a file."""
    weights: Annotated[Path | None, option("WEIGHTS", DEFAULT)] = None
    """A name that streamseg weights lists, hf:USER/NAME, a checkpoint, or a file of export (.onnx, .xml, .pt2)."""
    overlay: bool = True
    """Write the overlay: a picture or a video."""
    labels: bool = False
    """Also write the labels: NAME-labels.png, indexed, or NAME-labels.mkv, lossless; each pixel holds its class."""
    confidence: bool = False
    """Also write the confidence of each label, 0 to 255: NAME-confidence.png or .mkv, lossless."""
    colours: bool = False
    """Also write the labels in the colours of their classes, for people: NAME-colours.png or .mp4."""
    side_by_side: bool = False
    """Put the frame beside its overlay."""
    legend: bool = False
    """Draw a legend of the colours."""
    classes: Annotated[str, option("NAME,...", "all")] = ""
    """Colour only these classes, such as road,car."""
    palette: Palette = "bright"
    """Colours of the overlay: bright ones, which stay distinct for colour-blind people, or the data set's own. Classes
    of other things than streets keep their own."""
    borders: bool = True
    """Draw a line between the classes."""
    alpha: float = 0.5
    """Opacity of the colours in the overlay, 0 to 1."""
    json: Annotated[str, option("FILE", "none")] = ""
    """A file for one line of JSON per frame: shares of the classes, latency, age of the mask, network input size; - for
    standard output, or an address that takes lines: ws://HOST/PATH or mqtt://HOST/TOPIC."""
    json_labels: bool = False
    """Also put the labels of a frame into its line of --json: one byte a pixel, compressed with zlib, in Base64."""
    show: bool = False
    """Show the overlays in a window, of several sources in a grid; q closes it. The last picture stays until it is
    closed."""
    window: Annotated[int | None, option("FRAMES", "what the weights were trained with")] = None
    """How many frames of a video the network attends to; more than 1 needs weights trained on video."""
    half_life: Annotated[float | None, option("SECONDS", "the exact window")] = None
    """Instead of a window, let the past decay by half in this time, also where frames were dropped."""
    cut: Annotated[float | None, option("DISTANCE", "off")] = None
    """Drop the past at a change of scene: where contexts differ by more than this."""
    steady: Annotated[str, option("HOW", "low for videos")] = ""
    """Against flicker: low or high average the scores of a video along the motion of the picture, and the network sees
    every second frame mirrored; a number lets a pixel change its class only if the new one scores higher by it; off
    labels each frame by itself."""
    mask: Annotated[str, option("FILE", "none")] = ""
    """A picture whose black pixels are ignored, such as the own car, letterboxes or burnt-in text; or bonnet, for the
    own car as the network finds it in the first frames. Ignored pixels have no class, and count neither in the
    attention nor in shares, regions and events."""
    together: bool = False
    """The sources are cameras of one vehicle: each attends to what all of them see."""
    deadline: Annotated[float | None, option("MS", "none")] = None
    """Reduce the network input size if needed, so that labels are ready within this many milliseconds."""
    size: Annotated[str, option("HEIGHTxWIDTH", "the frame's size, up to 1024 x 2048 pixels")] = ""
    """Network input size; labels keep the size of the frame."""
    tile: bool = False
    """Process large pictures at full size, in tiles, instead of reducing them."""
    raw_size: Annotated[str, option("HEIGHTxWIDTH", "none")] = ""
    """The size of raw frames on standard input: RGB, 8 bits."""
    rate: Annotated[float | None, option("FPS", "25")] = None
    """Frames per second of numbered pictures and raw frames."""
    device: Device = ""
    """cuda or cpu."""
    hardware_decoding: HardwareDecoder = ""
    """Decode videos and streams by hardware: cuda (NVDEC), vaapi, videotoolbox, or auto for the first that works. What
    it cannot decode is decoded on the CPU, and a message says so."""
    precision: Precision = ""
    """Precision of the network; int8 is 1.3 to 1.8 times as fast as fp32 on a CPU."""
    trust: bool = False
    """Allow a .pt2 file, which is a program and can run any code."""
    ray: Ray = ""
    """Distribute videos over a Ray cluster: local, auto, HOST:PORT or ray://HOST:PORT. Labels and statistics of each
    video go to OUT, and an overlay with --overlay; if started again, it continues where it stopped."""
    quiet: Quiet = False
    """Print only warnings and errors."""


DEFAULTS = SegmentOptions()


@dataclass(frozen=True)
class SegmentPlan:
    """What to read and which files to write."""

    sources: list["Source"]
    outputs: Sequence["Output"]
    """The files or the address of each source."""
    missing: list[OSError | ValueError]
    """What is wrong with names that cannot be read."""
    raw: bool
    """Whether labels go to standard output as raw bytes."""
    cameras: list["Camera"] = field(default_factory=list)
    """The sources of a fleet file, with settings of their own."""


def segment(
    *names: Annotated[str, option("SOURCE... [OUT]")],
    options: Annotated[SegmentOptions, Parameter(name="*")] = DEFAULTS,
    region_options: Annotated[RegionOptions, Parameter(name="*")] = NO_REGIONS,
) -> int:
    """Label every pixel of pictures, videos, cameras and streams.

    Args:
        names: What to label: pictures, a folder, a pattern ('*.jpg'), a list (.txt), a video, numbered pictures
            (frame_%04d.png), an http or rtsp address, a camera (0), or - for raw frames on standard input. The last
            name is where to write: a picture or a video, a folder, numbered pictures, or - for raw labels on standard
            output. The default is NAME-overlay.png or .mp4 in this folder.

    Examples:
        streamseg segment photo.jpg
        streamseg segment *.jpg -o out --labels --legend
        streamseg segment drive.mp4 labelled.mp4 --size 360x640 --precision int8
        streamseg segment 0 --show
    """
    given, out = (names, options.out) if options.fleet else split_names(names, options.out)
    check_options(options, out, region_options)
    if options.ray:
        from streamseg.cli.clusters import segment_on_cluster

        return segment_on_cluster(given, out, options)
    if options.fleet:
        from streamseg.cli.fleets import check_fleet_options, plan_fleet

        check_fleet_options(given, options)
        plan = plan_fleet(options.fleet, options, region_options)
        options = replace(options, confidence=any(files.confidence for files in plan.outputs))
    else:
        plan = make_plan(given, out, options, region_options)
    device = options.device or default_device(options.weights)
    starting.start_beside_torch(plan.sources, device, options.weights, options.hardware_decoding)
    with loading(options.quiet), starting.faster_opening(device):
        settings, style = open_model(options)
    with starting.unfrozen_at_the_end():
        return run_plan(plan, options, settings, style, region_options)


def split_names(names: tuple[str, ...], out: str) -> tuple[tuple[str, ...], str]:
    """Return the sources among the names, and where to write."""
    if out or len(names) < 2:
        return names, out
    return names[:-1], names[-1]


def check_options(options: SegmentOptions, out: str, region_options: RegionOptions) -> None:
    """Raise an error if options are wrong, or do not go together."""
    if [out, options.json, *region_options.results].count("-") > 1:
        raise ValueError("OUT, --json, --regions and --events cannot share standard output: give file names.")
    if options.json_labels and not options.json:
        raise ValueError("--json-labels adds labels to the lines of --json: give a file or an address for them.")
    if options.ray and (region_options.results or region_options.zones):
        raise ValueError("--ray labels videos into a folder: leave out --regions, --zones and --events.")
    video = (options.window or 1) > 1 or options.half_life or parse_steady(options.steady)
    if options.tile and (options.confidence or video or options.deadline or options.size):
        raise ValueError(
            "--tile processes single pictures at full size: leave out --confidence, --window, --half-life, --steady, "
            "--deadline and --size."
        )
    if options.tile and options.together:
        raise ValueError("--tile processes single pictures: leave out --together.")
    check_mask_file(options.mask)
    for name, number in (("deadline", options.deadline), ("cut", options.cut)):
        if number is not None:
            check_positive(name, number)
    check_weights(options.weights)


def make_plan(names: tuple[str, ...], out: str, options: SegmentOptions, region_options: RegionOptions) -> SegmentPlan:
    """Resolve the sources and plan the files to write; raise an error if they cannot be read or written."""
    from streamseg.io.outputs import plan_outputs
    from streamseg.io.resolve import resolve_sources
    from streamseg.io.sources import play

    if options.tile:
        with loading(options.quiet):  # before a picture may be read, to resolve the names
            from streamseg.io.pictures import allow_large_pictures

        allow_large_pictures()
    raw_size = parse_size("--raw-size", options.raw_size)
    sources, missing = resolve_sources(names, raw_size=raw_size, rate=options.rate)
    if options.together:
        check_cameras(sources)
    if options.out and missing and len(names) > 1 and not resolve_sources(names[-1:], raw_size=raw_size)[0]:
        raise ValueError(f"OUT is given twice, as {names[-1]} and as --out {options.out}: leave out one.")
    if not sources:
        raise missing[0]
    wanted = {name: getattr(options, name) for name in ("overlay", "labels", "confidence", "colours")}
    outputs = plan_outputs(sources, out, **wanted, missing=len(missing))
    raw = out == "-"
    if not (any(wanted.values()) or options.json or raw or options.show or region_options.results):
        raise ValueError(
            "There is nothing to write with --no-overlay alone: add --labels, --colours, --confidence or --json."
        )
    check_text_outputs(options, region_options, sources, outputs)
    if is_address(out):
        sources = [play(source) for source in sources]
    return SegmentPlan(sources, outputs, missing, raw)


def check_text_outputs(
    options: SegmentOptions, region_options: RegionOptions, sources: Sequence["Source"], outputs: Sequence["Output"]
) -> None:
    """Raise an error if --json, --regions or --events cannot be written, or would destroy an input or output."""
    from streamseg.io.live_lines import check_line_address
    from streamseg.io.outputs import check_json_lines, files_of

    used = [path for source, files in zip(sources, outputs, strict=True) for path in files_of(files, source)]
    used += [path for source in sources for path in source.paths]
    if is_address(options.json):
        check_line_address(options.json)
    elif options.json and options.json != "-":
        check_json_lines(Path(options.json), sources, outputs)
        used.append(Path(options.json))
    if region_options != NO_REGIONS:
        check_region_options(region_options, used)


def open_model(options: SegmentOptions) -> tuple["LabelSettings", "DrawStyle"]:
    """Open the network, and return it with how to run it and how to draw its labels."""
    device = pick_device(options.device or default_device(options.weights))
    steady, size = parse_steady(options.steady), parse_size("--size", options.size)
    policy = pick_policy(options.window, options.half_life, steady)
    weights = find_weights(options.weights)

    from streamseg.engine import runtime
    from streamseg.engine.engine import ImageEngine, VideoEngine
    from streamseg.engine.open import open_preparing_engine
    from streamseg.models import checkpoint
    from streamseg.stream.label_frames import check_window
    from streamseg.stream.settings import DrawStyle, LabelSettings
    from streamseg.stream.state import LastFrames
    from streamseg.stream.together import check_together

    with starting.one_torch_thread(device):
        engine, classes, trained = open_preparing_engine(
            weights, device, options.precision, eager=options.tile, trust=options.trust
        )
    if isinstance(engine, runtime.ExportedEngine):
        check_exported(
            engine,
            policy,
            size=size,
            tile=options.tile,
            deadline=options.deadline,
            precision=options.precision,
            confidence=options.confidence,
            steady=steady,
            mask=bool(options.mask),
        )
        size = engine.manifest.size or size
    elif options.tile and isinstance(engine, ImageEngine | VideoEngine):
        checkpoint.require_fanet(engine.model, "--tile")
    policy = set_key_interval(engine, policy) or LastFrames(1 if options.tile else trained, steady=steady)
    if not (options.steady or options.tile):
        policy = steady_by_default(policy, engine)
    check_window(engine, policy)
    leave_core(engine, policy)
    chosen = tuple(classes.find(name) for name in options.classes.split(",") if name.strip())
    if options.together:
        check_together(engine)
    mask = read_mask_option(options.mask)
    settings = LabelSettings(
        engine, classes, policy, options.cut, size, options.tile, options.confidence, mask, options.together
    )
    drawn = pick_palette(classes, options.palette)
    recoloured = drawn if drawn != classes else None  # as in an archive that was begun before there was a palette
    style = DrawStyle(options.alpha, chosen, options.legend, options.side_by_side, options.borders, recoloured)
    return settings, style


def run_plan(
    plan: SegmentPlan,
    options: SegmentOptions,
    settings: "LabelSettings",
    style: "DrawStyle",
    region_options: RegionOptions,
) -> int:
    """Label all frames, write the files, report, and return the exit status."""
    from json import dumps

    from streamseg.cli.fleets import own_settings
    from streamseg.cli.progress import TerminalObserver
    from streamseg.io.display import DisplayWindow
    from streamseg.io.live_lines import LineSender
    from streamseg.stream import latency
    from streamseg.stream.pipeline import Pipeline

    results = [STANDARD_OUTPUT if plan.raw else None, options.json, *region_options.results]
    messages = open_messages(options.quiet, *results)
    unsent: list[str] = []
    meter = latency.Meter()
    observer = TerminalObserver(meter, settings.classes.names, messages, options.quiet)
    screen = DisplayWindow("streamseg") if options.show else None
    # a camera never ends, so that its lines are read meanwhile
    live = any(source.live for source in plan.sources)
    open_file: TextOpener = partial(open_live_text, notify=observer.message) if live else open_text
    with (
        open_records(options.json, observer.message, open_file) as records,
        open_region_outputs(region_options, settings.classes, unsent, open_file) as regions,
    ):
        pipeline = Pipeline(
            list(zip(plan.sources, plan.outputs, strict=True)),
            settings,
            style,
            meter,
            deadline=None if options.deadline is None else options.deadline / 1000,
            records=records,
            records_labels=options.json_labels,
            raw=sys.stdout.buffer if plan.raw else None,
            regions=regions,
            display=screen,
            observer=observer,
            own=own_settings(plan, options.mask, settings, style, observer.message),
            hardware=options.hardware_decoding,
        )
        observer.total = lambda: pipeline.total
        result = pipeline.run()
        problems = [*map(str, plan.missing), *result.problems]
        if not result.frames and problems:
            raise ValueError(problems[0])
        if records is not None:
            records.write(dumps({"summary": pipeline.summarize() | count_sent(pipeline)}) + "\n")
    lines = records.sender if isinstance(records, LineSender) else None
    if lines and lines.problem:
        problems.append(lines.problem)

    problems += unsent
    if not options.quiet:
        clear_line()
    for line in list_results(pipeline, result, options.deadline):
        print(line, file=messages)
    if region_options.regions and region_options.regions != STANDARD_OUTPUT:
        print(f"regions: {region_options.regions}", file=messages)
    if result.frames > 1:
        print(latency.format_summary(meter.summary(), pipeline.stream_summaries()), file=messages)
    if lines and lines.reached:
        print(f"\n--json: {lines.counts}", file=messages)
    for problem in problems:
        if problem not in result.reported.values():
            print_error(problem)
    if result.reported:
        print_error(count_failed(plan, result))
    if result.signal:
        print_error(f"Stopped after {result.frames} frames: the files hold those.")
    wait_for_window(screen, plan, result)
    return 128 + result.signal if result.signal else int(bool(problems))


def count_failed(plan: SegmentPlan, result: "RunResult") -> str:
    """Return a sentence on how many sources failed, and which."""
    missing, failed = len(plan.missing), ", ".join(result.reported)
    others = f", and {missing} that could not be found" if missing else ""
    return f"{len(result.reported) + missing} of {len(plan.sources) + missing} sources failed: {failed}{others}."


def wait_for_window(screen: "DisplayWindow | None", plan: SegmentPlan, result: "RunResult") -> None:
    """Keep the window with the last picture open; the window of a video closes at its end."""
    if screen and result.frames and not result.signal and not any(source.moving for source in plan.sources):
        screen.wait()
