"""Fixtures for tests that read sources, and for the processes of codecs."""

import os
from collections.abc import Iterator

import pytest

from streamseg.io import sources


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, which is the current one; no proxy stands between it and its servers."""
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return tmp_path


@pytest.fixture
def brief_waits(monkeypatch):
    """Live sources are given up soon."""
    monkeypatch.setattr(sources, "RECONNECT_DELAYS", (0.01, 0.02))


@pytest.fixture
def shared_memory() -> Iterator[int]:
    """The file descriptor of memory that processes share, on Linux."""
    file = os.memfd_create("test")
    yield file
    os.close(file)
