"""Fixtures for tests that read sources."""

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
