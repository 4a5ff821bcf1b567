"""Cost of a network or an exported file: parameters, multiply-accumulates, memory, and time from frame to labels.

Shapes: B batch, H x W the frame.
"""

import copy
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from streamseg.engine import kernels
from streamseg.engine.engine import FrameBatch
from streamseg.engine.fast import FastEngine
from streamseg.engine.graphs import capture_graph
from streamseg.engine.labels import labels_from_scores
from streamseg.engine.pick import PRECISIONS, accelerate, fast_precisions
from streamseg.engine.runtime import OPENERS, ExportedEngine, open_exported
from streamseg.evaluate import paper, plot
from streamseg.io.hub import is_hub_address
from streamseg.models import checkpoint
from streamseg.models.baselines import BASELINES
from streamseg.models.bundled import BUNDLED_WEIGHTS
from streamseg.models.checkpoint import FANETS, ImageNetwork, Network
from streamseg.models.fanet import FANet
from streamseg.models.video import VIDEO_METHODS, VideoMethod

CLASSES = 19
"""Classes of networks that are given by name, as in Cityscapes."""

RUNTIMES = {".onnx": "ONNX Runtime", ".xml": "OpenVINO", ".pt2": "torch"}
"""The runtime of an exported file, by its suffix."""

Call = Callable[[], object]


def count_macs(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the multiply-accumulates of convolutions and matrix products for an input of a shape, without computing.

    The paper calls these "GFLOPs"; the number of floating-point operations is twice as high.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(network).to("meta").eval()(torch.empty(shape, device="meta"))
    return counter.get_total_flops() // 2


@dataclass(frozen=True)
class Timing:
    """Time of one path from frames to labels, in milliseconds per batch."""

    way: str
    """Name of the path, such as "fast, fp16" or "torch.compile"."""
    median: float
    p95: float
    p99: float
    fps: float
    """Frames per second."""
    memory_mb: float | None
    """Peak GPU memory, including the weights; None on the CPU."""
    rounds: int


@dataclass(frozen=True)
class Cost:
    """Cost of a network or an exported file."""

    network: str
    parameters: int | None
    """None for an exported file."""
    gmacs: float | None
    timings: tuple[Timing, ...]
    stages: dict[str, float] = field(default_factory=dict)
    """Share of each stage in the time of the fast path."""
    paper_fps: float | None = None
    """The paper's speed of the network alone at this size, on a Titan X."""


def open_network(name: str) -> Network:
    """Build a network by its name, with random weights, or load a checkpoint or bundled weights."""
    if name in FANETS:
        return FANETS[name](CLASSES).eval()
    if name in BASELINES:
        return BASELINES[name](CLASSES).eval()
    if name in VIDEO_METHODS:
        return VIDEO_METHODS[name](CLASSES).eval()
    if name not in BUNDLED_WEIGHTS and not is_hub_address(name) and not Path(name).is_file():
        raise ValueError(
            f"{name!r:.80} is neither a file nor one of the networks "
            f"{', '.join((*FANETS, *BASELINES))}, a video method such as dff-swiftnet18, or the bundled weights "
            f"{', '.join(BUNDLED_WEIGHTS)}."
        )
    network, _ = checkpoint.load(name)
    return network


def measure_cost(
    name: str,
    size: tuple[int, int],
    batch: int,
    device: torch.device,
    precision: str = "",
    *,
    compiled: bool = False,
    seconds: float = 3.0,
    trust: bool = False,
) -> Cost:
    """Measure the paths of a network from frames to labels in turn, so that any disturbance affects all of them.

    Args:
        name: Name of a network or of bundled weights, or path of a checkpoint or an exported file.
        precision: fp16 or bf16 on a GPU, fp32 or int8 on the CPU; the default is fp16 and fp32. Not for exported files.
        compiled: Measure torch.compile too, which takes a minute to compile.
        seconds: Time to measure for.
        trust: Allow a .pt2 file, which is a program, to run.
    """
    if is_exported(name):
        return measure_exported(open_exported(name, device, trust=trust), size, batch, seconds)
    before = allocated(device)
    network = open_network(name)
    parameters, macs = sum(x.numel() for x in network.parameters()), count_macs(network, (1, 3, *size))
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    frames = torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, device=device)
    available = fast_precisions(device)
    precision = precision or available[0]
    if precision not in available:
        raise ValueError(f"precision is {precision!r:.80}; on this device choose one of: {', '.join(available)}.")
    with torch.no_grad():
        fast = make_fast(network, frames, precision)
        timings = time_paths(label_paths(network, fast, frames, precision, compiled), device, batch, seconds, before)
        stages = stage_shares(fast, frames, device, seconds / 3) if fast else {}
    return Cost(network.name, parameters, macs / 1e9, timings, stages, paper_fps(network.name, size))


