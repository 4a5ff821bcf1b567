"""Weights by name, and networks whose classes are not those of the data set."""

import json
import re
from pathlib import Path

import pytest
import torch
from commands import complaint, run
from exports import SIZE, exported as exported
from make_datasets import save_frame, save_ids

import streamseg
from streamseg.class_table import STREET_TABLE
from streamseg.models.bundled import BUNDLED_WEIGHTS, DEFAULT


def test_the_bundled_weights_are_listed(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert run(monkeypatch, "weights") == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 60 for line in shown.splitlines()[:-1])
    assert f"{DEFAULT}, the default\n" in shown
    for name, about in BUNDLED_WEIGHTS.items():
        assert re.search(f"^{name}", shown, re.MULTILINE)
        assert about.card in shown
        assert about.licence.split()[-1] in shown
        assert str(len(streamseg.describe(name).classes)) in shown


def test_the_page_on_segmenting_shows_the_list(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(monkeypatch, "weights") == 0
    page = (Path(__file__).parents[2] / "docs" / "segment.md").read_text(encoding="utf-8")
    assert f"```\n$ streamseg weights\n{capsys.readouterr().out}```\n" in page


def test_the_list_of_weights_is_written_as_json(monkeypatch, capsys):
    assert run(monkeypatch, "weights", "--json", "-", "--quiet") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert not shown.err
    assert found["default"] == DEFAULT
    assert [each["name"] for each in found["weights"]] == [*BUNDLED_WEIGHTS]
    for each in found["weights"]:
        about = streamseg.describe(each["name"])
        assert each["default"] == (each["name"] == DEFAULT)
        assert (each["network"], tuple(each["classes"])) == (about.network, about.classes.names)
        assert each["bytes"] > 1e6


@pytest.mark.parametrize(
    "command",
    [
        "segment DIR/0.png out.png --weights misspelt",
        "evaluate misspelt --dataset folder --data DIR",
        "export misspelt model.onnx",
        "serve misspelt",
        "train folder-18 --data DIR --out run --initial misspelt",
    ],
)
def test_a_misspelt_name_is_answered_with_a_sentence(command, toy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (toy / "0.png").touch()
    said = complaint(monkeypatch, capsys, *command.replace("DIR", str(toy)).split())
    assert said.startswith("streamseg: No weights are called 'misspelt': ")


def test_weights_are_taken_by_name(tmp_path, toy, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for out, weights in (("a", ()), ("b", ("--weights", DEFAULT)), ("c", ("--weights", BUNDLED_WEIGHTS[DEFAULT].file))):
        asked = (toy / "images" / "0.png", "-o", out, "--labels", "--no-overlay", "--device", "cpu", *weights)
        assert run(monkeypatch, "segment", *asked) == 0
    names = {path.read_bytes() for path in tmp_path.rglob("*labels.png")}
    assert len(names) == 1
    assert run(monkeypatch, "benchmark", DEFAULT, "--size", "64x64", "--seconds", "0.01", "--device", "cpu") == 0
    assert run(monkeypatch, "benchmark", "xyz") == 2
    assert f"or the bundled weights {', '.join(BUNDLED_WEIGHTS)}." in capsys.readouterr().err


@pytest.fixture
def street(tmp_path):
    """Random weights for the classes of the table street."""
    torch.manual_seed(0)
    network = streamseg.fanet18(len(STREET_TABLE.classes))
    with torch.no_grad():
        for _ in range(3):
            network(255 * torch.rand(2, 3, 64, 96))
    streamseg.save(network.eval(), STREET_TABLE.classes, tmp_path / "street.safetensors")
    return tmp_path / "street.safetensors"


def test_a_network_with_more_classes_is_measured_by_the_labels_of_the_data_set(street, drive, monkeypatch, capsys):
    given = ("evaluate", street, "--dataset", "camvid", "--data", drive, "--device", "cpu", "--json", "-")
    for options in ((), ("--window", "2"), ("--flip",), ("--precision", "fp32"), ("--class-table", "street")):
        assert run(monkeypatch, *given, *options) == 0
        shown = capsys.readouterr()
        assert "streamseg: LaneMarking counts as Road; OwnCar has no label in camvid.\n" in shown.err
        found = json.loads(shown.out)
        assert found["translated"] == {"LaneMarking": "Road", "OwnCar": None}
        assert [*found["iou"]] == list(streamseg.CAMVID.names)
        confusion, none = torch.tensor(found["confusion"]), torch.tensor(found["without_label"])
        assert confusion.shape == (11, 11)
        assert none.sum() > 0
        union = confusion.sum(dim=0) + confusion.sum(dim=1) + none - confusion.diagonal()
        expected = 100 * confusion.diagonal() / union
        assert [*found["iou"].values()] == pytest.approx(expected.tolist(), abs=1e-3)
        assert found["pixel_accuracy"] == pytest.approx(100 * confusion.trace().item() / (confusion.sum() + none.sum()))
    assert run(monkeypatch, *given, "--quiet") == 0
    assert not capsys.readouterr().err


def test_labels_that_a_network_cannot_tell_apart_are_measured_as_one(tmp_path, exported, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    data = tmp_path / "data"
    for i in range(5):
        save_frame(data / "images" / f"{i}.png", i, SIZE)
        save_ids(data / "labels" / f"{i}.png", range(5), SIZE)
    (data / "classes.txt").write_text("\n".join(streamseg.COMMA10K.names))
    given = ("evaluate", exported("still.onnx"), "--dataset", "folder", "--data", data, "--json", "-")
    assert run(monkeypatch, *given, "--plots", tmp_path / "plots") == 0
    shown = capsys.readouterr()
    assert "Road counts as road + lane marking; " in shown.err
    assert "; no class of the network counts as my car.\n" in shown.err
    found = json.loads(shown.out)
    assert [*found["iou"]] == ["road + lane marking", "undrivable", "movable", "my car"]
    assert found["iou"]["my car"] == 0
    assert sum(found["confusion"][0]) == pytest.approx(2 * sum(found["confusion"][1]), rel=0.01)
    assert "without_label" not in found
    assert (tmp_path / "plots" / "worst.png").exists()


def test_a_class_table_of_ones_own_translates(street, toy, tmp_path, monkeypatch, capsys):
    given = ("evaluate", street, "--dataset", "folder", "--data", toy, "--device", "cpu")
    said = complaint(monkeypatch, capsys, *given)
    assert "The network was trained for other classes than those of folder val: class 0 is Sky in the network" in said
    assert said.endswith(
        "no class table translates them: give the --dataset that it was trained on, or --class-table FILE.\n"
    )
    labels = {"Road": "ground", "Car": "box", "Bicyclist": "disc"}
    rows = [f"{name}, 000000, {labels.get(name, '-')}" for name in STREET_TABLE.classes.names]
    (tmp_path / "table.txt").write_text("\n".join(["class, colour, folder", *rows]))
    assert run(monkeypatch, *given, "--class-table", tmp_path / "table.txt", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert [*found["iou"]] == ["ground", "box", "disc"]
    assert found["translated"] == {name: labels.get(name) for name in STREET_TABLE.classes.names}
    others = {"Road": "box", "Car": "ground", "Bicyclist": "disc"}
    both = [f"{row}, {others.get(row.partition(',')[0], '-')}" for row in rows]
    (tmp_path / "two.txt").write_text("\n".join(["class, colour, folder, folder2", *both]))
    said = complaint(monkeypatch, capsys, *given, "--class-table", tmp_path / "two.txt")
    assert "or name it: --class-table FILE:folder2.\n" in said
    assert run(monkeypatch, *given, "--class-table", tmp_path / "two.txt:folder2", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["translated"]["Car"] == "ground"
    said = complaint(monkeypatch, capsys, *given, "--class-table", "street")
    assert "The class table has no column folder, only camvid, comma10k" in said
