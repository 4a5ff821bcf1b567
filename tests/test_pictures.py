"""The pictures of the documents can be made again, and are small enough."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

import pictures  # noqa: E402 (the script of a folder that is no package)

LIMITS = {"drive.gif": 1500, "overlays.jpg": 300}
"""Of files, in kB; 150 for the others."""


@pytest.fixture
def street(tmp_path):
    """A small picture of a street."""
    path = tmp_path / "street.jpg"
    Image.open(pictures.DRIVE[0]).resize((192, 108)).save(path)
    return path


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_every_picture_of_the_documents_is_there_and_small(name):
    path = ROOT / "docs" / name
    Image.open(path).verify()
    assert path.stat().st_size <= 1000 * LIMITS.get(name, 150)


@pytest.mark.parametrize("name", ["classes.png", "speed-accuracy.png", "baselines.png", "latency.png", "training.png"])
def test_a_plot_has_a_white_ground_and_is_large_enough_to_read(tmp_path, name):
    pictures.PICTURES[name](tmp_path / name)
    drawn = Image.open(tmp_path / name).convert("RGB")
    assert drawn.width == 1200
    assert {drawn.getpixel((x, y)) for x in (0, drawn.width - 1) for y in (0, drawn.height - 1)} == {(255, 255, 255)}
    assert len(drawn.getcolors(1 << 20)) > 10


def test_the_drive_is_an_endless_gif_with_every_frame_of_the_camera(tmp_path, street):
    pictures.draw_drive(tmp_path / "drive.gif", [street], frames=3, size=(108, 192))
    drawn = Image.open(tmp_path / "drive.gif")
    assert (drawn.n_frames, drawn.width, drawn.info["loop"], drawn.info["duration"]) == (3, 96, 0, 100)
    assert drawn.height > 54  # the names of the colours are below


def test_a_slice_has_its_three_parts_and_the_names_of_the_colours(tmp_path, street, monkeypatch):
    monkeypatch.setattr(pictures, "DRIVE", [street])
    pictures.draw_slice(tmp_path / "slice.png", frames=3, size=(64, 128))
    drawn = Image.open(tmp_path / "slice.png")
    assert drawn.width == 128
    assert drawn.height > 3 * 200


def test_overlays_stand_in_two_columns_with_the_names_in_the_end(tmp_path, street):
    pictures.draw_overlays(tmp_path / "overlays.jpg", [street] * 3, width=128)
    drawn = Image.open(tmp_path / "overlays.jpg")
    assert drawn.size == (2 * (128 + 2) + 2, 2 * (72 + 2) + 2)
    # the last place is white between the letters, the others are full
    assert min(drawn.getpixel((drawn.width - 6, drawn.height - 6))) > 240
    assert min(drawn.getpixel((20, drawn.height - 20))) < 240


@pytest.mark.slow
def test_the_latency_of_every_frame_is_measured_in_both_precisions(tmp_path, street, monkeypatch):
    monkeypatch.setattr(pictures, "DRIVE", [street])
    monkeypatch.setattr(sys, "argv", [])
    pictures.measure_latency("a machine", tmp_path / "latency.json", frames=10, size=(64, 96))
    found = json.loads((tmp_path / "latency.json").read_text())
    assert (found["machine"], len(found["fp32"]), len(found["int8"])) == ("a machine", 10, 10)
    pictures.draw_latency(tmp_path / "latency.png", tmp_path / "latency.json")
    Image.open(tmp_path / "latency.png").verify()


def test_only_networks_whose_accuracy_the_paper_prints_are_drawn(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(pictures.plot, "save_figure", lambda figure, _: shown.extend(figure.axes[0].texts))
    pictures.draw_speed_accuracy(tmp_path / "speed.png")
    names = {text.get_text() for text in shown if text.get_text() and "fast form" not in text.get_text()}
    assert names == {"ICNet", "ERFNet", "BiSeNet-18", "SwiftNetRN-18", "FANet-34", "FANet-18"}


def test_files_of_measurements_are_small_and_have_their_commands():
    told = (pictures.MEASURED / "README.md").read_text()
    for path in pictures.MEASURED.glob("*.json*"):
        assert path.stat().st_size <= 20_000
        assert f"`{path.name}` | `" in told or f"`{path.name}` | no command" in told