def measure_exported(file: ExportedEngine, size: tuple[int, int], batch: int, seconds: float) -> Cost:
    """Measure an exported file from frames to labels, one frame at a time."""
    fixed = file.manifest.size
    if fixed not in (None, size):
        raise ValueError(
            f"{file.path} only takes frames of {fixed[0]} x {fixed[1]}: give --size {fixed[0]}x{fixed[1]}."
        )
    frames = torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, device=file.device)
    frame_batch = FrameBatch(frames, None, [0.0] * batch, [size] * batch)
    way = f"{RUNTIMES[file.path.suffix.lower()]}, {file.manifest.precision}"
    timings = time_paths({way: lambda: partial(file.predict, frame_batch)}, file.device, batch, seconds)
    return Cost(str(file.path), None, None, timings)


def is_exported(name: str) -> bool:
    """Return whether a name has the suffix of an exported file."""
    return Path(name).suffix.lower() in OPENERS


def time_paths(
    prepared: dict[str, Callable[[], Call]], device: torch.device, batch: int, seconds: float, before: int = 0
) -> tuple[Timing, ...]:
    """Measure the time of several paths, in turn, and the memory of each.

    Args:
        prepared: By name, a function that prepares a path and returns its call.
        before: Bytes of GPU memory that were allocated before the network was built.
    """
    calls: dict[str, Call] = {}
    memory: dict[str, float | None] = {}
    shared = allocated(device)
    for way, prepare in prepared.items():
        others = before + allocated(device) - shared
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        calls[way] = prepare()
        calls[way]()
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        memory[way] = None if peak is None else (peak - others) / 1e6
    times = time_in_turn(calls, device, seconds)
    return tuple(summarise_times(way, times[way], batch, memory[way]) for way in calls)


def allocated(device: torch.device) -> int:
    """Return the bytes of GPU memory that tensors take; 0 on the CPU, where it is unknown."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def make_fast(network: Network, frames: Tensor, precision: str) -> FastEngine | None:
    """Return the fast form of a network, if it has one."""
    if not isinstance(network, FANet):
        return None
    fast = accelerate(network, precision, list(frames) if precision == "int8" else ())
    return fast if isinstance(fast, FastEngine) else None


def label_paths(
    network: ImageNetwork, fast: FastEngine | None, frames: Tensor, precision: str, compiled: bool = False
) -> dict[str, Callable[[], Call]]:
    """Return the paths from frames to labels by name: functions that prepare a path and return its call."""
    device = frames.device
    # on the CPU only the fast path computes in int8
    half = copy.deepcopy(network).to(torch.float32 if precision == "int8" else PRECISIONS[precision])
    found: dict[str, Callable[[], Call]] = {}
    if fast:
        found[f"fast, {precision}"] = lambda: partial(fast, frames)
        found[f"fast, {precision}, video"] = lambda: next_frame(fast, frames)
    elif device.type == "cuda":
        found[f"CUDA graph, {precision}"] = lambda: as_graph(partial(label_eagerly, half, frames), device)
    if compiled:
        found["torch.compile"] = lambda: as_graph(partial(torch.compile(label_from_full_scores), half, frames), device)
    found["plain"] = lambda: partial(label_eagerly, half, frames)
    found["network alone, fp32"] = lambda: partial(network.outputs, frames.float())
    return found


def next_frame(fast: FastEngine, frames: Tensor) -> Call:
    """Return the call for a video frame with the context of the one before."""
    _, past = fast.step(frames)
    past = past.clone()
    return lambda: fast.step(frames, past)


def label_eagerly(network: ImageNetwork, frames: Tensor) -> Tensor:
    """Return labels (B, H, W), made like those of the fast path: without all scores at full size in memory."""
    scores, _ = network.outputs(frames)
    size = (frames.shape[2], frames.shape[3])
    if frames.is_cuda:
        labels = torch.empty(len(frames), *size, dtype=torch.uint8, device=frames.device)
        kernels.label(scores, size, labels)
        return labels
    return torch.stack([labels_from_scores(x, size) for x in scores])


def label_from_full_scores(network: ImageNetwork, frames: Tensor) -> Tensor:
    """Return labels (B, H, W) from the network's output: all scores at full size, and their argmax."""
    return network(frames).argmax(dim=1).to(torch.uint8)


