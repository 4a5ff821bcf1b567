"""Batches for training: frames of one or several data sets, augmented, on the device.

The frames of a step and their augmentation depend only on the seed and the step: a resumed run, and processes that
share a batch, train on the same batches as one uninterrupted run in one process.

Shapes: N labelled frames, M frames in all, P frames before one, B batch, H x W the frames, h x w the crops.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from streamseg import machine
from streamseg.classes import IGNORE
from streamseg.data.augment import AugmentParams, augment, augment_mask, augment_past, mix, sample_params
from streamseg.data.datasets import Dataset, check_sizes, in_parallel, pairs_by_name, read_pairs
from streamseg.data.layouts import VIDEOS
from streamseg.data.light import change_light
from streamseg.data.transfer import on_device
from streamseg.io.masks import GREY, Mask, remove_labels
from streamseg.train.config import TrainConfig
from streamseg.train.losses import class_weights


def exclude_frames(dataset: Dataset, leave_out: str) -> Dataset:
    """Return a data set without the frames of some names: starts of file names, or devices, separated by commas."""
    if not leave_out:
        return dataset
    found = pairs_by_name(dataset, leave_out)
    left_out = {pair for pairs in found.values() for pair in pairs}
    pairs = tuple(pair for pair in dataset.pairs if pair not in left_out)
    if not pairs or not left_out:
        raise ValueError(
            f"Leaving out {leave_out!r:.80} keeps {len(pairs)} of {len(dataset)} frames: give the start of some file "
            "names, or devices of comma10k."
        )
    if wrong := [name for name, named in found.items() if not named]:
        raise ValueError(
            f"No frame of {dataset.name} {dataset.split} is of {wrong[0]!r:.80}, which --leave-out names: give the "
            "start of some file names, or devices of comma10k."
        )
    return replace(dataset, pairs=pairs)


@lru_cache(maxsize=8)
def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """Return the random order of the frames in an epoch."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).tolist()


