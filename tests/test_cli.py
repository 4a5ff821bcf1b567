import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

import streamseg
from streamseg import cli


@pytest.fixture
def folder(tmp_path, monkeypatch, model):
    """A working folder with a picture and a checkpoint."""
    monkeypatch.chdir(tmp_path)
    picture = numpy.random.default_rng(0).integers(0, 256, (48, 72, 3), dtype=numpy.uint8)
    Image.fromarray(picture).save("street.jpg")
    streamseg.save(model, streamseg.CAMVID, "camvid.safetensors")
    return tmp_path


def run(monkeypatch, *arguments):
    """Run the command line in this process, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["streamseg", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def test_a_picture_becomes_an_overlay_and_a_label_file(folder, monkeypatch, model, capsys):
    assert run(monkeypatch, "segment", "street.jpg", "--weights", "camvid.safetensors") == 0
    frame = streamseg.read_image(folder / "street.jpg")
    with torch.inference_mode():
        labels = model(frame[None])[0].argmax(dim=0)
    written = numpy.array(Image.open("street-labels.png"))
    assert torch.from_numpy(written).equal(labels.to(torch.uint8))
    assert streamseg.read_image(folder / "street-overlay.png").equal(streamseg.overlay(frame, labels, streamseg.CAMVID))
    shown = capsys.readouterr().out
    assert "street.jpg: " in shown
    assert "street-overlay.png" in shown


@pytest.mark.parametrize(
    ("out", "overlay", "labels"),
    [
        ("result.png", "result.png", "result-labels.png"),
        ("result.jpg", "result.jpg", "result-labels.png"),
        ("results", "results/street-overlay.png", "results/street-labels.png"),
    ],
)
def test_the_results_go_where_they_are_told(folder, monkeypatch, out, overlay, labels):
    (folder / "results").mkdir()
    assert run(monkeypatch, "segment", "street.jpg", out, "--weights", "camvid.safetensors") == 0
    assert (folder / overlay).exists()
    assert (folder / labels).exists()


def truncate(path):
    path.write_bytes(path.read_bytes()[:500])


@pytest.mark.parametrize(
    ("arguments", "spoil", "sentence"),
    [
        (["nowhere.jpg"], None, "No picture at nowhere.jpg."),
        (["."], None, "is a folder"),
        (["camvid.safetensors"], None, "is not a picture that can be read"),
        (["street.jpg"], lambda: truncate(Path("street.jpg")), "damaged or cut short"),
        (["street.jpg"], lambda: truncate(Path("camvid.safetensors")), "cut short"),
        (["street.jpg"], lambda: Path("camvid.safetensors").unlink(), "No weights at camvid.safetensors"),
        (["street.jpg"], lambda: Image.new("RGB", (20, 40)).save("street.jpg"), "40 x 20 pixels; the least is 32 x 32"),
        (["street.jpg", "street.jpg"], None, "street.jpg is the picture itself"),
        (["street.jpg", "nowhere/out.png"], None, "No folder nowhere"),
        (["street.jpg", "out.mp4"], None, "end it in one of"),
        (["street.jpg", "out"], None, "end it in one of"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2_and_leaves_nothing(
    folder, monkeypatch, capsys, arguments, spoil, sentence
):
    if spoil:
        spoil()
    before = sorted(folder.iterdir())
    assert run(monkeypatch, "segment", *arguments, "--weights", "camvid.safetensors") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("streamseg: ")
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_without_weights_it_says_that_none_ship(folder, monkeypatch, capsys):
    assert run(monkeypatch, "segment", "street.jpg") == 2
    assert "No trained weights ship" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["segmant"], ["segment"], ["segment", "a.png", "--colour", "red"]])
def test_a_wrong_command_line_is_explained_with_exit_2(monkeypatch, capsys, arguments):
    assert run(monkeypatch, *arguments) == 2
    shown = capsys.readouterr()
    assert "--help" in shown.out + shown.err
    assert "Traceback" not in shown.out + shown.err


def test_ctrl_c_ends_it_quietly(folder, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("streamseg.images.read_image", interrupted)
    assert run(monkeypatch, "segment", "street.jpg") == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["segment", "--help"]])
def test_help_and_version_need_no_heavy_import(arguments):
    program = "import sys; from streamseg.cli import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    for heavy in ("torch", "numpy", "PIL", "safetensors"):
        assert f"'{heavy}'" not in done.stdout


def test_the_installed_command_and_the_module_are_the_same_program():
    for command in ([sys.executable, "-m", "streamseg"], [Path(sys.executable).with_name("streamseg")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"streamseg {streamseg.__version__}\n"
