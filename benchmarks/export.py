"""Measure exported files for docs/deploy.md: their agreement with the network, and their speed on this CPU.

    python benchmarks/export.py [KIND...]

Exports the bundled weights for frames of 512 x 1024, with the state of a stream, as every KIND (by default fixed, any,
openvino, torch, aotinductor and int8, the last calibrated on half of the samples), and compares each with the
network on the samples and over a clip of 50 frames. Then all label a frame in turn, so that other work on the machine
affects all of them: the median of 15 times, from a frame in memory to its labels. Takes some minutes; aotinductor alone
takes one.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor

import streamseg
from streamseg.deploy.export import export_model
from streamseg.engine.engine import EagerEngine, resize_frames
from streamseg.engine.pick import pick_engine

SAMPLES = Path(__file__).parent.parent / "samples"
SIZE = (512, 1024)
ROUNDS = 15

KINDS: dict[str, tuple[str, dict]] = {
    "fixed": ("fixed.onnx", {"size": SIZE}),
    "any": ("any.onnx", {}),
    "openvino": ("fixed.xml", {"size": SIZE}),
    "torch": ("fixed.pt2", {"size": SIZE}),
    "aotinductor": ("compiled.pt2", {"size": SIZE, "to": "aotinductor"}),
    "int8": ("int8.onnx", {"size": SIZE, "int8": True, "pictures": SAMPLES}),
}


def main(*kinds: str) -> None:
    model, classes = streamseg.load()
    frame = resize_frames(streamseg.read_image(SAMPLES / "suburb-1.jpg")[None], SIZE)[0]
    eager = EagerEngine(streamseg.load()[0].to(memory_format=torch.channels_last))
    engines: dict = {"eager, channels_last": eager}
    for precision in ("fp32", "int8"):
        try:
            engines[f"segment, {precision}"] = pick_engine(streamseg.load()[0], torch.device("cpu"), precision)
        except ValueError as error:  # a CPU without int8
            print(error)
    print(f"{'':12}{'MB':>6}{'same labels, %':>18}{'mean IoU, %':>14}{'over a clip, %':>16}{'export, s':>12}")
    with TemporaryDirectory() as folder:
        for kind in kinds or KINDS:
            name, options = KINDS[kind]
            start = perf_counter()
            found = export_model(model, classes, Path(folder) / name, video=True, **options)
            seconds = perf_counter() - start
            size = sum(file.stat().st_size for file in Path(folder).glob(f"{Path(name).stem}.*")) / 1e6
            shares = f"{100 * found.pixels:18.4f}{100 * found.miou:14.2f}{100 * (found.clip or 0):16.4f}"
            print(f"{kind:12}{size:6.1f}{shares}{seconds:12.0f}", flush=True)
            engines[kind] = streamseg.open_exported(Path(folder) / name, trust=True)
            for file in Path(folder).iterdir():
                file.unlink()
        times = take_turns({name: lambda engine=engine: label(engine, frame) for name, engine in engines.items()})
    slowest = times["eager, channels_last"]
    print(f"\n{'':22}{'ms':>8}{'times as fast':>16}")
    for name, seconds in times.items():
        print(f"{name:22}{1000 * seconds:8.0f}{slowest / seconds:16.2f}")


def label(engine: object, frame: Tensor) -> None:
    streamseg.label_frame(engine, frame)  # type: ignore[arg-type]


def take_turns(functions: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Return the median time of each function, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(ROUNDS + 2):
        for name, function in functions.items():
            start = perf_counter()
            function()
            if turn > 1:
                times[name].append(perf_counter() - start)
    return {name: median(seconds) for name, seconds in times.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
