"""Sources, a fake network and runs of the pipeline, for tests of its threads."""

import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import torch
from waiting import PATIENCE, until

import streamseg
from streamseg.engine.engine import Prediction
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.stream import pipeline
from streamseg.stream.latency import Meter
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import LastFrames


@dataclass(eq=False)
class Clip:
    """A source of given frames; if live, it drops frames as a camera does."""

    frames: Iterable[torch.Tensor]
    name: str = "clip"
    live: bool = False
    moving: bool = True
    rate: Fraction = Fraction(25)
    paths: tuple[Path, ...] = ()
    audio_from: str | None = None

    def captures(self):
        for i, frame in enumerate(self.frames):
            yield Capture(frame, self.name, i, i / 25, time.monotonic())


@dataclass(eq=False)
class Camera:
    """A live source whose frames come when a test releases them."""

    count: int
    shown: int = 1
    """How many have been released."""
    came: int = 0
    """How many have been delivered."""
    change: threading.Condition = field(default_factory=threading.Condition)
    sizes: list[tuple[int, int]] | None = None
    """The size of each frame, if it is not always the same."""
    name: str = "camera"
    live: bool = True
    moving: bool = True
    rate: None = None
    paths: tuple[Path, ...] = ()
    audio_from: None = None

    def captures(self):
        for i in range(self.count):
            with self.change:
                assert self.change.wait_for(lambda i=i: self.shown > i, PATIENCE)
            frame = shade(i, self.sizes[i]) if self.sizes else shade(i)
            yield Capture(frame, self.name, i, i / 25, time.monotonic())
            with self.change:
                self.came = i + 1
                self.change.notify_all()

    def release(self, frames):
        """Release more frames, and wait for nothing."""
        with self.change:
            self.shown = min(self.count, self.shown + frames)
            self.change.notify_all()

    def let_through(self, frames):
        """Release more frames, and wait until they are delivered."""
        with self.change:
            self.shown = min(self.count, self.shown + frames)
            self.change.notify_all()
            assert self.change.wait_for(lambda: self.came >= self.shown, PATIENCE)


def shade(i, size=(32, 48)):
    """A frame of one colour, whose value is its number."""
    return torch.full((3, *size), i % 256, dtype=torch.uint8)


def noise(seed, count, size=(48, 64)):
    dice = torch.Generator().manual_seed(seed)
    return list(torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=dice))


def fake_predictions(images, sizes, with_confidence=False, **options):
    """Return predictions of a fake network: the label is the frame's colour modulo 11, the confidence 69."""
    labels = [torch.full(size, int(image[0, 0, 0]) % 11).byte() for image, size in zip(images, sizes, strict=True)]
    return [Prediction(x, torch.full_like(x, 69) if with_confidence else None) for x in labels], [None] * len(images)


@dataclass
class Run:
    outcome: pipeline.RunResult
    records: list[dict]
    summary: object


class Callbacks(PipelineObserver):
    """An observer made of functions."""

    def __init__(self, message=None, frame_written=None, tick=None):
        for name, function in (("message", message), ("frame_written", frame_written), ("tick", tick)):
            if function:
                setattr(self, name, function)


def run(
    model,
    *sources,
    results=None,
    frames=1,
    confident=False,
    size=None,
    together=False,
    style=None,
    meter=None,
    **options,
):
    """Run the pipeline over sources with a window of some frames, and return its results."""
    pairs = list(zip(sources, results or [OutputFiles() for _ in sources], strict=True))
    labeller = LabelSettings(
        model, streamseg.CAMVID, LastFrames(frames), size=size, with_confidence=confident, together=together
    )
    meter, records = meter or Meter(), io.StringIO()
    outcome = Pipeline(pairs, labeller, style or DrawStyle(), meter, records=records, **options).run()
    return Run(outcome, [json.loads(line) for line in records.getvalue().splitlines()], meter.summary())


FULL = (192, 320)


@dataclass
class Screen:
    """A window without a screen."""

    frames: list = field(default_factory=list)
    updates: int = 0
    last: int = 10**6
    room: tuple[int, int] = (180, 320)

    @property
    def closed(self):
        return len(self.frames) >= self.last

    def show(self, frame):
        if not self.closed:
            self.frames.append(frame)

    def update(self):
        self.updates += 1


def changing_camera(*lengths, name="camera"):
    """A live source whose frames all arrive, and whose size changes after each number of them."""
    sizes = [(32, 48), (64, 96), (48, 32)]
    return Camera(
        sum(lengths), name=name, sizes=[size for n, size in zip(lengths, sizes, strict=False) for _ in range(n)]
    )


def one_by_one(camera, **functions):
    """An observer with which each frame of a camera comes when the one before is written."""
    return Callbacks(frame_written=lambda capture, *_: camera.release(1), **functions)


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def interrupt_twice(handler):
    """Send a signal, wait until it is heard, which gives it back the handler that it had before, and send another."""
    interrupt()
    until(lambda: signal.getsignal(signal.SIGINT) == handler)
    interrupt()
