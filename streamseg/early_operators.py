"""Runs torch's operators on a GPU before Python has imported torch, so that libraries and kernels are loaded by then.

The first use of cuDNN, cuBLAS and each group of torch's kernels takes 10 to 200 ms, a second in all. None of it needs
Python: torch's libraries have functions in C that call operators, and stay the same from version to version
(torch/csrc/stable/c/shim.h and torch/csrc/inductor/aoti_torch/c/shim.h in its source). A thread calls them, without
Python's lock, while Python imports torch's modules. What the operators compute is thrown away. Their arguments may
change with a new version: only those that were tried are used so.
"""

import ctypes
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

CONVOLUTIONS = (
    (3, 64, 7, 2, 270, 480),
    (64, 64, 3, 1, 68, 120),
    (64, 128, 3, 2, 68, 120),
    (64, 128, 1, 2, 68, 120),
    (128, 128, 3, 1, 34, 60),
    (128, 256, 3, 2, 34, 60),
    (256, 256, 3, 1, 17, 30),
    (256, 512, 3, 2, 9, 15),
    (512, 512, 3, 1, 5, 8),
    (256, 32, 1, 1, 17, 30),
)
"""Convolutions of FANet-18: channels in and out, side of the kernel, stride, height and width of the map. Others of the
same kind use the same kernels of cuDNN."""

MOST_VALUES = 32
"""Room for the arguments and results of an operator."""


class Handle(NamedTuple):
    """A tensor of torch's libraries."""

    address: int


Value = Handle | Sequence["Handle | int"] | float | None
"""What an operator is given; True and False are integers."""


class Operators:
    """Torch's operators, by the functions of its libraries; at the end of a with statement all tensors are freed.

    Args:
        library: The file of the library with the functions, or of one that has loaded it.
        device: cpu or cuda.
        number: Number of the GPU.
    """

    def __init__(self, library: Path, device: str, number: int = 0):
        # calls that take long give up Python's lock; for the others that would take longer than they do
        self.slow, self.quick = ctypes.CDLL(str(library)), ctypes.PyDLL(str(library))
        self.device, self.number = getattr(self.quick, f"aoti_torch_device_type_{device}")(), number
        self.gradients = True
        """Whether the thread computed gradients before."""
        self.quick.aoti_torch_grad_mode_is_enabled.restype = ctypes.c_bool
        self.handles: list[Handle] = []

    def __enter__(self) -> Self:
        self.gradients = self.quick.aoti_torch_grad_mode_is_enabled()
        self.quick.aoti_torch_grad_mode_set_enabled(ctypes.c_bool(False))
        return self

    def __exit__(self, *_: object) -> None:
        self.quick.aoti_torch_grad_mode_set_enabled(ctypes.c_bool(self.gradients))
        for handle in self.handles:
            self.quick.aoti_torch_delete_tensor_object(ctypes.c_uint64(handle.address))

    def zeros(self, *sizes: int, dtype: str = "float16", order: Sequence[int] = ()) -> Handle:
        """Return a tensor of zeros.

        Args:
            order: Its dimensions as they lie in memory; by default as they are.
        """
        strides, step = [0] * len(sizes), 1
        for dimension in reversed(order or range(len(sizes))):
            strides[dimension], step = step, step * sizes[dimension]
        integers, address = ctypes.c_int64 * len(sizes), ctypes.c_uint64()
        check(
            self.slow.aoti_torch_empty_strided(
                ctypes.c_int64(len(sizes)),
                integers(*sizes),
                integers(*strides),
                getattr(self.quick, f"aoti_torch_dtype_{dtype}")(),
                self.device,
                self.number,
                ctypes.byref(address),
            )
        )
        check(self.slow.aoti_torch_zero_(address))
        return self.keep(address.value)

    def zero_map(self, *sizes: int) -> Handle:
        """Return a map or a weight (N, C, H, W) of zeros, its channels last in memory."""
        return self.zeros(*sizes, order=(0, 2, 3, 1))

    def keep(self, address: int) -> Handle:
        """Return a tensor that will be freed in the end."""
        self.handles.append(Handle(address))
        return self.handles[-1]

    def call(self, name: str, *values: Value, results: int = 1) -> tuple[Handle, ...]:
        """Call an operator, such as relu or max.dim, with all of its arguments, and return its results."""
        # with room for more arguments, which are zero: a longer list than the operator's does no harm
        stack = (ctypes.c_uint64 * MOST_VALUES)(*map(self.encode, values))
        operator, _, overload = name.partition(".")
        check(self.slow.aoti_torch_call_dispatcher(f"aten::{operator}".encode(), overload.encode(), stack))
        return tuple(self.keep(stack[i]) for i in range(results))

    def encode(self, value: Value) -> int:
        """Return a value as an operator takes it, in 64 bits. It will free tensors and lists, so both are new ones."""
        if value is None or isinstance(value, int):
            return int(value or 0)
        if isinstance(value, float):
            return int(struct.unpack("<Q", struct.pack("<d", value))[0])
        address = ctypes.c_uint64()
        if isinstance(value, Handle):
            check(self.quick.aoti_torch_new_tensor_handle(ctypes.c_uint64(value.address), ctypes.byref(address)))
            return address.value
        check(self.quick.torch_new_list_reserve_size(ctypes.c_size_t(len(value)), ctypes.byref(address)))
        for item in value:
            check(self.quick.torch_list_push_back(address, ctypes.c_uint64(self.encode(item))))
        return address.value


