import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from runs import CPU, FANET, TINY, run

from streamseg.data import shards
from streamseg.data.datasets import camvid, folder
from streamseg.data.shards import has_split, open_dataset, pack
from streamseg.io.stores import open_store
from streamseg.train.feed import FrameSet, batches, build_clip_index
from streamseg.train.runlog import hash_files


@pytest.fixture(scope="module")
def packed(toy, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed")
    assert pack("folder", toy, out, megabytes=0.04) == {"train": 7, "val": 1}
    return out


def test_packed_frames_are_the_original_frames_in_the_same_order(toy, packed):
    for split in ("train", "val"):
        ours, theirs = open_dataset("folder", packed, split), folder(toy, split)
        assert ours.classes == theirs.classes
        assert len(ours) == len(theirs)
        for (frame, labels), (same, same_labels) in zip(ours, theirs, strict=True):
            assert frame.equal(same)
            assert labels.equal(same_labels)
        # so that --leave-out and --only find them
        names = [(pair.image.name, other.image.stem) for pair, other in zip(ours.pairs, theirs.pairs, strict=True)]
        assert all(name.startswith(stem) for name, stem in names)


def test_shards_are_tar_files_of_the_given_size(toy, packed):
    tars = sorted(packed.glob("train-*.tar"))
    assert len(tars) > 1
    with tarfile.open(tars[0]) as tar:
        members = tar.getnames()
        image = tar.extractfile(members[0]).read()
    assert members[:2] == ["00000000/0.image.png", "00000000/0.labels.png"]
    assert image == (toy / "images" / "0.png").read_bytes()


def test_ignored_labels_stay_ignored_in_shards(drive, tmp_path):
    pack("camvid", drive, tmp_path, ("trainval",))
    ours, theirs = open_dataset("camvid", tmp_path, "trainval"), camvid(drive, "trainval")
    assert all(ours[i][1].equal(theirs[i][1]) for i in range(len(theirs)))
    assert (ours[0][1] == 255).any()


def test_training_batches_are_the_same_from_shards_as_from_files(toy, packed):
    config = replace(TINY, iterations=3)
    all_batches = []
    for data in (toy, packed):
        dataset = open_dataset("folder", data, "train")
        all_batches.append(
            list(batches([FrameSet(dataset, build_clip_index(dataset, 1), None)], config, 0, (0, 1), CPU, 2))
        )
    for ours, theirs in zip(*all_batches, strict=True):
        assert ours.images.equal(theirs.images)
        assert ours.labels.equal(theirs.labels)


def test_shards_in_a_store_are_read_in_place(packed):
    store, path = open_store("memory://shards")
    store.put(str(packed), path, recursive=True)
    there, here = open_dataset("folder", Path("memory://shards"), "train"), open_dataset("folder", packed, "train")
    frame, labels = there[3]
    assert frame.equal(here[3][0])
    assert labels.equal(here[3][1])
    assert has_split("folder", Path("memory://shards"), "val")
    assert not has_split("folder", Path("memory://shards"), "test")
    store.rm(path, recursive=True)


def test_errors_of_packing_and_reading_are_sentences(toy, packed, tmp_path, paint):
    with pytest.raises(ValueError, match="already holds shards of the split train: give another folder.$"):
        pack("folder", toy, packed)
    with pytest.raises(ValueError, match="holds shards of folder, not of camvid: choose a recipe for folder.$"):
        open_dataset("camvid", packed, "train")
    (tmp_path / "train.json").write_text(json.dumps({"dataset": "folder"}))
    with pytest.raises(ValueError, match="train.json is not an index of shards: pack the data set again.$"):
        open_dataset("folder", tmp_path, "train")
    broken = paint(tmp_path / "broken", [(64, 96)] * 5)
    (broken / "images" / "2.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="2.png is not a picture"):
        pack("folder", broken, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_shard_that_is_cut_short_is_named(packed, tmp_path):
    for file in packed.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[:5000] if file.name == "train-00000.tar" else data)
    with pytest.raises(
        ValueError, match=r"train-00000.tar is damaged \(its checksum does not match\): copy or download"
    ):
        open_dataset("folder", tmp_path, "train")[0]


@pytest.mark.parametrize("name", ["train.json", "train-00000.tar"])
def test_shards_with_one_wrong_bit_are_refused(packed, tmp_path, name):
    for file in packed.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(
        ValueError, match=rf"{name} is damaged \(its checksum does not match\): copy or download it again"
    ):
        list(open_dataset("folder", tmp_path, "train"))


def test_shards_without_checksums_are_read(toy, packed, tmp_path):
    for file in packed.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    index = json.loads((tmp_path / "train.json").read_text())
    del index["checksum"]
    index["frames"] = [[*frame[:3], frame[3][:2], frame[4][:2]] for frame in index["frames"]]
    (tmp_path / "train.json").write_text(json.dumps(index))
    assert open_dataset("folder", tmp_path, "train")[3][0].equal(folder(toy, "train")[3][0])


def test_frames_in_shards_have_no_clips(drive, tmp_path):
    pack("camvid", drive, tmp_path / "shards", ("train",))
    with pytest.raises(ValueError, match="^camvid train has no clips of 2 frames: a window needs"):
        run(tmp_path / "shards", tmp_path / "out", replace(FANET, dataset="camvid", window=2, validate=""))


def test_a_byte_range_is_that_of_the_file_for_any_name(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        spans = [shards.append(tar, name, name.encode()) for name in ("short", "x" * 300, "last")]
    data = (tmp_path / "a.tar").read_bytes()
    assert [data[start : start + size] for start, size, _ in spans] == [b"short", b"x" * 300, b"last"]


def test_a_packed_data_set_has_the_sizes_of_its_files(packed, toy):
    ours = open_dataset("folder", packed, "train")
    assert ours.size_of(ours.pairs[0].image) == (toy / "images" / "0.png").stat().st_size
    assert len(hash_files(ours)) == 64  # which run.json holds
