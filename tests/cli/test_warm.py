"""The verb warm: on the CPU what it says, and with a stand-in for the GPU what it prepares."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import complaint, failing, run
from preparing import SlowEngine

import streamseg
from streamseg.cli import warming
from streamseg.engine.open import OpenedEngine
from streamseg.models import baselines

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def slow(model, monkeypatch):
    """A fast engine that seems to be on a GPU, and is prepared at once."""
    engine = SlowEngine(model)
    engine.may_go_on.set()
    monkeypatch.setattr("streamseg.cli.warming.pick_device", lambda name: GPU)
    opened = OpenedEngine(engine, streamseg.CAMVID, 1)
    monkeypatch.setattr("streamseg.engine.open.open_engine", lambda *given, **options: opened)
    monkeypatch.setenv("TRITON_CACHE_DIR", "kernels")
    pixel_kernels = warming.run_pixel_kernels
    monkeypatch.setattr(warming, "run_pixel_kernels", lambda size, classes, _: pixel_kernels(size, classes, CPU))
    return engine


def test_each_size_is_prepared_with_each_batch_and_a_line_says_how_long_it_took(slow, monkeypatch, capsys):
    given = ("--size", "720x1280", "--size=2160x3840", "--batch", "1", "--batch", "8")
    assert run(monkeypatch, "warm", *given) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [re.fullmatch(r"(.+): \d+\.\d s", line)[1] for line in lines[:-1]]
    assert said == [f"{size}, batch {frames}" for size in ("720 x 1280", "2160 x 3840") for frames in (1, 8)]
    assert lines[-1] == "The kernels are kept in kernels."
    # frames that are too large are reduced for the network, as segment does; pictures, and videos with steady labels
    shapes = [tuple(shape) for shape, *_ in slow.asked]
    assert shapes == [(n, 3, *size) for size in ((720, 1280), (1086, 1930)) for n in (1, 8) for _ in range(2)]
    assert len(slow.ready) == len(shapes)


def test_without_options_the_sizes_of_the_usual_cameras_are_prepared(slow, monkeypatch, capsys):
    assert run(monkeypatch, "warm", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert {tuple(shape) for shape, *_ in slow.asked} == {(1, 3, 720, 1280), (1, 3, 1080, 1920)}


def test_what_cannot_be_compiled_is_an_error_in_a_sentence(slow, monkeypatch, capsys):
    slow.error = RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")
    said = complaint(monkeypatch, capsys, "warm", "--size", "64x96")
    assert said.startswith(
        "streamseg: The fast engine could not be prepared for frames of 64 x 96 (Failed to find C comp"
    )
    slow.error = torch.OutOfMemoryError("CUDA out of memory")
    assert "not enough memory" in complaint(monkeypatch, capsys, "warm", "--size", "64x96")


def test_where_nothing_has_to_be_prepared_a_sentence_says_why(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, "warm", "--device", "cpu") == 0
    assert capsys.readouterr().out == "Nothing to prepare: on the CPU no kernels are compiled.\n"
    exported = tmp_path / "a.onnx"
    exported.write_bytes(b"a file that is not opened")
    assert run(monkeypatch, "warm", exported) == 0
    assert capsys.readouterr().out.startswith(f"Nothing to prepare: {exported} is an exported file")
    streamseg.save(baselines.enet(11).eval(), streamseg.CAMVID, tmp_path / "enet.safetensors")
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *given, **options: self)
    monkeypatch.setattr("streamseg.cli.warming.pick_device", lambda name: GPU)
    assert run(monkeypatch, "warm", tmp_path / "enet.safetensors") == 0
    assert capsys.readouterr().out == "Nothing to prepare: this network has no fast form.\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--size 720", "--size is '720'; expected a height and a width"),
        ("--size 720x1280 --size 1x1", "--size is '1x1'; expected a height and a width"),
        ("--batch 0", "batch is 0; expected a whole number, 1 or more"),
        ("--batch 1 --batch 2.5", "--batch is '1 2.5'; expected whole numbers"),
        ("nowhere.safetensors", "No weights at nowhere.safetensors"),
        ("--precision int4", "--precision is 'int4'; choose one of"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_opened(monkeypatch, capsys, options, sentence):
    monkeypatch.setattr("streamseg.engine.open.open_engine", failing(AssertionError("opened")))
    assert sentence in complaint(monkeypatch, capsys, "warm", *options.split())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_kernels_are_kept(tmp_path):
    command = [sys.executable, "-m", "streamseg", "warm", "--size", "160x240", "--batch", "2"]
    # another process: this one may have compiled kernels already
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"160 x 240, batch 2: \d+\.\d s\n", done.stdout)
    assert any(path.suffix == ".cubin" for path in Path(tmp_path).rglob("*"))
