"""Time the first labels of a size on a GPU, for docs/performance.md: python benchmarks/first_labels.py [HEIGHT WIDTH].

A process with an empty folder of kernels, and then one with the kernels that it left, label frames of a size as fast as
they can until the fast engine has taken over, and a hundred more.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

START = time.perf_counter()
"""The start of the process, before torch is imported."""
AFTERWARDS = 100
"""How many frames the fast engine labels."""
GIVE_UP = 120.0
"""Seconds after which the run ends, whichever engine labels."""


def main(height: int = 720, width: int = 1280) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kernels in ("no kernels yet", "kernels of the first run"):
            command = [sys.executable, __file__, "child", str(height), str(width)]
            done = subprocess.run(command, env=os.environ | {"TRITON_CACHE_DIR": folder}, stdout=subprocess.PIPE)
            if done.returncode:
                sys.exit(f"The child ended with {done.returncode}.")
            found = json.loads(done.stdout)
            print(f"{height} x {width}, {kernels}:", ", ".join(f"{name} {value}" for name, value in found.items()))


def label_in_child(height: int, width: int) -> None:
    """Label frames, and print the times as JSON."""
    import torch

    from streamseg.engine.engine import resize_frames
    from streamseg.engine.open import open_preparing_engine
    from streamseg.engine.prepare import PreparingEngine
    from streamseg.io.images import read_image
    from streamseg.stream.label_frames import label_frame

    imported = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    engine = open_preparing_engine(None, device).engine
    picture = read_image(Path(__file__).parents[1] / "samples" / "suburb-1.jpg")
    frame = resize_frames(picture[None], (height, width))[0]
    key = (torch.Size((1, 3, height, width)), False, False, False, None)
    times: dict[bool, list[float]] = {False: [], True: []}
    first = taken_over = 0.0
    state = labels = None
    eager_labels = None
    while len(times[True]) < AFTERWARDS and time.perf_counter() - START < GIVE_UP:
        begin, is_fast = time.perf_counter(), not isinstance(engine, PreparingEngine) or engine.fast.is_prepared(key)
        labels, state = label_frame(engine, frame, state)  # the labels come back to the CPU
        times[is_fast].append(time.perf_counter() - begin)
        first = first or time.perf_counter() - START
        if is_fast:
            taken_over = taken_over or begin - START
        else:
            eager_labels = labels
    both = labels is not None and eager_labels is not None
    agreement = float((labels == eager_labels).float().mean()) if both else 1.0
    waits = sorted(times[False][1:] + times[True])
    print(
        json.dumps(
            {
                "torch imported after s": round(imported - START, 2),
                "first labels after s": round(first, 2),
                "fast engine after s": round(taken_over, 2),
                "frames by the eager network": len(times[False]),
                "longest later frame ms": round(1000 * max(waits, default=0.0), 1),
                "p99 ms": round(1000 * waits[int(0.99 * (len(waits) - 1))], 1) if waits else 0,
                "eager median ms": round(1000 * median(times[False] or [0.0]), 2),
                "fast median ms": round(1000 * median(times[True] or [0.0]), 2),
                "same labels": round(agreement, 5),
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        label_in_child(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main(*map(int, sys.argv[1:]))
