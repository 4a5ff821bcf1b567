"""Steady labels look back from the pictures of frames: on the CPU beside the network, if a core is free.

To compare a picture with the one before, and to move the evidence along, takes many short steps, which become no faster
by more threads. None of them needs the scores of the frame. So one thread of its own takes them while those of the
network compute the scores, unless the network has a thread for each core.

Shapes: B streams in a batch, K classes, h x w the map of scores.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from streamseg.engine.evidence import AnyEvidence
from streamseg.engine.steadying import (
    Fused,
    MovedEvidence,
    Steadiness,
    average,
    fit_evidence,
    luma_size,
    move_evidence,
    shrink_to_luma,
    weigh_gap,
)
from streamseg.machine import available_cores
from streamseg.parallel.threads import set_torch_threads

BUSY = threading.Lock()
"""Held while the thread works: whoever comes meanwhile looks back after its network."""
count_cores = cache(available_cores)


def fuse_scores(
    scores: Tensor,
    images: Tensor,
    evidence: Sequence[AnyEvidence | None],
    gaps: Sequence[float],
    steadiness: Steadiness,
    mask: Tensor | None = None,
    looked_back: Future[MovedEvidence] | None = None,
) -> Fused:
    """Average the scores (B, K, h, w) of frames with those of earlier frames, moved along.

    Args:
        images: The frames (B, 3, H', W') in any size, 0 to 255.
        gaps: Seconds between each frame and the one before.
        mask: The unmasked share of each pixel, (B, H', W').
        looked_back: What looking_back has yielded for these frames.
    """
    # contiguous: channels last, as the fast engine gives them, are slower to move and to label
    scores = scores.float().contiguous()
    if not any(evidence):
        luma = shrink_to_luma(images, luma_size(scores.shape[2:], images.shape[2:]))
        return Fused(scores, scores, luma, torch.zeros_like(scores[:, :1]))
    moved = None if looked_back is None else looked_back.result()
    if moved is None or moved.scores.shape != scores.shape:  # the network's input has another size than before
        moved = look_back(images, evidence, gaps, steadiness, scores[0], mask)
    return average(scores, moved, steadiness)


@contextmanager
def looking_back(
    images: Tensor,
    evidence: Sequence[AnyEvidence | None],
    gaps: Sequence[float],
    steadiness: Steadiness,
    mask: Tensor | None = None,
) -> Iterator[Future[MovedEvidence] | None]:
    """Look back from frames on the CPU in another thread; None if there is nothing to do, or no free core.

    After the block nothing reads the frames any more, if the result was awaited in it or an error has left it.
    """
    known = next((entry for entry in evidence if entry is not None), None)
    future: Future[MovedEvidence] | None = None
    if known is not None and torch.get_num_threads() < count_cores() and BUSY.acquire(blocking=False):
        scores = torch.empty(known.scores.shape)

        def work() -> MovedEvidence:
            try:
                return look_back(images, evidence, gaps, steadiness, scores, mask)
            finally:
                BUSY.release()  # before the result is there, so that the next frame finds it free

        try:
            future = make_thread(os.getpid()).submit(work)
        except RuntimeError:  # the interpreter ends, and starts no thread any more
            BUSY.release()
    try:
        yield future
    except BaseException:
        if future is not None:
            wait([future])
        raise


@torch.inference_mode()
def look_back(
    images: Tensor,
    evidence: Sequence[AnyEvidence | None],
    gaps: Sequence[float],
    steadiness: Steadiness,
    scores: Tensor,
    mask: Tensor | None = None,
) -> MovedEvidence:
    """Return the evidence of the frames before, moved along.

    Args:
        images: The frames, with the other arguments of fuse_scores.
        scores: Any of the shape and on the device of theirs, (K, h, w).
    """
    luma = shrink_to_luma(images, luma_size(scores.shape[1:], images.shape[2:]))
    nothing = torch.zeros_like(scores, dtype=torch.float32)
    known = [None if entry is None else fit_evidence(entry, scores, luma[0, 0]) for entry in evidence]
    before = torch.stack([now if entry is None else entry.luma[None] for entry, now in zip(known, luma, strict=True)])
    earlier = torch.stack([nothing if entry is None else entry.scores for entry in known])
    weights = [0.0 if entry is None else weigh_gap(gap) for entry, gap in zip(known, gaps, strict=True)]
    return move_evidence(luma, before, earlier, luma.new_tensor(weights), steadiness, mask)


@cache
def make_thread(process: int) -> ThreadPoolExecutor:
    """Return an executor with one thread, in which torch computes with one thread; the caller holds BUSY.

    A process that was forked needs its own. It is no daemon, even if the caller is: a program ends as without it.
    """
    executor, started = ThreadPoolExecutor(1, "look back"), Future[None]()

    def start() -> None:
        try:
            usual = executor.submit(torch.get_num_threads).result()
            executor.submit(set_torch_threads, 1).result()
            set_torch_threads(usual)  # the number for threads to come, which was set to 1, too
            started.set_result(None)
        except BaseException as error:  # whatever it is, the caller waits for it
            started.set_exception(error)

    threading.Thread(target=start, daemon=False).start()
    started.result()
    return executor
