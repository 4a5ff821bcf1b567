"""Call one engine from four threads, for docs/performance.md: python benchmarks/threads.py [cpu | cuda] [CALLS].

Each thread labels its own frame 1,000 times; every result is compared with that of a single thread, and the time with
that of the same calls one after the other. First all frames have the same size, then each has another. On the CPU
frames are small (such as 64 x 96), on a GPU they are 512 x 1024 and more.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

import streamseg

THREADS = 4


def main(device: str = "cuda" if torch.cuda.is_available() else "cpu", calls: int = 1000) -> None:
    model, _ = streamseg.load()
    engine = streamseg.accelerate(model.to(device))
    scale = 8 if device == "cuda" else 1
    for sizes in ([(64, 128)] * THREADS, [(64, 128), (72, 96), (96, 64), (64, 96)]):
        frames = [
            torch.randint(0, 256, (3, scale * height, scale * width), dtype=torch.uint8).to(device)
            for height, width in sizes
        ]
        expected = [engine(frame) for frame in frames]
        alone, wrong = timed(partial(call_in_turn, engine, frames, expected, calls))
        together, wrong_together = timed(partial(call_at_once, engine, frames, expected, calls))
        shapes = " ".join(sorted({f"{frame.shape[1]} x {frame.shape[2]}" for frame in frames}))
        print(f"{device}, {shapes}: {THREADS} x {calls} calls take {together:.2f} s, in turn {alone:.2f} s")
        print(f"wrong: {sum(wrong_together)}, in turn {sum(wrong)}", flush=True)


def timed(work: Callable[[], list[int]]) -> tuple[float, list[int]]:
    """Return the seconds that some work takes, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def count_wrong(engine: Callable[[Tensor], Tensor], frame: Tensor, expected: Tensor, calls: int) -> int:
    """Return how many calls give other labels than expected."""
    wrong = torch.zeros((), dtype=torch.int64, device=frame.device)
    for _ in range(calls):  # counted on the device, so that the host waits once
        wrong += (engine(frame) != expected).any()
    return int(wrong)


def call_in_turn(
    engine: Callable[[Tensor], Tensor], frames: Sequence[Tensor], expected: Sequence[Tensor], calls: int
) -> list[int]:
    return [count_wrong(engine, *pair, calls) for pair in zip(frames, expected, strict=True)]


def call_at_once(
    engine: Callable[[Tensor], Tensor], frames: Sequence[Tensor], expected: Sequence[Tensor], calls: int
) -> list[int]:
    start, wrong = threading.Barrier(len(frames)), [calls] * len(frames)

    def work(i: int) -> None:
        start.wait()
        wrong[i] = count_wrong(engine, frames[i], expected[i], calls)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(frames))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
