"""What a network, or an exported file, costs: parameters, arithmetic, memory, and the time from a frame to its labels.

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

from streamseg.engine import kernels
from streamseg.engine.engine import FrameBatch
from streamseg.engine.fast import PRECISIONS, FastEngine, accelerate, capture_graph, fast_precisions
from streamseg.engine.runtime import OPENERS, ExportedEngine, open_exported
from streamseg.engine.tiles import labels_from_scores
from streamseg.evaluate import paper, plot
from streamseg.models import checkpoint
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import FANETS, Network
from streamseg.models.fanet import FANet

CLASSES = 19
"""Of networks that are given by name: Cityscapes'."""

RUNTIMES = {".onnx": "ONNX Runtime", ".xml": "OpenVINO", ".pt2": "torch"}
"""What runs an exported file, by its suffix."""

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
    """What a network, or an exported file, costs."""

    network: str
    parameters: int | None
    """None for a file, which does not tell."""
    gmacs: float | None
    timings: tuple[Timing, ...]
    stages: dict[str, float] = field(default_factory=dict)
    """The share of each stage in the time of the fast way."""
    paper_fps: float | None = None
    """What the paper prints for the network alone at this size, on a Titan X."""


def open_network(name: str) -> Network:
    """A network by its name, with random weights, or from a checkpoint."""
    if name in FANETS:
        return FANETS[name](CLASSES).eval()
    if name in BASELINES:
        return BASELINES[name](CLASSES).eval()
    if not Path(name).is_file():
        raise ValueError(f"{name!r:.80} is neither a file nor one of the networks {', '.join((*FANETS, *BASELINES))}.")
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
    trust: bool = False,
) -> Cost:
    """Measure a network's ways from frames to labels in turn, so that whatever disturbs one disturbs all.

    Args:
        name: A network's name, or the path of a checkpoint or of an exported file.
        precision: fp16 or bf16 on a GPU, fp32 or int8 on the CPU; without one, fp16 and fp32. A file has its own.
        compiled: Whether torch.compile is one of the ways, for which a minute is spent on compiling.
        seconds: How long to measure.
        trust: Whether a program in a file may run.
    """
    if is_exported(name):
        return measure_file(open_exported(name, device, trust=trust), size, batch, seconds)
    before = allocated(device)
    network = open_network(name)
    parameters, macs = sum(x.numel() for x in network.parameters()), count_macs(network, (1, 3, *size))
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    frames = torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, device=device)
    known = fast_precisions(device)
    kind = precision or known[0]
    if kind not in known:
        raise ValueError(f"precision is {kind!r:.80}; on this device choose one of: {', '.join(known)}.")
    with torch.no_grad():
        quick = make_fast(network, frames, kind)
        timings = time_paths(label_paths(network, quick, frames, kind, compiled), device, batch, seconds, before)
        stages = stage_shares(quick, frames, device, seconds / 3) if quick else {}
    return Cost(network.name, parameters, macs / 1e9, timings, stages, paper_fps(network.name, size))


def measure_file(file: ExportedEngine, size: tuple[int, int], batch: int, seconds: float) -> Cost:
    """Measure an exported file's way from frames to labels, which it sees one by one."""
    fixed = file.manifest.size
    if fixed not in (None, size):
        raise ValueError(
            f"{file.path} takes frames of {fixed[0]} x {fixed[1]} alone: give --size {fixed[0]}x{fixed[1]}."
        )
    frames = torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, device=file.device)
    frame_batch = FrameBatch(frames, None, [0.0] * batch, [size] * batch)
    way = f"{RUNTIMES[file.path.suffix.lower()]}, {file.manifest.precision}"
    timings = time_paths({way: lambda: partial(file.predict, frame_batch)}, file.device, batch, seconds)
    return Cost(str(file.path), None, None, timings)


def is_exported(name: str) -> bool:
    """Whether a name is that of an exported file."""
    return Path(name).suffix.lower() in OPENERS


def time_paths(
    prepared: dict[str, Callable[[], Call]], device: torch.device, batch: int, seconds: float, before: int = 0
) -> tuple[Timing, ...]:
    """How long each of several ways takes, in turn, and the memory that it needs.

    Args:
        before: How much of a GPU's memory was taken before the network was there, in bytes.
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
        most = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        memory[way] = None if most is None else (most - others) / 1e6
    times = time_in_turn(calls, device, seconds)
    return tuple(summarise_times(way, times[way], batch, memory[way]) for way in calls)


def allocated(device: torch.device) -> int:
    """How much of a GPU's memory tensors take, in bytes; of the CPU's, nothing is known."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def make_fast(network: Network, frames: Tensor, precision: str) -> FastEngine | None:
    """The fast form of a network, if it has one."""
    if not isinstance(network, FANet):
        return None
    quick = accelerate(network, precision, list(frames) if precision == "int8" else ())
    return quick if isinstance(quick, FastEngine) else None


