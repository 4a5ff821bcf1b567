import threading

import pytest
import torch
from make_datasets import (
    comma10k_names,
    make_camvid,
    make_cityscapes,
    make_comma10k,
    make_folder,
    make_snippets,
    save_frame,
    save_ids,
)

from streamseg.classes import CAMVID
from streamseg.data.datasets import DATASETS, Dataset, camvid, cityscapes, comma10k, folder, in_parallel, read_pairs
from streamseg.data.layouts import recording_and_number
from streamseg.io.images import read_label_ids


def test_cityscapes_clips_end_in_the_labelled_frame(tmp_path):
    dataset = cityscapes(make_snippets(make_cityscapes(tmp_path)), "val")
    assert [len(sequence) for sequence in dataset.sequences] == [30, 30]
    clips = dataset.clips(20)
    assert [clip.labels for clip in clips] == [pair.labels for pair in dataset.pairs]
    assert [path.stem.split("_")[2] for path in clips[0].images] == [f"{number:06}" for number in range(275, 295)]
    assert dataset.clips(21) == []


@pytest.mark.parametrize("name", DATASETS)
def test_a_wrong_folder_says_what_was_expected(tmp_path, name):
    for data in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"No data set of kind {name} in .*: expected .*/"):
            DATASETS[name](data, "train")


def test_the_folder_of_another_data_set_is_recognised(tmp_path):
    make_comma10k(tmp_path / "comma", comma10k_names(devices=2))
    make_camvid(tmp_path / "camvid", "train", ["0001TP_006690"])
    with pytest.raises(FileNotFoundError, match=r" Its layout is that of comma10k: give comma10k as the data set\.$"):
        folder(tmp_path / "comma", "train")
    with pytest.raises(FileNotFoundError, match=r" Its layout is that of camvid: give camvid as the data set\.$"):
        comma10k(tmp_path / "camvid", "train")
    (tmp_path / "empty" / "imgs").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"images/ and labels/; streamseg convert makes them of the export of"):
        folder(tmp_path / "empty", "train")


def test_a_wrong_split_says_which_there_are(tmp_path):
    with pytest.raises(ValueError, match="No split 'trian' .* which has train, val, all; the layout is classes.txt"):
        folder(make_folder(tmp_path, "abcde"), "trian")
    make_cityscapes(tmp_path)
    with pytest.raises(
        ValueError, match="No split 'test' .* which has train, val; the layout is leftImg8bit/SPLIT/CITY/"
    ):
        cityscapes(tmp_path, "test")
    (tmp_path / "leftImg8bit" / "test").mkdir()
    with pytest.raises(ValueError, match="The split 'test' of .* is empty"):
        cityscapes(tmp_path, "test")


def test_without_a_split_val_the_error_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="No split 'val' .* Add pictures, or train with --validate ''.$"):
        folder(make_folder(tmp_path, "abcd"), "val")
    make_camvid(tmp_path, "train", ["0006R0_f00930"])
    (tmp_path / "val").mkdir()
    with pytest.raises(
        ValueError, match="The split 'val' of .* is empty.* Add pictures, or train with --validate ''.$"
    ):
        camvid(tmp_path, "val")


