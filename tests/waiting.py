"""Waiting for what comes by itself, on a machine that may have much else to do."""

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which a test gives up what should come at once."""


def until(condition: Callable[[], object]) -> None:
    """Wait for something that comes by itself; an AssertionError if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "It never came."
        time.sleep(0.005)
