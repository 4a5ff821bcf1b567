from dataclasses import replace

import pytest
import torch

from streamseg import feed
from streamseg.config import TrainConfig
from streamseg.datasets import folder
from streamseg.feed import batch_indices, batches, free_memory, hold, weigh_classes

CPU = torch.device("cpu")
TINY = TrainConfig(dataset="folder", network="fanet18", crop=(64, 64), iterations=6, batch=2, class_weighting=0.3)


@pytest.mark.parametrize("mixing", [0.0, 1.0])
def test_held_and_streamed_data_give_the_same_batches(toy, mixing):
    config, dataset = replace(TINY, batch=4, iterations=5, mixing=mixing), folder(toy, "train")
    held = batches(dataset, hold(dataset, CPU, 2), config, 0, (0, 1), CPU, 2)
    streamed = batches(dataset, None, config, 0, (0, 1), CPU, 2)
    for (images, labels), (same_images, same_labels) in zip(held, streamed, strict=True):
        assert images.equal(same_images)
        assert labels.equal(same_labels)


def test_batches_from_the_middle_and_in_shares_are_those_of_the_whole_run(toy):
    config, dataset = replace(TINY, batch=4, iterations=5, mixing=0.5), folder(toy, "train")
    held = hold(dataset, CPU, 2)
    whole = list(batches(dataset, held, config, 0, (0, 1), CPU, 2))
    shares = [list(batches(dataset, held, config, 3, (rank, 2), CPU, 2)) for rank in (0, 1)]
    assert len(shares[0]) == 2
    for (images, labels), first, second in zip(whole[3:], *shares, strict=True):
        assert torch.cat([first[0], second[0]]).equal(images)
        assert torch.cat([first[1], second[1]]).equal(labels)


def test_data_is_held_only_where_it_takes_up_to_half_of_the_memory(toy, monkeypatch):
    dataset = folder(toy, "train")
    images, labels = hold(dataset, CPU, 2)
    assert images.shape == (7, 3, 64, 96)
    assert images[3].equal(dataset[3][0])
    assert labels[3].equal(dataset[3][1])
    size = images.numel() + labels.numel()
    monkeypatch.setattr(feed, "free_memory", lambda device: 2 * size)
    assert hold(dataset, CPU, 2) is not None
    monkeypatch.setattr(feed, "free_memory", lambda device: 2 * size - 1)
    assert hold(dataset, CPU, 2) is None


def test_processes_on_one_machine_share_its_memory(monkeypatch):
    alone = free_memory(CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_memory(CPU) == pytest.approx(alone / 4, rel=0.2)


def test_mixing_changes_the_batches(toy):
    config, dataset = replace(TINY, batch=4, iterations=1), folder(toy, "train")
    (plain, labels), (mixed, ids) = (
        next(batches(dataset, hold(dataset, CPU, 2), replace(config, mixing=share), 0, (0, 1), CPU, 2))
        for share in (0.0, 1.0)
    )
    assert not mixed.equal(plain)
    assert not ids.equal(labels)


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
    held = hold(dataset, CPU, 2)
    assert weigh_classes(dataset, held, replace(TINY, class_weighting=0.0), 2).tolist() == [1, 1, 1]
    weights = weigh_classes(dataset, held, TINY, 2)
    assert weights.equal(weigh_classes(dataset, None, TINY, 2))
    pixels = held[1].flatten().bincount(minlength=3)[:3]
    assert weights.argsort().equal(pixels.argsort(descending=True))
    assert (weights * pixels).sum().item() == pytest.approx(pixels.sum().item())
