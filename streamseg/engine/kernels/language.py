"""The languages in which kernels are written: Triton, if it is installed, and its lower level Gluon.

To import it takes a quarter of a second: only modules with kernels do.
"""

from __future__ import annotations

try:
    import triton

    tl, jit = triton.language, triton.jit
    VERSION: str = triton.__version__
except (ImportError, AttributeError):  # no Triton: a machine without a GPU; or a mere folder of this name
    VERSION, tl = "none", None

    def jit(kernel):
        return kernel


GLUON_VERSIONS = ("3.6", "3.7")
"""Versions of Triton whose Gluon, its lower level, is known to compile our kernels: it still changes."""

try:
    if not VERSION.startswith(GLUON_VERSIONS):
        raise ImportError
    from triton.experimental import gluon
    from triton.experimental.gluon.language.nvidia import hopper as hopper_language
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    gl, gluon_jit, hopper, GluonDescriptor = gluon.language, gluon.jit, hopper_language, TensorDescriptor
    meet = (
        gl.thread_barrier if VERSION.startswith("3.6") else gl.barrier
    )  # all threads of a program wait for each other
except ImportError:
    gl = hopper = GluonDescriptor = meet = None

    def gluon_jit(kernel):
        return kernel


@jit
def wait(EARLY):
    """Wait until the previous kernel has ended."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@jit
def release(EARLY):
    """Allow the next kernel to be launched; it waits for the rest of this one, which should be short."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