def test_a_frame_without_labels_and_labels_without_a_frame_are_named(tmp_path):
    make_folder(tmp_path, "ab")
    (tmp_path / "labels/a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"images/a\.jpg has no labels: expected .*labels/a\.png"):
        folder(tmp_path, "train")
    (tmp_path / "images/a.jpg").unlink()
    (tmp_path / "images/b.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"images/b\.png is missing, but there are labels .*labels/b\.png"):
        folder(tmp_path, "train")


def test_sizes_that_differ_are_named(tmp_path):
    make_folder(tmp_path, "ab")
    save_ids(tmp_path / "labels/a.png", [0], size=(4, 6))
    save_ids(tmp_path / "labels/b.png", [0], size=(12, 8))
    dataset = folder(tmp_path, "all")
    with pytest.raises(ValueError, match=r"a\.jpg is 8 x 12 pixels but .*a\.png is 4 x 6; make them the same size"):
        _ = dataset[0]
    with pytest.raises(ValueError, match=r"b\.png is 12 x 8; rotate one of them"):
        _ = dataset[1]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_keep_the_order(tmp_path, threads):
    dataset = folder(make_folder(tmp_path, "abcdefgh"), "all")
    indices = [3, 0, 7, 7, 1, 2, 6, 5, 4, -1]
    for i, (frame, labels) in zip(indices, read_pairs(dataset, indices, threads), strict=True):
        assert frame.equal(dataset[i][0])
        assert labels.equal(dataset[i][1])


def test_threads_read_ahead_only_a_little():
    taken = []
    items = (taken.append(i) or i for i in range(1000))
    results = in_parallel(lambda i: i, items, threads=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) < 10
    before = threading.active_count()
    results.close()
    assert threading.active_count() < before


def test_slow_work_is_shared_among_threads():
    # passed only by eight at a time
    barrier = threading.Barrier(8, timeout=60)
    assert list(in_parallel(lambda i: (barrier.wait(), i)[1], range(16), threads=8)) == [*range(16)]


def test_an_error_in_a_thread_reaches_the_reader(tmp_path):
    dataset = folder(make_folder(tmp_path, "abc"), "all")
    (tmp_path / "images/b.jpg").write_bytes(b"")
    pairs = read_pairs(dataset, range(3), threads=2)
    next(pairs)
    with pytest.raises(ValueError, match=r"b\.jpg is not a picture"):
        next(pairs)


def test_a_clip_has_at_least_one_frame():
    with pytest.raises(ValueError, match="frames is 0; expected 1 or more"):
        Dataset("folder", "train", CAMVID, (), read_label_ids).clips(0)


def test_a_data_set_s_folder_may_be_a_string(tmp_path):
    make_camvid(tmp_path, "train", ["0006R0_f00930"])
    assert camvid(str(tmp_path), "train").pairs == camvid(tmp_path, "train").pairs


def test_a_clip_is_read_as_its_frames_and_the_labels_of_the_last(tmp_path):
    dataset = camvid(make_camvid(tmp_path, "train", [f"0016E5_{number:05}" for number in (840, 870, 900)]), "train")
    for clip, last in zip(dataset.clips(2), (1, 2), strict=True):
        frames, labels = dataset.read_clip(clip)
        assert (frames.shape, frames.dtype) == ((2, 3, 8, 12), torch.uint8)
        assert frames[0].equal(dataset[last - 1][0])
        assert frames[1].equal(dataset[last][0])
        assert labels.equal(dataset[last][1])


def test_frames_of_a_clip_that_differ_in_size_are_named(tmp_path):
    make_camvid(tmp_path, "train", ["0016E5_00840", "0016E5_00870"])
    save_frame(tmp_path / "train/0016E5_00840.png", size=(4, 6))
    dataset = camvid(tmp_path, "train")
    (clip,) = dataset.clips(2)
    with pytest.raises(
        ValueError, match=r"00870\.png is 8 x 12 pixels but .*00840\.png is 4 x 6; make them the same size\.$"
    ):
        dataset.read_clip(clip)
    save_frame(tmp_path / "train/0016E5_00840.png")
    save_ids(tmp_path / "trainannot/0016E5_00870.png", [0], size=(4, 6))
    with pytest.raises(ValueError, match=r"train/0016E5_00870\.png is 8 x 12 .*trainannot/0016E5_00870\.png is 4 x 6"):
        dataset.read_clip(clip)


def numbers(sequence):
    return [recording_and_number(frame.image)[1] for frame in sequence]


def test_camvid_sequences_are_in_order_with_the_times_of_their_recordings(tmp_path):
    taken = [840, 870, 901, 930, 2400, 2430]
    make_camvid(tmp_path, "train", [f"0016E5_{number:05}" for number in taken] + ["0006R0_f00930"])
    make_camvid(tmp_path, "val", [f"0016E5_{number:05}" for number in range(7959, 7967, 2)])
    dataset = camvid(tmp_path, "trainval")
    sequences = dataset.labelled_sequences(1)
    assert [*map(numbers, sequences)] == [[930], taken[:4], taken[4:], [7959, 7961, 7963, 7965]]
    assert dataset.labelled_sequences() == sequences
    assert [frame.seconds for frame in sequences[2]] == [80, 81]
    assert sequences[3][1].seconds - sequences[3][0].seconds == pytest.approx(1 / 15)
    for entry in (entry for sequence in sequences for entry in sequence):
        frame, labels = dataset.read_sequence_frame(entry)
        index = [pair.image for pair in dataset.pairs].index(entry.image)
        assert frame.equal(dataset[index][0])
        assert labels.equal(dataset[index][1])


def test_cityscapes_sequences_have_as_many_earlier_frames_as_asked(tmp_path):
    dataset = cityscapes(make_snippets(make_cityscapes(tmp_path)), "val")
    assert [*map(numbers, dataset.labelled_sequences(0))] == [[294], [576]]
    assert [*map(numbers, dataset.labelled_sequences(2))] == [[292, 293, 294], [574, 575, 576]]
    for before in (30, None):
        assert [*map(numbers, dataset.labelled_sequences(before))] == [[*range(275, 295)], [*range(557, 577)]]
    first, *_, last = dataset.labelled_sequences()[0]
    assert last.seconds - first.seconds == pytest.approx(19 / 17)
    assert (first.labels, last.labels) == (None, dataset.pairs[0].labels)
    frame, labels = dataset.read_sequence_frame(first)
    assert labels.shape == frame.shape[1:]
    assert labels.unique().tolist() == [255]


def test_a_sparsely_labelled_video_becomes_several_sequences(tmp_path):
    make_folder(tmp_path, [f"val/a/{i}" for i in range(10)])
    for i in (0, 1, 2, 4, 5, 6, 8, 9):
        (tmp_path / f"labels/val/a/{i}.png").unlink()
    dataset = folder(tmp_path, "val")
    assert [*map(numbers, dataset.labelled_sequences(2))] == [[1, 2, 3], [5, 6, 7]]
    assert [*map(numbers, dataset.labelled_sequences(3))] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert [*map(numbers, dataset.labelled_sequences())] == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_frames_with_the_same_name_in_two_videos_keep_their_labels(tmp_path):
    dataset = folder(make_folder(tmp_path, [f"val/{video}/{i}" for video in "ab" for i in range(3)]), "val")
    labels = [clip.labels.relative_to(tmp_path / "labels/val").as_posix() for clip in dataset.clips(3)]
    assert labels == ["a/2.png", "b/2.png"]
    (tmp_path / "labels/val/b/2.png").unlink()
    assert len(folder(tmp_path, "val").clips(3)) == 1


def test_a_missing_earlier_frame_is_named(tmp_path):
    make_snippets(make_cityscapes(tmp_path))
    (tmp_path / "leftImg8bit_sequence/val/frankfurt/frankfurt_000000_000290_leftImg8bit.png").unlink()
    dataset = cityscapes(tmp_path, "val")
    for list_frames in (dataset.clips, lambda frames: dataset.labelled_sequences(frames - 1)):
        assert len(list_frames(4)) == 2
        for frames in (5, 100):
            with pytest.raises(
                FileNotFoundError,
                match=r"^frankfurt_000000_000290_leftImg8bit\.png is missing from the sequences of cityscapes, "
                r"before .*/frankfurt_000000_000294_leftImg8bit\.png: add it, or use a smaller window\.$",
            ):
                list_frames(frames)


def test_a_labelled_frame_need_not_be_in_its_sequence_folder(tmp_path):
    make_snippets(make_cityscapes(tmp_path))
    (tmp_path / "leftImg8bit_sequence/val/frankfurt/frankfurt_000000_000294_leftImg8bit.png").unlink()
    assert [len(sequence) for sequence in cityscapes(tmp_path, "val").sequences] == [30, 30]
