from dataclasses import replace

import pytest
import torch
from make_datasets import comma10k_names, make_comma10k, names_of

from streamseg.data.datasets import camvid, comma10k, folder
from streamseg.io.masks import Mask
from streamseg.train import feed
from streamseg.train.config import TrainConfig
from streamseg.train.feed import (
    FrameSet,
    batch_indices,
    batches,
    build_clip_index,
    cache_on_device,
    exclude_frames,
    free_memory,
    weight_classes,
)

CPU = torch.device("cpu")
TINY = TrainConfig(dataset="folder", network="fanet18", crop=(64, 64), iterations=6, batch=2, class_weighting=0.3)


def frame_sets(dataset, window=1):
    """Return a data set with its frames in memory, and on disk."""
    clips = build_clip_index(dataset, window)
    return FrameSet(dataset, clips, cache_on_device(dataset, clips, CPU, 2)), FrameSet(dataset, clips, None)


@pytest.mark.parametrize("classmix", [0.0, 1.0])
def test_cached_and_streamed_data_give_the_same_batches(toy, classmix):
    config, dataset = replace(TINY, batch=4, iterations=5, classmix=classmix), folder(toy, "train")
    cached, streamed = (batches([frame_set], config, 0, (0, 1), CPU, 2) for frame_set in frame_sets(dataset))
    for one, other in zip(cached, streamed, strict=True):
        assert one.images.equal(other.images)
        assert one.labels.equal(other.labels)
        assert one.past is other.past is one.motion is other.motion is None


def test_batches_from_the_middle_and_in_shares_are_those_of_the_whole_run(toy):
    config, dataset = replace(TINY, batch=4, iterations=5, classmix=0.5, consistency_loss=1.0), folder(toy, "train")
    cached, _ = frame_sets(dataset)
    whole = list(batches([cached], config, 0, (0, 1), CPU, 2))
    shares = [list(batches([cached], config, 3, (rank, 2), CPU, 2)) for rank in (0, 1)]
    assert len(shares[0]) == 2
    for batch, first, second in zip(whole[3:], *shares, strict=True):
        assert torch.cat([first.images, second.images]).equal(batch.images)
        assert torch.cat([first.labels, second.labels]).equal(batch.labels)
        assert torch.cat([first.motion, second.motion]).equal(batch.motion)


def test_data_is_cached_only_if_it_takes_up_to_half_of_the_memory(toy, monkeypatch):
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


def test_classmix_changes_the_batches(toy):
    config, dataset = replace(TINY, batch=4, iterations=1), folder(toy, "train")
    cached, _ = frame_sets(dataset)
    plain, mixed = (next(batches([cached], replace(config, classmix=share), 0, (0, 1), CPU, 2)) for share in (0.0, 1.0))
    assert not mixed.images.equal(plain.images)
    assert not mixed.labels.equal(plain.labels)