def check(status: int) -> None:
    """Raise an OSError if a function of torch's libraries has failed."""
    if status:
        raise OSError(f"A function of torch's libraries failed with status {status}.")


class Call(NamedTuple):
    """A call of an operator."""

    name: str
    values: tuple[Value, ...]
    results: int = 1


def list_calls(run: Operators) -> Iterator[Call]:
    """Yield what a network and its labels need for the first frames of a video."""
    for inputs, outputs, side, stride, height, width in CONVOLUTIONS:
        image, weight = run.zero_map(1, inputs, height, width), run.zero_map(outputs, inputs, side, side)
        yield Call("conv2d", (image, weight, None, [stride, stride], [side // 2, side // 2], [1, 1], 1))
    maps, numbers = run.zero_map(1, 64, 34, 60), run.zeros(64, dtype="float32")
    yield Call("matmul", (run.zeros(1, 32, 512), run.zeros(1, 512, 256)))
    yield Call("batch_norm_elemt", (maps, None, None, numbers, numbers, 1e-5))
    yield Call("relu", (maps,))
    yield Call("max_pool2d", (maps, [3, 3], [2, 2], [1, 1], [1, 1], False))
    yield Call("avg_pool2d", (maps, [2, 2], [2, 2], [0, 0], True, True, None))
    yield Call("upsample_bilinear2d", (maps, [68, 120], False, None, None))
    queries = run.zeros(1, 512, 32)
    yield Call("pairwise_distance", (queries, queries, 2.0, 1e-6, False))  # sums and norms; add takes more than tensors
    yield Call("cat", ([maps, maps], 1))
    scores = run.zeros(1, 13, 68, 120, dtype="float32")
    (lines,) = run.call("upsample_bilinear2d", scores, [68, 640], False, None, None)
    yield Call("index_select", (lines, 2, run.zeros(360, dtype="int64")))
    yield Call("lerp.Tensor", (scores, scores, scores))
    yield Call("max.dim", (scores, 1, False), results=2)
    for name in ("mul.Tensor", "div.Tensor", "le.Tensor", "eq.Tensor"):
        yield Call(name, (scores, scores))
    for name in ("floor", "abs", "exp"):
        yield Call(name, (scores,))
    yield Call("flip", (scores, [1]))
    for name in ("sum", "mean"):
        yield Call(name, (scores, None))
    yield Call("grid_sampler", (scores, run.zeros(1, 68, 120, 2, dtype="float32"), 0, 1, False))


def load_kernels(library: Path, number: int) -> None:
    """Load what the first frames of a video need on a GPU; where that fails, they load it themselves.

    It ends early if the program does, which waits for this thread or ends without unloading anything: the libraries
    must not end before their functions.
    """
    with suppress(OSError, AttributeError):  # no memory, or a library without these functions
        if not has_gpu(library, number):
            return
        with Operators(library, "cuda", number) as run:
            for name, values, results in list_calls(run):
                if not threading.main_thread().is_alive():
                    return
                run.call(name, *values, results=results)


def has_gpu(library: Path, number: int) -> bool:
    """Return whether there is a GPU of a number; without it torch would write errors to the terminal here."""
    count = ctypes.c_int()
    return not ctypes.CDLL(str(library)).cudaGetDeviceCount(ctypes.byref(count)) and number < count.value
