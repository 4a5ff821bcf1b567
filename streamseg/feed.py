"""What training is fed: frames of a data set in batches, augmented, on the device.

Which frames a step sees, and what is done with them, follows from the seed and the step alone: a run that goes on, and
processes that share a batch, see what one whole run would have seen.

Shapes: N frames, H height, W width.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from streamseg.augment import augment, draw, mix
from streamseg.classes import IGNORE
from streamseg.config import TrainConfig
from streamseg.datasets import Dataset, read_pairs
from streamseg.losses import class_weights


def select(dataset: Dataset, leave_out: str) -> Dataset:
    """A data set without the frames whose name starts so."""
    if not leave_out:
        return dataset
    pairs = tuple(pair for pair in dataset.pairs if not pair.image.name.startswith(leave_out))
    if not 0 < len(pairs) < len(dataset):
        raise ValueError(
            f"Leaving out {leave_out!r} leaves {len(pairs)} of {len(dataset)} frames: give a file name's start."
        )
    return replace(dataset, pairs=pairs)


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).tolist()


def batch_indices(step: int, count: int, config: TrainConfig) -> list[int]:
    """Which frames are in a step's batch: epoch after epoch, each in an order of its own."""
    places = range(step * config.batch, (step + 1) * config.batch)
    return [epoch_order(count, config.seed, place // count)[place % count] for place in places]


def hold(dataset: Dataset, device: torch.device, threads: int) -> tuple[Tensor, Tensor] | None:
    """All images (N, 3, H, W) and labels (N, H, W) in the device's memory, if of one size and at most half of it."""
    frame, _ = dataset[0]
    if len(dataset) * frame.numel() * 4 / 3 > free_memory(device) / 2:
        return None
    images = torch.empty((len(dataset), *frame.shape), dtype=torch.uint8, device=device)
    labels = torch.empty((len(dataset), *frame.shape[1:]), dtype=torch.uint8, device=device)
    for i, (image, label) in enumerate(read_pairs(dataset, range(len(dataset)), threads)):
        if image.shape != frame.shape:
            return None
        images[i], labels[i] = image, label
    return images, labels


def free_memory(device: torch.device) -> float:
    """Bytes that this process may take of a device's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():  # not Linux: nothing is known
        return 0.0
    available = next(line.split()[1] for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(available) * 1024 / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def weigh_classes(dataset: Dataset, held: tuple[Tensor, Tensor] | None, config: TrainConfig, threads: int) -> Tensor:
    """A weight for each class, by how many pixels of it there are; all 1 unless the config weighs classes."""
    count = len(dataset.classes)
    if not config.class_weighting:
        return torch.ones(count)
    labels = held[1] if held else (label for _, label in read_pairs(dataset, range(len(dataset)), threads))
    pixels = sum(label.flatten().bincount(minlength=IGNORE + 1)[:count].double().cpu() for label in labels)
    if not torch.as_tensor(pixels).any():
        raise ValueError(f"No pixel of {dataset.name} {dataset.split} has a class: streamseg check says more.")
    return class_weights(torch.as_tensor(pixels), config.class_weighting).float()


def batches(
    dataset: Dataset,
    held: tuple[Tensor, Tensor] | None,
    config: TrainConfig,
    first: int,
    share: tuple[int, int],
    device: torch.device,
    threads: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """A process's share of each batch from a step on, augmented, on the device.

    Args:
        share: Which of how many processes this is.
    """
    rank, processes = share
    mine = slice(rank * config.batch // processes, (rank + 1) * config.batch // processes)
    steps = range(first, config.iterations)
    indices = (batch_indices(step, len(dataset), config)[mine] for step in steps)
    pairs = iter(()) if held else read_pairs(dataset, (i for batch in indices for i in batch), threads)
    for step in steps:
        seed = config.seed * 1_000_003 + step
        choice = draw(config.batch, config.scale, config.jitter, config.mixing, seed)[mine].to(device)
        if held:
            chosen = torch.tensor(next(indices), pin_memory=device.type == "cuda").to(device, non_blocking=True)
            images, labels = augment(held[0][chosen], held[1][chosen], choice, config.crop)
        else:
            views = []
            for i in range(mine.stop - mine.start):
                image, label = next(pairs)
                views.append(augment(image[None].to(device), label[None].to(device), choice[i : i + 1], config.crop))
            images, labels = (torch.cat(part) for part in zip(*views, strict=True))
        yield mix(images, labels, choice) if config.mixing else (images, labels)
