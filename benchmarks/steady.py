"""Measure what keeps the labels of a video steady, for docs/steady.md.

    python benchmarks/steady.py accuracy CAMVID WEIGHTS [WEIGHTS ...] [WAY ...]
    python benchmarks/steady.py moved COMMA10K [PICTURES] WEIGHTS [WEIGHTS ...] [WAY ...]
    python benchmarks/steady.py tried CAMVID WEIGHTS
    python benchmarks/steady.py time [WEIGHTS [HEIGHT WIDTH]]
    python benchmarks/steady.py gpu [WEIGHTS]

accuracy  the network's scores of CamVid's val, computed once, labelled in several ways and as several streams; on a GPU
          if there is one, by its kernels; of several networks, mean and standard deviation, and those of the change
          against off. A way, instead of the usual ones, is share,tolerance,margin,still of a Steadiness: 0.8,10,5.7,60
moved     pictures of comma10k's val, 20 or as many as asked for, over which a camera moves and zooms, with noise, at
          several frame rates
tried     high with one of its parts replaced, on CamVid's val
time      a frame in milliseconds, one way after the other on the same frame, so that a busy machine disturbs all alike
gpu       the same on a GPU in three sizes, by CUDA events, frames and labels on the GPU; then the time of each kernel
"""

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter
from typing import TypeAlias

import torch
from labelled_clips import open_network
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import streamseg
from streamseg.engine import steadying
from streamseg.engine.engine import Engine
from streamseg.engine.motion import estimate_motion, halve, move
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW, Steadiness
from streamseg.evaluate import metrics
from streamseg.evaluate.lag import Lag, LagTally
from streamseg.machine import available_cores
from streamseg.models.video.dis import DISFlow
from streamseg.stream.label_frames import label_frame
from streamseg.stream.state import LastFrames, State

