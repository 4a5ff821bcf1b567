import numpy
import pytest
import torch
from make_datasets import comma10k_names, make_comma10k, save_colours
from PIL import Image

from streamseg.data.datasets import folder
from streamseg.evaluate.check import check_dataset, check_frame, format_dataset_report, write_contact_sheet
from streamseg.io.images import read_image


def save(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(numpy.asarray(values, dtype=numpy.uint8)).save(path)


def save_ids(path, *ids):
    save(path, numpy.resize(ids, (32, 48)))


def noise(seed):
    return numpy.random.default_rng(seed).integers(0, 256, (32, 48, 3))


@pytest.fixture
def data(tmp_path):
    """A data set of three classes and ten frames, two of them val, without errors."""
    (tmp_path / "classes.txt").write_text("sky #0000ff\nroad\ngrass\n")
    for i in range(10):
        save(tmp_path / "images" / f"{i}.png", noise(i))
        save_ids(tmp_path / "labels" / f"{i}.png", 0, 1, 2, 255)
    return tmp_path


def the_error(data, name="folder"):
    (error,) = check_dataset(name, data).errors
    return error


def test_a_good_data_set_has_no_errors_and_every_pixel_is_counted(data):
    report = check_dataset("folder", data)
    assert report.errors == report.warnings == ()
    assert report.counts == {"train": 8, "val": 2}
    assert report.pixels == {"train": (3072, 3072, 3072), "val": (768, 768, 768)}
    assert report.ignored == {"train": 3072, "val": 768}


def test_every_missing_file_is_found(data):
    for i in (1, 2, 3):
        (data / f"labels/{i}.png").unlink()
    (data / "images/7.png").unlink()
    no_labels, no_frame = check_dataset("folder", data).errors
    assert "images/1.png has no labels: expected" in no_labels
    assert "(and 2 more: 2.png, 3.png)" in no_labels
    assert "images/7.png is missing" in no_frame


def test_every_unreadable_file_is_found(data):
    for i in (1, 2):
        (data / f"images/{i}.png").write_bytes(b"text")
    whole = (data / "labels/5.png").read_bytes()
    (data / "labels/5.png").write_bytes(whole[: len(whole) // 2 + 10])
    frames, labels = check_dataset("folder", data).errors
    assert "images/1.png is not a picture" in frames
    assert "(and 1 more: 2.png)" in frames
    assert "labels/5.png is damaged" in labels


def test_sizes_that_differ_are_one_error(data):
    for i in (1, 2, 3, 6, 7, 8):
        save(data / f"images/{i}.png", numpy.zeros((32 + i, 48, 3)) + i)
    error = the_error(data)
    assert "images/1.png is 33 x 48 pixels but" in error
    assert "(and 5 more: 2.png, 3.png, 6.png, …)" in error


def test_colours_where_ids_are_expected_are_found(data):
    save(data / "labels/1.png", noise(1))
    assert "labels/1.png is a colour picture (RGB), expected ids" in the_error(data)


@pytest.mark.parametrize(
    ("ids", "cause"),
    [
        ((1, 2, 3), "ids shifted by one: they start from 1"),
        ((0, 1, 2, 3), "one class more than the 3 in the list, or ignored pixels, which should be 255"),
        ((0, 127, 254), "shades of grey for viewing"),
        ((0, 1, 2, 3, 4, 5), "labels of another class list than this one of 3 classes"),
    ],
)
def test_the_error_names_the_likely_cause_of_unknown_ids(data, ids, cause):
    for path in (data / "labels").iterdir():
        save_ids(path, *ids)
    error = the_error(data)
    assert f"likely cause: {cause}" in error
    assert "labels/0.png (and 9 more: 1.png, 2.png, 3.png, …)" in error


def test_unknown_ids_are_kept_without_the_frame(data):
    save_ids(data / "labels/1.png", 0, 3, 4)
    unknown = check_frame(folder(data, "all"), 1).unknown
    assert unknown == ((0, 3, 4), (3, 4), data / "labels/1.png")


def test_labels_in_jpeg_are_recognised(data):
    (data / "labels/3.png").unlink()
    save_ids(data / "labels/3.jpg", 0, 200)
    assert "JPEG changes ids" in the_error(data)


def test_masks_of_0_and_255_are_an_error(data):
    for path in (data / "labels").iterdir():
        save_ids(path, 0, 255)
    assert "Of 3 classes only sky occurs; likely cause: masks of 0 and 255" in the_error(data)


def test_labels_without_any_class_are_an_error(data):
    for path in (data / "labels").iterdir():
        save_ids(path, 255)
    assert "No pixel of train, val has a class: all labels are 255" in the_error(data)


def test_a_split_without_any_class_is_an_error(data):
    for i in (4, 9):
        save_ids(data / f"labels/{i}.png", 255)
    assert "No pixel of val has a class" in the_error(data)


def test_the_labels_of_cityscapes_test_frames_may_be_missing(tmp_path):
    for split, ids in (("train", range(34)), ("test", (0, 1, 3))):
        save(tmp_path / f"leftImg8bit/{split}/a/a_0_0_leftImg8bit.png", noise(len(split)))
        save_ids(tmp_path / f"gtFine/{split}/a/a_0_0_gtFine_labelIds.png", *ids)
    report = check_dataset("cityscapes", tmp_path)
    assert report.errors == ()
    assert report.warnings == ("In test 100% of the pixels have no class.",)


def test_a_list_of_one_class_is_an_error(data):
    (data / "classes.txt").write_text("sky\n")
    for path in (data / "labels").iterdir():
        save_ids(path, 0, 255)
    assert "The only class is sky: add another" in the_error(data)


def test_one_class_of_several_is_an_error(data):
    for path in (data / "labels").iterdir():
        save_ids(path, 1)
    assert the_error(data) == "Of 3 classes only road occurs."


@pytest.mark.parametrize("size", [(31, 48), (32, 31), (1, 1)])
def test_frames_that_are_too_small_for_the_network_are_an_error(data, size):
    for i in (1, 2):
        save(data / f"images/{i}.png", numpy.full((*size, 3), i))
        save(data / f"labels/{i}.png", numpy.zeros(size))
    error = the_error(data)
    assert f"images/1.png is {size[0]} x {size[1]} pixels; expected at least 32 x 32" in error
    assert "(and 1 more: 2.png)" in error


@pytest.mark.parametrize(
    ("ids", "cause"),
    [((0, 18, 255), "these are trainIds"), ((0, 255), "masks of 0 and 255"), ((7, 40, 41), "labels of another")],
)
def test_the_wrong_cityscapes_labels_are_recognised(tmp_path, ids, cause):
    for city, labels in (("a", ids), ("b", range(34))):
        save(tmp_path / f"leftImg8bit/train/{city}/{city}_0_0_leftImg8bit.png", noise(ord(city)))
        save_ids(tmp_path / f"gtFine/train/{city}/{city}_0_0_gtFine_labelIds.png", *labels)
    assert cause in the_error(tmp_path, "cityscapes")


def test_the_wrong_camvid_and_ade20k_labels_are_recognised(tmp_path):
    for name in ("train/0006R0_f00930.png", "images/training/a.png"):
        save(tmp_path / name, noise(0))
    save_ids(tmp_path / "trainannot/0006R0_f00930.png", *range(32))
    assert "12–31 are not in the class list" in the_error(tmp_path, "camvid")
    assert "ids of the 32 original classes" in the_error(tmp_path, "camvid")
    save_ids(tmp_path / "annotations/training/a.png", 0, 1, 149, 255)
    assert "ids shifted down by one" in the_error(tmp_path, "ade20k")


def test_comma10k_is_checked_by_its_colours(tmp_path):
    names = comma10k_names(devices=20)
    report = check_dataset("comma10k", make_comma10k(tmp_path, names, size=(32, 48)))
    assert report.errors == report.warnings == ()
    assert report.counts == {"train": 17, "val": 3}
    assert report.pixels == {"train": (4352,) * 5, "val": (768,) * 5}
    for name, code in ((names[1], 0x412020), (names[2], 0x3F2021)):
        save_colours(tmp_path / "masks" / f"{name}.png", [0x402020, code], size=(32, 48))
    error = the_error(tmp_path, "comma10k")
    assert f"{names[1]}.png has colours that are no class of comma10k (#412020)" in error
    assert "likely cause: JPEG or smooth scaling" in error
    assert f"(and 1 more: {names[2]}.png)" in error


def test_frames_of_comma10k_that_are_left_out_are_counted(tmp_path):
    make_comma10k(tmp_path, comma10k_names(devices=20), size=(32, 48))
    make_comma10k(tmp_path, ["00000", "00001"], "d")
    save(tmp_path / "imgs2/00001_e_20f59690c1da9379_2021-02-08--17-31-49_10_255.png", noise(0))
    report = check_dataset("comma10k", tmp_path)
    assert report.errors == ()
    assert report.warnings == (
        "Frames of the driver camera in imgsd, which are left out: 2.",
        "Frames without a mask in imgs2, which are left out: 1.",
    )


def test_comma10k_as_a_folder_has_devices_in_two_splits(data):
    for i, name in enumerate(comma10k_names(devices=5, frames=2)):
        for kind in ("images", "labels"):
            (data / kind / f"{i}.png").rename(data / kind / f"{name}.png")
    (warning,) = check_dataset("folder", data).warnings
    assert warning.startswith("2 devices of comma10k are in more than one split (")
    assert "give comma10k as the data set, which is split by device." in warning


def test_a_frame_in_two_splits_is_an_error(data):
    (data / "images/4.png").write_bytes((data / "images/2.png").read_bytes())
    error = the_error(data)
    assert "The same frame is in two splits" in error
    assert "images/2.png and" in error
    assert "images/4.png" in error


def test_a_frame_in_two_splits_is_found_even_without_labels(data):
    (data / "images/4.png").write_bytes((data / "images/2.png").read_bytes())
    (data / "labels/2.png").unlink()
    assert ["has no labels" in error or "in two splits" in error for error in check_dataset("folder", data).errors] == [
        True
    ] * 2


def test_a_frame_twice_in_one_split_is_no_error(data):
    (data / "images/3.png").write_bytes((data / "images/2.png").read_bytes())
    assert check_dataset("folder", data).errors == ()


def test_one_mask_of_0_and_255_among_twelve_is_named(data):
    for i in range(12):
        save(data / "images" / f"{i}.png", noise(i))
        save_ids(data / "labels" / f"{i}.png", 0, 1, 2)
    save_ids(data / "labels/7.png", 0, 255)
    error = the_error(data)
    assert f"{data / 'labels/7.png'} holds only 0 and 255, unlike 11 other label files; likely cause: a mask" in error
    save_ids(data / "labels/9.png", 0, 0, 255)
    assert "9.png (and 1 more: 7.png) holds only 0 and 255, unlike 10 other label files" in the_error(data)


def test_a_mask_of_0_and_255_is_a_warning_if_others_ignore_pixels_too(data):
    save_ids(data / "labels/3.png", 0, 255)
    report = check_dataset("folder", data)
    assert report.errors == ()
    (warning,) = report.warnings
    assert f"{data / 'labels/3.png'} holds only 0 and 255, unlike 9 other label files" in warning


@pytest.mark.parametrize("ids", [(0,), (255,), (1, 255), (0, 1, 255)])
def test_a_mask_of_few_other_values_is_no_error(data, ids):
    for i in range(10):
        save_ids(data / "labels" / f"{i}.png", 0, 1, 2)
    save_ids(data / "labels/3.png", *ids)
    assert check_dataset("folder", data).errors == ()


def test_classes_that_never_occur_are_warnings(data):
    for i in range(10):
        save_ids(data / f"labels/{i}.png", *((0, 1) if i == 4 else (0, 255, 255)))
    (data / "classes.txt").write_text("sky\nroad\ngrass\nsea\n")
    report = check_dataset("folder", data)
    assert report.errors == ()
    assert report.warnings == (
        "Classes that never occur: grass, sea.",
        "Classes that never occur in train, and so cannot be learned: road.",
        "In train 67% of the pixels have no class.",
    )


def test_an_empty_split_is_an_error(tmp_path):
    save(tmp_path / "train/0006R0_f00930.png", noise(0))
    save_ids(tmp_path / "trainannot/0006R0_f00930.png", *range(12))
    (tmp_path / "val").mkdir()
    assert the_error(tmp_path, "camvid") == "The split val is empty."


def test_an_unknown_data_set_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="The data set is 'kitti'; expected one of cityscapes, camvid"):
        check_dataset("kitti", tmp_path)
    with pytest.raises(FileNotFoundError, match="No data set of kind camvid in"):
        check_dataset("camvid", tmp_path)


def test_the_text_holds_counts_shares_errors_and_warnings(data):
    save(data / "labels/9.png", noise(1))
    (data / "classes.txt").write_text("sky\nroad\ngrass\nsea\n")
    lines = format_dataset_report(check_dataset("folder", data)).splitlines()
    assert lines[0] == f"folder in {data}"
    assert lines[2].split() == ["train", "val"]
    assert lines[3].split() == ["frames", "8", "2"]
    assert lines[4].split() == ["sky", "25.00%", "25.00%", "█" * 30]
    assert lines[7].split() == ["sea", "0.00%", "0.00%"]
    assert lines[8].split()[0] == "(ignored)"
    assert any(line.startswith("error: ") and "colour picture" in line for line in lines)
    assert "warning: Classes that never occur: sea." in lines
    assert lines[-1] == "1 error, 1 warning"


def test_a_report_without_usable_frames_can_be_printed_but_not_drawn(data, tmp_path):
    for path in (data / "images").iterdir():
        path.write_bytes(path.name.encode())
    report = check_dataset("folder", data)
    assert "0.00%" in format_dataset_report(report)
    with pytest.raises(ValueError, match="has no frame without errors to draw"):
        write_contact_sheet(tmp_path / "sheet.png", report)
    assert not (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize(("frames", "size"), [(3, (260, 960)), (10, (780, 1280)), (40, (780, 1280))])
def test_the_contact_sheet_shows_up_to_twelve_frames_with_their_labels(data, frames, size):
    for path in [*(data / "images").iterdir(), *(data / "labels").iterdir()]:
        path.unlink()
    for i in range(frames):
        save(data / f"images/{i:03}-{'long' * 30}.png", numpy.zeros((36, 48, 3)))
        save(data / f"labels/{i:03}-{'long' * 30}.png", numpy.zeros((36, 48)))
    report = check_dataset("folder", data)
    assert len(report.samples) == min(12, frames)
    write_contact_sheet(data / "sheet.png", report)
    sheet = read_image(data / "sheet.png")
    assert sheet.shape[1:] == size
    # half black, half the blue of the sky, and a caption below
    assert sheet[:, 120, 160].equal(torch.tensor([0, 0, 128], dtype=torch.uint8))
    assert sheet[:, 242:258, :320].min() < 100
    assert sheet[:, 242:258, 316:320].min() == 255


def test_the_contact_sheet_needs_a_suffix_of_a_picture(data):
    with pytest.raises(ValueError, match="expected one of .png"):
        write_contact_sheet(data / "sheet.txt", check_dataset("folder", data))
