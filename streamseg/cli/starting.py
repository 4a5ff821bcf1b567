"""What segment starts before it needs it, while Python imports the rest; the GPU is started by streamseg.early."""

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from streamseg import early
from streamseg.early_operators import load_kernels
from streamseg.io.checksums import check_ahead
from streamseg.io.hub import is_hub_address
from streamseg.models.bundled import find_weights
from streamseg.parallel.threads import set_torch_threads, short_turns
from streamseg.torch_parts import are_deferred

if TYPE_CHECKING:
    import torch

    from streamseg.io.sources import Source

MAX_DECODERS = 4
"""A process more that waits for its video costs as much as one that starts when it comes to it."""


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


def start_beside_torch(sources: Sequence["Source"], device: str, weights: Path | None, hardware: str) -> None:
    """Start what does not need torch, and wait for what torch needs.

    Args:
        hardware: The hardware decoder of videos; empty for none.
    """
    early.start_driver(device)
    start_decoders(sources, device, hardware)
    if not is_hub_address(weights) and (file := find_weights(weights)).suffix == ".safetensors":
        check_ahead(file)
    early.wait_for_libraries()
    start_kernels(device)


def start_decoders(sources: Sequence["Source"], device: str, hardware: str) -> None:
    """Start the processes that decode videos beside a GPU: the first frames are ready when torch is imported.

    A process that is not needed ends with this one.
    """
    from streamseg.io import codec_pool
    from streamseg.io.sources import Decoding, VideoFile

    codecs = os.environ.get("STREAMSEG_CODECS", "processes" if early.may_use_gpu(device) else "threads")
    if hardware or codecs != "processes" or not codec_pool.are_possible():
        return
    videos = [source for source in sources if isinstance(source, VideoFile)][:MAX_DECODERS]
    with suppress(OSError):  # the pipeline tries again, and tells the reason
        for video in videos:
            if video.paths:  # a file, not an address
                video.open_ahead(Decoding(planes=early.may_use_gpu(device)))  # as the pipeline will ask for it
        codec_pool.IDLE.start(len(videos))


def start_kernels(device: str) -> None:
    """Load kernels of a GPU in a thread while torch is imported, if its libraries are loaded and its version known."""
    number = early.find_gpu(device)
    if number is not None and len(early.LOADED) == len(early.LIBRARIES) and are_deferred():
        # no daemon, so that the end of the program waits for it
        threading.Thread(target=load_kernels, args=(early.LOADED[-1], number), name="load kernels").start()


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
