"""Measure tiles and scene cuts for docs/segment.md, and windows for docs/video.md.

    python benchmarks/stream.py tiles | cuts CAMVID | windows [NETWORK]

tiles    agreement of tiled labels with those of the whole picture, on the samples, by margin, on the grid and off it
cuts     distances of contexts between neighbouring frames of CamVid's train and val, and between its recordings
windows  time of a frame, multiply-accumulates and size of a stream's state, by window; of a NETWORK such as
         fanet18 with random weights, by default of the bundled weights
"""

import sys
from itertools import groupby, pairwise, product
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.utils.flop_counter import FlopCounterMode

import streamseg
from streamseg.data.datasets import Pair
from streamseg.engine.engine import resize_frames
from streamseg.evaluate.video import wait_for
from streamseg.models.fanet import Context, FANet
from streamseg.stream.label_frames import label_frame
from streamseg.stream.state import State, context_distance

SAMPLES = Path(__file__).parent.parent / "samples"


def tiles() -> None:
    model, _ = streamseg.load()
    grid = model.tile_grid
    pictures = [streamseg.read_image(path) for path in sorted(SAMPLES.glob("suburb-*.jpg"))]
    print(f"{model.name}, least agreement of the labels, %")
    height, width = pictures[0].shape[1:]
    for size in ((height // grid * grid, width // grid * grid), (height, width)):
        frames = [picture[:, : size[0], : size[1]] for picture in pictures]
        whole = [label_frame(model, frame)[0] for frame in frames]
        for margin in range(0, 577, max(grid, 192)):
            tiled = [streamseg.label_tiled(model, frame, tile=(512, 512), margin=margin)[0] for frame in frames]
            agreement = min((a == b).float().mean().item() for a, b in zip(tiled, whole, strict=True))
            print(f"{size[0]} x {size[1]}, margin {margin:4}{100 * agreement:10.3f}", flush=True)


def cuts(data: str) -> None:
    model, _ = streamseg.load()

    def find_contexts(pair: Pair) -> tuple[Context, Context]:
        """Return the contexts of a frame and of the mirrored frame, as steady labels have them by turns."""
        frame = resize_frames(streamseg.read_image(pair.image)[None], (360, 480))
        with torch.inference_mode():
            return model.features(frame)[1], model.features(frame.flip(3))[1]

    recordings: dict[str, list] = {}
    for split in ("train", "val"):
        by_recording = groupby(streamseg.camvid(data, split).pairs, lambda pair: pair.image.name[:6])
        for recording, pairs in by_recording:
            both = [find_contexts(pair) for pair in pairs]
            recordings[f"{split} {recording}"] = contexts = [context for context, _ in both]
            neighbours = torch.cat([context_distance(a, b) for a, b in pairwise(contexts)])
            mirrored = torch.cat([context_distance(a, b) for (a, _), (_, b) in pairwise(both)])
            for name, distances in (("neighbours", neighbours), ("one of them mirrored", mirrored)):
                figures = f"{len(distances)} pairs: median {distances.median():.3f}, max {distances.max():.3f}"
                print(f"{split} {recording}: {name}, {figures}", flush=True)
    drives = [(name, contexts[:: max(1, len(contexts) // 20)]) for name, contexts in recordings.items()]
    for (one, some), (other, more) in product(drives, drives):
        if one[-6:] < other[-6:]:
            distances = torch.cat([context_distance(a, b) for a, b in product(some, more)])
            print(
                f"{one} and {other}, {len(distances)} pairs: min {distances.min():.3f}, median {distances.median():.3f}"
            )


def windows(network: str = "") -> None:
    """Measure the eager network and its fast form."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, precision, rounds = ((1024, 2048), torch.float16, 200) if device.type == "cuda" else ((256, 512), None, 20)
    model = getattr(streamseg, network)(classes=11).eval() if network else streamseg.load()[0]
    model = model.to(device, precision, memory_format=torch.channels_last)
    model.averages = True  # one more multiplication than a sum
    frame = torch.randint(0, 256, (3, *size), dtype=torch.uint8, device=device)
    device_name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(
        f"{model.name}, {device_name}, torch {torch.__version__}, {size[0]} x {size[1]}, {precision or torch.float32}"
    )
    print(f"{'':10}{'window':>8}{'median, ms':>12}{'of window 1':>12}{'GMACs':>8}{'values in the state':>22}")
    for name, engine in (("eager", model), ("fast", streamseg.accelerate(model))):
        states: dict[int, State | None] = dict.fromkeys((1, 2, 4, 8, 16))
        times: dict[int, list[float]] = {window: [] for window in states}
        for number in range(16 + rounds):  # in turn, so that any disturbance affects all of them
            for window, state in states.items():
                wait_for(device)
                start = perf_counter()
                _, states[window] = label_frame(engine, frame, state, window, size=size)
                wait_for(device)
                if number >= 16:
                    times[window].append(1000 * (perf_counter() - start))
        first = median(times[1])
        for window, milliseconds in times.items():
            state = states[window]
            numbers = state.contexts.numel() if state else 0
            macs = count_step(model, frame, state, window)
            ratio = median(milliseconds) / first
            print(
                f"{name:10}{window:8}{median(milliseconds):12.3f}{ratio:12.3f}{macs / 1e9:8.3f}{numbers:22,}",
                flush=True,
            )


def count_step(model: FANet, frame: torch.Tensor, state: State | None, window: int) -> int:
    """Count the multiply-accumulates of a frame with its past."""
    with FlopCounterMode(display=False) as counter:
        label_frame(model, frame, state, window, size=(frame.shape[1], frame.shape[2]))
    return counter.get_total_flops() // 2


if __name__ == "__main__":
    part, *rest = sys.argv[1:] or ["tiles"]
    {"tiles": tiles, "cuts": cuts, "windows": windows}[part](*rest)
