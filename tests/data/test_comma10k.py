"""comma10k in its two layouts: splits by device, colours of masks, and what is refused."""

import random
from pathlib import Path

import pytest
from make_datasets import (
    COMMA10K_CODES,
    comma10k_names,
    found,
    make_comma10k,
    make_comma10k_ids,
    make_folder,
    names_of,
    save_colours,
    save_frame,
    save_ids,
)
from PIL import Image

import streamseg
from streamseg.classes import COMMA10K
from streamseg.data.datasets import comma10k
from streamseg.data.layouts import comma10k_split, device_of
from streamseg.data.shards import open_dataset, pack


@pytest.mark.parametrize("make", [make_comma10k, make_comma10k_ids])
def test_both_layouts_have_the_same_splits_and_labels(tmp_path, make):
    names = comma10k_names(devices=20, frames=2)
    data = make(tmp_path, names)
    train, val, everything = (streamseg.comma10k(data, split) for split in ("train", "val", "trainval"))
    assert names_of(everything) == names
    assert {*names_of(train)} | {*names_of(val)} == {*names}
    assert names_of(val) == [name for name in names if comma10k_split(Path(name)) == "val"]
    assert 0 < len(val) < len(train)
    assert train.classes == COMMA10K
    assert train.sequences == ()
    frame, labels = train[0]
    assert frame.shape == (3, 8, 12)
    assert labels.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 255]


def test_a_device_is_never_in_two_splits():
    chance = random.Random(0)
    devices = [f"{chance.getrandbits(64):016x}" for _ in range(2000)]
    splits = {
        device: {
            comma10k_split(Path(name))
            for name in (
                f"{chance.randrange(10_000):04}_{device}_2018-0{chance.randrange(1, 9)}-11--10-00-00_{i}_{i * 7}.png",
                f"imgs2/{chance.randrange(10_000):05}_e_{device}_2021-02-08--09-26-00_7_{i}.png",
                f"{chance.randrange(10_000):05}_f_{device}_2021-02-08--09-26-00_7_{i}.webp",
            )
        }
        for i, device in enumerate(devices)
    }
    assert all(len(its_splits) == 1 for its_splits in splits.values())
    share = sum(its_splits == {"val"} for its_splits in splits.values()) / len(devices)
    assert share == pytest.approx(0.15, abs=0.02)


def test_the_split_of_a_device_does_not_change():
    devices = ["0085e9e41513078a", "e8e95b54ed6116a6", "b5e785c1fc446ed0", "55d35794f4955cd1", "a61a3fdda26c5345"]
    splits = [comma10k_split(Path(f"0000_{device}_2018-08-19--13-26-08_11_864.png")) for device in devices]
    assert splits == ["val", "train", "val", "val", "train"]


def test_the_second_part_joins_the_first_and_its_frames_without_masks_are_left_out(tmp_path):
    names = comma10k_names(devices=4)
    second = [f"00000_{kind}_{device_of(Path(names[0]))}_2021-02-08--09-26-00_7_646" for kind in "ef"]
    make_comma10k(tmp_path, names)
    make_comma10k(tmp_path, second, tail="2")
    save_frame(tmp_path / "imgs2" / "00001_e_20f59690c1da9379_2021-02-08--17-31-49_10_255.png")
    assert names_of(comma10k(tmp_path, "trainval")) == sorted([*names, *second])
    (tmp_path / "masks" / f"{names[1]}.png").unlink()
    with pytest.raises(FileNotFoundError, match=rf"{names[1]}\.png has no labels: expected .*masks"):
        comma10k(tmp_path, "trainval")


def test_the_driver_camera_is_left_out(tmp_path):
    names = comma10k_names(devices=2)
    make_comma10k(tmp_path, ["00000", "00001"], tail="d")
    with pytest.raises(FileNotFoundError, match="imgsd/, the driver camera, is left out"):
        comma10k(tmp_path, "train")
    make_comma10k(tmp_path, names)
    assert names_of(comma10k(tmp_path, "trainval")) == names


