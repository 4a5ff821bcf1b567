"""Measure the cost of labelling archives, and simulate many GPUs: python benchmarks/scale.py ray|stages|simulate.

ray       the same clips with `streamseg segment`, and with its --ray
stages    processor time of each stage for a frame of 1280 x 720
simulate  an archive of 10,000 hours on 1, 10 and 100 GPUs, with workers that crash
"""

import heapq
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

import streamseg
from streamseg.classes import IGNORE
from streamseg.deploy import archive
from streamseg.io.video_writing import open_label_writer, open_video_writer
from streamseg.parallel import cluster
from streamseg.stream.state import LastFrames

PICTURE = Path(__file__).parent.parent / "samples" / "suburb-1.jpg"
RATE = Fraction(30)
NOISE = 3.0
"""Standard deviation, in pixel values from 0 to 255."""


def drive(frames: int, size: tuple[int, int], start: int = 0) -> list[Tensor]:
    """Return frames of a camera that pans over a picture, with noise, which takes most of a video's bytes."""
    picture, (height, width) = streamseg.read_image(PICTURE), size
    _, tall, wide = picture.shape
    noise = torch.Generator().manual_seed(start)
    views = []
    for i in range(start, start + frames):
        top, left = (2 * i) % (tall - height), (3 * i) % (wide - width)
        view = picture[:, top : top + height, left : left + width]
        views.append((view + NOISE * torch.randn(view.shape, generator=noise)).clamp(0, 255).to(torch.uint8))
    return views