def as_graph(call: Call, device: torch.device) -> Call:
    """Capture a call as a CUDA graph; on the CPU, return the call itself."""
    if device.type != "cuda":
        return call
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        return capture_graph(call, device).replay


def time_in_turn(calls: dict[str, Call], device: torch.device, seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each call, made in bursts, in turn, so that any disturbance affects all of them.

    The first calls of a burst do not count: the caches still hold the data of another path.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    warm_up, timed = (5, 20) if device.type == "cuda" else (1, 2)
    end, rounds = perf_counter() + seconds, 0
    while rounds < 3 or perf_counter() < end:
        for name, call in calls.items():
            burst = [time_call(call, device) for _ in range(warm_up + timed)]
            times[name] += burst[warm_up:]
        rounds += 1
    return times


def time_call(call: Call, device: torch.device) -> float:
    """Return the milliseconds of a call; on a GPU, between events before and after its work."""
    if device.type != "cuda":
        start = perf_counter()
        call()
        return 1000 * (perf_counter() - start)
    start_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start_event.record()
    call()
    end_event.record()
    end_event.synchronize()
    return start_event.elapsed_time(end_event)


def summarise_times(way: str, times: Sequence[float], batch: int, memory: float | None) -> Timing:
    """Return the percentiles of measured times."""
    ranks = quantiles(times, n=100, method="inclusive")
    typical = median(times)
    return Timing(way, typical, ranks[94], ranks[98], 1000 * batch / typical, memory, len(times))


def stage_shares(fast: FastEngine, frames: Tensor, device: torch.device, seconds: float) -> dict[str, float]:
    """Return the share of each stage in the time of the fast path, from the times of its first 1, 2, … stages."""
    buffers, folded = fast.allocate((frames.shape, False, False, False, None)), fast.fold()
    buffers.frame.copy_(frames)
    unfolded = buffers.unfolded if device.type == "cuda" else None

    def encode() -> list[Tensor]:
        return list(folded.encode(folded.run_stem(buffers.frame, unfolded)))

    def attend() -> list[Tensor]:
        return folded.attend(encode(), buffers.past, buffers.scale, buffers.context)

    prefixes: dict[str, Call] = {
        "stem": lambda: folded.run_stem(buffers.frame, unfolded),
        "encoder": encode,
        "attention": attend,
        "decoder": lambda: folded.decode(attend()),
        "labels": partial(fast.run, buffers) if unfolded is not None else partial(fast, frames),
    }
    calls = {name: as_graph(call, device) for name, call in prefixes.items()}
    medians = {name: median(times) for name, times in time_in_turn(calls, device, seconds).items()}
    stages, before = {}, 0.0
    for name, milliseconds in medians.items():
        stages[name] = max(0.0, milliseconds - before)
        before = max(before, milliseconds)
    return {name: milliseconds / before for name, milliseconds in stages.items()}


def paper_fps(network: str, size: tuple[int, int]) -> float | None:
    """Return the paper's frames per second of a network at a size."""
    rows = [row for tables in paper.TABLES.values() for table in tables for row in table.rows]
    found = [row.printed["fps"] for row in rows if row.network == network and row.size == size and "fps" in row.printed]
    return found[-1] if found else None


def profile(name: str, size: tuple[int, int], device: torch.device, precision: str = "") -> list[tuple[str, float]]:
    """Return the ten slowest kernels or operators of the fast path, in milliseconds per frame; none for a file."""
    if is_exported(name):
        return []
    network = open_network(name).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if isinstance(network, VideoMethod):
        raise ValueError(f"{name} is a video method, whose positions are timed: leave out --profile.")
    frames = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, device=device)
    cuda = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU]
    precision = precision or fast_precisions(device)[0]
    with torch.no_grad():
        prepare, *_ = label_paths(network, make_fast(network, frames, precision), frames, precision).values()
        call = prepare()
        call()
        with torch.profiler.profile(activities=activities) as profiled:
            for _ in range(10):
                call()
            if cuda:
                torch.cuda.synchronize(device)
    spent = [
        (entry.key, (entry.self_device_time_total if cuda else entry.self_cpu_time_total) / 10_000)
        for entry in profiled.key_averages()
    ]
    return sorted(spent, key=lambda entry: -entry[1])[:10]


