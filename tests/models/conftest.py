import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Forget what other tests compiled: networks share the code of step, and its recompilations are limited."""
    torch.compiler.reset()
