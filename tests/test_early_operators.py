"""Torch's operators by the functions of its libraries: the same results as from Python, and all that a GPU loads."""

import ctypes
import math
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg import early_operators
from streamseg.early_operators import Handle, Operators, list_calls, load_kernels

LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="torch's library has another name here")


@pytest.fixture
def run():
    with Operators(LIBRARY, "cpu") as operators:
        yield operators


def memory(run: Operators, handle: Handle, *sizes: int) -> Tensor:
    """Return the memory of a tensor, fp32, as a tensor of some sizes, as long as the handle lives."""
    address = ctypes.c_void_p()
    assert run.quick.aoti_torch_get_data_ptr(ctypes.c_uint64(handle.address), ctypes.byref(address)) == 0
    array = (ctypes.c_float * math.prod(sizes)).from_address(address.value)
    return torch.frombuffer(array, dtype=torch.float32).view(sizes)


def test_an_operator_computes_what_it_does_in_python(run):
    image, weight = torch.randn(2, 3, 8, 9), torch.randn(4, 3, 3, 3)
    handles = [run.zeros(*values.shape, dtype="float32") for values in (image, weight)]
    for handle, values in zip(handles, (image, weight), strict=True):
        memory(run, handle, *values.shape).copy_(values)
    (found,) = run.call("conv2d", *handles, None, [2, 1], [1, 1], [1, 1], 1)
    expected = F.conv2d(image, weight, stride=(2, 1), padding=1)
    torch.testing.assert_close(memory(run, found, *expected.shape), expected)


def test_numbers_lists_of_tensors_overloads_and_several_results(run):
    values = run.zeros(2, 3, dtype="float32")
    memory(run, values, 2, 3).copy_(torch.tensor([[1.0, 5.0, 3.0], [4.0, 0.0, 2.0]]))
    (joined,) = run.call("cat", [values, values], 1)
    highest, places = run.call("max.dim", joined, 1, True, results=2)
    assert memory(run, highest, 2).tolist() == [5, 4]
    assert places != highest
    (distance,) = run.call("pairwise_distance", values, run.zeros(2, 3, dtype="float32"), 1.0, 0.5, False)
    assert memory(run, distance, 2).tolist() == [10.5, 7.5]


def test_new_tensors_are_zero_and_maps_have_their_channels_last(run):
    maps = run.zero_map(1, 2, 3, 4)
    strides = ctypes.POINTER(ctypes.c_int64)()
    assert run.quick.aoti_torch_get_strides(ctypes.c_uint64(maps.address), ctypes.byref(strides)) == 0
    assert tuple(strides[:4]) == torch.empty(1, 2, 3, 4).contiguous(memory_format=torch.channels_last).stride()
    assert not memory(run, run.zeros(1000, dtype="float32"), 1000).any()


def test_all_tensors_are_freed():
    freed = []
    with Operators(LIBRARY, "cpu") as run:
        (made,) = run.call("relu", run.zeros(3))
        given = run.quick
        run.quick = SimpleNamespace(
            aoti_torch_delete_tensor_object=freed.append,
            aoti_torch_grad_mode_set_enabled=given.aoti_torch_grad_mode_set_enabled,
        )
    assert [handle.value for handle in freed] == [handle.address for handle in run.handles]
    assert made in run.handles
    assert len(freed) == 2
    for handle in freed:
        given.aoti_torch_delete_tensor_object(handle)


def test_gradients_are_off_meanwhile():
    assert torch.is_grad_enabled()
    with Operators(LIBRARY, "cpu"):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_an_error_of_an_operator_is_raised(run):
    with pytest.raises(OSError, match="failed with status"):
        run.call("matmul", run.zeros(2, 3), run.zeros(2, 3))


def test_every_call_fits_the_operators_of_this_torch(run):
    called = set()
    for name, values, results in list_calls(run):
        operator, _, overload = name.partition(".")
        schema = torch._C._get_schema(f"aten::{operator}", overload)
        assert (len(values), results) == (len(schema.arguments), len(schema.returns))
        if torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "CPU"):
            run.call(name, *values, results=results)
            called.add(name)
    assert {"conv2d", "matmul", "pairwise_distance", "index_select", "max.dim", "grid_sampler"} < called


@pytest.fixture
def called(monkeypatch):
    """The operators that run on what seems to be a GPU."""
    names = []

    class Recorder(Operators):
        def __init__(self, library, device, number):
            assert (device, number) == ("cuda", 1)
            super().__init__(library, "cpu")

        def call(self, name, *values, results=1):
            names.append(name)
            return (self.zeros(1),) * results

    monkeypatch.setattr(early_operators, "Operators", Recorder)
    monkeypatch.setattr(early_operators, "has_gpu", lambda library, number: True)
    return names


def test_all_calls_are_made_on_a_gpu(called, run):
    load_kernels(LIBRARY, 1)
    assert sorted({*called}) == sorted({name for name, _, _ in list_calls(run)})


def test_no_more_calls_are_made_when_the_program_ends(called, monkeypatch):
    monkeypatch.setattr(threading, "main_thread", lambda: SimpleNamespace(is_alive=lambda: False))
    load_kernels(LIBRARY, 1)
    assert called == []


def test_a_failure_is_left_to_the_first_frame(called, monkeypatch):
    def fail(library, device, number):
        raise OSError("no memory")

    monkeypatch.setattr(early_operators, "Operators", fail)
    load_kernels(LIBRARY, 1)
    assert called == []


def test_without_a_gpu_or_its_library_nothing_is_loaded_or_said(capfd, tmp_path):
    for library in (LIBRARY, tmp_path / "missing.so"):  # that of the CPU cannot ask for GPUs
        load_kernels(library, 99)
    assert capfd.readouterr() == ("", "")


# as segment does it, but one after the other
ON_A_GPU = """
import ctypes, os
from streamseg import early
from streamseg.early_operators import Operators, list_calls

files = early.find_libraries()
early.load_libraries(early.find_dlopen(), files)
with Operators(files[-1], "cuda", 0) as run:
    for name, values, results in list_calls(run):
        run.call(name, *values, results=results)

import torch
ones = torch.ones(3, 3, device="cuda")
assert (ones @ ones).sum().item() == 27
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_runs_every_call_before_torch_is_imported():
    done = subprocess.run([sys.executable, "-c", ON_A_GPU], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