@pytest.mark.parametrize(("count", "batch"), [(7, 2), (7, 7), (5, 16), (1, 3)])
def test_every_epoch_has_every_frame_once_in_another_order(count, batch):
    config = replace(TINY, batch=batch)
    indices = [i for step in range(3 * count) for _, i in batch_indices(step, [count], config)]
    epochs = [indices[start : start + count] for start in range(0, len(indices), count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert count == 1 or epochs[0] != epochs[1]
    other = [i for step in range(3 * count) for _, i in batch_indices(step, [count], replace(config, seed=1))]
    assert count == 1 or other != indices


def test_rare_classes_weigh_more_with_cached_and_with_streamed_data(toy):
    dataset = folder(toy, "train")
    cached = cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2)
    assert weight_classes(dataset, cached, replace(TINY, class_weighting=0.0), 2).tolist() == [1, 1, 1]
    weights = weight_classes(dataset, cached, TINY, 2)
    assert weights.equal(weight_classes(dataset, None, TINY, 2))
    pixels = cached[1].flatten().bincount(minlength=3)[:3]
    assert weights.argsort().equal(pixels.argsort(descending=True))
    assert (weights * pixels).sum().item() == pytest.approx(pixels.sum().item())


def test_a_clip_has_the_frames_before_in_the_recording(drive):
    clips = build_clip_index(camvid(drive, "train"), 3)
    assert len(clips.images) == 7
    assert clips.before == ((), (0,), (1, 0), (2, 1), (), (4,), (5, 4))


def test_cached_streamed_and_shared_clips_are_the_same(drive):
    dataset = camvid(drive, "train")
    config = replace(TINY, dataset="camvid", batch=4, iterations=8, window=3, jitter=0.0, scale=(1.0, 1.0))
    clips = build_clip_index(dataset, 3)
    cached, streamed = frame_sets(dataset, 3)
    whole = list(batches([cached], config, 0, (0, 1), CPU, 2))
    streamed = batches([streamed], config, 0, (0, 1), CPU, 2)
    halves = [batches([cached], config, 0, (rank, 2), CPU, 2) for rank in (0, 1)]
    for batch, other, *parts in zip(whole, streamed, *halves, strict=True):
        for name in ("images", "labels", "past", "used"):
            assert getattr(batch, name).equal(getattr(other, name))
            assert torch.cat([getattr(part, name) for part in parts]).equal(getattr(batch, name))
    counts = set()
    for step, batch in enumerate(whole):
        assert batch.used.shape == batch.past.shape[:2] == (4, 2)
        for (_, i), image, past, used in zip(
            batch_indices(step, [7], config), batch.images, batch.past, batch.used, strict=True
        ):
            greys = [image.mean().item(), *past.mean(dim=(1, 2, 3)).tolist()]
            known = [i, *clips.before[i]]
            assert greys[: len(known)] == pytest.approx([20 * index + 10 for index in known], abs=0.01)
            assert used.sum() <= len(clips.before[i])
            assert used.tolist() == sorted(used.tolist(), reverse=True)
            counts.add(int(used.sum()))
    assert counts == {0, 1, 2}


def test_frames_can_be_left_out_by_the_start_of_their_name(toy):
    kept = exclude_frames(folder(toy, "train"), "3")
    assert [pair.image.name for pair in kept.pairs] == ["0.png", "1.png", "2.png", "5.png", "6.png", "7.png"]


def test_frames_can_be_left_out_by_several_names_and_by_device(toy, tmp_path):
    kept = exclude_frames(folder(toy, "train"), "3, 5,")
    assert [pair.image.name for pair in kept.pairs] == ["0.png", "1.png", "2.png", "6.png", "7.png"]
    names = comma10k_names(devices=4, frames=2)
    dataset = comma10k(make_comma10k(tmp_path, names), "trainval")
    devices = [name.split("_")[1] for name in names[::2]]
    assert names_of(exclude_frames(dataset, ",".join(devices[:2]))) == names[4:]
    assert names_of(exclude_frames(dataset, f"0000_,{devices[3]}")) == names[1:6]


@pytest.mark.parametrize(
    ("leave_out", "sentence"),
    [
        (",", "^Leaving out ',' keeps 7 of 7 frames: give the start of some file names, or devices of comma10k.$"),
        ("0,1,2,3,5,6,7", "^Leaving out '0,1,2,3,5,6,7' keeps 0 of 7 frames: "),
        ("0,zebra", "^No frame of folder train is of 'zebra', which --leave-out names: give the start of "),
    ],
)
def test_a_name_that_no_frame_has_cannot_be_left_out(toy, leave_out, sentence):
    with pytest.raises(ValueError, match=sentence):
        exclude_frames(folder(toy, "train"), leave_out)


def test_the_parts_of_a_batch_add_up_to_the_batch(toy):
    dataset = folder(toy, "train")
    config = replace(TINY, batch=4, consistency_loss=1.0)
    batch = next(batches([frame_sets(dataset)[1]], config, 0, (0, 1), CPU, 2))
    parts = list(batch.parts(2))
    assert [len(part.images) for part in parts] == [2, 2]
    assert torch.cat([part.images for part in parts]).equal(batch.images)
    assert torch.cat([part.motion for part in parts]).equal(batch.motion)
    assert parts[0].past is None


@pytest.mark.parametrize("classmix", [0.0, 1.0])
def test_what_a_mask_hides_is_grey_without_a_label_and_masked_in_every_batch(toy, classmix):
    config = replace(TINY, batch=4, iterations=5, classmix=classmix, light=1.0)
    looked_at = torch.ones(64, 96, dtype=torch.bool)
    looked_at[40:] = False
    seen = 0
    sets = [frame_set._replace(mask=Mask(looked_at)) for frame_set in frame_sets(folder(toy, "train"))]
    for one, other in zip(*(batches([frame_set], config, 0, (0, 1), CPU, 2) for frame_set in sets), strict=True):
        hidden = one.mask == 0
        seen += int(hidden.sum())
        assert one.labels[hidden].eq(255).all()
        assert one.images.movedim(1, -1)[hidden].eq(114).all()
        assert one.mask.equal(other.mask)
        assert one.images.equal(other.images)
        first, second = one.parts(2)
        assert torch.cat([first.mask, second.mask]).equal(one.mask)
    assert seen


def test_only_the_first_data_set_has_the_mask_and_without_one_batches_have_none(toy):
    dataset = folder(toy, "train")
    looked_at = torch.zeros(64, 96, dtype=torch.bool)
    looked_at[:40] = True
    first, second = frame_sets(dataset)
    config = replace(TINY, batch=4, iterations=2, with_dataset="folder", with_share=0.5)
    for batch in batches([first._replace(mask=Mask(looked_at)), second], config, 0, (0, 1), CPU, 2):
        assert 0 < batch.mask.flatten(1).amin(dim=1).sum() < 4
    assert next(batches([first], TINY, 0, (0, 1), CPU, 2)).mask is None


def test_class_weights_leave_out_what_a_mask_hides(toy):
    dataset = folder(toy, "train")
    cached, streamed = frame_sets(dataset)
    looked_at = torch.ones(64, 96, dtype=torch.bool)
    looked_at[:32] = False
    whole = weight_classes(dataset, cached.cached, TINY, 2)
    part = weight_classes(dataset, cached.cached, TINY, 2, 0, Mask(looked_at))
    assert not part.equal(whole)
    assert part.equal(weight_classes(dataset, streamed.cached, TINY, 2, 0, Mask(looked_at)))