def compare_with_ray(clips: int = 16, frames: int = 60, size: tuple[int, int] = (360, 640)) -> None:
    """Compare the frames per second of both on the same clips, without and with their start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "clips").mkdir()
        for i in range(clips):
            streamseg.write_frames(folder / "clips" / f"{i:02}.mp4", drive(frames, size, 37 * i), RATE)
        pattern, total = f"{folder}/clips/*.mp4", clips * frames

        def plain() -> tuple[float, float]:
            """Return frames per second, without and with the start."""
            command = [sys.executable, "-m", "streamseg", "segment", pattern, f"{folder}/plain", "--labels"]
            start = time.monotonic()
            output = subprocess.run([*command, "--no-overlay"], check=True, capture_output=True, text=True).stdout
            seconds = float(next(line.split() for line in output.splitlines() if line.startswith("fps"))[-2])
            rates = total / seconds, total / (time.monotonic() - start)
            print("plain  {:6.2f} frames/s under way, {:6.2f} with its start".format(*rates))
            return rates

        before_ray = plain()
        done: list[tuple[float, int]] = []
        start = time.monotonic()
        archive.segment_archive(
            [pattern],
            f"{folder}/ray",
            archive.ArchiveSettings(None, LastFrames(1)),
            cluster.LOCAL_CLUSTER,
            progress=lambda report: done.append((time.monotonic() - start, report.frames)),
        )
        with_start = total / (time.monotonic() - start)
        # from the time when each worker has finished its first clip
        (first, before), (last, after) = done[(os.cpu_count() or 1) - 1], done[-1]
        under_way = (after - before) / (last - first)
        print(f"ray    {under_way:6.2f} frames/s under way, {with_start:6.2f} with its start")
        plain_under_way, plain_with_start = map(mean, zip(before_ray, plain(), strict=True))
        print(
            f"ratio  {under_way / plain_under_way:6.2f} under way, {with_start / plain_with_start:6.2f} with the starts"
        )
        same = all(
            (folder / "ray" / f"{i:02}.mp4" / "labels.mkv").read_bytes()
            == (folder / "plain" / f"{i:02}-labels.mkv").read_bytes()
            for i in range(clips)
        )
        print(f"labels {'are the same, byte by byte' if same else 'DIFFER'}")


def measure_stages(frames: int = 120, size: tuple[int, int] = (720, 1280)) -> None:
    """Print the processor time of each stage per frame, over all threads, and the bytes that are read and written."""
    torch.set_num_threads(1)  # waiting threads would count as well
    model, classes = streamseg.load()
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        video, labels_file, overlay_file = (Path(name) / file for file in ("in.mp4", "labels.mkv", "overlay.mp4"))
        pictures = drive(frames, size)
        streamseg.write_frames(video, pictures, RATE)
        decoded: list[Tensor] = []
        rows = {"decode (H.264)": per_frame(frames, lambda: decoded.extend(streamseg.read_frames(video)))}
        fast = streamseg.accelerate(model.eval())
        found: list[Tensor] = [fast(decoded[0])]
        few = decoded[:8]
        rows["network (fp32, CPU)"] = per_frame(len(few), lambda: found.extend(map(fast, few)))
        int8 = streamseg.accelerate(model, "int8", few[:2])
        int8(decoded[0])
        rows["network (int8, CPU)"] = per_frame(len(few), lambda: consume(map(int8, few)))
        some = (found * frames)[:frames]
        rows["count pixels"] = per_frame(
            frames, lambda: consume(torch.bincount(x.flatten(), minlength=IGNORE + 1) for x in some)
        )

        def write(writer: object, frames: Iterable[Tensor]) -> None:
            with writer as opened:  # type: ignore[attr-defined]
                for i, x in enumerate(frames):
                    opened.write(x, float(i / RATE))

        rows["write labels (FFV1)"] = per_frame(frames, lambda: write(open_label_writer(labels_file, size, RATE), some))
        overlays: list[Tensor] = []
        rows["draw an overlay"] = per_frame(
            frames,
            lambda: overlays.extend(streamseg.overlay(a, b, classes) for a, b in zip(decoded, some, strict=True)),
        )
        rows["write an overlay (H.264)"] = per_frame(
            frames, lambda: write(open_video_writer(overlay_file, size, RATE), overlays)
        )
        for stage, seconds in rows.items():
            print(f"{stage:26}{1000 * seconds:8.2f} ms")
        for stage, file in (("video", video), ("labels", labels_file), ("overlay", overlay_file)):
            print(f"{stage:26}{file.stat().st_size / frames / 1000:8.2f} kB per frame")


def consume(items: Iterable[object]) -> None:
    for _ in items:
        pass


def per_frame(frames: int, work: Callable[[], object]) -> float:
    """Return the processor seconds per frame of some work, over all threads."""
    start = time.process_time()
    work()
    return (time.process_time() - start) / frames


@dataclass(frozen=True)
class Machine:
    """A GPU with its share of a machine, and the cost of a frame there."""

    network: float
    """Seconds of GPU time."""
    host: float
    """Seconds of one core: decoding, counting, writing."""
    slowest: float
    """Seconds of the slowest of these stages, which runs in one thread of each worker."""
    cores: int = 16
    workers: int = cluster.WORKERS_PER_GPU
    gigabits: float = 25.0
    """Gigabits per second of its connection to the object store."""


@dataclass(frozen=True)
class Archive:
    """Videos in an object store."""

    videos: int = 60_000
    minutes: float = 10.0
    """Mean length of a video; lengths vary by a factor of two, as those of a fleet do."""
    rate: float = 30.0
    kilobytes: float = 40.0
    """Kilobytes read and written per frame."""
    store_gigabits: float = 400.0
    """Gigabits per second that the store gives all readers together."""


@dataclass(frozen=True)
class Crashes:
    """How often workers crash."""

    hours: float = 100.0
    """Mean time between two crashes of a worker."""
    restart: float = 30.0
    """Seconds until a new worker has loaded the network."""


def simulate(gpus: int, machine: Machine, videos: Archive, crashes: Crashes, seed: int = 0) -> dict[str, float]:
    """Simulate a job: each worker labels one video at a time, longest first; a crash loses the work on a video."""
    chance = random.Random(seed)
    lengths = [chance.lognormvariate(0.0, 0.7) for _ in range(videos.videos)]
    scale = videos.minutes * 60 * videos.rate * len(lengths) / sum(lengths)
    frames = sorted((length * scale for length in lengths), reverse=True)
    workers = gpus * machine.workers
    limits = limits_of(gpus, machine, videos)
    pace = min(limits.values()) / workers
    free = [0.0] * workers
    lost = 0.0
    for count in frames:
        begin = heapq.heappop(free)
        while True:
            needed, crash = count / pace, chance.expovariate(1 / (3600 * crashes.hours))
            if crash >= needed:
                break
            lost += crash + crashes.restart
            begin += crash + crashes.restart
        heapq.heappush(free, begin + needed)
    end, total = max(free), sum(frames)
    return {
        "hours": end / 3600,
        "frames/s": total / end,
        "lost to crashes": lost / (end * workers),
        "tail": end - min(free),
    }


def limits_of(gpus: int, machine: Machine, videos: Archive) -> dict[str, float]:
    """Return the frames per second that each part allows."""
    byte_rate = 1e9 / 8
    return {
        "network": gpus / machine.network,
        "cores": gpus * machine.cores / machine.host,
        "workers": gpus * machine.workers / machine.slowest,
        "link": gpus * machine.gigabits * byte_rate / (1000 * videos.kilobytes),
        "store": videos.store_gigabits * byte_rate / (1000 * videos.kilobytes),
    }


# a frame of 1280 x 720: the network alone from docs/measured/pipeline-720p.json, the rest from `stages`
H200 = Machine(network=0.286e-3, host=10.8e-3, slowest=6.0e-3)


def print_simulation() -> None:
    """Print the simulation for several numbers of GPUs, machines and stores."""
    wide = replace(H200, cores=32, workers=16)
    kinds = {
        "16 cores, 8 workers": (H200, Archive()),
        "32 cores, 16 workers": (wide, Archive()),
        "decoded on the GPU": (replace(H200, host=4.8e-3, slowest=3.5e-3), Archive()),
        "store of 20 Gbit/s": (wide, Archive(store_gigabits=20.0)),
    }
    print("60,000 videos, 10,000 hours      GPUs    hours    frames/s  limited by  GPU busy  lost to crashes  tail")
    for name, (machine, videos) in kinds.items():
        for gpus in (1, 10, 100):
            limits, found = limits_of(gpus, machine, videos), simulate(gpus, machine, videos, Crashes())
            print(
                f"{name:32}{gpus:5}{found['hours']:9.1f}{found['frames/s']:12,.0f}  "
                f"{min(limits, key=limits.__getitem__):10}{found['frames/s'] / limits['network']:10.0%}"
                f"{found['lost to crashes']:17.2%}{found['tail']:5.0f} s"
            )


if __name__ == "__main__":
    {"ray": compare_with_ray, "stages": measure_stages, "simulate": print_simulation}[sys.argv[1]]()
