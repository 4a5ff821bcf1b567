"""What segment starts before it needs it, while Python imports the rest."""

import ctypes
import gc
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from streamseg.engine.engine import Engine
    from streamseg.io.sources import Source

GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""Devices that a machine with a GPU of NVIDIA has: on Linux, and in Windows' own Linux."""
MAX_DECODERS = 4
"""A process more that waits for its video costs as much as one that starts when it comes to it."""
DRIVER = "libcuda.so.1"
"""The driver of NVIDIA's GPUs."""
FIRST_SIZE = (360, 640)
"""Height and width of the picture with which a network starts."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Turn Python's garbage collector off, and leave what exists at the end out of later collections.

    Torch alone makes so many objects that looking through them, again and again while it is imported and once more
    between the first frames, takes a tenth of the time to the first labels.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def unfrozen_at_the_end() -> Iterator[None]:
    """Take what collector_off has left out into collections again, at the end."""
    try:
        yield
    finally:
        gc.unfreeze()


def may_use_gpu(device: str) -> bool:
    """Return whether a device of this name may be a GPU of this machine; whether it is one, only torch knows."""
    return device != "cpu" and any(Path(file).exists() for file in GPU_FILES)


def start_decoders(sources: Sequence["Source"], device: str) -> None:
    """Start the processes that decode videos beside a GPU: they are ready when torch is imported.

    A process that is not needed ends with this one.
    """
    from streamseg.io import codec_pool
    from streamseg.io.sources import VideoFile

    videos = sum(isinstance(source, VideoFile) for source in sources)
    codecs = os.environ.get("STREAMSEG_CODECS", "processes" if may_use_gpu(device) else "threads")
    if codecs == "processes" and codec_pool.are_possible():
        with suppress(OSError):  # the pipeline tries again, and tells the reason
            codec_pool.IDLE.start(min(videos, MAX_DECODERS))


def start_driver(device: str) -> None:
    """Start the driver of a GPU in a thread, which takes some tenths of a second: torch is imported meanwhile."""
    kind, _, number = device.partition(":")
    number = number or os.environ.get("LOCAL_RANK", "0")
    if kind in ("", "cuda") and number.isdecimal() and may_use_gpu(device):
        # torch sets the same, but after the driver has read it. Not in the thread: while one thread changes the
        # environment, no other may read it, as torch's libraries do when they are loaded
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        threading.Thread(target=make_context, args=(int(number),), name="start driver", daemon=True).start()


def make_context(number: int) -> None:
    """Make the CUDA context of a GPU that torch will use, its primary one."""
    with suppress(OSError, AttributeError):  # no driver: torch finds no GPU
        driver = ctypes.CDLL(DRIVER)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        # each returns 0 if it succeeds; torch meets the same error, and tells it
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), number) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def start_device(device: "torch.device") -> None:
    """Load CUDA's libraries in a thread: the modules of the network are imported meanwhile."""
    if device.type == "cuda":
        threading.Thread(target=use_libraries, args=(device,), name="start device", daemon=True).start()


def use_libraries(device: "torch.device") -> None:
    """Use CUDA, cuDNN and cuBLAS, as the first layers of a network would."""
    import torch
    from torch.nn import functional as F

    with suppress(RuntimeError):  # the network meets the same error, and tells it
        image, weight = (torch.zeros(8, 8, 16, 16, dtype=torch.float16, device=device) for _ in range(2))
        F.conv2d(image, weight[:, :, :3, :3])
        torch.matmul(image, weight)
        torch.cuda.synchronize(device)


def start_network(engine: "Engine") -> None:
    """Label a small picture in a thread, which loads the kernels: the modules of the pipeline are imported meanwhile.

    Only a PreparingEngine, whose first frames the network itself labels, has nothing to compile for it.
    """
    from streamseg.engine.prepare import PreparingEngine

    if isinstance(engine, PreparingEngine):
        threading.Thread(target=label_once, args=(engine.eager,), name="start network", daemon=True).start()


def label_once(engine: "Engine") -> None:
    """Label an empty picture."""
    import torch

    with suppress(RuntimeError):  # the first frame meets the same error, and tells it
        engine(torch.zeros(3, *FIRST_SIZE, dtype=torch.uint8, device=engine.device))