WAYS: dict[str, float | Steadiness] = {
    "off": 0.0,
    "0.5": 0.5,
    "1": 1.0,
    "2": 2.0,
    "low": STEADY_LOW,
    "high": STEADY_HIGH,
}
RATE = 15
"""Frames a second of CamVid's val."""
ROUNDS, GPU_ROUNDS = 30, 12
"""Frames that are timed on the CPU, and streams of 16 frames on a GPU, one way after the other."""
GPU_SIZES = ((720, 960), (720, 1280), (1024, 2048))
"""Heights and widths of the frames that are timed on a GPU."""
PROFILED = 20
"""Frames over which the times of kernels are averaged."""
PICTURES, MOVED_FRAMES, NOISE = 20, 10, 3.0
"""Pictures of comma10k over which a camera moves, frames of each, and the standard deviation of its noise."""
MOVED_RATES = (60, 15, 5)
"""Frames a second of that camera, whose speed is the same: at 5 it moves three times as far in a frame as at 15."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Row: TypeAlias = tuple[str, str, tuple[float, ...]]
"""A stream, a way of labelling it, and its figures."""


def streams(frames: int) -> dict[str, tuple[list[int], list[float]]]:
    """Return the numbers of the frames of each stream, and their times."""
    chance = random.Random(0)
    whole = list(range(frames))
    kept = [i for i in whole if chance.random() > 0.3]
    parts = [whole[i : i + 5] for i in range(0, frames - 4, 5)]
    chance.shuffle(parts)
    jumps = [i for part in parts for i in part]
    stopped = [*whole[:40], *[40] * 20, *whole[40:]]
    return {
        "15 a second": (whole, [i / RATE for i in whole]),
        "every 2nd": (whole[::2], [i / RATE for i in whole[::2]]),
        "every 3rd": (whole[::3], [i / RATE for i in whole[::3]]),
        "30 % dropped": (kept, [i / RATE for i in kept]),
        "stopped for 20": (stopped, [i / RATE for i in range(len(stopped))]),
        "a jump each 5": (jumps, [i / RATE for i in range(len(jumps))]),
    }


def measure_lag(labels: Sequence[Tensor], predicted: Sequence[Tensor]) -> Lag:
    """Return the lag of a stream, as streamseg evaluate measures it; what it adds to frame by frame is not measured."""
    tally = LagTally(labels[0].device)
    for number, (truth, ours) in enumerate(zip(labels, predicted, strict=True)):
        tally.add(truth, ours, ours, first=number == 0)
    return tally.result()


def accuracy(data: str, *arguments: str) -> None:
    weights, ways = split_ways(arguments)
    columns = ["stream", "mIoU", "flips, %", "mVC8", "lag, median", "lag, mean"]
    print_rows(columns, measure_each(partial(measure_network, data, ways), weights))


def split_ways(arguments: Sequence[str]) -> tuple[list[str], dict[str, float | Steadiness]]:
    """Return weights, and the ways of labelling that are among the arguments, or the usual ones."""
    ways: dict[str, float | Steadiness] = {}
    for text in arguments:
        parts = text.split(",")
        if len(parts) == 4:
            ways[text] = Steadiness(*map(float, parts), mirror=True)
    if not set(arguments) - set(ways):
        sys.exit(__doc__)
    return [text for text in arguments if text not in ways], {"off": 0.0, **ways} if ways else WAYS


def measure_each(measure: Callable[[str], Iterator[Row]], weights: Sequence[str]) -> list[Iterable[Row]]:
    """Return the rows of one network as they come, or of several networks, each in a process of its own."""
    if len(weights) == 1:
        return [measure(weights[0])]
    with ProcessPoolExecutor(len(weights), get_context("spawn")) as pool:
        return list(pool.map(partial(collect, measure, max(1, available_cores() // len(weights))), weights))


def collect(measure: Callable[[str], Iterator[Row]], threads: int, weights: str) -> list[Row]:
    torch.set_num_threads(threads)
    return list(measure(weights))


def print_rows(columns: Sequence[str], tables: Sequence[Iterable[Row]]) -> None:
    """Print the rows of one network as they come, or of several networks the mean and standard deviation of each row.

    Args:
        columns: What the first entry of a row is, and its figures, of which the first are mIoU and flips.
    """
    columns = [columns[0], "--steady", *columns[1:]]
    columns += ["mIoU, change", "flips, change"] if len(tables) > 1 else []
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for rows in zip(*tables, strict=True):  # of the networks, one row each
        stream, name = rows[0][:2]
        found = [figures for *_, figures in rows]
        cells = [f"{x:.2f}" for x in found[0]] if len(rows) == 1 else [spread(x) for x in zip(*found, strict=True)]
        if name == "off":
            plain = found
        if len(rows) > 1:
            cells.append(spread([ours[0] - off[0] for ours, off in zip(found, plain, strict=True)], "+"))
            cells.append(spread([100 * (ours[1] / off[1] - 1) for ours, off in zip(found, plain, strict=True)], "+"))
        print(f"| {stream} | {name} | {' | '.join(cells)} |", flush=True)


def spread(values: Sequence[float], sign: str = "") -> str:
    """Return mean and standard deviation as text."""
    return f"{mean(values):{sign}.2f} ± {stdev(values):.2f}"


def measure_network(data: str, ways: Mapping[str, float | Steadiness], weights: str) -> Iterator[Row]:
    """Yield mIoU, flips, mVC8, median and mean lag of a network on CamVid's val, as several streams."""
    labeller, dataset = open_network(weights, streamseg.camvid(Path(data), "val"), DEVICE)
    clip = labeller.make_clip(dataset[i] for i in range(len(dataset)))
    for stream, (order, times) in streams(len(dataset)).items():
        for name, steady in ways.items():
            predicted = labeller.label(clip, order, times, steady)
            truth = [clip.labels[i] for i in order]
            lag = measure_lag(truth, predicted)
            yield stream, name, (*measure([(truth, predicted)], labeller.labels), lag.median, lag.mean)


def moved(data: str, *arguments: str) -> None:
    weights, ways = split_ways(arguments)
    pictures = int(weights.pop(0)) if len(weights) > 1 and weights[0].isdecimal() else PICTURES
    columns = ["frames a second", "mIoU", "flips, %", "mVC8"]
    print_rows(columns, measure_each(partial(measure_moved, data, pictures, ways), weights))