def batch_indices(step: int, counts: Sequence[int], config: TrainConfig) -> list[tuple[int, int]]:
    """Return the data set and the index of each frame in a step's batch; each epoch has another random order.

    Args:
        counts: Number of frames of each data set.
    """
    ends = zip(frames_before(step, len(counts), config), frames_before(step + 1, len(counts), config), strict=True)
    frames = [
        (number, epoch_order(count, config.seed, position // count)[position % count])
        for number, (count, (start, end)) in enumerate(zip(counts, ends, strict=True))
        for position in range(start, end)
    ]
    if len(counts) == 1:
        return frames
    # in a random order, so that ClassMix pairs, processes and parts of a batch get frames of both
    order = torch.randperm(config.batch, generator=torch.Generator().manual_seed(~step_seed(config, step)))
    return [frames[i] for i in order.tolist()]


def frames_before(step: int, datasets: int, config: TrainConfig) -> list[int]:
    """Return the number of frames that each data set has given before a step; over the steps, shares are exact."""
    shares = [1.0] if datasets == 1 else [1 - config.with_share, config.with_share]
    total = step * config.batch
    ends = [math.floor(total * share + 0.5) for share in accumulate(shares[:-1])]
    return [end - start for start, end in pairwise([0, *ends, total])]


def step_seed(config: TrainConfig, step: int) -> int:
    """Return the seed of a step's random numbers."""
    return config.seed * 1_000_003 + step


@dataclass(frozen=True)
class ClipIndex:
    """The files of all frames that training uses: the labelled ones in order, then those that only precede one."""

    images: tuple[Path, ...]
    before: tuple[tuple[int, ...], ...]
    """For each labelled frame, the indices of the frames before it in its recording, latest first."""


def build_clip_index(dataset: Dataset, window: int) -> ClipIndex:
    """Index the frames of a data set for clips of up to `window` frames."""
    images = [pair.image for pair in dataset.pairs]
    if window == 1:
        return ClipIndex(tuple(images), ((),) * len(images))
    if not dataset.sequences:
        needed = VIDEOS.get(dataset.name, "a data set of videos")
        raise ValueError(f"{dataset.name} {dataset.split} has no clips of {window} frames: a window needs {needed}.")
    index_of = {image: index for index, image in enumerate(images)}
    before: list[tuple[int, ...]] = [()] * len(images)
    for sequence, labels in dataset.sequences_with_labels(window - 1):
        for end in labels:
            earlier = sequence[max(0, end + 1 - window) : end]
            indices = [index_of.setdefault(path, len(index_of)) for path in reversed(earlier)]
            before[index_of[sequence[end]]] = tuple(indices)
    return ClipIndex(tuple(index_of), tuple(before))


def cache_on_device(
    dataset: Dataset, clip_index: ClipIndex, device: torch.device, threads: int
) -> tuple[Tensor, Tensor] | None:
    """Load all images (M, 3, H, W) and labels (N, H, W) into the device's memory.

    Returns None if the frames differ in size, or would take more than half of the free memory.
    """
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
    """Return the bytes of a device's memory that are free for this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return machine.free_memory() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def weight_classes(
    dataset: Dataset,
    cached: tuple[Tensor, Tensor] | None,
    config: TrainConfig,
    threads: int,
    first: int = 0,
    mask: Mask | None = None,
) -> Tensor:
    """Return weights of a data set's labels from their pixel counts; all 1 unless the config weights classes.

    Args:
        first: Number of the data set's first label.
        mask: What does not count.
    """
    count = len(dataset.classes)
    if not config.class_weighting:
        return torch.ones(count)
    labels = cached[1] if cached else (label for _, label in read_pairs(dataset, range(len(dataset)), threads))
    own = slice(first, first + count)
    counted = (remove_labels(label, mask) for label in labels)
    pixels = sum(label.flatten().bincount(minlength=IGNORE + 1)[own].double().cpu() for label in counted)
    if not torch.as_tensor(pixels).any():
        raise ValueError(f"No pixel of {dataset.name} {dataset.split} has a class: run streamseg check for details.")
    return class_weights(torch.as_tensor(pixels), config.class_weighting).float()


class FrameSet(NamedTuple):
    """The frames of a data set that batches are taken from."""

    dataset: Dataset
    clip_index: ClipIndex
    cached: tuple[Tensor, Tensor] | None
    """All images and labels on the device; None to read them from disk."""
    mask: Mask | None = None
    """Pixels to ignore; None for none."""


class Batch(NamedTuple):
    """The input of one training step."""

    images: Tensor
    """(B, 3, h, w), floats in 0–255."""
    labels: Tensor
    """(B, h, w)."""
    past: Tensor | None
    """(B, P, 3, h, w): the frames before each, latest first; None for single images."""
    used: Tensor | None
    """(B, P): 1 for the past frames that the clip uses, 0 for the others."""
    motion: Tensor | None
    """(B, 3): camera motion for the consistency loss; None without it."""
    place: Tensor | None
    """(2,): row and column of the first pixel that the loss is computed at; None if it is computed at all pixels."""
    mask: Tensor | None = None
    """(B, h, w): 1 for pixels that are not masked, 0 for the others; None for all."""

    def parts(self, count: int) -> "Iterator[Batch]":
        """Split the batch into parts of the same size."""
        whole = self._replace(place=None)
        parts = ([None] * count if part is None else part.chunk(count) for part in whole)
        return (Batch(*piece)._replace(place=self.place) for piece in zip(*parts, strict=True))


def batches(
    frame_sets: Sequence[FrameSet],
    config: TrainConfig,
    first: int,
    share: tuple[int, int],
    device: torch.device,
    threads: int,
) -> Iterator[Batch]:
    """Yield this process's share of each batch, augmented, on the device.

    Args:
        first: Step to start from.
        share: Rank of this process, and number of processes.
    """
    rank, processes = share
    mine = slice(rank * config.batch // processes, (rank + 1) * config.batch // processes)
    steps = range(first, config.iterations)
    counts = [len(frame_set.dataset) for frame_set in frame_sets]
    chosen = partial(batch_indices, counts=counts, config=config)

    def read_frames(number: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        dataset, clip_index, cached, _ = frame_sets[number]
        if cached:
            return iter(())
        indices = (i for step in steps for of, i in chosen(step)[mine] if of == number)
        return in_parallel(partial(read_with_past, dataset, clip_index, config.window), indices, threads)

    clips = [read_frames(number) for number in range(len(frame_sets))]
    for step in steps:
        frames = chosen(step)[mine]
        seed = step_seed(config, step)
        drawn = sample_params(config.batch, config.scale, config.jitter, config.classmix, seed)[mine]
        params = drawn.to(device)
        images, labels, past, mask = augment_frames(frames, frame_sets, clips, params, config)
        if config.classmix and mask is not None:
            # what is pasted over masked pixels counts
            mixed, labels = mix(torch.cat([images, mask[:, None]], dim=1), labels, params)
            images, mask = mixed[:, :3], mixed[:, 3]
        elif config.classmix:
            images, labels = mix(images, labels, params)
        if config.light:
            numbers = range(config.batch)[mine]
            images = change_light(images, drawn.light, config.light, [(seed, number, 0) for number in numbers])
            images = images if mask is None else images.masked_fill(mask[:, None] == 0, GREY)
            if past is not None:
                seeds = [(seed, number, 1 + earlier) for number in numbers for earlier in range(config.window - 1)]
                repeated = drawn.light.repeat_interleave(config.window - 1, dim=0)
                past = change_light(past.flatten(0, 1), repeated, config.light, seeds).view_as(past)
                past = past if mask is None else past.masked_fill(mask[:, None, None] == 0, GREY)
        used = None
        if past is not None:
            available = torch.tensor([len(frame_sets[of].clip_index.before[i]) for of, i in frames])
            count = (drawn.window_share * config.window).long().minimum(available)
            used = on_device((torch.arange(config.window - 1) < count[:, None]).float(), device)
        motion = params.motion if config.consistency_loss or config.moved_clips else None
        yield Batch(images, labels, past, used, motion, draw_place(config, seed, device), mask)


def draw_place(config: TrainConfig, seed: int, device: torch.device) -> Tensor | None:
    """Return where the grids of pixels start that the losses of a step are computed at; None without strides."""
    places = config.loss_stride * config.auxiliary_stride
    if places == 1:
        return None
    return on_device(torch.randint(places, (2,), generator=torch.Generator().manual_seed(~seed)), device)


def augment_frames(
    frames: Sequence[tuple[int, int]],
    frame_sets: Sequence[FrameSet],
    clips: Sequence[Iterator[tuple[Tensor, Tensor, Tensor]]],
    params: AugmentParams,
    config: TrainConfig,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the images, labels, past frames and masks of a batch, augmented; no past frames for single images.

    Args:
        frames: Number of the data set and index of each frame.
        clips: For each data set that is not cached, its frames of this and later batches.
    """
    device = params.scale.device
    # by data set, whose frames have one size, and then back into the order of the batch
    order = sorted(range(len(frames)), key=lambda place: frames[place][0])
    grouped = params if len(frame_sets) == 1 else params[on_device(torch.tensor(order), device)]
    groups, start = [], 0
    for number, (frame_set, files) in enumerate(zip(frame_sets, clips, strict=True)):
        indices = [frames[place][1] for place in order if frames[place][0] == number]
        if indices:
            part = grouped[start : start + len(indices)]
            groups.append(augment_masked(indices, frame_set, files, part, config))
            start += len(indices)
    joined = [groups[0][i] if len(groups) == 1 else torch.cat([group[i] for group in groups]) for i in range(4)]
    if len(frame_sets) > 1:
        back = on_device(torch.tensor(order).argsort(), device)
        joined = [part[back] for part in joined]
    images, labels, past, mask = joined
    masked = any(frame_set.mask for frame_set in frame_sets)
    return images, labels, past if config.window > 1 else None, mask if masked else None


def augment_masked(
    indices: list[int],
    frame_set: FrameSet,
    clips: Iterator[tuple[Tensor, Tensor, Tensor]],
    params: AugmentParams,
    config: TrainConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what augment_frame_set does, painted over and without labels under the mask, and the mask (B, h, w)."""
    images, labels, past = augment_frame_set(indices, frame_set, clips, params, config)
    if frame_set.mask is None:
        return images, labels, past, torch.ones((), device=images.device).expand(len(images), *config.crop)
    looked_at = frame_set.mask.looked_at.to(images.device)
    mask = augment_mask(looked_at, params, config.crop)
    hidden = mask == 0
    images, past = images.masked_fill(hidden[:, None], GREY), past.masked_fill(hidden[:, None, None], GREY)
    return images, labels.masked_fill(hidden, IGNORE), past, mask


def augment_frame_set(
    indices: list[int],
    frame_set: FrameSet,
    clips: Iterator[tuple[Tensor, Tensor, Tensor]],
    params: AugmentParams,
    config: TrainConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, labels and past frames of one data set, augmented; (B, 0, …) past frames for single images."""
    if frame_set.cached is None:
        read = [next(clips) for _ in indices]
        check_mask_size(frame_set, read)
        views = [augment_clip(clip, params[i : i + 1], config.crop) for i, clip in enumerate(read)]
        images, labels, past = (torch.cat(part) for part in zip(*views, strict=True))
        return images, labels, past
    all_images, all_labels = frame_set.cached
    chosen = on_device(torch.tensor(indices), all_images.device)
    images, labels = augment(all_images[chosen], all_labels[chosen], params, config.crop)
    if config.window == 1:
        return images, labels, images[:, None][:, :0]
    if config.moved_clips:
        # the loss module makes them, and only needs their number
        return images, labels, images[:, None].expand(-1, config.window - 1, -1, -1, -1)
    earlier = torch.tensor([indices_before(i, frame_set.clip_index, config.window) for i in indices])
    past = augment_past(all_images[on_device(earlier, all_images.device)], params, config.crop)
    return images, labels, past


def check_mask_size(frame_set: FrameSet, clips: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Raise a ValueError if a frame under a mask has another size than the first one of its data set."""
    for frame, *_ in clips:
        if frame_set.mask is not None and frame.shape[1:] != frame_set.mask.looked_at.shape:
            height, width = frame_set.mask.looked_at.shape
            raise ValueError(
                f"A frame of {frame_set.dataset.name} has {frame.shape[1]} x {frame.shape[2]} pixels, and the first "
                f"{height} x {width}: --mask is for frames of one size."
            )


def indices_before(i: int, clip_index: ClipIndex, window: int) -> list[int]:
    """Return the indices of the window - 1 frames before a labelled one, repeating a recording's first frame."""
    before = clip_index.before[i]
    return [*before, *[(i, *before)[-1]] * (window - 1 - len(before))]


def read_with_past(dataset: Dataset, clip_index: ClipIndex, window: int, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """Read a frame (3, H, W), its labels (H, W), and the frames (P, 3, H, W) before it."""
    frame, labels = dataset[i]
    past = torch.empty((window - 1, *frame.shape), dtype=torch.uint8)
    read: dict[int, Tensor] = {i: frame}
    for k, earlier in enumerate(indices_before(i, clip_index, window)):
        if earlier not in read:
            read[earlier] = dataset.read_image(clip_index.images[earlier])
            check_sizes(frame, dataset.pairs[i].image, read[earlier], clip_index.images[earlier])
        past[k] = read[earlier]
    return frame, labels, past


def augment_clip(
    clip: tuple[Tensor, Tensor, Tensor], params: AugmentParams, crop: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Augment one clip; returns batches of one."""
    frame, labels, past = (part[None].to(params.scale.device) for part in clip)
    return *augment(frame, labels, params, crop), augment_past(past, params, crop)
