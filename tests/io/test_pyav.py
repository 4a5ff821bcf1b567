import importlib
import sys
from fractions import Fraction
from pathlib import Path

import pytest

import streamseg


def test_without_pyav_the_module_imports_and_says_what_to_install(monkeypatch):
    for module in ("pyav", "video_streams", "video_reading", "video_writing"):
        # both are restored after the test
        monkeypatch.setattr(streamseg.io, module, importlib.import_module(f"streamseg.io.{module}"))
        monkeypatch.delitem(sys.modules, f"streamseg.io.{module}")
    monkeypatch.setitem(sys.modules, "av", None)
    reading = importlib.import_module("streamseg.io.video_reading")
    writing = importlib.import_module("streamseg.io.video_writing")
    for call in (
        lambda: reading.open_video("a.mp4"),
        lambda: reading.open_camera("0"),
        lambda: writing.open_video_writer(Path("a.mp4"), (48, 64), Fraction(25)),
        lambda: writing.open_label_writer(Path("a.mkv"), (48, 64), Fraction(25)),
    ):
        with pytest.raises(ImportError, match=r"video needs PyAV: pip install 'streamseg\[video\]'$"):
            call()