def describe_machine(device: torch.device) -> dict[str, str]:
    """Return the hardware and the versions that were measured on."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "system": platform.platform()}
    if device.type != "cuda":
        return found | {"device": f"CPU, {platform.machine()}", "threads": str(torch.get_num_threads())}
    found |= {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda or ""}
    found |= {"cudnn": str(torch.backends.cudnn.version()), "triton": kernels.VERSION}
    if shutil.which("nvidia-smi"):
        fields = "driver_version,clocks.sm,clocks.mem,power.limit"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
        values = output.splitlines()[device.index or 0].split(", ") if output else []
        found |= dict(zip(fields.split(","), values, strict=False))
    return found


def describe_load() -> str:
    """Return how many processes have wanted a core in the last minute; unknown on Windows."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def format_costs(costs: Sequence[Cost], size: tuple[int, int], batch: int, machine: dict[str, str]) -> str:
    """Format the costs of several networks as a table."""
    about = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "device")
    lines = [f"{machine['device']}: frames of {size[0]} x {size[1]}, batches of {batch}", f"({about})", ""]
    head = f"{'':24}{'median':>13}{'p95':>13}{'p99':>13}{'fps':>10}{'memory':>11}"
    for cost in costs:
        parameters = "-" if cost.parameters is None else f"{cost.parameters:,}"
        gmacs = "-" if cost.gmacs is None else f"{cost.gmacs:.2f}"
        lines.append(f"{cost.network}: {parameters} parameters, {gmacs} GMACs")
        lines.append(head)
        for timing in cost.timings:
            memory = "" if timing.memory_mb is None else f"{timing.memory_mb:,.0f} MB"
            times = "".join(f"{f'{x:.3f} ms':>13}" for x in (timing.median, timing.p95, timing.p99))
            lines.append(f"  {timing.way:22}{times}{timing.fps:>10,.1f}{memory:>11}")
        if cost.paper_fps:
            lines.append(f"  {'the paper, Titan X':22}{'':39}{cost.paper_fps:>10,.1f}")
        lines.append(f"  fast path: {', '.join(f'{name} {share:.0%}' for name, share in cost.stages.items()) or '-'}")
        lines.append("")
    return "\n".join(lines).rstrip()


def plot_costs(path: Path, costs: Sequence[Cost], size: tuple[int, int], machine: dict[str, str]) -> None:
    """Plot the median times of several networks as bars."""
    ways = list(dict.fromkeys(timing.way for cost in costs for timing in cost.timings))
    figure = plot.new_figure(8, 1.2 + 0.28 * len(costs) * len(ways))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(ways)
    for place, way in enumerate(ways):
        found = [(i, t.median) for i, cost in enumerate(costs) for t in cost.timings if t.way == way]
        bars = axes.barh([i + place * height for i, _ in found], [x for _, x in found], height * 0.9, label=way)
        axes.bar_label(bars, [f" {x:.2f}" for _, x in found], fontsize=8)
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(costs))], [cost.network for cost in costs])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds from frame to labels (median)")
    axes.set_title(f"{machine['device']}, {size[0]} x {size[1]}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=len(ways), frameon=False, fontsize=8)
    plot.save_figure(figure, path)
