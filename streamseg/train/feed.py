"""What training is fed: frames of a data set in batches, augmented, on the device.

Which frames a step sees, and what is done with them, follows from the seed and the step alone: a run that goes on, and
processes that share a batch, see what one whole run would have seen.

Shapes: N labelled frames, M frames in all, P frames before one, B batch, H x W the frames, h x w the crops.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from streamseg import machine
from streamseg.classes import IGNORE
from streamseg.data.augment import AugmentParams, augment, augment_past, mix, sample_params
from streamseg.data.datasets import Dataset, check_sizes, in_parallel, read_pairs
from streamseg.data.layouts import VIDEOS
from streamseg.train.config import TrainConfig
from streamseg.train.losses import class_weights


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


@dataclass(frozen=True)
class ClipIndex:
    """The files of all frames that training sees: the labelled ones in order, then those that only come before one."""

    images: tuple[Path, ...]
    before: tuple[tuple[int, ...], ...]
    """Of each labelled frame: which come before it in its recording, the latest first."""


def build_clip_index(dataset: Dataset, window: int) -> ClipIndex:
    """The frames of a data set for clips of up to so many frames."""
    images = [pair.image for pair in dataset.pairs]
    if window == 1:
        return ClipIndex(tuple(images), ((),) * len(images))
    if not dataset.sequences:
        needed = VIDEOS.get(dataset.name, "a data set of videos")
        raise ValueError(f"{dataset.name} {dataset.split} has no clips of {window} frames: a window needs {needed}.")
    places = {image: place for place, image in enumerate(images)}
    before: list[tuple[int, ...]] = [()] * len(images)
    for sequence, labels in dataset.labelled(window - 1):
        for end in labels:
            earlier = sequence[max(0, end + 1 - window) : end]
            before[places[sequence[end]]] = tuple(places.setdefault(path, len(places)) for path in reversed(earlier))
    return ClipIndex(tuple(places), tuple(before))


def cache_on_device(
    dataset: Dataset, clip_index: ClipIndex, device: torch.device, threads: int
) -> tuple[Tensor, Tensor] | None:
    """All images (M, 3, H, W) and labels (N, H, W) in the device's memory, if of one size and at most half of it."""
    frame, _ = dataset[0]
    if (len(clip_index.images) + len(dataset) / 3) * frame.numel() > free_memory(device) / 2:
        return None
    images = torch.empty((len(clip_index.images), *frame.shape), dtype=torch.uint8, device=device)
    labels = torch.empty((len(dataset), *frame.shape[1:]), dtype=torch.uint8, device=device)
    for i, (image, label) in enumerate(read_pairs(dataset, range(len(dataset)), threads)):
        if image.shape != frame.shape:
            return None
        images[i], labels[i] = image, label
    for i, image in enumerate(
        in_parallel(dataset.read_image, clip_index.images[len(dataset) :], threads), start=len(dataset)
    ):
        if image.shape != frame.shape:
            return None
        images[i] = image
    return images, labels


