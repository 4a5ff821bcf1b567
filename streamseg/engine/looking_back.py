"""What frames have in common with those before, by their pictures: beside the network, if a core is free.

It takes many short steps, which become no faster by more threads. So on the CPU one thread of its own does it while
those of the network compute the scores, unless the network has a thread for each core.

Shapes: B streams in a batch, K classes, h x w the map of scores.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from streamseg.engine.evidence import AnyEvidence
from streamseg.engine.steadying import (
    Fused,
    Past,
    Steadiness,
    average,
    fit_evidence,
    follow,
    luma_size,
    shrink_to_luma,
    weigh_gap,
)
from streamseg.machine import available_cores
from streamseg.parallel.threads import set_torch_threads

count_cores = cache(available_cores)


def fuse_scores(
    scores: Tensor,
    images: Tensor,
    evidence: Sequence[AnyEvidence | None],
    gaps: Sequence[float],
    steadiness: Steadiness,
    mask: Tensor | None = None,
    beside: Future[Past] | None = None,
) -> Fused:
    """Average the scores (B, K, h, w) of frames with those of earlier frames, moved along.

    Args:
        images: The frames (B, 3, H', W') in any size, 0 to 255.
        gaps: Seconds between each frame and the one before.
        mask: The unmasked share of each pixel, (B, H', W').
        beside: What start_looking_back has returned for these frames.
    """
    # contiguous: channels last, as the fast engine gives them, are slower to move and to label
    scores = scores.float().contiguous()
    if not any(evidence):
        luma = shrink_to_luma(images, luma_size(scores.shape[2:], images.shape[2:]))
        return Fused(scores, scores, luma, torch.zeros_like(scores[:, :1]))
    past = None if beside is None else beside.result()
    if past is None or past.moved.shape != scores.shape:  # the network's input has another size than before
        past = look_back(images, evidence, gaps, steadiness, scores[0], mask)
    return average(scores, past, steadiness)


def start_looking_back(
    images: Tensor,
    evidence: Sequence[AnyEvidence | None],
    gaps: Sequence[float],
    steadiness: Steadiness,
    mask: Tensor | None = None,
) -> Future[Past] | None:
    """Start to look back from frames on the CPU, in another thread; None if there is nothing to do, or no free core.

    Args:
        images: The frames, as for fuse_scores. They must not change before the result is there.
    """
    known = next((entry for entry in evidence if entry is not None), None)
    if known is None or images.device.type != "cpu" or torch.get_num_threads() >= count_cores():
        return None
    return free_thread(os.getpid()).submit(look_back, images, evidence, gaps, steadiness, known.scores, mask)


@torch.inference_mode()
def look_back(
    images: Tensor,
    evidence: Sequence[AnyEvidence | None],
    gaps: Sequence[float],
    steadiness: Steadiness,
    scores: Tensor,
    mask: Tensor | None = None,
) -> Past:
    """Return what is known of frames before their scores are.

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
    return follow(luma, before, earlier, luma.new_tensor(weights), steadiness, mask)


@cache
def free_thread(process: int) -> ThreadPoolExecutor:
    """Return a thread in which torch computes with one thread. A process that was forked needs its own."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(1, "look back", initializer=set_torch_threads, initargs=(1,))
    pool.submit(int).result()  # now the thread has set its number
    torch.set_num_threads(threads)  # or new threads would compute with one, too
    return pool
