"""What segment says of faults around it: memory, disks, libraries."""

import gc
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from clips import make_clip
from commands import error_line, failing
from limits import full_disk
from segment_run import made, paint, start, watch
from waiting import PATIENCE

from streamseg.engine.folded import Folded

NO_MEMORY = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]


@pytest.mark.parametrize("error", [*NO_MEMORY, MemoryError()])
def test_a_network_without_memory_is_a_sentence_and_leaves_nothing(here, segment, monkeypatch, capsys, error):
    make_clip(Path("a.mp4"), 5)
    monkeypatch.setattr(Folded, "run_stem", failing(error))
    status = segment("a.mp4", "out", "--labels", "--json", "a.json")
    assert "There is not enough memory for pictures of this size" in error_line(capsys, status)
    assert made(here) == ["a.mp4"]


def test_a_bug_is_not_hidden_and_leaves_nothing(here, segment, monkeypatch):
    make_clip(Path("a.mp4"), 5)
    monkeypatch.setattr(Folded, "run_stem", failing(RuntimeError("size mismatch")))
    with pytest.raises(RuntimeError, match="size mismatch"):
        segment("a.mp4", "out.mp4", "--labels", "--json", "a.json")
    assert made(here) == ["a.mp4"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ImportError("Reading and writing video needs PyAV: pip install x"), "pip install x"),
        (ValueError("one\ntwo\x1b[31m\tthree"), "streamseg: one two [31m three\n"),
    ],
)
def test_every_complaint_is_one_printable_line(here, segment, monkeypatch, capsys, error, shown):
    paint("a.png")
    monkeypatch.setattr("streamseg.io.sources.PictureFile.read", failing(error))
    assert shown in error_line(capsys, segment("a.png"))


def test_pictures_need_no_library_for_video_and_videos_say_which_they_need(here, segment, monkeypatch, capsys):
    paint("a.png")
    make_clip(Path("v.mp4"), 2)
    gc.collect()  # videos of other tests, which end with the library they began with
    monkeypatch.setattr("streamseg.io.pyav.av", None)
    for _ in range(2):
        assert segment("a.png", "--labels") == 0
    capsys.readouterr()
    assert "Reading and writing video needs PyAV: pip install 'streamseg[video]'" in error_line(
        capsys, segment("v.mp4", "out.mp4")
    )
    assert "a.png is an input" in error_line(capsys, segment("a.png", "a.png"))
    paint("b.png")
    assert "b.png exists and was not written by streamseg" in error_line(capsys, segment("a.png", "b.png"))


@pytest.mark.parametrize(
    ("name", "out", "most"), [("a.png", "out.png", 100), ("a.mp4", "out.mp4", 2000), ("a.mp4", "x/%d.png", 100)]
)
def test_a_full_disk_is_a_sentence_and_leaves_nothing(here, segment, capsys, name, out, most):
    paint("a.png")
    make_clip(Path("a.mp4"), 60)
    Path("x").mkdir()
    with full_disk(most):
        told = error_line(capsys, segment(name, out, "--no-labels"))
    assert "streamseg: Could not write " in told
    assert "File too large" in told
    assert made(here) == ["a.mp4", "a.png"]


def test_a_closed_standard_error_or_output_is_no_fault(here, segment, monkeypatch):
    make_clip(Path("a.mp4"), 3)
    for name in ("stderr", "stdout"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, None)
            assert segment("a.mp4", "out.mp4") == 0
            getattr(sys, name).close()
    assert len(watch("out.mp4")) == 3


def test_a_full_disk_under_the_json_is_a_sentence(here, segment, capsys):
    paint("a.png")
    with full_disk(60):
        told = error_line(capsys, segment("a.png", "--no-overlay", "--json", "a.json"))
    assert "Could not write a.json: File too large." in told
    assert made(here) == ["a.png"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_standard_output_is_a_sentence(here, segment, monkeypatch, capsys):
    paint("a.png")
    with open("/dev/full", "w") as full:  # noqa: PTH123 (a device)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            status = segment("a.png", "-")
        told = error_line(capsys, status)
        assert told == "streamseg: Could not write to standard output: No space left on device.\n"
        with suppress(OSError):  # what is left in its buffer
            full.close()


def test_a_reader_of_the_labels_may_stop(here, weights):
    make_clip(Path("a.mp4"), 60, size=(240, 320))
    process = start(weights, "a.mp4", "-", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert len(process.stdout.read(1000)) == 1000
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 0