def measure_moved(data: str, pictures: int, ways: Mapping[str, float | Steadiness], weights: str) -> Iterator[Row]:
    """Yield mIoU, flips and mVC8 of a network on pictures of comma10k's val under a moving camera, at several rates."""
    labeller, dataset = open_network(weights, streamseg.comma10k(Path(data), "val"), DEVICE)
    step = max(1, len(dataset) // pictures)
    pictures = min(pictures, len(dataset))
    for rate in MOVED_RATES:
        results: dict[str, list[tuple[list[Tensor], list[Tensor]]]] = {name: [] for name in ways}
        for i in range(pictures):
            clip = labeller.make_clip(move_camera(*dataset[i * step], rate, seed=i))
            times = [t / rate for t in range(MOVED_FRAMES)]
            for name, steady in ways.items():
                results[name].append((clip.labels, labeller.label(clip, range(MOVED_FRAMES), times, steady)))
        for name, clips in results.items():
            yield str(rate), name, measure(clips, labeller.labels)


def move_camera(picture: Tensor, labels: Tensor, rate: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the frames of a camera that zooms into a picture and shifts, with noise, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    x, y, zoom = (2 * torch.rand(3, generator=generator) - 1).tolist()
    for number in range(MOVED_FRAMES):
        t = number * RATE / rate
        scale = 0.85 - 0.008 * t * (1.5 + zoom) / 2
        matrix = torch.tensor([[[scale, 0, 0.008 * x * t], [0, scale, 0.004 * y * t]]])
        grid = F.affine_grid(matrix, [1, 1, *labels.shape], align_corners=False)
        frame = F.grid_sample(picture[None].float(), grid, padding_mode="border", align_corners=False)[0]
        frame += NOISE * torch.randn(frame.shape, generator=generator)
        truth = F.grid_sample(labels[None, None].float(), grid, mode="nearest", align_corners=False)[0, 0]
        yield frame.round().clamp(0, 255).byte(), truth.to(labels.dtype)


def tried(data: str, weights: str) -> None:
    labeller, dataset = open_network(weights, streamseg.camvid(Path(data), "val"))
    clip = labeller.make_clip(dataset[i] for i in range(len(dataset)))
    order, times = streams(len(dataset))["15 a second"]
    plain: tuple[float, ...] = ()

    def show(name: str, steady: float | Steadiness, **parts: object) -> None:
        nonlocal plain
        usual = {part: getattr(steadying, part) for part in parts}
        vars(steadying).update(parts)
        found = measure([(clip.labels, labeller.label(clip, order, times, steady))], labeller.labels)
        vars(steadying).update(usual)
        plain = plain or found
        print(f"| {name} | {found[0] - plain[0]:+.2f} | {100 * (found[1] / plain[1] - 1):+.0f} % |", flush=True)

    def no_motion(luma: Tensor, before: Tensor) -> Tensor:
        return torch.zeros_like(halve(luma)).expand(-1, 2, -1, -1)

    def always(difference: Tensor, tolerance: float) -> Tensor:
        return torch.ones_like(difference)

    print("| what | mIoU | flips |\n|---|---|---|")
    show("off", 0.0)
    for share in (0.3, 0.5):
        average = replace(STEADY_HIGH.unmirrored(), share=share, margin=0.0)
        show(f"exponential average, share {share}", average, estimate_motion=no_motion, likeness=always)
    show("low", STEADY_LOW)
    show("high", STEADY_HIGH)
    show("no motion", STEADY_HIGH, estimate_motion=no_motion)
    show("one affine motion", STEADY_HIGH, estimate_motion=fit_affine)
    if find_spec("cv2"):
        dis = DISFlow()

        def flow(luma: Tensor, before: Tensor) -> Tensor:
            return halve(dis(luma.expand(-1, 3, -1, -1), before.expand(-1, 3, -1, -1))) / 2

        show("DIS flow", STEADY_HIGH, estimate_motion=flow)
    show("no likeness", STEADY_HIGH, likeness=always)
    show("no margin", replace(STEADY_HIGH, margin=0.0))
    show("no averaging", replace(STEADY_HIGH.unmirrored(), share=0.0))
    show("moved bilinearly", STEADY_HIGH, move=lambda values, motion, mode="": move(values, motion))
    show("margin 4", replace(STEADY_HIGH, margin=4.0))
    show("one margin for all scores", STEADY_HIGH, mean_change=lambda *_: torch.full((1, 1, 1, 1), 0.5))
    show("no frame mirrored", replace(STEADY_HIGH, mirror=False))
    show("one average, which decides and is carried", STEADY_HIGH, carried_share=lambda share: share)
    show("the margin for all classes", STEADY_HIGH, margin_share=lambda new, old: torch.ones_like(new))


def fit_affine(luma: Tensor, before: Tensor) -> Tensor:
    """Return the affine motion of a whole frame that is closest to the estimated one, with outliers weighed less."""
    motion = estimate_motion(luma, before)
    height, width = motion.shape[2:]
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    places = torch.stack([torch.ones(height * width), x.flatten(), y.flatten()], dim=1)
    values, weights = motion[0].flatten(1).T, torch.ones(height * width, 1)
    fitted = values
    for _ in range(3):
        fitted = places @ torch.linalg.lstsq(places * weights, values * weights).solution
        weights = 1 / (1 + (values - fitted).norm(dim=1, keepdim=True))
    return fitted.T.reshape(motion.shape)


def measure(clips: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], classes: int) -> tuple[float, float, float]:
    """Return mIoU, flips while the truth stays, and mVC8, in percent, of true and predicted labels of clips."""
    device = clips[0][0][0].device
    confusion = torch.zeros(classes, classes + 1, dtype=torch.int64, device=device)
    flips, videos = torch.zeros(4, dtype=torch.int64, device=device), []
    for labels, predicted in clips:
        runs, windows = None, []
        for truth, ours in zip(labels, predicted, strict=True):
            runs = metrics.extend_runs(runs, truth, ours)
            confusion += metrics.confusion_matrix(truth, ours, classes, classes + 1)
            flips += metrics.flip_counts(runs)
            windows.append(metrics.consistency(runs, 8))
        videos.append(windows)
    mvc8, _ = metrics.mvc(videos).tolist()
    return 100 * metrics.miou(confusion), 100 * metrics.flip_rates(flips)[1].item(), 100 * mvc8


def time(weights: str = "", height: str = "720", width: str = "960") -> None:
    model, _ = streamseg.load(weights or None)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last)
    engine = streamseg.accelerate(model)
    sample = streamseg.read_image(next(iter(sorted((Path(__file__).parents[1] / "samples").glob("*.jpg")))))
    wide = torch.nn.functional.interpolate(sample[None], (int(height), int(width) + 8 * ROUNDS), mode="bilinear")[0]
    states: dict[str, State | None] = dict.fromkeys(WAYS)
    spent: dict[str, list[float]] = {name: [] for name in WAYS}
    for i in range(ROUNDS):
        frame = wide[:, :, 8 * i : 8 * i + int(width)].contiguous().to(engine.device)
        for name, steady in WAYS.items():
            start = perf_counter()
            labels, states[name] = label_frame(engine, frame, states[name], LastFrames(1, steady=steady))
            labels.cpu()
            spent[name].append(1000 * (perf_counter() - start))
    plain = spent["off"][2:]
    for name, times in spent.items():
        ratio = median(t / p for t, p in zip(times[2:], plain, strict=True))
        print(f"--steady {name}: {median(times[2:]):.1f} ms a frame, {ratio:.3f} of off")


