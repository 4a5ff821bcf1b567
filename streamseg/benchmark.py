"""What a network costs: parameters, arithmetic, memory, and the time from a frame to its labels.

Shapes: B batch, H x W the frame.
"""

import copy
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

from streamseg import checkpoint, kernels, paper, plot
from streamseg.checkpoint import FANETS, Network
from streamseg.fast import PRECISIONS, Fast, accelerate, fast_precisions, record
from streamseg.model import FANet
from streamseg.peers import PEERS
from streamseg.tiles import labels_of

CLASSES = 19
"""Of networks that are given by name: Cityscapes'."""

Call = Callable[[], object]


def count_macs(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-accumulates of the convolutions and matrix products for an input of a shape; nothing is computed.

    These are what the paper prints as "GFLOPs"; a floating-point operation count is twice as much.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(network).to("meta").eval()(torch.empty(shape, device="meta"))
    return counter.get_total_flops() // 2


@dataclass(frozen=True)
class Timing:
    """How long a way from frames to labels takes, in milliseconds a batch."""

    way: str
    median: float
    p95: float
    p99: float
    fps: float
    """Frames a second, of a whole batch."""
    memory_mb: float | None
    """The most of a GPU's memory that it takes, the weights included; None on the CPU."""
    rounds: int


@dataclass(frozen=True)
class Cost:
    """What a network costs."""

    network: str
    parameters: int
    gmacs: float
    timings: tuple[Timing, ...]
    stages: dict[str, float] = field(default_factory=dict)
    """The share of each stage in the time of the fast way."""
    paper_fps: float | None = None
    """What the paper prints for the network alone at this size, on a Titan X."""


def open_network(name: str) -> Network:
    """A network by its name, with random weights, or from a checkpoint."""
    if name in FANETS:
        return FANETS[name](CLASSES).eval()
    if name in PEERS:
        return PEERS[name](CLASSES).eval()
    if not Path(name).is_file():
        raise ValueError(f"{name!r:.80} is neither a file nor one of the networks {', '.join((*FANETS, *PEERS))}.")
    network, _ = checkpoint.load(name)
    return network


def measure(
    name: str,
    size: tuple[int, int],
    batch: int,
    device: torch.device,
    precision: str = "",
    *,
    compiled: bool = False,
    seconds: float = 3.0,
) -> Cost:
    """Measure a network's ways from frames to labels in turn, so that whatever disturbs one disturbs all.

    Args:
        name: A network's name, or the path of a checkpoint.
        precision: fp16 or bf16 on a GPU, fp32 or int8 on the CPU; without one, fp16 and fp32.
        compiled: Whether torch.compile is one of the ways, for which a minute is spent on compiling.
        seconds: How long to measure.
    """
    network = open_network(name)
    parameters, macs = sum(x.numel() for x in network.parameters()), count_macs(network, (1, 3, *size))
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    frames = torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, device=device)
    known = fast_precisions(device)
    kind = precision or known[0]
    if kind not in known:
        raise ValueError(f"precision is {kind!r:.80}; on this device choose one of: {', '.join(known)}.")
    calls: dict[str, Call] = {}
    memory: dict[str, float | None] = {}
    stages: dict[str, float] = {}
    with torch.no_grad():
        quick = make_fast(network, frames, kind)
        for way, prepare in ways(network, quick, frames, kind, compiled).items():
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)
            calls[way] = prepare()
            calls[way]()
            memory[way] = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None
        times = time_in_turn(calls, device, seconds)
        if quick:
            stages = share_out(quick, frames, device, seconds / 3)
    timings = tuple(summarise(way, times[way], batch, memory[way]) for way in calls)
    return Cost(network.name, parameters, macs / 1e9, timings, stages, paper_fps(network.name, size))


def make_fast(network: Network, frames: Tensor, precision: str) -> Fast | None:
    """The fast form of a network, if it has one."""
    if not isinstance(network, FANet):
        return None
    quick = accelerate(network, precision, list(frames) if precision == "int8" else ())
    return quick if isinstance(quick, Fast) else None


