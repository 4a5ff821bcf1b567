"""Each data set in its real layout, with small files."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from make_datasets import found, make_camvid, make_cityscapes, make_folder, names_of, save_frame, save_ids

from streamseg.classes import ADE20K, CAMVID, CITYSCAPES, COCO_STUFF, COCO_STUFF_182
from streamseg.data.datasets import ade20k, camvid, cityscapes, coco_stuff, folder
from streamseg.data.layouts import distance, fill_colours, frame_before, list_folder


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


def test_a_list_leaves_out_other_files(tmp_path):
    make_camvid(tmp_path, "val", ["0016E5_07959", "0016E5_07961"])
    (tmp_path / "val.txt").write_text("0016E5_07961\n")
    assert names_of(camvid(tmp_path, "val")) == ["0016E5_07961"]


def test_camvid_sequences_end_at_gaps_but_not_at_a_frame_that_is_one_late(tmp_path):
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


@pytest.mark.parametrize("maps", ["annotations", "stuffthingmaps"])
def test_coco_stuff_164k_skips_the_ids_that_never_occur(tmp_path, maps):
    save_frame(tmp_path / "images/train2017/000000000009.jpg", size=(10, 20))
    ids = [i for i, name in enumerate(COCO_STUFF_182.names) if name in COCO_STUFF.names]
    save_ids(tmp_path / maps / "train2017/000000000009.png", [*ids, 255], size=(10, 20))
    save_ids(tmp_path / maps / "train2017/000000000009_labelTrainIds.png", [0], size=(10, 20))
    dataset = coco_stuff(tmp_path, "train")
    assert len(dataset) == 1
    assert dataset[0][1].flatten()[:172].tolist() == [*range(171), 255]
    assert dataset.classes.names[dataset[0][1].flatten()[11]] == COCO_STUFF_182.names[12]
    save_ids(tmp_path / maps / "train2017/000000000009.png", [11], size=(10, 20))
    with pytest.raises(ValueError, match="not in the class list: 11"):
        _ = dataset[0]


@pytest.mark.parametrize("inner", ["", "ADEChallengeData2016"])
def test_ade20k_ids_are_shifted_down_by_one(tmp_path, inner):
    save_frame(tmp_path / inner / "images/validation/ADE_val_00000001.jpg", size=(10, 20))
    save_ids(tmp_path / inner / "annotations/validation/ADE_val_00000001.png", range(151), size=(10, 20))
    dataset = ade20k(tmp_path, "val")
    assert dataset.classes == ADE20K
    assert dataset[0][1].flatten()[:151].tolist() == [255, *range(150)]
    with pytest.raises(ValueError, match="No split 'train' .* which has val; the layout is images/training/"):
        ade20k(tmp_path, "train")


def test_of_your_own_pictures_every_fifth_is_val(tmp_path):
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


def test_splits_can_be_folders(tmp_path):
    make_folder(tmp_path, ["train/b", "train/a", "holdout/c"])
    assert names_of(folder(tmp_path, "train")) == ["a", "b"]
    assert names_of(folder(tmp_path, "holdout")) == ["c"]
    assert names_of(folder(tmp_path, "all")) == ["a", "b", "c"]
    save_frame(tmp_path / "images" / "stray.png")
    with pytest.raises(ValueError, match=r"has splits \(holdout, train\) and 1 pictures"):
        folder(tmp_path, "train")


def test_splits_can_be_lists(tmp_path):
    make_folder(tmp_path, ["a", "b 1", "c.d"])
    (tmp_path / "train.txt").write_text("c.d\nb 1.jpg\n")
    (tmp_path / "test.txt").write_text("a\n")
    assert names_of(folder(tmp_path, "train")) == ["b 1", "c.d"]
    assert names_of(folder(tmp_path, "test")) == ["a"]
    assert names_of(folder(tmp_path, "all")) == ["a", "b 1", "c.d"]


def test_a_video_is_a_folder_and_may_be_labelled_in_part(tmp_path):
    names = [*(f"val/a/{i}" for i in (1, 2, 9, 10, 11)), "val/b/x_1", "val/b/x_3", "val/b/x_5", "train/c"]
    make_folder(tmp_path, names)
    (tmp_path / "labels/val/a/9.png").unlink()
    dataset = folder(tmp_path, "val")
    assert [pair.image.relative_to(tmp_path / "images/val").as_posix() for pair in dataset.pairs] == [
        *(f"a/{i}.jpg" for i in (1, 10, 11, 2)),
        *(f"b/x_{i}.jpg" for i in (1, 3, 5)),
    ]
    assert [[path.stem for path in sequence] for sequence in dataset.sequences] == [
        ["1", "2"],
        ["9", "10", "11"],
        ["x_1", "x_3", "x_5"],
    ]
    assert folder(tmp_path, "train").sequences == ()
    assert folder(tmp_path, "all").sequences == dataset.sequences
    assert len(folder(tmp_path, "all")) == 8


def test_a_video_without_any_label_is_an_error(tmp_path):
    make_folder(tmp_path, ["val/a/1", "val/a/2"])
    for path in (tmp_path / "labels/val/a").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"a/1\.jpg has no labels: expected .*labels/val/a/1\.png"):
        folder(tmp_path, "val")


def test_the_frame_before_has_the_number_before():
    for name, before in (("0016E5_07960.png", "0016E5_07959.png"), ("a_100_leftImg8bit.png", "a_099_leftImg8bit.png")):
        assert frame_before(Path("val") / name) == before


def test_chosen_colours_differ(tmp_path):
    make_folder(tmp_path, ["a"], classes="\n".join(["first #e61717", *(f"class {i}" for i in range(200))]))
    colours = folder(tmp_path, "all").classes.colours
    assert colours[0] == (0xE6, 0x17, 0x17)
    assert len({*colours}) == 201
    few = fill_colours([None, (255, 0, 0), None, None])
    assert min(distance(a, b) for a, b in combinations([(0, 0, 0), *few], 2)) > 150**2


@pytest.mark.parametrize("text", ["", "a\u202e\n"])
def test_a_bad_class_file_is_named(tmp_path, text):
    make_folder(tmp_path, ["a"], classes=text)
    with pytest.raises(ValueError, match=r"classes\.txt: "):
        folder(tmp_path, "all")


@pytest.mark.parametrize(
    "line",
    [
        "ground #zzz",
        "ground #12345",
        "ground #1234567",
        "ground #12345g\u202e",
        "ground #804080 #ff0000 x",
        "ground#804080",
        "ground 804080",
        "ground 0x804080",
        "ground 128 64 128",
        "ground (128, 64, 128)",
        "ground, 128,64,128",
        "#804080",
        "# my classes",
    ],
)
def test_a_wrong_colour_is_named_with_its_line(tmp_path, line):
    make_folder(tmp_path, ["a"], classes=f"sky\n\n{line}\n")
    with pytest.raises(
        ValueError, match=r'classes\.txt, line 3: .* expected "name" or "name #rrggbb", such as'
    ) as caught:
        folder(tmp_path, "all")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("again", ["ground", "Ground", "ground #804080", "GROUND  #00ff00"])
def test_a_class_that_occurs_twice_is_named_with_its_line(tmp_path, again):
    make_folder(tmp_path, ["a"], classes=f"ground\nsky\n{again}\n")
    with pytest.raises(
        ValueError, match=r"classes\.txt, line 3: '[Gg].*' is already in the list, as 'ground': give each"
    ):
        folder(tmp_path, "all")


def test_names_that_resemble_colours_are_names(tmp_path):
    names = ["glass facade", "C#", "lane 1", "route 66", "size 10 20", "a#b", "sector 7 of 9", "12", "decade"]
    make_folder(tmp_path, ["a"], classes="\n".join(names) + "\nred thing #FF0000\n")
    classes = folder(tmp_path, "all").classes
    assert classes.names == (*names, "red thing")
    assert classes.colours[-1] == (255, 0, 0)


def test_two_frames_with_the_same_name_are_refused(tmp_path):
    save_frame(make_folder(tmp_path, "ab") / "images/a.png")
    with pytest.raises(ValueError, match=r"a\.jpg and .*a\.png have the same name"):
        folder(tmp_path, "train")


def test_files_that_are_no_pictures_are_ignored(tmp_path):
    make_folder(tmp_path, "ab")
    for name in ("images/Thumbs.db", "images/._a.jpg", "labels/.DS_Store", "labels/notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert names_of(folder(tmp_path, "all")) == ["a", "b"]


@pytest.mark.parametrize("kind", ["images", "labels"])
@pytest.mark.parametrize("names", ["ab", ["train/a", "val/b"]])
def test_hidden_folders_and_folders_without_pictures_are_no_splits(tmp_path, kind, names):
    make_folder(tmp_path, names)
    for hidden in (".thumbnails", "@eaDir"):
        save_frame(tmp_path / kind / hidden / "a.jpg")
        save_frame(tmp_path / kind / hidden / "stray.jpg")
    (tmp_path / kind / "notes").mkdir()
    (tmp_path / kind / "notes" / "read me.txt").touch()
    assert list(list_folder(tmp_path)) == (["train"] if names == "ab" else ["train", "val"])
    assert names_of(folder(tmp_path, "all")) == ["a", "b"]


@pytest.mark.parametrize("name", ["classes.txt", "train.txt"])
@pytest.mark.parametrize("letter", ["\x00", "\x07", "\x1b"])
def test_a_text_file_with_control_characters_is_named(tmp_path, name, letter):
    make_folder(tmp_path, ["a"])
    (tmp_path / name).write_text(f"a\nb{letter}\n")
    with pytest.raises(ValueError, match=rf"{name} holds '\\x.*', which is not text: save it as text"):
        folder(tmp_path, "all")


@pytest.mark.parametrize("name", ["classes.txt", "train.txt"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_text_file_that_is_not_utf_8_is_named(tmp_path, name, encoding):
    (make_folder(tmp_path, "ab") / name).write_bytes("Straße\n".encode(encoding))
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is not UTF-8 text: save it as UTF-8\.$"):
        folder(tmp_path, "all")
