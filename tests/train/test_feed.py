from dataclasses import replace

import pytest
import torch

from streamseg.data.datasets import camvid, folder
from streamseg.train import feed
from streamseg.train.config import TrainConfig
from streamseg.train.feed import batch_indices, batches, build_clip_index, cache_on_device, free_memory, weight_classes

CPU = torch.device("cpu")
TINY = TrainConfig(dataset="folder", network="fanet18", crop=(64, 64), iterations=6, batch=2, class_weighting=0.3)


@pytest.mark.parametrize("mixing", [0.0, 1.0])
def test_held_and_streamed_data_give_the_same_batches(toy, mixing):
    config, dataset = replace(TINY, batch=4, iterations=5, mixing=mixing), folder(toy, "train")
    held = batches(
        dataset,
        build_clip_index(dataset, 1),
        cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2),
        config,
        0,
        (0, 1),
        CPU,
        2,
    )
    streamed = batches(dataset, build_clip_index(dataset, 1), None, config, 0, (0, 1), CPU, 2)
    for one, other in zip(held, streamed, strict=True):
        assert one.images.equal(other.images)
        assert one.labels.equal(other.labels)
        assert one.past is other.past is one.motion is other.motion is None


def test_batches_from_the_middle_and_in_shares_are_those_of_the_whole_run(toy):
    config, dataset = replace(TINY, batch=4, iterations=5, mixing=0.5, steadiness=1.0), folder(toy, "train")
    held = cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2)
    whole = list(batches(dataset, build_clip_index(dataset, 1), held, config, 0, (0, 1), CPU, 2))
    shares = [
        list(batches(dataset, build_clip_index(dataset, 1), held, config, 3, (rank, 2), CPU, 2)) for rank in (0, 1)
    ]
    assert len(shares[0]) == 2
    for batch, first, second in zip(whole[3:], *shares, strict=True):
        assert torch.cat([first.images, second.images]).equal(batch.images)
        assert torch.cat([first.labels, second.labels]).equal(batch.labels)
        assert torch.cat([first.motion, second.motion]).equal(batch.motion)


def test_data_is_held_only_where_it_takes_up_to_half_of_the_memory(toy, monkeypatch):
    dataset = folder(toy, "train")
    images, labels = cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2)
    assert images.shape == (7, 3, 64, 96)
    assert images[3].equal(dataset[3][0])
    assert labels[3].equal(dataset[3][1])
    size = images.numel() + labels.numel()
    monkeypatch.setattr(feed, "free_memory", lambda device: 2 * size)
    assert cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2) is not None
    monkeypatch.setattr(feed, "free_memory", lambda device: 2 * size - 1)
    assert cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2) is None


def test_processes_on_one_machine_share_its_memory(monkeypatch):
    alone = free_memory(CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_memory(CPU) == pytest.approx(alone / 4, rel=0.2)


def test_mixing_changes_the_batches(toy):
    config, dataset = replace(TINY, batch=4, iterations=1), folder(toy, "train")
    clips = build_clip_index(dataset, 1)
    held = cache_on_device(dataset, clips, CPU, 2)
    plain, mixed = (
        next(batches(dataset, clips, held, replace(config, mixing=share), 0, (0, 1), CPU, 2)) for share in (0.0, 1.0)
    )
    assert not mixed.images.equal(plain.images)
    assert not mixed.labels.equal(plain.labels)


@pytest.mark.parametrize(("count", "batch"), [(7, 2), (7, 7), (5, 16), (1, 3)])
def test_every_epoch_goes_through_every_frame_once_in_an_order_of_its_own(count, batch):
    config = replace(TINY, batch=batch)
    places = [i for step in range(3 * count) for i in batch_indices(step, count, config)]
    epochs = [places[start : start + count] for start in range(0, len(places), count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert count == 1 or epochs[0] != epochs[1]
    other = [i for step in range(3 * count) for i in batch_indices(step, count, replace(config, seed=1))]
    assert count == 1 or other != places


def test_rare_classes_weigh_more_and_held_data_is_weighed_as_streamed(toy):
    dataset = folder(toy, "train")
    held = cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2)
    assert weight_classes(dataset, held, replace(TINY, class_weighting=0.0), 2).tolist() == [1, 1, 1]
    weights = weight_classes(dataset, held, TINY, 2)
    assert weights.equal(weight_classes(dataset, None, TINY, 2))
    pixels = held[1].flatten().bincount(minlength=3)[:3]
    assert weights.argsort().equal(pixels.argsort(descending=True))
    assert (weights * pixels).sum().item() == pytest.approx(pixels.sum().item())


def test_a_frame_of_a_clip_comes_with_those_before_it_in_its_recording(drive):
    clips = build_clip_index(camvid(drive, "train"), 3)
    assert len(clips.images) == 7
    assert clips.before == ((), (0,), (1, 0), (2, 1), (), (4,), (5, 4))


def test_clips_are_held_as_they_are_streamed_and_shared_and_are_seen_alike(drive):
    dataset = camvid(drive, "train")
    config = replace(TINY, dataset="camvid", batch=4, iterations=8, window=3, jitter=0.0, scale=(1.0, 1.0))
    clips = build_clip_index(dataset, 3)
    held = cache_on_device(dataset, clips, CPU, 2)
    whole = list(batches(dataset, clips, held, config, 0, (0, 1), CPU, 2))
    streamed = batches(dataset, clips, None, config, 0, (0, 1), CPU, 2)
    halves = [batches(dataset, clips, held, config, 0, (rank, 2), CPU, 2) for rank in (0, 1)]
    for batch, other, *parts in zip(whole, streamed, *halves, strict=True):
        for name in ("images", "labels", "past", "seen"):
            assert getattr(batch, name).equal(getattr(other, name))
            assert torch.cat([getattr(part, name) for part in parts]).equal(getattr(batch, name))
    looks = set()
    for step, batch in enumerate(whole):
        assert batch.seen.shape == batch.past.shape[:2] == (4, 2)
        for i, image, past, seen in zip(
            batch_indices(step, 7, config), batch.images, batch.past, batch.seen, strict=True
        ):
            greys = [image.mean().item(), *past.mean(dim=(1, 2, 3)).tolist()]
            known = [i, *clips.before[i]]
            assert greys[: len(known)] == pytest.approx([20 * place + 10 for place in known], abs=0.01)
            assert seen.sum() <= len(clips.before[i])
            assert seen.tolist() == sorted(seen.tolist(), reverse=True)
            looks.add(int(seen.sum()))
    assert looks == {0, 1, 2}
