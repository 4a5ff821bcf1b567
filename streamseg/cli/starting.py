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


def start_libraries(device: "torch.device") -> None:
    """Use a GPU in threads as the first frame of a video will: they load its libraries, and kernels."""
    if device.type == "cuda":
        early.run_in_thread("start cuDNN", use_convolutions, device)
        early.run_in_thread("start labels", use_labels, device)


def start_network(device: "torch.device", weights: Path, precision: str) -> None:
    """Load the kernels of a network in a thread, while its weights are loaded."""
    if device.type == "cuda":
        early.run_in_thread("start network", use_network, device, weights, precision)


# Errors are ignored in these threads: opening the weights or labelling the first frame raises them again.


def use_convolutions(device: "torch.device") -> None:
    """Start cuDNN."""
    with suppress(Exception):
        import torch
        from torch.nn import functional as F

        image, weight = (torch.zeros(8, 8, 16, 16, dtype=torch.float16, device=device) for _ in range(2))
        F.conv2d(image, weight[:, :, :3, :3])


def use_labels(device: "torch.device") -> None:
    """Start cuBLAS, and load the kernels of colours and labels; all this takes as long as cuDNN's start."""
    with suppress(Exception):
        import torch

        with torch.inference_mode():
            scores = torch.zeros(1, 16, 16, 16, dtype=torch.float16, device=device)
            torch.matmul(scores, scores)

            # not earlier: the main thread imports them meanwhile
            from streamseg.engine.labels import labels_from_scores
            from streamseg.engine.steadying import STEADY_LOW, fuse_scores

            fused = fuse_scores(scores, empty_picture(device)[None], [None], [0.0], STEADY_LOW)
            send(labels_from_scores(fused.scores[0], FIRST_SIZE), scores.shape[1])


def use_network(device: "torch.device", weights: Path, precision: str) -> None:
    """Label empty pictures as the first two frames of a video, if the network itself labels these.

    The second loads what compares it with the first, to keep labels steady.
    """
    with suppress(Exception):
        import torch

        from streamseg.engine.open import open_unfilled_engine
        from streamseg.engine.steadying import STEADY_LOW
        from streamseg.stream.label_frames import label_frame
        from streamseg.stream.state import LastFrames

        engine = open_unfilled_engine(weights, device, precision)
        if engine:
            state, policy = None, LastFrames(1, steady=STEADY_LOW)
            with torch.inference_mode():
                for _ in range(2):
                    labels, state = label_frame(engine, empty_picture(device), state, policy)
                    send(labels, engine.classes)


def empty_picture(device: "torch.device") -> "torch.Tensor":
    """Return an empty picture on a GPU, made from its planes as the pipeline makes the frames of a video."""
    from streamseg.io import yuv

    planes = yuv.empty_yuv(FIRST_SIZE, pinned=device.type == "cuda").zero_()
    return yuv.to_rgb(yuv.Yuv420(planes.to(device, non_blocking=True), FIRST_SIZE))


def send(labels: "torch.Tensor", classes: int) -> None:
    """Count labels and send them to the CPU, as the pipeline does."""
    from streamseg.engine.labels import count_batch
    from streamseg.stream.transfers import download

    download(count_batch([labels], classes), labels)
