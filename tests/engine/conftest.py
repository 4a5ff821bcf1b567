import importlib.util

import pytest

from streamseg.engine import kernels
from streamseg.engine.kernels import backend, compiling


class Kernels:
    """The kernels, with or without Triton."""

    def __init__(self, use_triton):
        self.use_triton = use_triton

    def __getattr__(self, name):
        def call(*arguments, **options):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(backend, "use_triton", lambda x: self.use_triton)
                patch.setattr(compiling, "is_compiled", lambda *_: True)  # now, not in the background
                return getattr(kernels, name)(*arguments, **options)

        return call


@pytest.fixture
def triton():
    """The kernels as Triton runs them: on the GPU, or in its interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install triton")
    return Kernels(use_triton=True)


@pytest.fixture
def plain():
    return Kernels(use_triton=False)