def label_paths(
    network: Network, quick: FastEngine | None, frames: Tensor, precision: str, compiled: bool = False
) -> dict[str, Callable[[], Call]]:
    """The ways from frames to labels, and what makes each ready to be called."""
    device = frames.device
    # on the CPU bytes are for the fast way alone
    half = copy.deepcopy(network).to(torch.float32 if precision == "int8" else PRECISIONS[precision])
    found: dict[str, Callable[[], Call]] = {}
    if quick:
        found[f"fast, {precision}"] = lambda: partial(quick, frames)
        found[f"fast, {precision}, video"] = lambda: next_frame(quick, frames)
    elif device.type == "cuda":
        found[f"CUDA graph, {precision}"] = lambda: as_graph(partial(label, half, frames), device)
    if compiled:
        found["torch.compile"] = lambda: as_graph(partial(torch.compile(label_whole), half, frames), device)
    found["plain"] = lambda: partial(label, half, frames)
    found["network alone, fp32"] = lambda: partial(network.outputs, frames.float())
    return found


def next_frame(quick: FastEngine, frames: Tensor) -> Call:
    """The step from a video's frame to the next, with the context of the one before."""
    _, past = quick.step(frames)
    past = past.clone()
    return lambda: quick.step(frames, past)


def label(network: Network, frames: Tensor) -> Tensor:
    """Labels (B, H, W) as the other ways make them; the resized scores of a whole frame are never there at once."""
    scores, _ = network.outputs(frames)
    size = (frames.shape[2], frames.shape[3])
    if frames.is_cuda:
        labels = torch.empty(len(frames), *size, dtype=torch.uint8, device=frames.device)
        kernels.label(scores, size, labels)
        return labels
    return torch.stack([labels_from_scores(x, size) for x in scores])


def label_whole(network: Network, frames: Tensor) -> Tensor:
    """Labels (B, H, W) as the network's own output says: all scores at full size, and the highest of them."""
    return network(frames).argmax(dim=1).to(torch.uint8)


def as_graph(call: Call, device: torch.device) -> Call:
    """What a call does on a GPU as one graph; on the CPU the call itself."""
    return capture_graph(call, device).replay if device.type == "cuda" else call


def time_in_turn(calls: dict[str, Call], device: torch.device, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, which come in bursts, in turn, so that whatever disturbs one disturbs all.

    The first calls of a burst do not count: caches still hold what another way has left there.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    unseen, seen = (5, 20) if device.type == "cuda" else (1, 2)
    end, rounds = perf_counter() + seconds, 0
    while rounds < 3 or perf_counter() < end:
        for name, call in calls.items():
            burst = [time_call(call, device) for _ in range(unseen + seen)]
            times[name] += burst[unseen:]
        rounds += 1
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


def summarise_times(way: str, times: Sequence[float], batch: int, memory: float | None) -> Timing:
    ranks = quantiles(times, n=100, method="inclusive")
    middle = median(times)
    return Timing(way, middle, ranks[94], ranks[98], 1000 * batch / middle, memory, len(times))


def stage_shares(quick: FastEngine, frames: Tensor, device: torch.device, seconds: float) -> dict[str, float]:
    """The share of each stage in the time from frames to labels, from the times of ever longer beginnings of it."""
    ready, folded = quick.allocate((frames.shape, False)), quick.folded
    ready.frame.copy_(frames)
    unfolded = ready.unfolded if device.type == "cuda" else None

    def encode() -> list[Tensor]:
        return list(folded.encode(folded.run_stem(ready.frame, unfolded)))

    def attend() -> list[Tensor]:
        return folded.attend(encode(), ready.past, ready.scale, ready.context)

    beginnings: dict[str, Call] = {
        "stem": lambda: folded.run_stem(ready.frame, unfolded),
        "encoder": encode,
        "attention": attend,
        "decoder": lambda: folded.decode(attend()),
        "labels": partial(quick.run, ready) if unfolded is not None else partial(quick, frames),
    }
    calls = {name: as_graph(call, device) for name, call in beginnings.items()}
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
    """The ten kernels or operators that take most of the fast way's time, in milliseconds a frame; none of a file's."""
    if is_exported(name):
        return []
    network = open_network(name).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    frames = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, device=device)
    cuda = device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU]
    kind = precision or fast_precisions(device)[0]
    with torch.no_grad():
        prepare, *_ = label_paths(network, make_fast(network, frames, kind), frames, kind).values()
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


def format_costs(costs: Sequence[Cost], size: tuple[int, int], batch: int, machine: dict[str, str]) -> str:
    """The figures of several networks as a table."""
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
        lines.append(f"  fast way: {', '.join(f'{name} {share:.0%}' for name, share in cost.stages.items()) or '-'}")
        lines.append("")
    return "\n".join(lines).rstrip()


def plot_costs(path: Path, costs: Sequence[Cost], size: tuple[int, int], machine: dict[str, str]) -> None:
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
    plot.save_figure(figure, path)
