"""Train the flow network of the video methods, and measure it.

    python benchmarks/train_flow.py DATA [CLIPS] --out flow.safetensors [--minutes 5] [--dataset camvid]

DATA is the folder of a data set, whose train pictures are moved in known ways; CLIPS a folder of videos, whose
neighbouring frames it learns without labels, as it does those of the data set's sequences that are less than a quarter
of a second apart. Without CLIPS, or without PyAV to read them, it learns the moved pictures alone, and says so.
Synthetic pairs of the data set's val pictures and real pairs of the last video are held out: it prints the end-point
error on the first and the photometric error on the second, beside those of zero flow, and writes them beside the
weights as .json. If it is stopped, the same command goes on where it was, from OUT.state.pt. load_flow of
streamseg.models.video.flownet reads the weights.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import streamseg
from streamseg.data.datasets import Dataset
from streamseg.models.layers import resize_to
from streamseg.models.video.flownet import FlowNetS, flownet, flownet_slim, save_flow
from streamseg.train.flow import (
    FlowProgress,
    elapsed_shares,
    end_point_error,
    make_optimiser,
    photometric_error,
    train_flow,
)

NETWORKS = {"slim": flownet_slim, "flownet": flownet}
DATASETS = {"camvid": streamseg.camvid, "cityscapes": streamseg.cityscapes, "comma10k": streamseg.comma10k}

HELD_OUT = 64
"""Pictures and pairs, at most, that it is measured on."""

FARTHEST = 0.25
"""Seconds from a frame to the next, at most, in a sequence of the data set that real pairs are taken from."""

SAVE_SECONDS = 15
"""Time between saves of the state."""


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data set")
    parser.add_argument("clips", type=Path, nargs="?", help="folder of videos")
    parser.add_argument("--out", type=Path, required=True, help="file for the weights, .safetensors")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--dataset", default="camvid", choices=[*DATASETS])
    parser.add_argument("--network", default="slim", choices=[*NETWORKS])
    parser.add_argument("--size", type=int, nargs=2, default=(720, 960), help="height and width of all frames")
    parser.add_argument("--crop", type=int, nargs=2, default=(448, 640), help="height and width of the training crops")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-4, help="highest learning rate")
    parser.add_argument("--pictures", type=int, default=400, help="pictures to train on, at most")
    parser.add_argument("--every", type=int, default=2, help="take every so many frames of a video")
    parser.add_argument("--gap", type=int, default=3, help="frames from the earlier to the later of a pair, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="CPU threads")
    arguments = parser.parse_args(given)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    size = tuple(arguments.size)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    if arguments.out.exists():
        print(f"{arguments.out} is there already: nothing to do.")
        return
    train_split, val = (DATASETS[arguments.dataset](arguments.data, split) for split in ("train", "val"))
    pictures = read_pictures(train_split, arguments.pictures, size, device)
    held_pictures = read_pictures(val, HELD_OUT, size, device)
    *videos, held_video = read_videos(arguments.clips, arguments.every, size, device) or [pictures[:0]]
    sequences = videos + [read_files(train_split, paths, size, device) for paths in dense_sequences(train_split)]
    pairs = make_pairs(sequences, arguments.gap)
    held_pairs = make_pairs([held_video], arguments.gap)[:HELD_OUT]
    print(f"{len(pictures)} pictures, {len(pairs)} real pairs; held out: {len(held_pictures)} and {len(held_pairs)}")

    torch.manual_seed(arguments.seed)
    network = NETWORKS[arguments.network]().to(device)
    steps = train(network, pictures, pairs, arguments)
    errors = report(network, held_pictures, held_pairs)
    arguments.out.with_suffix(".json").write_text(json.dumps({"steps": steps, **errors}, indent=2), encoding="utf-8")
    save_flow(network, arguments.out)
    state_file(arguments.out).unlink(missing_ok=True)
    print(f"{steps} steps; weights in {arguments.out}")
    print(format_errors(errors))


def train(network: FlowNetS, pictures: Tensor, pairs: Tensor, arguments: argparse.Namespace) -> int:
    """Train a network until its time is over, from the last state that was saved; return the number of steps."""
    optimiser = make_optimiser(network, arguments.rate)
    done, before = load_training(state_file(arguments.out), network, optimiser)
    progress = train_flow(
        network,
        pictures,
        pairs,
        elapsed_shares(arguments.minutes, done),
        crop=tuple(arguments.crop),
        batch=arguments.batch,
        rate=arguments.rate,
        seed=arguments.seed + before,
        optimiser=optimiser,
    )
    last, steps = time.monotonic(), before
    for steps, now in enumerate(progress, before + 1):
        if steps % 100 == 0:
            print(format_progress(now, steps), file=sys.stderr, flush=True)
        if time.monotonic() - last > SAVE_SECONDS:
            save_training(state_file(arguments.out), network, optimiser, now.share, steps)
            last = time.monotonic()
    return steps


def format_progress(now: FlowProgress, steps: int) -> str:
    return f"{now.share:4.0%}  step {steps}  synthetic {now.synthetic_loss:.3f}  photometric {now.photometric_loss:.4f}"


def state_file(out: Path) -> Path:
    return out.with_name(out.name + ".state.pt")


def save_training(file: Path, network: FlowNetS, optimiser: torch.optim.Optimizer, share: float, steps: int) -> None:
    """Save a run; the file is replaced whole."""
    part = file.with_name(file.name + ".part")
    torch.save([network.state_dict(), optimiser.state_dict(), share, steps], part)
    part.replace(file)


def load_training(file: Path, network: FlowNetS, optimiser: torch.optim.Optimizer) -> tuple[float, int]:
    """Load a run that was stopped, in place; return the share of its time that was over, and its steps."""
    if not file.exists():
        return 0.0, 0
    weights, moments, share, steps = torch.load(file, weights_only=True, map_location=next(network.parameters()).device)
    network.load_state_dict(weights)
    optimiser.load_state_dict(moments)
    print(f"It goes on after {steps} steps.")
    return share, steps


def dense_sequences(dataset: Dataset) -> Iterator[Sequence[Path]]:
    """Yield the sequences of a data set whose frames are close enough in time for a flow between them."""
    for sequence in dataset.labelled_sequences():
        gaps = [later.seconds - earlier.seconds for earlier, later in pairwise(sequence)]
        if gaps and max(gaps) <= FARTHEST:
            yield [frame.image for frame in sequence]


def read_pictures(dataset: Dataset, most: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return up to `most` pictures of a split (N, 3, H, W), evenly spread over it."""
    step = max(1, len(dataset) // most)
    return read_files(dataset, [pair.image for pair in dataset.pairs[::step][:most]], size, device)


def read_files(dataset: Dataset, paths: Sequence[Path], size: tuple[int, int], device: torch.device) -> Tensor:
    return torch.stack([shrink(dataset.read_image(path).to(device), size) for path in paths])


def read_videos(folder: Path | None, every: int, size: tuple[int, int], device: torch.device) -> list[Tensor]:
    """Return the frames of the videos in a folder, or nothing, with a message, if they cannot be read."""
    try:
        return [read_video(video, every, size, device) for video in list_videos(folder)] if folder else []
    except ImportError as error:
        print(f"{error}. Without it the flow network learns from moved pictures alone.", flush=True)
        return []


def list_videos(folder: Path) -> list[Path]:
    """Return the videos of a folder: at least two, as one is held out."""
    videos = sorted(path for path in folder.glob("*") if path.suffix in (".mp4", ".mov", ".mkv", ".webm"))
    if len(videos) < 2:
        sys.exit(f"{folder} has {len(videos)} videos; expected two or more: the last is held out.")
    return videos


def read_video(path: Path, every: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return every so many frames of a video (T, 3, H, W)."""
    frames = islice(streamseg.read_frames(path), 0, None, every)
    return torch.stack([shrink(frame.to(device), size) for frame in frames])


def shrink(frame: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a frame (3, H, W) at another size, as bytes."""
    if tuple(frame.shape[-2:]) == size:
        return frame
    return resize_to(frame[None].float(), *size)[0].round().clamp(0, 255).to(torch.uint8)


def make_pairs(sequences: Sequence[Tensor], gap: int) -> Tensor:
    """Return pairs (M, 2, 3, H, W) of frames that are 1 to `gap` apart, earlier first."""

    def pairs() -> Iterator[Tensor]:
        for frames in sequences:
            for i in range(1, len(frames)):
                before = max(0, i - 1 - i % gap)
                yield torch.stack([frames[before], frames[i]])

    found = [*pairs()]
    return torch.stack(found) if found else torch.empty(0, 2, 3, 1, 1, dtype=torch.uint8)


def report(network: FlowNetS, pictures: Tensor, pairs: Tensor) -> dict[str, Any]:
    """Return the errors on held-out pairs beside those of zero flow; without real pairs, of synthetic ones alone."""
    errors = {"end_point_error": vars(end_point_error(network, pictures))}
    return errors | ({"photometric_error": vars(photometric_error(network, pairs))} if len(pairs) else {})


def format_errors(errors: dict[str, Any]) -> str:
    titles = {
        "end_point_error": "end-point error, synthetic pairs, pixels",
        "photometric_error": "photometric error, real pairs, of 255",
    }
    lines = [f"| {titles[name]} | {one['ours']:.2f} | {one['zero']:.2f} |" for name, one in errors.items()]
    return "\n".join(["| held out | flow | zero flow |", "|---|---|---|", *lines])


if __name__ == "__main__":
    main()
