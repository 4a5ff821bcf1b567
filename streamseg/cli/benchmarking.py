"""The verb benchmark: how fast networks are and what they cost, and how fast segment is from file to file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, TextIO

from cyclopts import Parameter

from streamseg.checks import check_count, check_positive
from streamseg.cli.messages import (
    STANDARD_OUTPUT,
    check_figures,
    clear_line,
    loading,
    open_messages,
    pick_progress,
    write_figures,
    write_json,
)
from streamseg.cli.options import (
    NETWORKS,
    Device,
    Json,
    Quiet,
    check_source,
    check_weights,
    default_device,
    option,
    parse_size,
    pick_device,
)
from streamseg.cli.segmenting import SegmentOptions, open_model
from streamseg.io.files import check_writable
from streamseg.io.hub import check_hub_address, is_hub_address
from streamseg.models.bundled import BUNDLED_WEIGHTS, DEFAULT

if TYPE_CHECKING:
    import torch

    from streamseg.evaluate.pipeline_benchmark import PipelineFigures


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """The options of benchmark for segment from file to file."""

    pipeline: Annotated[str, option("VIDEO", "networks alone are measured")] = ""
    """Measure segment from file to file on a video, stage by stage, beside bare decoding and encoding by the same
    codecs."""
    weights: Annotated[Path | None, option("WEIGHTS", DEFAULT)] = None
    """With --pipeline: a name that streamseg weights lists, hf:USER/NAME, a checkpoint, or a file of export."""
    frames: Annotated[int | None, option("N", "600 on a GPU, 100 on the CPU")] = None
    """With --pipeline: how many frames each way takes, from the start of the video."""
    streams: Annotated[int | None, option("N", "4")] = None
    """With --pipeline: how many streams are read at once where many are measured."""
    rounds: Annotated[int | None, option("N", "2")] = None
    """With --pipeline: how often each way runs, in turn with the others."""


NO_PIPELINE = PipelineOptions()


def benchmark(
    *models: Annotated[str, option("[MODEL ...]", "fanet18 fanet34")],
    size: Annotated[str, option("HEIGHTxWIDTH", "1024x2048 on a GPU, 512x1024 on the CPU")] = "",
    batch: int = 1,
    compiled: bool = False,
    seconds: Annotated[float | None, option(default="3")] = None,
    profile: bool = False,
    json: Json = None,
    plot: Annotated[Path | None, option("FILE", "none is drawn")] = None,
    device: Device = "",
    precision: Annotated[
        str, option(default="fp16 on a GPU, fp32 on the CPU", choices=("fp16", "bf16", "fp32", "int8"))
    ] = "",
    trust: bool = False,
    quiet: Quiet = False,
    options: Annotated[PipelineOptions, Parameter(name="*")] = NO_PIPELINE,
) -> int:
    """Measure the speed and the cost of networks, or of segment from file to file.

    Args:
        models: What to measure, from a frame to its labels: names of networks, which get random weights and 19
            classes, bundled weights, checkpoints, or files that export wrote (.onnx, .xml, .pt2). Networks are fanet18,
            fanet34, fanetplus18, fanetplus34, the baselines segnet, enet, icnet, erfnet, bisenet18, shelfnet18,
            swiftnet18, fcn16s, fcn8s, deeplab, and video methods, such as dff-swiftnet18, by position in the interval.
        size: Height and width of the frames; with --pipeline of the network input, by default the frame's.
        batch: Frames per batch.
        compiled: Measure torch.compile too, which takes a minute for each network.
        seconds: How long to measure each network.
        profile: List the ten most expensive kernels or operators.
        json: A file for the figures; - for standard output.
        plot: A PNG for the times.
        device: cuda or cpu; the default with a .onnx or .xml file is cpu.
        precision: Precision of the fast and the eager engine; an exported file has its own.
        trust: Allow a .pt2 file, which is a program and can run any code.
        quiet: Print only warnings and errors.

    Examples:
        streamseg benchmark
        streamseg benchmark fanet18 enet --json figures.json --plot figures.png
        streamseg benchmark run/weights.safetensors model.onnx --json -
        streamseg benchmark --pipeline drive.mp4 --size 360x640
    """
    check_figures(json)
    if plot:
        check_writable(plot)
    if options.pipeline:
        network_only = {"MODEL": models, "--batch": batch != 1, "--compiled": compiled, "--profile": profile}
        check_left_out("--pipeline measures segment", network_only | {"--seconds": seconds is not None})
        opened = SegmentOptions(weights=options.weights, size=size, device=device, precision=precision, trust=trust)
        return benchmark_pipeline(options, opened, json, plot, quiet)
    given = {f"--{one.name}": getattr(options, one.name) is not None for one in fields(options)[1:]}
    check_left_out("Networks alone are measured without --pipeline VIDEO", given)
    models, seconds = models or ("fanet18", "fanet34"), 3.0 if seconds is None else seconds
    check_count("batch", batch)
    check_positive("seconds", seconds)
    check_models(models)
    return benchmark_networks(
        models,
        size,
        batch,
        device,
        precision,
        json,
        plot,
        compiled=compiled,
        seconds=seconds,
        profile=profile,
        trust=trust,
        quiet=quiet,
    )


def benchmark_networks(
    models: Sequence[str],
    size: str,
    batch: int,
    device: str,
    precision: str,
    json: Path | None,
    plot: Path | None,
    *,
    compiled: bool,
    seconds: float,
    profile: bool,
    trust: bool,
    quiet: bool,
) -> int:
    """Measure networks alone, and report."""
    from dataclasses import asdict

    with loading(quiet):
        from streamseg.evaluate import benchmark as costs, method_cost, plot as plots

    # one device for all, or their times could not be compared
    usual = "cpu" if any(default_device(Path(name)) for name in models) else ""
    place = pick_device(device or usual)
    frame_size = parse_size("--size", size) or ((1024, 2048) if place.type == "cuda" else (512, 1024))
    messages, progress = open_messages(quiet, json), pick_progress(quiet)
    if plot:
        plots.new_figure(1, 1)  # fails here rather than after the work, if the library is missing
    if profile:
        refuse_methods(models)
    found = []
    for number, name in enumerate(models):
        progress(number, len(models))
        found.append(
            method_cost.measure_any(
                name, frame_size, batch, place, precision, compiled=compiled, seconds=seconds, trust=trust
            )
        )
    if not quiet:
        clear_line()
    machine = costs.describe_machine(place)
    print(costs.format_costs(found, frame_size, batch, machine), file=messages)
    if profile:
        print_profiles(models, frame_size, place, precision, messages)
    networks = [asdict(cost) for cost in found]
    write_figures(json, {"machine": machine, "size": frame_size, "batch": batch, "networks": networks}, messages)
    if plot:
        costs.plot_costs(plot, found, frame_size, machine)
    return 0


def check_left_out(subject: str, given: Mapping[str, object]) -> None:
    """Raise a ValueError if options were given that belong to the other kind of measurement."""
    if wrong := [name for name, value in given.items() if value]:
        raise ValueError(f"{subject}: leave out {', '.join(wrong)}.")


def benchmark_pipeline(
    options: PipelineOptions, opened: SegmentOptions, json: Path | None, plot: Path | None, quiet: bool
) -> int:
    """Measure segment from file to file, and report."""
    from dataclasses import asdict

    streams, rounds = (default if n is None else n for n, default in ((options.streams, 4), (options.rounds, 2)))
    for name, number in (
        ("frames", 1 if options.frames is None else options.frames),
        ("streams", streams),
        ("rounds", rounds),
    ):
        check_count(name, number)
    check_weights(opened.weights)
    check_source(options.pipeline)
    with loading(quiet):
        from streamseg.evaluate import benchmark as costs, pipeline_benchmark, pipeline_report, plot as plots
        from streamseg.machine import available_cores

        video = pipeline_benchmark.check_video(options.pipeline)
        load = costs.describe_load()
        begin = perf_counter()
        settings, style = open_model(opened)
        seconds = perf_counter() - begin
    if plot:
        plots.new_figure(1, 1)  # fails here rather than after the work, if the library is missing
    machine = costs.describe_machine(settings.device) | {"cores": str(available_cores()), "load": load}
    network = {
        "weights": str(opened.weights or DEFAULT),
        "size": settings.size,
        "precision": opened.precision,
        "open_seconds": seconds,
    }

    def keep(figures: "PipelineFigures") -> None:  # so that a run that is stopped leaves what it has measured
        if json and json != STANDARD_OUTPUT:
            write_json(json, {"machine": machine, "network": network, **asdict(figures)})

    figures = pipeline_benchmark.measure_pipeline(
        video,
        settings,
        style,
        frames=options.frames or (600 if settings.device.type == "cuda" else 100),
        streams=streams,
        rounds=rounds,
        progress=pick_progress(quiet),
        each=keep,
    )
    if not quiet:
        clear_line()
    messages = open_messages(quiet, json)
    print(pipeline_report.format_figures(figures, machine), file=messages)
    write_figures(json, {"machine": machine, "network": network, **asdict(figures)}, messages)
    if plot:
        pipeline_report.plot_figures(plot, figures, machine)
    return 0


def check_models(models: Sequence[str]) -> None:
    """Raise an error if a name is neither a network nor bundled weights nor a file nor of the Hugging Face Hub."""
    for name in models:
        if is_hub_address(name):
            check_hub_address(name)
        elif name not in (*NETWORKS, *BUNDLED_WEIGHTS) and not Path(name).is_file():
            raise ValueError(
                f"{name!r:.80} is neither a file nor one of the networks "
                f"{', '.join(network for network in NETWORKS if '-' not in network)}, a video method such as "
                f"dff-swiftnet18, or the bundled weights {', '.join(BUNDLED_WEIGHTS)}."
            )


def refuse_methods(models: Sequence[str]) -> None:
    """Raise a ValueError if one of the networks is a video method, which has no profile."""
    from streamseg.evaluate.method_cost import open_method

    for name in models:
        if open_method(name) is not None:
            raise ValueError(f"{name} is a video method, which is timed by position: leave out --profile.")


def print_profiles(
    models: Sequence[str], size: tuple[int, int], device: "torch.device", precision: str, messages: TextIO
) -> None:
    """Print the most expensive kernels or operators of each network."""
    from streamseg.evaluate import benchmark as costs

    for name in models:
        print(f"\n{name}: the ten most expensive, ms per frame", file=messages)
        spent = costs.profile(name, size, device, precision)
        for kernel, taken in spent:
            print(f"{taken:10.4f}  {kernel:.100}", file=messages)
        if not spent:
            print(f"{'-':>10}", file=messages)
