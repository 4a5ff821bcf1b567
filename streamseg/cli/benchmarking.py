"""The verb benchmark: how fast networks are, and what they cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from streamseg.checks import check_count, check_positive
from streamseg.cli.messages import check_figures, clear_line, loading, open_messages, pick_progress, write_figures
from streamseg.cli.options import NETWORKS, Device, Json, Quiet, option, parse_size, pick_device
from streamseg.io.files import check_writable
from streamseg.models.bundled import BUNDLED_WEIGHTS

if TYPE_CHECKING:
    import torch


def benchmark(
    *models: Annotated[str, option("[MODEL ...]", "fanet18 fanet34")],
    size: Annotated[str, option("HEIGHTxWIDTH", "1024x2048 on a GPU, 512x1024 on the CPU")] = "",
    batch: int = 1,
    compiled: bool = False,
    seconds: float = 3.0,
    profile: bool = False,
    json: Json = None,
    plot: Annotated[Path | None, option("FILE", "none is drawn")] = None,
    device: Device = "",
    precision: Annotated[
        str, option(default="fp16 on a GPU, fp32 on the CPU", choices=("fp16", "bf16", "fp32", "int8"))
    ] = "",
    trust: bool = False,
    quiet: Quiet = False,
) -> int:
    """Measure the speed and the cost of networks.

    Args:
        models: What to measure, from a frame to its labels: names of networks, which get random weights and 19
            classes, bundled weights, checkpoints, or files that export wrote (.onnx, .xml, .pt2). Networks are fanet18,
            fanet34, fanetplus18, fanetplus34, the baselines segnet, enet, icnet, erfnet, bisenet18, shelfnet18,
            swiftnet18, fcn16s, fcn8s, deeplab, and video methods on a backbone, such as dff-swiftnet18, which are
            measured by the position in their key interval.
        size: Height and width of the frames.
        batch: Frames per batch.
        compiled: Measure torch.compile too, which takes a minute for each network.
        seconds: How long to measure each network.
        profile: List the ten most expensive kernels or operators.
        json: A file for the figures; - for standard output.
        plot: A PNG for the median times.
        device: cuda or cpu; the default with a .onnx or .xml file is cpu.
        precision: Precision of the fast and the eager engine; an exported file has its own.
        trust: Allow a .pt2 file, which is a program and can run any code.
        quiet: Print only warnings and errors.

    Examples:
        streamseg benchmark
        streamseg benchmark fanet18 --size 512x1024 --precision int8
        streamseg benchmark fanet18 enet --json figures.json --plot figures.png
        streamseg benchmark run/weights.safetensors model.onnx --json -
    """
    from dataclasses import asdict

    models = models or ("fanet18", "fanet34")
    check_count("batch", batch)
    check_positive("seconds", seconds)
    check_models(models)
    check_figures(json)
    if plot:
        check_writable(plot)
    with loading(quiet):
        from streamseg.engine import runtime
        from streamseg.evaluate import benchmark as costs, method_cost, plot as plots

    # one device for all, or their times could not be compared
    usual = "cpu" if any(runtime.default_device(Path(name)) for name in models) else ""
    place = pick_device(device or usual)
    frame_size = parse_size("--size", size) or ((1024, 2048) if place.type == "cuda" else (512, 1024))
    messages, progress = open_messages(quiet, json), pick_progress(quiet)
    if plot:
        plots.new_figure(1, 1)  # fails here rather than after the work, if the library is missing
    found = []
    for number, name in enumerate(models):
        progress(number, len(models))
        if (method := method_cost.open_method(name)) is not None:
            found.append(method_cost.measure_method(method, frame_size, batch, place, precision, seconds))
        else:
            found.append(
                costs.measure_cost(
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


def check_models(models: Sequence[str]) -> None:
    """Raise an error if a name is neither a network nor bundled weights nor a file."""
    for name in models:
        if name not in (*NETWORKS, *BUNDLED_WEIGHTS) and not Path(name).is_file():
            raise ValueError(
                f"{name!r:.80} is neither a file nor one of the networks {', '.join(NETWORKS)} "
                f"or the bundled weights {', '.join(BUNDLED_WEIGHTS)}."
            )


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
