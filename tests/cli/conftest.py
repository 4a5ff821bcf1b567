"""Fixtures of the tests of the command line."""

import math

import pytest
from commands import run

import streamseg
from streamseg.stream import pipeline


@pytest.fixture(autouse=True)
def no_statistics(monkeypatch):
    """On a machine that is busy a run may take so long that it has lines with statistics."""
    monkeypatch.setattr(pipeline, "STATISTICS_SECONDS", math.inf)


@pytest.fixture(scope="session")
def weights(model, tmp_path_factory):
    """A checkpoint of the small random network."""
    path = tmp_path_factory.mktemp("weights") / "camvid.safetensors"
    streamseg.save(model, streamseg.CAMVID, path)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, which is the current one; no proxy stands between it and its servers, and no screen is near."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path


@pytest.fixture
def segment(here, monkeypatch, weights):
    """Runs the verb in this process and gives its exit status; what it prints is for capsys."""

    def segment(*arguments):
        defaults = {"--weights": weights, "--device": "cpu"}
        options = [part for option in defaults.items() if option[0] not in arguments for part in option]
        return run(monkeypatch, "segment", *arguments, *options)

    return segment
