"""Fixtures for tests of streams."""

import pytest
from streams import random_frames


@pytest.fixture
def frames():
    return random_frames(6)