def ways(
    network: Network, quick: Fast | None, frames: Tensor, precision: str, compiled: bool = False
) -> dict[str, Callable[[], Call]]:
    """The ways from frames to labels, and what makes each ready to be called."""
    device = frames.device
    # on the CPU bytes are for the fast way alone
    half = copy.deepcopy(network).to(torch.float32 if precision == "int8" else PRECISIONS[precision])
    found: dict[str, Callable[[], Call]] = {}
    if quick:
        found[f"fast, {precision}"] = lambda: partial(quick, frames)
    elif device.type == "cuda":
        found[f"CUDA graph, {precision}"] = lambda: graphed(partial(label, half, frames), device)
    if compiled:
        found["torch.compile"] = lambda: graphed(partial(torch.compile(label_whole), half, frames), device)
    found["plain"] = lambda: partial(label, half, frames)
    found["network alone, fp32"] = lambda: partial(network.outputs, frames.float())
    return found


def label(network: Network, frames: Tensor) -> Tensor:
    """Labels (B, H, W) as the other ways make them; the resized scores of a whole frame are never there at once."""
    scores, _ = network.outputs(frames)
    size = (frames.shape[2], frames.shape[3])
    if frames.is_cuda:
        labels = torch.empty(len(frames), *size, dtype=torch.uint8, device=frames.device)
        kernels.label(scores, size, labels)
        return labels
    return torch.stack([labels_of(x, size) for x in scores])


def label_whole(network: Network, frames: Tensor) -> Tensor:
    """Labels (B, H, W) as the network's own output says: all scores at full size, and the highest of them."""
    return network(frames).argmax(dim=1).to(torch.uint8)


def graphed(call: Call, device: torch.device) -> Call:
    """What a call does on a GPU as one graph; on the CPU the call itself."""
    return record(call, device).replay if device.type == "cuda" else call