def test_things_in_the_car_are_the_car_and_empty_pixels_have_no_class(tmp_path):
    (name,) = comma10k_names(devices=1)
    make_comma10k(tmp_path, [name])
    save_colours(tmp_path / "masks" / f"{name}.png", [0x00CCFF, 0xFFFFFF, 0x000000])
    assert comma10k(tmp_path, "trainval")[0][1].flatten()[:3].tolist() == [4, 255, 255]


@pytest.mark.parametrize("mode", ["P", "RGBA"])
def test_masks_may_have_a_palette_or_be_transparent(tmp_path, mode):
    (name,) = comma10k_names(devices=1)
    path = make_comma10k(tmp_path, [name]) / "masks" / f"{name}.png"
    Image.open(path).convert(mode, palette=Image.Palette.ADAPTIVE).save(path)
    assert found(comma10k(tmp_path, "trainval")[0][1]) == [0, 1, 2, 3, 4, 255]


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        ([0x402020, 0x123456], r"has colours .* \(#123456\); expected #402020, .*: masks of other classes\.$"),
        ([0x412020, 0xFE0102], r"has colours .* \(#412020, #fe0102\); .* JPEG or smooth scaling"),
        ([*COMMA10K_CODES, *range(0x800000, 0x800040, 2)], r"has colours .*, … 32 in all\); .* JPEG or smooth scaling"),
    ],
)
def test_other_colours_are_named_with_their_likely_cause(tmp_path, codes, sentence):
    (name,) = comma10k_names(devices=1)
    save_colours(make_comma10k(tmp_path, [name]) / "masks" / f"{name}.png", codes)
    with pytest.raises(ValueError, match=sentence):
        _ = comma10k(tmp_path, "trainval")[0]


def test_a_mask_saved_as_jpeg_is_recognised(tmp_path):
    (name,) = comma10k_names(devices=1)
    path = make_comma10k(tmp_path, [name]) / "masks" / f"{name}.png"
    Image.open(path).save(path.with_suffix(".jpg"))
    path.unlink()
    with pytest.raises(ValueError, match=r"\.jpg has colours .* likely cause: JPEG or smooth scaling, which change"):
        _ = comma10k(tmp_path, "trainval")[0]


def test_shards_keep_splits_devices_and_labels(tmp_path):
    names = comma10k_names(devices=10)
    data = make_comma10k(tmp_path / "data", names)
    counts = pack("comma10k", data, tmp_path / "shards")
    for split in ("train", "val"):
        ours, theirs = open_dataset("comma10k", tmp_path / "shards", split), comma10k(data, split)
        assert len(ours) == counts[split]
        assert [device_of(pair.image) for pair in ours.pairs] == [device_of(pair.image) for pair in theirs.pairs]
        assert ours[0][1].equal(theirs[0][1])


def test_ids_in_masks_are_refused(tmp_path):
    (name,) = comma10k_names(devices=1)
    save_ids(make_comma10k(tmp_path, [name]) / "masks" / f"{name}.png", range(5))
    with pytest.raises(ValueError, match=r"expected the classes' colours, not their ids"):
        _ = comma10k(tmp_path, "trainval")[0]


def test_a_name_without_a_device_is_refused(tmp_path):
    make_comma10k(tmp_path, ["0000_0085e9e41513078_2018-08-19--13-26-08_11_864"])
    with pytest.raises(ValueError, match=r"is not a frame of comma10k: expected the device in its name, 16 hex"):
        comma10k(tmp_path, "train")


def test_your_own_folder_is_not_taken_for_comma10k(tmp_path):
    make_folder(tmp_path, "ab")
    with pytest.raises(ValueError, match=r"classes\.txt lists sky, road, grass; comma10k has road, .* give folder as"):
        comma10k(tmp_path, "train")


def test_few_devices_may_leave_val_empty(tmp_path):
    make_comma10k(tmp_path, ["0002_e8e95b54ed6116a6_2018-09-05--22-04-33_2_608"])
    assert len(comma10k(tmp_path, "train")) == 1
    with pytest.raises(ValueError, match=r"The split 'val' of .* is empty; the layout is imgs/ and masks/"):
        comma10k(tmp_path, "val")
