"""Miniatures of each data set in its real layout."""

import sys
import threading
import time

import numpy
import pytest
import torch
from PIL import Image

from streamseg.classes import ADE20K, CAMVID, CITYSCAPES, COCO_STUFF, COCO_STUFF_182, IGNORE
from streamseg.datasets import (
    CAMVID_COLOURS,
    DATASETS,
    Dataset,
    ade20k,
    camvid,
    cityscapes,
    coco_stuff,
    folder,
    in_parallel,
    ranges,
    read_pairs,
)
from streamseg.images import read_colour_codes, read_ids


def save_frame(path, seed=0, size=(8, 12)):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = numpy.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=numpy.uint8)
    Image.fromarray(values).save(path)


def save_ids(path, ids, size=(8, 12)):
    """A label file whose rows go through the ids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = numpy.resize(numpy.array(ids, dtype=numpy.uint8), size[0] * size[1]).reshape(size)
    Image.fromarray(values).save(path)


def found(labels):
    return labels.unique().tolist()


def make_cityscapes(data):
    for split, city, name in [
        ("train", "ulm", "ulm_000001_000019"),
        ("train", "aachen", "aachen_000000_000019"),
        ("val", "frankfurt", "frankfurt_000000_000294"),
        ("val", "frankfurt", "frankfurt_000000_000576"),
    ]:
        save_frame(data / "leftImg8bit" / split / city / f"{name}_leftImg8bit.png")
        save_ids(data / "gtFine" / split / city / f"{name}_gtFine_labelIds.png", range(34))
        save_frame(data / "gtFine" / split / city / f"{name}_gtFine_color.png")
    return data


def make_camvid(data, split, names, suffix=".png"):
    for i, name in enumerate(names):
        save_frame(data / split / f"{name}{suffix}", i)
        save_ids(data / f"{split}annot" / f"{name}.png", range(12))
    return data


def make_folder(data, names, ids=(0, 1, 2, 255), classes="sky\nroad #804080\ngrass\n"):
    for i, name in enumerate(names):
        save_frame(data / "images" / f"{name}.jpg", i)
        save_ids(data / "labels" / f"{name}.png", ids)
    (data / "classes.txt").write_text(classes)
    return data


def names_of(dataset):
    return [pair.image.stem for pair in dataset.pairs]


def test_cityscapes_ids_become_19_classes(tmp_path):
    dataset = cityscapes(make_cityscapes(tmp_path), "train")
    assert names_of(dataset) == ["aachen_000000_000019_leftImg8bit", "ulm_000001_000019_leftImg8bit"]
    frame, labels = dataset[0]
    assert (frame.shape, frame.dtype) == ((3, 8, 12), torch.uint8)
    assert (labels.shape, labels.dtype) == ((8, 12), torch.uint8)
    assert dataset.classes == CITYSCAPES
    assert labels.flatten()[:34].tolist() == (
        [255] * 7
        + [0, 1, 255, 255, 2, 3, 4, 255, 255, 255, 5, 255, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255, 255, 16]
        + [17, 18]
    )
    assert dataset.sequences == ()
    assert dataset.clips(1) == []


def test_cityscapes_clips_end_in_the_labelled_frame(tmp_path):
    video = make_cityscapes(tmp_path) / "leftImg8bit_sequence" / "val" / "frankfurt"
    for number in [*range(275, 305), *range(557, 587)]:
        save_frame(video / f"frankfurt_000000_{number:06}_leftImg8bit.png", number)
    dataset = cityscapes(tmp_path, "val")
    assert [len(sequence) for sequence in dataset.sequences] == [30, 30]
    clips = dataset.clips(20)
    assert [clip.labels for clip in clips] == [pair.labels for pair in dataset.pairs]
    assert [path.stem.split("_")[2] for path in clips[0].images] == [f"{number:06}" for number in range(275, 295)]
    assert dataset.clips(21) == []


def test_cityscapes_train_ids_are_refused(tmp_path):
    save_ids(make_cityscapes(tmp_path) / "gtFine/train/ulm/ulm_000001_000019_gtFine_labelIds.png", [0, 18, 255])
    with pytest.raises(
        ValueError, match=r"ulm_000001_000019_gtFine_labelIds.png holds ids .* class: 255; expected 0–33"
    ):
        _ = cityscapes(tmp_path, "train")[1]


@pytest.mark.parametrize("suffix", [".png", ".webp", ".jpg", ".tif"])
@pytest.mark.parametrize(
    "line", ["", "{0}", "{0}.png", "/SegNet/CamVid/train/{0}.png /SegNet/CamVid/trainannot/{0}.png", "train/{0}.png x"]
)
def test_camvid_as_segnet_laid_it_out(tmp_path, suffix, line):
    names = ["0001TP_006690", "0001TP_006720", "0006R0_f00930"]
    make_camvid(tmp_path, "train", names, suffix)
    if line:
        (tmp_path / "train.txt").write_text("\n".join(line.format(name) for name in reversed(names)) + "\n\n")
    dataset = camvid(tmp_path, "train")
    assert names_of(dataset) == names
    assert dataset.classes == CAMVID
    assert found(dataset[0][1]) == [*range(11), 255]


def test_a_list_leaves_out_what_it_does_not_name(tmp_path):
    make_camvid(tmp_path, "val", ["0016E5_07959", "0016E5_07961"])
    (tmp_path / "val.txt").write_text("0016E5_07961\n")
    assert names_of(camvid(tmp_path, "val")) == ["0016E5_07961"]


def test_camvid_sequences_break_at_gaps_and_not_at_a_frame_that_is_late_by_one(tmp_path):
    numbers = [840, 870, 901, 930, 2400, 2430]
    make_camvid(tmp_path, "train", [f"0016E5_{number:05}" for number in numbers] + ["0006R0_f00930", "0006R0_f00960"])
    make_camvid(tmp_path, "val", [f"0016E5_{number:05}" for number in range(7959, 7969, 2)])
    dataset = camvid(tmp_path, "trainval")
    assert [len(sequence) for sequence in dataset.sequences] == [2, 4, 2, 5]
    assert len(dataset.clips(1)) == len(dataset) == 13
    assert [clip.images[-1].stem for clip in dataset.clips(3)] == [
        "0016E5_00901",
        "0016E5_00930",
        "0016E5_07963",
        "0016E5_07965",
        "0016E5_07967",
    ]
    assert all(clip.labels.stem == clip.images[-1].stem for clip in dataset.clips(2))


def test_the_original_camvid_is_split_367_101_233_by_its_numbers(tmp_path):
    names = [f"0001TP_{number:06}" for number in range(6690, 6690 + 30 * 124, 30)]
    names += [f"0006R0_f{number:05}" for number in range(930, 3931, 30)]
    names += [f"0016E5_{number:05}" for number in [*range(390, 390 + 30 * 204, 30), *range(7959, 8160, 2)]]
    names += [f"Seq05VD_f{number:05}" for number in range(0, 30 * 171, 30)]
    for folder_, tail in (("701_StillsRaw_full", ""), ("LabeledApproved_full", "_L")):
        (tmp_path / folder_).mkdir()
        for name in names:
            (tmp_path / folder_ / f"{name}{tail}.png").touch()
    sizes = {split: len(camvid(tmp_path, split)) for split in ("train", "val", "test", "trainval")}
    assert sizes == {"train": 367, "val": 101, "test": 233, "trainval": 468}
    assert [len(sequence) for sequence in camvid(tmp_path, "test").sequences] == [62, 171]


def test_the_original_camvid_is_read_by_its_colours(tmp_path):
    codes = [int(code, 16) for _, code in CAMVID_COLOURS] + [0x000000, 0x010203]
    assert len(set(codes)) == 24
    pixels = numpy.array([[[code >> 16, code >> 8 & 255, code & 255] for code in codes]], dtype=numpy.uint8)
    save_frame(tmp_path / "701_StillsRaw_full" / "0006R0_f00930.png", size=(1, 24))
    (tmp_path / "LabeledApproved_full").mkdir()
    Image.fromarray(pixels).save(tmp_path / "LabeledApproved_full" / "0006R0_f00930_L.png")
    _, labels = camvid(tmp_path, "train")[0]
    assert labels[0].tolist() == [label for label, _ in CAMVID_COLOURS] + [IGNORE, IGNORE]
    # a class is drawn in the colour that the original files give it
    for i, (red, green, blue) in enumerate(CAMVID.colours):
        assert labels[0, codes.index(red << 16 | green << 8 | blue)] == i


@pytest.mark.parametrize("maps", ["annotations", "stuffthingmaps"])
def test_coco_stuff_164k_loses_the_ids_that_never_occur(tmp_path, maps):
    save_frame(tmp_path / "images/train2017/000000000009.jpg", size=(10, 20))
    ids = [i for i, name in enumerate(COCO_STUFF_182.names) if name in COCO_STUFF.names]
    save_ids(tmp_path / maps / "train2017/000000000009.png", [*ids, 255], size=(10, 20))
    save_ids(tmp_path / maps / "train2017/000000000009_labelTrainIds.png", [0], size=(10, 20))
    dataset = coco_stuff(tmp_path, "train")
    assert len(dataset) == 1
    assert dataset[0][1].flatten()[:172].tolist() == [*range(171), 255]
    assert dataset.classes.names[dataset[0][1].flatten()[11]] == COCO_STUFF_182.names[12]
    save_ids(tmp_path / maps / "train2017/000000000009.png", [11], size=(10, 20))
    with pytest.raises(ValueError, match="stand for no class: 11"):
        _ = dataset[0]


def make_coco_10k(data):
    for name in ("COCO_train2014_000000000077", "COCO_train2014_000000000109"):
        save_frame(data / "images" / f"{name}.jpg")
        (data / "annotations").mkdir(exist_ok=True)
        (data / "annotations" / f"{name}.mat").touch()
    (data / "imageLists").mkdir()
    (data / "imageLists/train.txt").write_text("COCO_train2014_000000000077\n")
    (data / "imageLists/test.txt").write_text("COCO_train2014_000000000109\n")
    return data


def test_coco_stuff_10k_is_read_from_matlab_files(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    ids = numpy.resize(numpy.array([0, 1, 11, 13, 182], dtype=numpy.uint8), (8, 12))
    for path in (make_coco_10k(tmp_path) / "annotations").iterdir():
        scipy_io.savemat(path, {"S": ids, "names": "x"})
    _, labels = coco_stuff(tmp_path, "train")[0]
    assert labels[0, :5].tolist() == [255, 0, 10, 11, 170]
    (tmp_path / "annotations/COCO_train2014_000000000077.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(ValueError, match="000000000077.mat is no whole MATLAB file"):
        _ = coco_stuff(tmp_path, "train")[0]


def test_coco_stuff_10k_without_scipy_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    dataset = coco_stuff(make_coco_10k(tmp_path), "val")
    assert names_of(dataset) == names_of(coco_stuff(tmp_path, "test")) == ["COCO_train2014_000000000109"]
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'streamseg\[train\]'"):
        _ = dataset[0]


@pytest.mark.parametrize("inner", ["", "ADEChallengeData2016"])
def test_ade20k_moves_down_by_one(tmp_path, inner):
    save_frame(tmp_path / inner / "images/validation/ADE_val_00000001.jpg", size=(10, 20))
    save_ids(tmp_path / inner / "annotations/validation/ADE_val_00000001.png", range(151), size=(10, 20))
    dataset = ade20k(tmp_path, "val")
    assert dataset.classes == ADE20K
    assert dataset[0][1].flatten()[:151].tolist() == [255, *range(150)]
    with pytest.raises(ValueError, match="No split 'train' .* which has val; the layout is images/training/"):
        ade20k(tmp_path, "train")


def test_of_ones_own_pictures_every_fifth_is_val(tmp_path):
    names = [f"{i:02}" for i in range(11)]
    make_folder(tmp_path, names)
    train, val, everything = (folder(tmp_path, split) for split in ("train", "val", "all"))
    assert names_of(val) == ["04", "09"]
    assert names_of(everything) == names
    assert {*names_of(train)} | {*names_of(val)} == {*names}
    assert not {*names_of(train)} & {*names_of(val)}
    assert found(train[0][1]) == [0, 1, 2, 255]
    assert train.classes.names == ("sky", "road", "grass")
    assert train.classes.colours[1] == (0x80, 0x40, 0x80)
    assert len({*train.classes.colours}) == 3


def test_ones_own_splits_are_folders(tmp_path):
    make_folder(tmp_path, ["train/b", "train/a", "holdout/c"])
    assert names_of(folder(tmp_path, "train")) == ["a", "b"]
    assert names_of(folder(tmp_path, "holdout")) == ["c"]
    assert names_of(folder(tmp_path, "all")) == ["a", "b", "c"]
    save_frame(tmp_path / "images" / "stray.png")
    with pytest.raises(ValueError, match=r"holds splits \(holdout, train\) and also 1 pictures"):
        folder(tmp_path, "train")


def test_ones_own_splits_are_lists(tmp_path):
    make_folder(tmp_path, ["a", "b 1", "c.d"])
    (tmp_path / "train.txt").write_text("c.d\nb 1.jpg\n")
    (tmp_path / "test.txt").write_text("a\n")
    assert names_of(folder(tmp_path, "train")) == ["b 1", "c.d"]
    assert names_of(folder(tmp_path, "test")) == ["a"]
    assert names_of(folder(tmp_path, "all")) == ["a", "b 1", "c.d"]


def test_colours_that_are_made_up_differ(tmp_path):
    make_folder(tmp_path, ["a"], classes="\n".join(["first #e61717", *(f"class {i}" for i in range(200))]))
    colours = folder(tmp_path, "all").classes.colours
    assert colours[0] == (0xE6, 0x17, 0x17)
    assert len({*colours}) == 201


@pytest.mark.parametrize("text", ["", "a\na\n", "a #12345g\x07\n"])
def test_a_bad_class_file_is_named(tmp_path, text):
    make_folder(tmp_path, ["a"], classes=text)
    with pytest.raises(ValueError, match=r"classes\.txt: "):
        folder(tmp_path, "all")


@pytest.mark.parametrize("name", DATASETS)
def test_a_wrong_folder_says_what_was_expected(tmp_path, name):
    for data in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match=f"No {name} data in .*: expected there .*/"):
            DATASETS[name](data, "train")


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


def test_a_frame_without_labels_and_labels_without_a_frame_are_named(tmp_path):
    make_folder(tmp_path, "ab")
    (tmp_path / "labels/a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"images/a\.jpg has no labels: expected .*labels/a\.png"):
        folder(tmp_path, "train")
    (tmp_path / "images/a.jpg").unlink()
    (tmp_path / "images/b.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"images/b\.png is missing though there are labels .*labels/b\.png"):
        folder(tmp_path, "train")


def test_two_frames_of_one_name_are_refused(tmp_path):
    save_frame(make_folder(tmp_path, "ab") / "images/a.png")
    with pytest.raises(ValueError, match=r"a\.jpg and .*a\.png have one name"):
        folder(tmp_path, "train")


def test_files_that_are_no_pictures_are_left_alone(tmp_path):
    make_folder(tmp_path, "ab")
    for name in ("images/Thumbs.db", "images/._a.jpg", "labels/.DS_Store", "labels/notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert names_of(folder(tmp_path, "all")) == ["a", "b"]


def test_sizes_that_differ_are_named(tmp_path):
    make_folder(tmp_path, "ab")
    save_ids(tmp_path / "labels/a.png", [0], size=(4, 6))
    save_ids(tmp_path / "labels/b.png", [0], size=(12, 8))
    dataset = folder(tmp_path, "all")
    with pytest.raises(ValueError, match=r"a\.jpg is 12 x 8 pixels but .*a\.png is 6 x 4; make them the same size"):
        _ = dataset[0]
    with pytest.raises(ValueError, match=r"b\.png is 8 x 12; turn the labels upright"):
        _ = dataset[1]


def test_foreign_ids_are_named(tmp_path):
    make_folder(tmp_path, "a", ids=(0, 3, 4, 9))
    with pytest.raises(ValueError, match=r"a\.png holds ids that stand for no class: 3–4, 9; expected 0–2, 255"):
        _ = folder(tmp_path, "all")[0]


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16", "I"])
def test_ids_are_read_as_they_are(tmp_path, name, mode):
    if (name, mode) == ("a.png", "I"):
        pytest.skip("PIL writes no PNG of 32 bits")
    ids = numpy.array([[0, 1], [1, 0]]) if mode == "1" else numpy.array([[0, 1], [11, 255]])
    if mode.startswith("I"):
        ids[1, 1] = 1000
    kinds = {"I;16": numpy.uint16, "I": numpy.int32, "1": bool}
    picture = Image.fromarray(ids.astype(kinds.get(mode, numpy.uint8)))
    if mode == "P":
        picture.putpalette([7] * 768)
    picture.save(tmp_path / name)
    assert read_ids(tmp_path / name).tolist() == ids.tolist()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK"])
def test_a_colour_picture_is_no_label_file(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match=r"a\.tiff is a colour picture .*; ids expected"):
        read_ids(tmp_path / "a.tiff")


def test_a_grey_picture_shows_no_colours(tmp_path):
    save_ids(tmp_path / "a.png", [0])
    with pytest.raises(ValueError, match=r"a\.png is no colour picture"):
        read_colour_codes(tmp_path / "a.png")


def test_damaged_labels_are_named(tmp_path):
    make_folder(tmp_path, "a")
    (tmp_path / "labels/a.png").write_bytes(b"PNG")
    with pytest.raises(ValueError, match=r"labels/a\.png is not a picture"):
        _ = folder(tmp_path, "all")[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_keep_the_order(tmp_path, threads):
    dataset = folder(make_folder(tmp_path, "abcdefgh"), "all")
    indices = [3, 0, 7, 7, 1, 2, 6, 5, 4, -1]
    for i, (frame, labels) in zip(indices, read_pairs(dataset, indices, threads), strict=True):
        assert frame.equal(dataset[i][0])
        assert labels.equal(dataset[i][1])


def test_threads_look_ahead_only_a_little():
    taken = []
    items = (taken.append(i) or i for i in range(1000))
    results = in_parallel(lambda i: i, items, threads=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) < 10
    before = threading.active_count()
    results.close()
    assert threading.active_count() < before


def test_slow_work_is_shared_among_threads():
    start = time.perf_counter()
    assert list(in_parallel(lambda i: time.sleep(0.1) or i, range(8), threads=8)) == [*range(8)]
    assert time.perf_counter() - start < 0.5


def test_an_error_in_a_thread_reaches_the_reader(tmp_path):
    dataset = folder(make_folder(tmp_path, "abc"), "all")
    (tmp_path / "images/b.jpg").write_bytes(b"")
    pairs = read_pairs(dataset, range(3), threads=2)
    next(pairs)
    with pytest.raises(ValueError, match=r"b\.jpg is not a picture"):
        next(pairs)


def test_a_clip_has_a_frame():
    with pytest.raises(ValueError, match="A clip of 0 frames; expected 1 or more"):
        Dataset("folder", "train", CAMVID, (), read_ids).clips(0)


def test_ranges_are_short():
    assert ranges([3, 1, 2, 255, 7, 8]) == "1–3, 7–8, 255"