def time_in_turn(calls: dict[str, Call], device: torch.device, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, round by round, after a few rounds that do not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    warm = 3 if device.type == "cpu" else 20
    end = perf_counter() + seconds
    number = 0
    while number < warm + 5 or perf_counter() < end:
        for name, call in calls.items():
            taken = time_call(call, device)
            if number >= warm:
                times[name].append(taken)
        number += 1
    return times


def time_call(call: Call, device: torch.device) -> float:
    """Milliseconds of a call; on a GPU, from where its work begins to where it ends."""
    if device.type != "cuda":
        start = perf_counter()
        call()
        return 1000 * (perf_counter() - start)
    begun, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begun.record()
    call()
    done.record()
    done.synchronize()
    return begun.elapsed_time(done)


def summarise(way: str, times: Sequence[float], batch: int, memory: float | None) -> Timing:
    ranks = quantiles(times, n=100, method="inclusive")
    middle = median(times)
    return Timing(way, middle, ranks[94], ranks[98], 1000 * batch / middle, memory, len(times))


def share_out(quick: Fast, frames: Tensor, device: torch.device, seconds: float) -> dict[str, float]:
    """The share of each stage in the time from frames to labels, from the times of ever longer beginnings of it."""
    batch, _, height, width = frames.shape
    ready, folded = quick.prepare((batch, height, width, False)), quick.folded
    ready.frame.copy_(frames)
    unfolded = ready.unfolded if device.type == "cuda" else None

    def encode() -> list[Tensor]:
        return folded.encode(folded.look(ready.frame, unfolded))

    def attend() -> list[Tensor]:
        return folded.attend(encode(), ready.past, ready.scale, ready.context)

    beginnings: dict[str, Call] = {
        "stem": lambda: folded.look(ready.frame, unfolded),
        "encoder": encode,
        "attention": attend,
        "decoder": lambda: folded.decode(attend()),
        "labels": partial(quick.run, ready) if unfolded is not None else partial(quick, frames),
    }
    calls = {name: graphed(call, device) for name, call in beginnings.items()}
    medians = {name: median(times) for name, times in time_in_turn(calls, device, seconds).items()}
    alone, before = {}, 0.0
    for name, taken in medians.items():
        alone[name] = max(0.0, taken - before)
        before = max(before, taken)
    return {name: taken / before for name, taken in alone.items()}


def paper_fps(network: str, size: tuple[int, int]) -> float | None:
    """Frames a second that the paper prints for a network at a size."""
    rows = [row for tables in paper.TABLES.values() for table in tables for row in table.rows]
    found = [row.printed["fps"] for row in rows if row.network == network and row.size == size and "fps" in row.printed]
    return found[-1] if found else None


def profile(name: str, size: tuple[int, int], device: torch.device, precision: str = "") -> list[tuple[str, float]]:
    """The ten kernels or operators that take most of the fast way's time, in milliseconds a frame."""
    network = open_network(name).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    frames = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, device=device)
    cuda = device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU]
    kind = precision or fast_precisions(device)[0]
    with torch.no_grad():
        prepare, *_ = ways(network, make_fast(network, frames, kind), frames, kind).values()
        call = prepare()
        call()
        with torch.profiler.profile(activities=kinds) as profiled:
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
    """What was measured on, for whoever reads the figures."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "system": platform.platform()}
    if device.type != "cuda":
        return found | {"device": f"CPU, {platform.machine()}", "threads": str(torch.get_num_threads())}
    found |= {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda or ""}
    found |= {"cudnn": str(torch.backends.cudnn.version()), "triton": kernels.VERSION}
    if shutil.which("nvidia-smi"):
        wanted = "driver_version,clocks.sm,clocks.mem,power.limit"
        asked = ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False).stdout
        values = answer.splitlines()[device.index or 0].split(", ") if answer else []
        found |= dict(zip(wanted.split(","), values, strict=False))
    return found


def render(costs: Sequence[Cost], size: tuple[int, int], batch: int, machine: dict[str, str]) -> str:
    """The figures of several networks as a table."""
    about = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "device")
    lines = [f"{machine['device']}: frames of {size[0]} x {size[1]}, batches of {batch}", f"({about})", ""]
    head = f"{'':24}{'median':>13}{'p95':>13}{'p99':>13}{'fps':>10}{'memory':>11}"
    for cost in costs:
        lines.append(f"{cost.network}: {cost.parameters:,} parameters, {cost.gmacs:.2f} GMACs")
        lines.append(head)
        for timing in cost.timings:
            memory = "" if timing.memory_mb is None else f"{timing.memory_mb:,.0f} MB"
            times = "".join(f"{f'{x:.3f} ms':>13}" for x in (timing.median, timing.p95, timing.p99))
            lines.append(f"  {timing.way:22}{times}{timing.fps:>10,.1f}{memory:>11}")
        if cost.paper_fps:
            lines.append(f"  {'the paper, Titan X':22}{'':39}{cost.paper_fps:>10,.1f}")
        if cost.stages:
            lines.append("  fast way: " + ", ".join(f"{name} {share:.0%}" for name, share in cost.stages.items()))
        lines.append("")
    return "\n".join(lines).rstrip()


def draw(path: Path, costs: Sequence[Cost], size: tuple[int, int], machine: dict[str, str]) -> None:
    """Draw the median times of several networks as bars."""
    ways_ = list(dict.fromkeys(timing.way for cost in costs for timing in cost.timings))
    figure = plot.new_figure(8, 1.2 + 0.28 * len(costs) * len(ways_))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(ways_)
    for place, way in enumerate(ways_):
        found = [(i, t.median) for i, cost in enumerate(costs) for t in cost.timings if t.way == way]
        bars = axes.barh([i + place * height for i, _ in found], [x for _, x in found], height * 0.9, label=way)
        axes.bar_label(bars, [f" {x:.2f}" for _, x in found], fontsize=8)
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(costs))], [cost.network for cost in costs])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds from frame to labels (median)")
    axes.set_title(f"{machine['device']}, {size[0]} x {size[1]}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=len(ways_), frameon=False, fontsize=8)
    plot.save(figure, path)