def gpu(weights: str = "") -> None:
    engine = streamseg.accelerate(streamseg.load(weights or None)[0].cuda())
    for size in GPU_SIZES:
        wide = torch.randint(
            0, 256, (1, 3, size[0] // 16, size[1] // 16 + 4), generator=torch.Generator().manual_seed(0)
        )
        wide = F.interpolate(wide.float(), (size[0], size[1] + 64), mode="bicubic").clamp(0, 255).byte()[0].cuda()
        frames = [wide[:, :, 4 * i : 4 * i + size[1]].contiguous() for i in range(16)]
        spent: dict[str, list[float]] = {name: [] for name in ("off", "low", "high")}
        for _ in range(GPU_ROUNDS):
            for name, times in spent.items():
                times.append(time_stream(engine, frames, LastFrames(1, steady=WAYS[name])))
        for name, times in spent.items():
            ratio = median(t / p for t, p in zip(times[2:], spent["off"][2:], strict=True))
            figures = f"{median(times[2:]):.3f} ms a frame, {ratio:.3f} of off"
            print(f"{size[0]} x {size[1]}, --steady {name}: {figures}", flush=True)
        print_kernels(engine, frames)


def print_kernels(engine: Engine, frames: Sequence[Tensor]) -> None:
    """Print the time of each kernel for a frame, without and with steady labels, the longest first; and the host's."""
    found: dict[str, dict[str, float]] = {}
    for way in ("off", "low"):
        policy = LastFrames(1, steady=WAYS[way])
        _, state = label_frame(engine, frames[0], None, policy, seconds=0.0)
        torch.cuda.synchronize()
        start = perf_counter()
        state = label_several(engine, frames, policy, state)
        host = 1e6 * (perf_counter() - start) / PROFILED  # without waiting for the GPU
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            label_several(engine, frames, policy, state)
            torch.cuda.synchronize()
        for event in profiled.key_averages():
            if event.device_type == DeviceType.CUDA:
                found.setdefault(event.key, {})[way] = event.self_device_time_total / PROFILED
        found.setdefault("host", {})[way] = host
    print("| kernel | off, µs | low, µs |\n|---|---|---|")
    for name, spent in sorted(found.items(), key=lambda row: -row[1].get("low", 0.0))[:30]:
        print(f"| {name[:60]} | {spent.get('off', 0.0):.1f} | {spent.get('low', 0.0):.1f} |", flush=True)


def label_several(engine: Engine, frames: Sequence[Tensor], policy: LastFrames, state: State) -> State:
    """Label as many frames as are profiled, and return the state after them."""
    for i in range(PROFILED):
        _, state = label_frame(engine, frames[i % len(frames)], state, policy, seconds=state.seconds + 1 / RATE)
    return state


def time_stream(engine: Engine, frames: Sequence[Tensor], policy: LastFrames) -> float:
    """Return the milliseconds that a GPU takes for each frame of a stream, after the first two, without a pause."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    state: State | None = None
    for i, frame in enumerate(frames):
        if i == 2:
            start.record()
        _, state = label_frame(engine, frame, state, policy, seconds=i / RATE)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / (len(frames) - 2)


if __name__ == "__main__":
    part, *arguments = sys.argv[1:] or [""]
    parts = {"accuracy": accuracy, "moved": moved, "tried": tried, "time": time, "gpu": gpu}
    if part not in parts:
        sys.exit(__doc__)
    parts[part](*arguments)
