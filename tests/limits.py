"""Limits of the system, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Within it files can hold so many bytes: a real error of the system, as on a full disk."""
    import resource  # not on Windows

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        # Python would keep the bytecode of a module that is imported meanwhile, cut short
        patch.setattr("sys.dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
