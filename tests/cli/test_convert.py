"""The verb convert."""

import json

import annotation_exports as exports
import pytest
from commands import complaint, run

from streamseg.cli.converting import FORMATS
from streamseg.data.formats.detect import READERS


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "export"
    folder.mkdir()
    exports.write_coco(folder, {"a": exports.make_labels(), "b": exports.make_labels(1)})
    return folder


def test_the_command_line_knows_the_formats_that_can_be_read():
    assert tuple(READERS) == FORMATS


def test_an_export_is_converted_and_what_is_left_out_is_told(source, tmp_path, monkeypatch, capsys):
    file = source / "annotations/instances_default.json"
    content = json.loads(file.read_text())
    content["annotations"].append({"id": 99, "image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2], "segmentation": []})
    content["images"].append({"id": 9, "file_name": "c.png", "height": 48, "width": 64})
    file.write_text(json.dumps(content))
    exports.save_picture(source / "images/c.png", exports.make_labels())
    out = tmp_path / "mine"
    assert run(monkeypatch, "convert", source, out, "--classes", "road, tree", "--json", "-") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "out": str(out),
        "format": "coco",
        "classes": ["road", "tree"],
        "pictures": {"all": 2},
        "without_objects": 1,
        "left_out": {"box": 1},
        "other_classes": ["car"],
    }
    assert shown.err.splitlines() == [
        "streamseg: Pixels of other classes count as unlabelled: car.",
        "streamseg: Objects without an area were left out: 1 box.",
        "streamseg: 1 picture without objects was left out; --background NAME keeps such pictures.",
        f"{out}: 2 pictures of coco",
        "classes: road, tree",
    ]
    assert run(monkeypatch, "check", "folder", "--data", out, "--quiet") == 0


def test_what_cannot_be_converted_is_answered_with_a_sentence(source, tmp_path, monkeypatch, capsys):
    command = ("convert", source, tmp_path / "mine")
    assert "--format is 'voc'; choose one of: 'cvat'," in complaint(monkeypatch, capsys, *command, "--format", "voc")
    assert "has no annotated pictures" in complaint(monkeypatch, capsys, *command, "--format", "labelme")
    assert "No data.yaml in" in complaint(monkeypatch, capsys, *command, "--format", "yolo")
    assert "needs OUT" in complaint(monkeypatch, capsys, "convert", source)
    (source / "images/a.png").write_bytes((source / "images/a.png").read_bytes()[:300])
    assert "a.png is damaged or cut short" in complaint(monkeypatch, capsys, *command)
    assert not (tmp_path / "mine").exists()
