import sys
from pathlib import Path

import numpy
import pytest
import torch
from make_datasets import make_cityscapes, make_coco_10k, make_folder, names_of, save_frame, save_ids
from PIL import Image

from streamseg.classes import CAMVID, IGNORE
from streamseg.data.datasets import camvid, cityscapes, coco_stuff, folder
from streamseg.data.labels import CAMVID_COLOURS, UnknownIdsError, colour_table, format_ranges, translate


def test_ids_become_labels():
    label_of = {3: 0, 7: 254, 8: IGNORE, 200: 1}
    ids = torch.tensor([*label_of])[torch.randint(4, (33, 47), generator=torch.Generator().manual_seed(0))].int()
    labels = translate(ids, label_of, Path("a.png"))
    assert (labels.shape, labels.dtype) == (ids.shape, torch.uint8)
    assert labels.flatten().tolist() == [label_of[id] for id in ids.flatten().tolist()]
    assert translate(ids.T, label_of, Path("a.png")).equal(labels.T)


@pytest.mark.parametrize("unknown", [-1, -(2**31), 0, 4, 201, 256, 65535, 2**31 - 1])
def test_any_id_that_is_no_class_is_unknown(tmp_path, unknown):
    ids = torch.tensor([[3, 7], [unknown, 7]], dtype=torch.int32)
    with pytest.raises(
        UnknownIdsError, match=rf"a\.png holds ids that are not in the class list: {unknown}; expected"
    ) as caught:
        translate(ids, {3: 0, 7: 1, 200: 2}, tmp_path / "a.png")
    assert caught.value.unknown == [unknown]
    assert caught.value.ids == sorted([3, 7, unknown])


def test_the_original_camvid_is_read_by_its_colours(tmp_path):
    codes = [int(code, 16) for _, code in CAMVID_COLOURS] + [0x000000, 0x010203]
    assert len(set(codes)) == 24
    pixels = numpy.array([[[code >> 16, code >> 8 & 255, code & 255] for code in codes]], dtype=numpy.uint8)
    save_frame(tmp_path / "701_StillsRaw_full" / "0006R0_f00930.png", size=(1, 24))
    (tmp_path / "LabeledApproved_full").mkdir()
    Image.fromarray(pixels).save(tmp_path / "LabeledApproved_full" / "0006R0_f00930_L.png")
    _, labels = camvid(tmp_path, "train")[0]
    assert labels[0].tolist() == [label for label, _ in CAMVID_COLOURS] + [IGNORE, IGNORE]
    # a class has the colour of the original files
    for i, (red, green, blue) in enumerate(CAMVID.colours):
        assert labels[0, codes.index(red << 16 | green << 8 | blue)] == i


def test_the_32_classes_of_the_original_camvid_become_the_11_of_the_benchmark():
    # label_colors.txt, as Cambridge published it, and the class of each; a dash: void
    published = """
        64 128 64 Animal -, 192 0 128 Archway -, 0 128 192 Bicyclist Bicyclist, 0 128 64 Bridge -, 128 0 0
        Building Building, 64 0 128 Car Car, 64 0 192 CartLuggagePram -, 192 128 64 Child -, 192 192 128
        Column_Pole Pole, 64 64 128 Fence Fence, 128 0 192 LaneMkgsDriv Road, 192 0 64 LaneMkgsNonDriv Road,
        128 128 64 Misc_Text SignSymbol, 192 0 192 MotorcycleScooter Bicyclist, 128 64 64 OtherMoving -, 64
        192 128 ParkingBlock Pavement, 64 64 0 Pedestrian Pedestrian, 128 64 128 Road Road, 128 128 192
        RoadShoulder Road, 0 0 192 Sidewalk Pavement, 192 128 128 SignSymbol SignSymbol, 128 128 128 Sky Sky,
        64 128 192 SUVPickupTruck Car, 0 0 64 TrafficCone -, 0 64 64 TrafficLight SignSymbol, 192 64 128 Train
        -, 128 128 0 Tree Tree, 192 128 192 Truck_Bus Car, 64 0 64 Tunnel -, 192 192 0 VegetationMisc Tree, 0
        0 0 Void -, 64 192 0 Wall Building"""
    entries = [entry.split() for entry in published.split(",")]
    assert len({tuple(entry[:3]) for entry in entries}) == 32
    table = colour_table(CAMVID_COLOURS, IGNORE)
    for red, green, blue, name, group in entries:
        label = table[int(red) << 16 | int(green) << 8 | int(blue)].item()
        assert label == (IGNORE if group == "-" else CAMVID.names.index(group)), name


def test_coco_stuff_10k_is_read_from_matlab_files(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    ids = numpy.resize(numpy.array([0, 1, 11, 13, 182], dtype=numpy.uint8), (8, 12))
    for path in (make_coco_10k(tmp_path) / "annotations").iterdir():
        scipy_io.savemat(path, {"S": ids, "names": "x"})
    _, labels = coco_stuff(tmp_path, "train")[0]
    assert labels[0, :5].tolist() == [255, 0, 10, 11, 170]
    (tmp_path / "annotations/COCO_train2014_000000000077.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(ValueError, match="000000000077.mat is not a MATLAB file with ids in S, or is damaged"):
        _ = coco_stuff(tmp_path, "train")[0]


def test_coco_stuff_10k_without_scipy_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    dataset = coco_stuff(make_coco_10k(tmp_path), "val")
    assert names_of(dataset) == names_of(coco_stuff(tmp_path, "test")) == ["COCO_train2014_000000000109"]
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'streamseg\[train\]'"):
        _ = dataset[0]


def test_cityscapes_train_ids_are_refused(tmp_path):
    save_ids(make_cityscapes(tmp_path) / "gtFine/train/ulm/ulm_000001_000019_gtFine_labelIds.png", [0, 18, 255])
    with pytest.raises(
        ValueError, match=r"ulm_000001_000019_gtFine_labelIds.png holds ids .* class list: 255; expected 0–33"
    ):
        _ = cityscapes(tmp_path, "train")[1]


def test_unknown_ids_are_named(tmp_path):
    make_folder(tmp_path, "a", ids=(0, 3, 4, 9))
    with pytest.raises(ValueError, match=r"a\.png holds ids that are not in the class list: 3–4, 9; expected 0–2, 255"):
        _ = folder(tmp_path, "all")[0]


def test_damaged_labels_are_named(tmp_path):
    make_folder(tmp_path, "a")
    (tmp_path / "labels/a.png").write_bytes(b"PNG")
    with pytest.raises(ValueError, match=r"labels/a\.png is not a picture"):
        _ = folder(tmp_path, "all")[0]


def test_ranges_are_short():
    assert format_ranges([3, 1, 2, 255, 7, 8]) == "1–3, 7–8, 255"
