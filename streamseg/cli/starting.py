"""What segment starts before it needs it, while Python imports the rest; the GPU is started by streamseg.early."""

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from streamseg.early import may_use_gpu

if TYPE_CHECKING:
    import torch

    from streamseg.engine.engine import Engine
    from streamseg.io.sources import Source

MAX_DECODERS = 4
"""A process more that waits for its video costs as much as one that starts when it comes to it."""
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
    """Label an empty picture, as the pipeline labels the first frame of a video: from its planes to counted labels."""
    from streamseg.engine.labels import count_batch
    from streamseg.io import yuv

    with suppress(RuntimeError):  # the first frame meets the same error, and tells it
        planes = yuv.empty_yuv(FIRST_SIZE, pinned=engine.device.type == "cuda").zero_()
        frame = yuv.to_rgb(yuv.Yuv420(planes.to(engine.device, non_blocking=True), FIRST_SIZE))
        count_batch([engine(frame)], engine.classes)
