"""What segment starts before it needs it, while Python imports the rest; the GPU is started by streamseg.early."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from streamseg import early
from streamseg.parallel.threads import set_torch_threads, short_turns

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
def faster_opening(device: str) -> Iterator[None]:
    """Let a network be opened in less time: without the collector, and beside a GPU in short turns of Python's lock.

    A thread that starts the GPU needs the lock too, for a moment after each call.
    """
    with collector_off(), short_turns(early.may_use_gpu(device)):
        yield


@contextmanager
def unfrozen_at_the_end() -> Iterator[None]:
    """Take what collector_off has left out into collections again, at the end."""
    try:
        yield
    finally:
        gc.unfreeze()


def start_beside_torch(sources: Sequence["Source"], device: str) -> None:
    """Start what does not need torch, and wait for what torch needs."""
    early.start_driver(device)
    start_decoders(sources, device)
    early.wait_for_libraries()


def start_decoders(sources: Sequence["Source"], device: str) -> None:
    """Start the processes that decode videos beside a GPU: they are ready when torch is imported.

    A process that is not needed ends with this one.
    """
    from streamseg.io import codec_pool
    from streamseg.io.sources import VideoFile

    videos = sum(isinstance(source, VideoFile) for source in sources)
    codecs = os.environ.get("STREAMSEG_CODECS", "processes" if early.may_use_gpu(device) else "threads")
    if codecs == "processes" and codec_pool.are_possible():
        with suppress(OSError):  # the pipeline tries again, and tells the reason
            codec_pool.IDLE.start(min(videos, MAX_DECODERS))


@contextmanager
def one_torch_thread(device: "torch.device") -> Iterator[None]:
    """Let torch compute with one thread beside a GPU.

    To check and copy weights takes hundreds of short calls. If each is split among threads, it waits until the last of
    them has got a core: on two busy cores, reading `street` took 0.68 s instead of 0.08.
    """
    if device.type != "cuda":
        yield
        return
    import torch

    threads = torch.get_num_threads()
    set_torch_threads(1)
    try:
        yield
    finally:
        set_torch_threads(threads)


def start_network(device: "torch.device", weights: Path, precision: str) -> None:
    """Load CUDA's libraries and the kernels of a network in a thread, while its modules and its weights are loaded."""
    if device.type == "cuda":
        early.run_in_thread("start network", warm_up, device, weights, precision)


def warm_up(device: "torch.device", weights: Path, precision: str) -> None:
    """Use CUDA as the first frame will: its libraries, then all kernels of the network if that labels the first frames.

    Errors are ignored here: opening the weights or labelling the first frame raises them again.
    """
    with suppress(Exception):
        use_libraries(device)

        # not earlier: the main thread imports it meanwhile
        from streamseg.engine.open import open_unfilled_engine

        engine = open_unfilled_engine(weights, device, precision)
        if engine:
            label_once(engine)


def use_libraries(device: "torch.device") -> None:
    """Use CUDA, cuDNN and cuBLAS, as the first layers of a network would."""
    import torch
    from torch.nn import functional as F

    image, weight = (torch.zeros(8, 8, 16, 16, dtype=torch.float16, device=device) for _ in range(2))
    F.conv2d(image, weight[:, :, :3, :3])
    torch.matmul(image, weight)


def label_once(engine: "Engine") -> None:
    """Label an empty picture, as the pipeline labels the first frame of a video: from its planes to counted labels."""
    import torch

    from streamseg.engine.labels import count_batch
    from streamseg.io import yuv
    from streamseg.stream.transfers import download

    planes = yuv.empty_yuv(FIRST_SIZE, pinned=engine.device.type == "cuda").zero_()
    with torch.inference_mode():
        frame = yuv.to_rgb(yuv.Yuv420(planes.to(engine.device, non_blocking=True), FIRST_SIZE))
        labels = engine(frame)
        download(count_batch([labels], engine.classes), labels)
