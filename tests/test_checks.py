"""Errors in a command line are reported before heavy imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamseg import checks
from streamseg.cli import options
from streamseg.data import datasets
from streamseg.io.video_writing import VIDEO_FORMATS
from streamseg.models.baselines import BASELINES
from streamseg.models.bundled import DEFAULT
from streamseg.models.checkpoint import FANETS
from streamseg.models.video import VIDEO_METHODS
from streamseg.train import config

# runs command lines in a process without torch and numpy, and prints the exit status and stderr of each
WITHOUT_TORCH = """
import json, sys
from contextlib import redirect_stderr
from io import StringIO
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numpy", "PIL", "av"):
            raise ImportError(f"import of {name}")
sys.meta_path.insert(0, Refuse())
from streamseg import cli
class Terminal(StringIO):
    def isatty(self):
        return True
errors = []
for arguments in json.loads(sys.argv[1]):
    terminal = arguments[0] == "on a terminal"
    sys.argv[1:] = arguments[terminal:]
    with redirect_stderr(Terminal() if terminal else StringIO()) as stream:
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code
    errors.append((status, stream.getvalue()))
print(json.dumps(errors))
"""


def run_without_torch(folder, *commands):
    """Return exit status and stderr of each command line, in a process that cannot import heavy libraries."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps([list(map(str, command)) for command in commands])],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_wrong_names_are_reported_without_importing_torch(tmp_path):
    for name in ("photo.jpg", "weights.safetensors", "file"):
        (tmp_path / name).touch()
    (tmp_path / "list.txt").write_text("gone.jpg\n")
    (tmp_path / "data").mkdir()
    data = ("--data", "nothere")
    wrong = {
        ("segment", "nothere.jpg"): "Nothing at nothere.jpg: expected a picture, a video",
        ("segment", "list.txt"): "Line 1 of list.txt: Nothing at gone.jpg",
        ("segment", "data"): "No picture and no video in data",
        ("segment", "*.webm"): "No picture and no video matches *.webm",
        ("segment", "frame_%04d.png"): "No picture is called frame_%04d.png",
        ("segment", "/dev/video77"): "No camera at /dev/video77",
        ("segment", "gopher://host/x"): "gopher://host/x is no address that can be read",
        ("segment", "photo.jpg", "--weights", "w.onnx"): "No weights at w.onnx: check the path.",
        ("segment", "photo.jpg", "data/out.xyz"): "data/out.xyz does not have the suffix of a picture",
        ("segment", "photo.jpg", "nothere/out.png"): "No folder nothere to write out.png into: create it first.",
        ("segment", "photo.jpg", "--json", "nothere/x.json"): "No folder nothere to write x.json into",
        ("segment", "photo.jpg", "--deadline", "-1"): "deadline is -1.0; expected a number above 0.",
        ("train", "folder-18", *data, "--out", "run"): "No data set of kind folder in nothere: expected classes.txt",
        (
            "train",
            "folder-18",
            "--data",
            "data",
            "--out",
            "run",
            "--initial",
            "w",
        ): "No weights are called 'w': known are",
        ("segment", "photo.jpg", "--weights", f"{DEFAULT}x"): f"No weights are called '{DEFAULT}x': did you mean",
        ("train", "folder-18", "--data", "data", "--out", "run", "--batch", "0"): "batch is 0; expected 1 or more.",
        ("train", "street-18", "--data", ".", "--out", "run"): "A run with comma10k needs its folder: give --with-data",
        ("train", "road-18", "--data", ".", "--out", "run", "--with-data", "."): ". is the folder of no data set: name",
        ("train", "road-18", "--data", ".", "--out", "run", "--class-table", "a"): "No class table is called 'a': give",
        (
            "train",
            "road-18",
            "--data",
            ".",
            "--out",
            "run",
            "--with-share",
            "0.3",
        ): "with_share is 0.3; expected 0.5 ",
        ("evaluate", "--dataset", "camvid", *data): "No data set of kind camvid in nothere: expected SPLIT/",
        ("evaluate", "--dataset", "kitti", "--data", "data"): "dataset is 'kitti'; choose one of: 'cityscapes',",
        (
            "evaluate",
            "--dataset",
            "camvid",
            "--data",
            ".",
            "--class-table",
            "steet",
        ): "No class table is called 'steet'",
        ("evaluate", "w.pt2", "--dataset", "camvid", "--data", "data"): "No weights at w.pt2: check the path.",
        ("evaluate", "--video", "nothere.mp4"): "Nothing at nothere.mp4: expected a picture, a video",
        ("check", "folder", *data): "images/ and labels/; streamseg convert makes them of the export of an annotation",
        ("check", "folder", "--data", "data", "--sheet", "a.gif"): "a.gif does not have the suffix of a picture",
        ("train", "folder-18", "--data", ".", "--out", "file"): "file is a file: give a folder for the run.",
        ("pack", "folder", "file", "--data", "."): "file is a file: give a folder for the shards.",
        ("pack", "folder", "out", *data): "No data set of kind folder in nothere: expected classes.txt",
        ("export", "w.safetensors", "model.onnx"): "No weights at w.safetensors: check the path.",
        (
            "export",
            "model.tflite",
        ): "model.tflite does not have an export suffix; expected .onnx, .xml, .pt2.",
        ("export", "nothere/model.onnx"): "No folder nothere to write model.onnx into: create it first.",
        ("serve", "w.safetensors"): "No weights at w.safetensors: check the path.",
        ("benchmark", "fanet19"): "'fanet19' is neither a file nor one of the networks fanet18, fanet34,",
        ("benchmark", "dff-fanet19"): "deeplab, a video method such as dff-swiftnet18, or the bundled weights street,",
        ("benchmark", "--pipeline", "nothere.mp4"): "Nothing at nothere.mp4: expected a picture, a video",
        ("reproduce", "VII"): "table is 'VII'; choose one of:",
        ("reproduce", "V", "--runs", "data", *data): "No data set of kind camvid in nothere: expected SPLIT/",
        ("reproduce", "I", "--out", "file"): "file is a file: give a folder for the tables.",
    }
    for command, (status, errors) in zip(wrong, run_without_torch(tmp_path, *wrong), strict=True):
        assert (status, errors.count("\n")) == (2, 1), command
        assert wrong[command] in errors, command


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_shows_that_the_program_is_loading(tmp_path, quiet):
    for name in ("photo.jpg", "weights.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "data").mkdir()
    data = ("--data", "data")
    verbs = [
        ("segment", "photo.jpg"),
        ("train", "folder-18", *data, "--out", "run"),
        ("evaluate", "--dataset", "camvid", *data),
        ("check", "folder", *data),
        ("pack", "folder", "out", *data),
        ("export", "model.onnx"),
        ("serve",),
        ("benchmark", "fanet18"),
        ("reproduce", "I"),
    ]
    commands = [("on a terminal", *verb, *(["--quiet"] if quiet else [])) for verb in verbs]
    for command, (status, errors) in zip(commands, run_without_torch(tmp_path, *commands), strict=True):
        shown, _, rest = errors.partition("\r\x1b[K")  # erases the line
        assert (status, shown) == (2, "" if quiet else "Loading …"), command
        assert "import of torch" in rest, command
    for status, errors in run_without_torch(tmp_path, *(command[1:] for command in commands)):
        assert status == 2
        assert "Loading" not in errors  # no such line in a file


def test_the_names_known_without_torch_are_complete():
    assert tuple(datasets.DATASETS) == options.DATASET_NAMES
    assert {*FANETS, *BASELINES, *VIDEO_METHODS} == {*options.NETWORKS}
    assert tuple(VIDEO_FORMATS) == checks.VIDEO_SUFFIXES
    assert {recipe.config.dataset for recipe in config.RECIPES.values()} <= {*options.DATASET_NAMES}


def test_weights_must_be_a_readable_file(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="is a folder or a device: give a file of weights."):
        checks.check_readable(tmp_path)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "weights").touch()
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match="cannot be read: change its permissions."):
        checks.check_readable(tmp_path / "weights")
