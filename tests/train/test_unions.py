"""Training on several data sets: what they are, their batches, and whole runs."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import CPU, TINY, assert_same_run, entries, run

import streamseg
from streamseg.class_table import parse_class_table
from streamseg.classes import CAMVID, COMMA10K, IGNORE
from streamseg.data.datasets import camvid, folder
from streamseg.data.shards import pack
from streamseg.io.stores import open_store
from streamseg.train import loop
from streamseg.train.feed import FrameSet, batch_indices, batches, build_clip_index, cache_on_device, frames_before
from streamseg.train.unions import column_names, open_training_data

pytestmark = pytest.mark.usefixtures("frequent_entries", "no_plots")

BOXES = "ground, 5a5a5a, ground, {}\nbox, c83c3c, box, {}\ndisc, 0000ff, disc, {}\n"
"""Classes of the painted pictures, with the labels of another data set."""
TABLE = "class, colour, folder, camvid\n" + BOXES.format("Road", "Building", "Car")
for others in CAMVID.names:
    if others not in ("Road", "Building", "Car"):
        TABLE += f"{others}, 808080, ground, {others}\n"


@pytest.fixture
def table(tmp_path):
    """A class table for the painted pictures and CamVid."""
    path = tmp_path / "table.txt"
    path.write_text(TABLE)
    return path


@pytest.fixture
def union(table):
    """Settings of a run on the painted pictures with CamVid."""
    return replace(TINY, with_dataset="camvid", with_share=0.4, class_table=str(table), classmix=0.5, iou_loss=1.0)


@pytest.fixture(scope="session")
def other(paint, tmp_path_factory):
    """Painted pictures of another size, with the same labels."""
    return paint(tmp_path_factory.mktemp("data") / "other", [(72, 80)] * 5)


def open_frame_sets(config, data, with_data, *, cached=True):
    found = []
    for dataset in open_training_data(config, data, with_data).datasets:
        clips = build_clip_index(dataset, config.window if dataset.sequences else 1)
        found.append(FrameSet(dataset, clips, cache_on_device(dataset, clips, CPU, 2) if cached else None))
    return found


def test_the_labels_of_the_second_data_set_follow_those_of_the_first(toy, drive, union):
    opened = open_training_data(union, toy, drive)
    first, second = opened.datasets
    assert first[0][1].equal(folder(toy, "train")[0][1])
    original, shifted = camvid(drive, "train")[0][1].long(), second[0][1].long()
    assert shifted.equal(torch.where(original == IGNORE, IGNORE, original + 3))
    assert (shifted == IGNORE).any()
    members, owners = opened.label_sets()
    assert members.shape == (3 + 11, 3 + 8)
    assert owners.tolist() == [0] * 3 + [1] * 11
    assert opened.classes.names[:4] == ("ground", "box", "disc", "Sky")
    assert opened.summary() == "7 frames of folder train and 7 frames of camvid train"
    fewer = open_training_data(replace(union, leave_out="3", with_leave_out="0001TP"), toy, drive)
    assert [len(dataset) for dataset in fewer.datasets] == [6, 3]


def test_both_data_sets_are_validated_by_their_own_labels(toy, drive, union):
    first, second = open_training_data(union, toy, drive).validations
    assert (first.dataset.name, second.dataset.name) == ("folder", "camvid")
    assert first.label_of == (0, 1, 2) + (0,) * 8
    assert second.label_of[:4] == tuple(map(CAMVID.names.index, ("Road", "Building", "Car", "Sky")))
    assert open_training_data(replace(union, validate=""), toy, drive).validations == ()


def test_a_second_data_set_without_the_split_is_not_validated(toy, other, tmp_path):
    pack("folder", other, tmp_path, ("train",))
    config = replace(TINY, with_dataset="folder")
    assert len(open_training_data(config, toy, other).validations) == 2
    assert len(open_training_data(config, toy, tmp_path).validations) == 1
    store, path = open_store("memory://without-val")
    store.put(str(tmp_path), path, recursive=True)
    opened = open_training_data(config, toy, Path("memory://without-val"))
    assert [len(dataset) for dataset in opened.datasets] == [7, 4]
    assert len(opened.validations) == 1
    store.rm(path, recursive=True)


def test_data_sets_with_the_same_labels_need_no_table(toy, other):
    opened = open_training_data(replace(TINY, with_dataset="folder"), toy, other)
    assert column_names(opened.datasets) == ["folder", "folder2"]
    assert opened.classes == folder(toy, "train").classes
    assert opened.label_sets().members.equal(torch.eye(3).repeat(2, 1))


def test_a_single_data_set_without_a_table_has_no_label_sets(toy):
    assert open_training_data(TINY, toy, None).label_sets() is None


def test_a_single_data_set_can_be_trained_for_fewer_or_renamed_classes(toy, tmp_path):
    (tmp_path / "table.txt").write_text("class, colour, folder\nthe ground, 808080, ground\nthing, ff0000, box\n")
    config = replace(TINY, class_table=str(tmp_path / "table.txt"))
    with pytest.raises(ValueError, match="has no class for the label 'disc' of folder"):
        open_training_data(config, toy, None)
    (tmp_path / "table.txt").write_text("class, colour, folder\n" + "".join(f"{c}, 808080, {c}\n" for c in ORDER))
    opened = open_training_data(config, toy, None)
    assert opened.classes.names == tuple(ORDER)
    assert opened.label_sets().members.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


ORDER = ["disc", "ground", "box"]


@pytest.mark.parametrize(
    ("changes", "edit", "sentence"),
    [
        ({"class_table": ""}, (), "^folder and camvid have different labels: give --class-table street, "),
        ({"class_table": "streets"}, (), "^No class table is called 'streets': did you mean street"),
        ({"class_table": "street"}, (), "^The class table has no column folder, only camvid, comma10k"),
        ({}, ("ground, Tree", "ground, -"), "^The class table has no class for the label 'Tree' of camvid"),
        ({}, ("disc, Car", "-, -"), "^The class table has no class for the label 'disc' of folder"),
        ({}, ("ground, Tree", "-, -"), "^The class table has no class for the label 'Tree' of camvid"),
        ({}, ("Tree, 808080", "a, 1a1a1a, -, -\nTree, 808080"), "^No label of folder and camvid means the class 'a'"),
        ({}, ("Tree, 808080", "a, 1a1a1a, ground, Tree\nTree, 808080"), "^The classes 'a' and 'Tree' have the same "),
        ({"with_dataset": "none"}, (), "drive is the folder of no data set: name the data set with --with NAME.$"),
        ({"with_leave_out": "x"}, (), "^Leaving out 'x' keeps 7 of 7 frames"),
        ({"with_split": "x"}, (), "^No split 'x' in "),
    ],
)
def test_data_sets_that_cannot_train_one_network_are_refused(
    toy, drive, table, union, tmp_path, changes, edit, sentence
):
    if edit:
        assert TABLE.count(edit[0]) == 1
        table.write_text(TABLE.replace(*edit))
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        run(toy, tmp_path / "out", replace(union, **changes), with_data=drive)
    assert not (tmp_path / "out").exists()


def test_a_second_data_set_needs_its_folder(toy, union):
    with pytest.raises(ValueError, match="^A run with camvid needs its folder: give --with-data DIR.$"):
        open_training_data(union, toy, None)


def test_two_data_sets_with_the_same_frames_are_refused(toy, other, tmp_path):
    config = replace(TINY, with_dataset="folder")
    pack("folder", toy, tmp_path, ("train", "val"))
    for again, where in ((toy, ""), (tmp_path, r", also as .*train-00000\.tar/00000000/0\.image\.png")):
        with pytest.raises(ValueError, match=rf"/0\.png is in both data sets{where}: give data sets with different fr"):
            open_training_data(config, toy, again)
    # another split of the same folder has other frames
    opened = open_training_data(replace(config, with_split="val"), toy, toy)
    assert [len(dataset) for dataset in opened.datasets] == [7, 1]
    # names, and even sizes of files, may be the same by chance
    first, second = opened.datasets[0], open_training_data(config, toy, other).datasets[1]
    assert {pair.image.name for pair in first.pairs} & {pair.image.name for pair in second.pairs}


def test_the_table_in_the_documents_can_train_a_network():
    page = (Path(__file__).parents[2] / "docs/training.md").read_text()
    text = next(block for block in page.split("```") if block.startswith("\nclass, "))
    table = parse_class_table(text, "the page")
    assert sorted(table.label_of("comma10k", COMMA10K)) == [0, 1, 2, 3, 3, 4]
    table.check_teachable(["folder", "comma10k"])


def test_too_many_labels_are_refused(paint, tmp_path, other):
    data = paint(tmp_path / "many", [(64, 96)] * 5)
    names = [f"c{i}" for i in range(253)]
    (data / "classes.txt").write_text("\n".join(names))
    rows = [f"{name}, 808080, {name}, {('ground', 'box', 'disc')[i % 3]}" for i, name in enumerate(names)]
    (tmp_path / "table.txt").write_text("\n".join(["class, colour, folder, folder2", *rows]))
    config = replace(TINY, with_dataset="folder", class_table=str(tmp_path / "table.txt"))
    with pytest.raises(ValueError, match="^folder and folder2 have 256 labels in all; expected 255 at most.$"):
        open_training_data(config, data, other)


@pytest.mark.parametrize(("batch", "share"), [(16, 0.4), (5, 0.5), (2, 0.1), (3, 1 / 3), (16, 0.999)])
def test_the_share_of_the_second_data_set_is_exact_over_the_steps(batch, share):
    config = replace(TINY, batch=batch, with_share=share)
    counts = [Counter(number for number, _ in batch_indices(step, [50, 70], config)) for step in range(200)]
    for count in counts:
        assert count.total() == batch
        assert batch * share - 1 < count[1] < batch * share + 1
    for step in (10, 200):
        assert sum(count[1] for count in counts[:step]) == pytest.approx(step * batch * share, abs=0.5 + 1e-6)
        assert sum(frames_before(step, 2, config)) == step * batch


def test_every_epoch_of_each_data_set_has_every_frame_once():
    config = replace(TINY, batch=6, with_share=0.4)
    taken = [place for step in range(100) for place in batch_indices(step, [7, 5], config)]
    for number, count in ((0, 7), (1, 5)):
        # frames are shuffled within a batch: whole epochs are counted
        seen = Counter(i for of, i in taken if of == number)
        assert len(seen) == count
        assert max(seen.values()) - min(seen.values()) <= 1


def test_pairs_of_neighbours_mix_the_data_sets_at_random():
    config = replace(TINY, batch=8, with_share=0.5)
    order = [[number for number, _ in batch_indices(step, [40, 40], config)] for step in range(200)]
    mixed = sum(numbers[i] != numbers[i + 1] for numbers in order for i in range(0, 8, 2)) / 800
    assert mixed == pytest.approx(4 / 7, abs=0.06)
    assert order == [[number for number, _ in batch_indices(step, [40, 40], config)] for step in range(200)]
    other_seed = replace(config, seed=1)
    assert order != [[number for number, _ in batch_indices(step, [40, 40], other_seed)] for step in range(200)]


def test_batches_of_a_union_are_the_same_cached_streamed_shared_and_from_the_middle(toy, drive, union):
    config = replace(union, batch=8, iterations=4, light=1.0, consistency_loss=1.0, loss_stride=2)
    cached, streamed = (open_frame_sets(config, toy, drive, cached=cached) for cached in (True, False))
    assert cached[0].cached[0].shape[-2:] != cached[1].cached[0].shape[-2:]
    whole = list(batches(cached, config, 0, (0, 1), CPU, 2))
    from_disk = batches(streamed, config, 0, (0, 1), CPU, 2)
    mixed = batches([cached[0], streamed[1]], config, 0, (0, 1), CPU, 2)
    halves = [batches(cached, config, 0, (rank, 2), CPU, 2) for rank in (0, 1)]
    for batch, *others, first, second in zip(whole, from_disk, mixed, *halves, strict=True):
        for name in ("images", "labels", "motion"):
            assert all(getattr(other, name).equal(getattr(batch, name)) for other in others)
            assert torch.cat([getattr(first, name), getattr(second, name)]).equal(getattr(batch, name))
        assert first.place.equal(batch.place)
        assert all(part.place.equal(batch.place) for part in batch.parts(2))
    assert len({tuple(batch.place.tolist()) for batch in whole}) > 1
    for batch, later in zip(whole[2:], batches(streamed, config, 2, (0, 1), CPU, 2), strict=True):
        assert later.images.equal(batch.images)
        assert later.labels.equal(batch.labels)


def test_each_image_has_the_labels_of_its_own_data_set(toy, drive, union):
    config = replace(union, batch=8, iterations=6, classmix=0.0, scale=(1.0, 1.0), jitter=0.0)
    frame_sets = open_frame_sets(config, toy, drive)
    for step, batch in enumerate(batches(frame_sets, config, 0, (0, 1), CPU, 2)):
        for (number, i), image, labels in zip(
            batch_indices(step, [7, 7], config), batch.images, batch.labels, strict=True
        ):
            known = labels[labels != IGNORE]
            assert ((known >= 3) == bool(number)).all()
            if number:  # whose frames are of one grey each
                assert image.mean().item() == pytest.approx(20 * i + 10, abs=0.01)


def test_clips_with_a_second_data_set_without_recordings_end_with_its_single_frames(toy, drive, table):
    config = replace(
        TINY, dataset="camvid", with_dataset="folder", class_table=str(table), window=3, batch=4, network="fanet18"
    )
    frame_sets = open_frame_sets(config, drive, toy)
    for step, batch in enumerate(batches(frame_sets, config, 0, (0, 1), CPU, 2)):
        assert batch.past.shape == (4, 2, 3, 64, 64)
        numbers = [number for number, _ in batch_indices(step, [7, 7], config)]
        assert not batch.used[torch.tensor(numbers) == 1].any()
    assert any(batch.used.any() for batch in batches(frame_sets, config, 0, (0, 1), CPU, 2))


def test_a_run_on_a_union_writes_weights_with_the_classes_of_the_table(toy, drive, union, tmp_path, capsys):
    out = tmp_path / "out"
    weights = run(toy, out, union, with_data=drive)
    network, classes = streamseg.load(weights)
    assert classes.names[:4] == ("ground", "box", "disc", "Sky")
    assert network.classes == 11
    source = "trained on folder train and camvid train (40% of each batch), 6 iterations, by streamseg"
    assert streamseg.describe(weights).source == source
    told = json.loads((out / "run.json").read_text())
    assert (told["frames"], told["data"]) == (7, str(toy))
    assert (told["with"]["frames"], told["with"]["data"]) == (7, str(drive))
    assert told["class_table"]["camvid"][:3] == ["Road", "Building", "Car"]
    assert told["config"]["with_share"] == 0.4
    last = entries(out, "val_miou", "val_iou", "with_val_miou", "with_val_iou")[-1]
    assert list(last["val_iou"]) == ["ground", "box", "disc"]
    assert list(last["with_val_iou"]) == list(CAMVID.names)
    assert last["val_miou"] > 0
    assert "7 frames of folder train and 7 frames of camvid train" in capsys.readouterr().err


def test_a_run_on_a_union_that_was_stopped_resumes_to_the_same_weights(toy, drive, union, tmp_path, monkeypatch):
    config = replace(union, light=1.0, loss_stride=2, auxiliary_stride=4, ohem_threshold=0.7, accumulate=2, batch=4)
    run(toy, tmp_path / "alone", config, with_data=drive)
    original = loop.update_ema

    def update_and_stop(ema, current, decay, step):
        original(ema, current, decay, step)
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop, "update_ema", update_and_stop)
    with pytest.raises(loop.TrainingStopped):
        run(toy, tmp_path / "out", config, with_data=drive)
    monkeypatch.setattr(loop, "update_ema", original)
    with pytest.raises(ValueError, match="other settings: continue with --with-share 0.4 --resume.$"):
        run(toy, tmp_path / "out", replace(config, with_share=0.3), with_data=drive, resume=True)
    run(toy, tmp_path / "out", config, with_data=drive, resume=True)
    assert_same_run(tmp_path / "out", tmp_path / "alone")


def test_a_table_that_was_changed_is_not_resumed_with(toy, drive, union, table, tmp_path):
    run(toy, tmp_path / "out", replace(union, iterations=2, validate=""), with_data=drive)
    table.write_text(TABLE.replace("ground, Tree", "box, Tree"))
    with pytest.raises(ValueError, match="other frames or classes: give the same --data, --with-data and class table"):
        run(toy, tmp_path / "out", replace(union, iterations=2, validate=""), with_data=drive, resume=True)
