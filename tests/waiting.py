"""Wait for a condition, on a machine that may be busy."""

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which a test fails if what it waits for has not happened."""


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true; AssertionError if it never is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"Not true within {PATIENCE:.0f} s."
        time.sleep(0.005)