def free_memory(device: torch.device) -> float:
    """Bytes that this process may take of a device's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return machine.free_memory() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def weight_classes(dataset: Dataset, cached: tuple[Tensor, Tensor] | None, config: TrainConfig, threads: int) -> Tensor:
    """A weight for each class, by how many pixels of it there are; all 1 unless the config weighs classes."""
    count = len(dataset.classes)
    if not config.class_weighting:
        return torch.ones(count)
    labels = cached[1] if cached else (label for _, label in read_pairs(dataset, range(len(dataset)), threads))
    pixels = sum(label.flatten().bincount(minlength=IGNORE + 1)[:count].double().cpu() for label in labels)
    if not torch.as_tensor(pixels).any():
        raise ValueError(f"No pixel of {dataset.name} {dataset.split} has a class: streamseg check says more.")
    return class_weights(torch.as_tensor(pixels), config.class_weighting).float()


class Batch(NamedTuple):
    """What a step is trained on."""

    images: Tensor
    """(B, 3, h, w), floats in 0–255."""
    labels: Tensor
    """(B, h, w)."""
    past: Tensor | None
    """(B, P, 3, h, w): the frames before each, the latest first; None for images alone."""
    seen: Tensor | None
    """(B, P): 1 for those of them that are looked at, 0 for the others."""
    motion: Tensor | None
    """(B, 3): of the camera, for the loss of steadiness; None without that."""

    def parts(self, count: int) -> "Iterator[Batch]":
        """The batch in so many parts of one size."""
        pieces = ([None] * count if part is None else part.chunk(count) for part in self)
        return (Batch(*piece) for piece in zip(*pieces, strict=True))


def batches(
    dataset: Dataset,
    clip_index: ClipIndex,
    cached: tuple[Tensor, Tensor] | None,
    config: TrainConfig,
    first: int,
    share: tuple[int, int],
    device: torch.device,
    threads: int,
) -> Iterator[Batch]:
    """A process's share of each batch from a step on, augmented, on the device.

    Args:
        share: Which of how many processes this is.
    """
    rank, processes = share
    mine = slice(rank * config.batch // processes, (rank + 1) * config.batch // processes)
    steps = range(first, config.iterations)
    every = (batch_indices(step, len(dataset), config)[mine] for step in steps)
    read = partial(read_clip, dataset, clip_index, config.window)
    clips = iter(()) if cached else in_parallel(read, (i for batch in every for i in batch), threads)
    for step in steps:
        indices = batch_indices(step, len(dataset), config)[mine]
        seed = config.seed * 1_000_003 + step
        drawn = sample_params(config.batch, config.scale, config.jitter, config.mixing, seed)[mine]
        choice = drawn.to(device)
        motion = choice.motion if config.steadiness else None
        if cached:
            chosen = on_device(torch.tensor(indices), device)
            rows = on_device(torch.tensor([rows_before(i, clip_index, config.window) for i in indices]), device)
            images, labels = augment(cached[0][chosen], cached[1][chosen], choice, config.crop)
            past = augment_past(cached[0][rows], choice, config.crop) if config.window > 1 else None
        else:
            views = [augment_clip(next(clips), choice[i : i + 1], config.crop) for i in range(len(indices))]
            images, labels, past = (torch.cat(part) for part in zip(*views, strict=True))
        if config.mixing:
            images, labels = mix(images, labels, choice)
        if config.window == 1:
            yield Batch(images, labels, None, None, motion)
            continue
        known = torch.tensor([len(clip_index.before[i]) for i in indices])
        count = (drawn.memory * config.window).long().minimum(known)
        seen = (torch.arange(config.window - 1) < count[:, None]).float()
        yield Batch(images, labels, past, on_device(seen, device), motion)


def rows_before(i: int, clip_index: ClipIndex, window: int) -> list[int]:
    """The frames before a labelled one, as many as a window has; at the start of a recording the first stands in."""
    before = clip_index.before[i]
    return [*before, *[(i, *before)[-1]] * (window - 1 - len(before))]


def read_clip(dataset: Dataset, clip_index: ClipIndex, window: int, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """A frame (3, H, W), its labels (H, W), and the frames (P, 3, H, W) before it."""
    frame, labels = dataset[i]
    past = torch.empty((window - 1, *frame.shape), dtype=torch.uint8)
    read: dict[int, Tensor] = {i: frame}
    for k, row in enumerate(rows_before(i, clip_index, window)):
        if row not in read:
            read[row] = dataset.read_image(clip_index.images[row])
            check_sizes(frame, dataset.pairs[i].image, read[row], clip_index.images[row])
        past[k] = read[row]
    return frame, labels, past


def augment_clip(
    clip: tuple[Tensor, Tensor, Tensor], choice: AugmentParams, crop: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """A random view of a clip, as batches of one."""
    frame, labels, past = (part[None].to(choice.scale.device) for part in clip)
    return *augment(frame, labels, choice, crop), augment_past(past, choice, crop)


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers on a device, which need not wait for them."""
    return (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)
