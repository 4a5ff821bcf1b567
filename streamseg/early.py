"""What the program starts before it imports its command line: the GPU's driver, and torch's libraries.

Both take some tenths of a second, and neither needs Python: threads do them while Python imports modules. Standard
library only, and as little of it as possible.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""Devices that a machine with a GPU of NVIDIA has: on Linux, and in Windows' own Linux."""
DRIVER = "libcuda.so.1"
"""The driver of NVIDIA's GPUs."""
LIBRARIES = ("libtorch_global_deps.so", "libtorch_cpu.so", "libtorch_cuda.so")
"""Torch's libraries that `import torch` loads before its modules, in this order."""
ENVIRONMENT = {"CUDA_MODULE_LOADING": "LAZY", "OPENBLAS_MAIN_FREE": "1", "GOTOBLAS_MAIN_FREE": "1"}
"""Variables that torch and numpy set when they are imported, for the driver and for numpy's OpenBLAS."""
MODULES = (
    "bz2",
    "csv",
    "datetime",
    "decimal",
    "hashlib",
    "heapq",
    "json",
    "lzma",
    "math",
    "opcode",
    "random",
    "select",
    "ssl",
    "subprocess",
    "unicodedata",
    "uuid",
    "zlib",
)
"""Modules of the standard library that the command line imports and that have libraries of their own. The system loads
one library at a time: Python would wait for torch's at the first of these."""
TORCH_MODULES = (
    "numpy",
    "typing_extensions",
    "pickletools",
    "argparse",
    "tarfile",
    "multiprocessing.connection",
    "tqdm",
    "unittest.mock",
)
"""Modules of others that torch imports, and what they import in turn: a tenth of a second. Numpy comes first: it waits
for one of torch's libraries to load its own ones, and does the rest beside the next."""
NO_EARLY_START = ("--device", "--weights", "--ray")
"""Options of segment that may ask for another device than the first GPU, or for none."""
LOADER = "load libraries"
"""Name of the thread that loads torch's libraries."""
LOADED: list[Path] = []
"""The libraries that it has loaded."""


def start_early(arguments: Sequence[str]) -> None:
    """Start the first GPU if a command line, which has not been parsed yet, is going to use it.

    For segment, whether on a GPU or not, torch is imported without parts that it does not need.
    """
    set_environment(arguments)
    if arguments[:1] == ["segment"] and not {"--help", "-h"} & {*arguments}:
        if not any(word.startswith(NO_EARLY_START) for word in arguments):
            start_driver("")
        from streamseg.torch_parts import defer_parts  # after the threads have started: its imports take a while

        defer_parts()


def set_environment(arguments: Sequence[str]) -> None:
    """Set variables for libraries, before threads start: while one changes the environment, no other may read it."""
    if "--quiet" in arguments or not (sys.stderr and sys.stderr.isatty()):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # huggingface_hub would draw them into logs


def may_use_gpu(device: str) -> bool:
    """Return whether a device of this name may be a GPU of this machine; whether it is one, only torch knows."""
    return device != "cpu" and any(Path(file).exists() for file in GPU_FILES)


def start_driver(device: str) -> None:
    """Start the driver of a GPU, and load torch's libraries, in threads: Python's modules are imported meanwhile."""
    number = find_gpu(device)
    if number is not None:
        # torch sets the first, but after the driver has read it, and older versions of numpy the others; no thread may
        # change the environment while the driver and torch's libraries read it
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        start_gpu(number)


def find_gpu(device: str) -> int | None:
    """Return the number of the GPU of NVIDIA that a device of this name may be; None if it cannot be one."""
    kind, _, number = device.partition(":")
    number = number or os.environ.get("LOCAL_RANK", "0")
    return int(number) if kind in ("", "cuda") and number.isdecimal() and may_use_gpu(device) else None


@cache
def start_gpu(number: int) -> None:
    """Start the threads, once."""
    with suppress(OSError, AttributeError):  # no driver: torch finds no GPU
        # Both are opened and looked up here, because Python keeps its lock meanwhile, and waits if another thread loads
        # a library. The calls themselves give the lock up.
        driver = ctypes.CDLL(DRIVER)
        functions = driver.cuInit, driver.cuDeviceGet, driver.cuDevicePrimaryCtxRetain
        run_in_thread("start driver", make_context, functions, number)
        if files := find_libraries():
            for name in MODULES:
                with suppress(ImportError):  # Python may have been built without it
                    import_module(name)
            run_in_thread(LOADER, load_libraries, find_dlopen(), files)


def run_in_thread(name: str, work: Callable[..., None], *given: object) -> None:
    """Start a thread that the end of the program does not wait for."""
    threading.Thread(target=work, args=given, name=name, daemon=True).start()


def make_context(functions: tuple[Callable[..., int], ...], number: int) -> None:
    """Make the CUDA context of a GPU that torch will use, its primary one.

    Args:
        functions: The driver's cuInit, cuDeviceGet and cuDevicePrimaryCtxRetain.
    """
    start, find_device, retain_context = functions
    device, context = ctypes.c_int(), ctypes.c_void_p()
    # each returns 0 if it succeeds; an error is ignored, because torch raises it again
    if start(0) == 0 and find_device(ctypes.byref(device), number) == 0:
        retain_context(ctypes.byref(context), device)


def find_libraries() -> list[Path]:
    """Return the files of torch's libraries; none if torch is to load them by itself."""
    torch = find_spec("torch")
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    # torch then chooses between its own copy of this library and that of the folder, before it loads its own ones
    if any(any(Path(folder).glob("libnvJitLink.so*")) for folder in folders if folder):
        return []
    if torch is None or not torch.submodule_search_locations:
        return []
    files = [Path(torch.submodule_search_locations[0], "lib", name) for name in LIBRARIES]
    return files if all(file.exists() for file in files) else []


def find_dlopen() -> Callable[[bytes, int], int | None]:
    """Return the function of the system that loads a library; unlike ctypes.CDLL it gives up Python's lock."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    return dlopen


def load_libraries(dlopen: Callable[[bytes, int], int | None], files: Sequence[Path]) -> None:
    """Load libraries as `import torch` does; the first one's symbols are for all. It stops where that fails."""
    scope = os.RTLD_GLOBAL
    for file in files:
        if not dlopen(os.fsencode(file), os.RTLD_NOW | scope):
            return
        LOADED.append(file)
        scope = os.RTLD_LOCAL


def wait_for_libraries() -> None:
    """Wait until torch's libraries are loaded, before anything changes the environment, which they read.

    Meanwhile modules are imported that torch will import.

    This does not delay `import torch`, which needs the libraries first. The thread of the driver is not waited for:
    start_driver sets what torch and numpy would set meanwhile.
    """
    for thread in threading.enumerate():
        if thread.name == LOADER:
            for name in TORCH_MODULES:
                with suppress(ImportError):  # this version of torch may not need it
                    import_module(name)
            thread.join()
