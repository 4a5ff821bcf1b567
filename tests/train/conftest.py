"""Fixtures for tests of training runs."""

from pathlib import Path

import pytest
from runs import EVERY, run

from streamseg.evaluate import plot
from streamseg.train import runlog


@pytest.fixture
def frequent_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log every few iterations, so that short runs have several entries."""
    monkeypatch.setattr(runlog, "EVERY", EVERY)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make curves, but do not render them, except in the run `alone`: that takes as long as training."""
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: None)


@pytest.fixture(scope="session")
def alone(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "alone"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runlog, "EVERY", EVERY)
        run(toy, out)
    return out
