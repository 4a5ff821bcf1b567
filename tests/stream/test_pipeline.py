import copy
import gc
import io
import json
import math
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from clips import make_clip, number, picture
from PIL import Image
from waiting import PATIENCE, until

import streamseg
from streamseg import draw
from streamseg.checks import CutShort
from streamseg.engine.engine import Prediction
from streamseg.io.files import UNFINISHED
from streamseg.io.outputs import OutputFiles, plan_outputs
from streamseg.io.resolve import find_sources
from streamseg.io.sources import Capture
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.parallel.threads import ThreadGroup
from streamseg.stream import latency, pipeline
from streamseg.stream.label_frames import label_frames
from streamseg.stream.latency import Meter
from streamseg.stream.observer import PipelineObserver
from streamseg.stream.pipeline import MAX_BATCH, QUEUE_SIZE, DrawStyle, LabelSettings, Pipeline
from streamseg.stream.state import FadingInTime, LastFrames


@dataclass(eq=False)
class Clip:
    """A source of frames that are there already; or, if live, as a camera gives them."""

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
    """A live source whose frames come when they are let through."""

    count: int
    shown: int = 1
    """How many have been let through."""
    came: int = 0
    """How many have gone on their way."""
    change: threading.Condition = field(default_factory=threading.Condition)
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
            yield Capture(shade(i), self.name, i, i / 25, time.monotonic())
            with self.change:
                self.came = i + 1
                self.change.notify_all()

    def let_through(self, frames):
        """Let some more frames come, and wait until they have."""
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


def look(images, sizes, with_confidence=False, **options):
    """What a network might say that sees the colour of a frame, divided by 11, and is never sure."""
    labels = [torch.full(size, int(image[0, 0, 0]) % 11).byte() for image, size in zip(images, sizes, strict=True)]
    return [Prediction(x, torch.full_like(x, 69) if with_confidence else None) for x in labels], [None] * len(images)


@pytest.fixture
def quick(monkeypatch):
    """The network takes no time, and its labels are the frame's number modulo 11; `seen` is what it saw."""
    seen = []

    def step(model, images, states, window, **options):
        seen.append([int(image[0, 0, 0]) for image in images])
        return look(images, **options)

    monkeypatch.setattr(pipeline, "step_batch", step)
    return seen


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


def run(model, *sources, results=None, frames=1, confident=False, size=None, style=None, meter=None, **options):
    """Take sources through the pipeline, with a window of so many frames, and say how it went."""
    pairs = list(zip(sources, results or [OutputFiles() for _ in sources], strict=True))
    labeller = LabelSettings(model, streamseg.CAMVID, LastFrames(frames), size=size, confident=confident)
    meter, records = meter or Meter(), io.StringIO()
    outcome = Pipeline(pairs, labeller, style or DrawStyle(), meter, records=records, **options).run()
    return Run(outcome, [json.loads(line) for line in records.getvalue().splitlines()], meter.summary())


# labels


@pytest.mark.parametrize("window", [1, 3])
def test_the_labels_are_those_of_label_frames(model, window):
    frames, raw = noise(1, 5), io.BytesIO()
    run(model, Clip(frames), frames=window, raw=raw)
    expected = [labels for _, labels in label_frames(model, frames, window)]
    assert raw.getvalue() == b"".join(labels.numpy().tobytes() for labels in expected)


def test_a_past_fades_by_the_times_of_the_frames(model):
    @dataclass(eq=False)
    class Timed(Clip):
        def captures(self):
            for i, (frame, seconds) in enumerate(zip(self.frames, times, strict=True)):
                yield Capture(frame, self.name, i, seconds, time.monotonic())

    # half of the past is left after a second: after 1/25 s nearly all of it
    frames, times, policy, raw = noise(4, 4), [0.0, 1.0, 5.0, 5.04], FadingInTime(1.0), io.BytesIO()
    labeller = LabelSettings(model, streamseg.CAMVID, policy)
    Pipeline([(Timed(frames), OutputFiles())], labeller, DrawStyle(), Meter(), raw=raw).run()
    expected = [labels for _, labels in label_frames(model, frames, policy, times=times)]
    assert raw.getvalue() == b"".join(labels.numpy().tobytes() for labels in expected)
    steady = [labels for _, labels in label_frames(model, frames, policy)]
    assert not any(one.equal(other) for one, other in zip(expected[1:3], steady[1:3], strict=True))


def test_several_streams_share_batches_and_never_their_state(model, tmp_path, monkeypatch):
    step, batches = pipeline.step_batch, []

    def counted(network, images, *rest, **options):
        batches.append(len(images))
        return step(network, images, *rest, **options)

    monkeypatch.setattr(pipeline, "step_batch", counted)
    lengths = (6, 3, 5)
    clips = [Clip(noise(i, length), f"clip{i}") for i, length in enumerate(lengths)]
    results = [OutputFiles(labels=tmp_path / f"{clip.name}.mkv") for clip in clips]
    done = run(model, *clips, results=results, frames=3)
    for clip, places in zip(clips, results, strict=True):
        written = [labels for labels, _ in read_label_video(places.labels)]
        alone = [labels for _, labels in label_frames(model, clip.frames, 3)]
        assert len(written) == len(alone)
        # a batch rounds otherwise than a single frame; the state of another would change one label in twenty
        assert all((x == y).float().mean() > 0.995 for x, y in zip(written, alone, strict=True))
    assert sum(batches) == sum(lengths) == done.outcome.frames
    assert 1 < max(batches) <= 3


def test_only_streams_of_one_size_share_a_batch_and_no_more_than_it_holds(model, quick, monkeypatch):
    sizes = [(32, 48), (32, 64)] * MAX_BATCH
    clips = [Clip([shade(i, size)] * 3, f"clip{i}") for i, size in enumerate(sizes)]
    assert run(model, *clips).outcome.frames == 3 * len(clips)
    for batch in quick:
        assert len({i % 2 for i in batch}) == 1
        assert len(batch) <= MAX_BATCH


def test_pictures_that_do_not_belong_together_know_nothing_of_each_other(model):
    frames, raw = noise(2, 3), io.BytesIO()
    run(model, Clip(frames, moving=False), frames=3, raw=raw)
    expected = [streamseg.segment(frame, model) for frame in frames]
    assert raw.getvalue() == b"".join(labels.numpy().tobytes() for labels in expected)


def test_confidence_is_the_probability_of_the_label(model, tmp_path):
    frames = noise(3, 2)
    places = OutputFiles(labels=tmp_path / "l.mkv", confidence=tmp_path / "c.mkv")
    run(model, Clip(frames), results=[places], confident=True)
    for frame, (labels, _), (confidence, _) in zip(
        frames, read_label_video(places.labels), read_label_video(places.confidence), strict=True
    ):
        with torch.inference_mode():
            highest, numbers = model(frame[None])[0].softmax(dim=0).max(dim=0)
        assert labels.equal(numbers.to(torch.uint8))
        assert (confidence - 255 * highest).abs().max() < 1


def test_frames_seen_smaller_have_labels_of_their_own_size(model, quick):
    raw = io.BytesIO()
    done = run(model, Clip([shade(7, (60, 90))] * 3), size=(32, 32), raw=raw)
    assert done.outcome.size == (32, 32)
    assert raw.getvalue() == bytes([7]) * (3 * 60 * 90)


# order, loss and memory


def test_no_frame_of_a_file_is_lost_and_their_order_is_kept(model, quick):
    raw = io.BytesIO()
    done = run(model, Clip(shade(i) for i in range(300)), raw=raw)
    assert raw.getvalue()[:: 32 * 48] == bytes(i % 256 % 11 for i in range(300))
    assert [record["frame"] for record in done.records] == list(range(300))
    assert (done.summary.read, done.summary.labelled, done.summary.written, done.summary.dropped) == (300, 300, 300, 0)
    assert done.outcome.frames == 300


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_video(model, quick, tmp_path):
    alive, most = set(), 0

    def frames():
        nonlocal most
        for i in range(3000):
            frame = shade(i, (32, 32))
            alive.add(i)
            weakref.finalize(frame, alive.discard, i)
            most = max(most, len(alive))
            yield frame

    done = run(model, Clip(frames()), results=[OutputFiles(overlay=tmp_path / "a.mp4")])
    assert done.outcome.frames == 3000
    # those in the three queues, and one in the hands of each of the four threads, which may still hold their last
    assert most <= 3 * QUEUE_SIZE + 8


def test_many_files_are_read_a_few_at_a_time_and_each_is_there_when_it_is_done(model, quick, tmp_path):
    begun, there = [], {}

    def frames(number):
        begun.append(number)
        there[number] = len(list(tmp_path.glob("*.mp4")))
        yield from [shade(number)] * 3

    clips = [Clip(frames(i), f"clip{i}") for i in range(2 * MAX_BATCH + 3)]
    done = run(model, *clips, results=[OutputFiles(tmp_path / f"{clip.name}.mp4") for clip in clips])
    assert done.outcome.frames == 3 * len(clips)
    assert sorted(begun) == list(range(len(clips)))
    # before the one after another eight begins, the first of these is whole
    assert all(there[number] > number - MAX_BATCH for number in begun)
    assert len(list(tmp_path.iterdir())) == len(clips)


def test_cameras_wait_for_no_file(model, quick):
    meeting = threading.Barrier(2 * MAX_BATCH + 2)

    def frames():
        meeting.wait(PATIENCE)  # for all the others, of which none goes on before they have met
        yield shade(0)

    cameras = [Clip(frames(), f"camera{i}", live=True) for i in range(MAX_BATCH + 2)]
    files = [Clip(frames(), f"file{i}") for i in range(MAX_BATCH)]
    done = run(model, *files, *cameras)
    assert done.outcome.frames == 2 * MAX_BATCH + 2
    assert done.outcome.problems == []


def test_reading_labelling_drawing_and_writing_happen_at_the_same_time(model, monkeypatch, tmp_path):
    meeting, last = threading.Barrier(4), 9
    overlay = draw.overlay

    def meet(number, lead):
        """Wait for the three others, each of which has a frame of its own in hand."""
        if lead <= number < last + lead - 3:
            meeting.wait(PATIENCE)

    def frames():
        for i in range(last):
            meet(i, 3)
            yield shade(i)

    def step(model, images, states, window, **options):
        meet(int(images[0, 0, 0, 0]), 2)
        return look(images, **options)

    def paint(frame, *style):
        meet(int(frame[0, 0, 0]), 1)
        return overlay(frame, *style)

    monkeypatch.setattr(pipeline, "step_batch", step)
    monkeypatch.setattr(draw, "overlay", paint)
    places = OutputFiles(tmp_path / "a.mp4")
    done = run(
        model,
        Clip(frames()),
        results=[places],
        observer=Callbacks(frame_written=lambda capture, *_: meet(capture.index, 0)),
    )
    assert done.outcome.frames == last


def test_a_source_that_is_written_slowly_holds_up_no_other(model, quick):
    others_are_done = threading.Event()
    left = 3 * 40

    def wrote(capture, shares, results):
        nonlocal left
        if capture.name == "slow":
            assert others_are_done.wait(PATIENCE)
        else:
            left -= 1
            if not left:
                others_are_done.set()

    clips = [Clip([shade(0)] * 40, name) for name in ("slow", "one", "two", "three")]
    assert run(model, *clips, observer=Callbacks(frame_written=wrote)).outcome.frames == 160


def test_the_main_thread_rests_while_the_others_work(model, quick):
    watched, ended = [], threading.Event()

    def watch():
        watched.append(time.monotonic())

    def frames():
        yield shade(0)
        ended.set()

    def wrote(capture, shares, results):
        if capture.name == "long":
            assert ended.wait(PATIENCE)
            before = len(watched)
            until(lambda: len(watched) >= before + 9)

    run(model, Clip([shade(0)], "long"), Clip(frames(), "short"), observer=Callbacks(frame_written=wrote, tick=watch))
    # the threads of the short one end while the first of them are waited for; a busy machine only takes longer
    pauses = sorted(after - before for before, after in pairwise(watched))
    assert pauses[len(pauses) // 2] > 0.05


# live sources


def live(monkeypatch, model, camera, passing, **options):
    """Label a camera's frames by a network in whose time so many others pass; returns what it saw, and the run."""
    seen = []

    def step(model, images, states, window, **options):
        seen.append((int(images[0, 0, 0, 0]), camera.came - 1))
        camera.let_through(passing)
        return look(images, **options)

    monkeypatch.setattr(pipeline, "step_batch", step)
    return seen, run(model, camera, **options)


def test_of_a_live_source_the_newest_frame_wins_and_the_others_are_counted(monkeypatch, model):
    seen, done = live(monkeypatch, model, Camera(61), passing=5)
    # the first pass, of frame 0, is for the libraries
    assert [record["frame"] for record in done.records] == list(range(5, 61, 5))
    assert all(frame == newest for frame, newest in seen[1:])
    assert (done.summary.read, done.summary.labelled, done.summary.dropped) == (61, 12, 49)
    assert done.summary.streams == {"camera": (61, 49)}


def test_of_a_live_source_that_the_network_keeps_up_with_nothing_is_dropped(monkeypatch, model):
    camera = Camera(20)
    seen = []

    def step(model, images, states, window, **options):
        seen.append(int(images[0, 0, 0, 0]))
        if len(seen) > 1:  # the first pass labels nothing
            camera.let_through(1)
        return look(images, **options)

    monkeypatch.setattr(pipeline, "step_batch", step)
    done = run(model, camera)
    assert seen == [0, *range(20)]
    assert [record["frame"] for record in done.records] == list(range(20))
    assert done.summary.dropped == 0


def test_a_live_source_that_is_written_slowly_does_not_fall_behind(model, quick):
    camera = Camera(400, shown=1)
    behind = []

    def wrote(capture, shares, results):
        behind.append(camera.came - 1 - capture.index)
        camera.let_through(10)

    done = run(model, camera, observer=Callbacks(frame_written=wrote))
    indices = [record["frame"] for record in done.records]
    assert all(before < after for before, after in pairwise(indices))
    assert len(indices) >= 400 / 10
    # a frame waits for those before it to be drawn and written, of which there are four at most
    assert max(behind) <= 50
    assert done.summary.read == 400 == done.summary.labelled + done.summary.dropped


@pytest.mark.parametrize("size", [(32, 48), (64, 96)])
def test_a_live_source_and_a_file_go_through_one_network_in_turn(monkeypatch, model, size):
    camera, steps, written = Camera(31), [], []
    change = threading.Condition()

    def step(model, images, states, window, **options):
        asked = sum(steps[1:])  # the first pass, for the libraries, labels nothing
        with change:  # a camera whose drawer is behind would be passed over, and this is not about that
            assert change.wait_for(lambda: written.count("camera") >= asked, PATIENCE)
        steps.append(sum(int(image[0, 0, 0]) != 200 for image in images))
        camera.let_through(1)
        return look(images, **options)

    def wrote(capture, *_):
        with change:
            written.append(capture.name)
            change.notify_all()

    monkeypatch.setattr(pipeline, "step_batch", step)
    done = run(model, camera, Clip([shade(200, size)] * 100, "file"), observer=Callbacks(frame_written=wrote))
    streams = done.summary.streams
    assert streams["file"] == (100, 0)
    assert [record["frame"] for record in done.records if record["source"] == "file"] == list(range(100))
    shown = [record["frame"] for record in done.records if record["source"] == "camera"]
    assert streams["camera"] == (31, 31 - len(shown))
    # a camera that has always a frame to show is never passed over twice
    assert len(shown) >= 13


def test_a_stream_that_went_away_is_itself_what_holds_the_run_up(model, priced, monkeypatch):
    came = threading.Event()

    @dataclass(eq=False)
    class Gate(Clip):
        def captures(self):
            for i in range(50):  # in a burst, of which most are dropped
                yield Capture(shade(i), self.name, i, i / 25, priced.now)
            came.set()
            priced.now += 30.0
            raise CutShort("It went away.")

    def step(model, images, states, window, **options):
        assert came.wait(PATIENCE)
        return look(images, **options)

    monkeypatch.setattr(pipeline, "step_batch", step)
    done = run(model, Gate([], "gate", live=True), meter=Meter(priced.monotonic))
    assert done.summary.dropped > 0
    assert latency.bottleneck(done.summary).startswith(
        "Bottleneck: the source gate, which gave no frame for 30.0 of 30.0 s."
    )


def test_the_length_of_a_run_is_known_once_every_source_has_told_its_own(model, quick):
    @dataclass(eq=False)
    class Told(Clip):
        def captures(self):
            for i, frame in enumerate(self.frames):
                yield Capture(frame, self.name, i, i / 25, time.monotonic(), total=len(self.frames))

    def totals(*clips):
        labeller = LabelSettings(model, streamseg.CAMVID, LastFrames(1))
        line = Pipeline([(clip, OutputFiles()) for clip in clips], labeller, DrawStyle(), Meter())
        before = line.total
        line.run()
        return before, line.total

    several = [Told([shade(0)] * 3, f"clip{i}") for i in range(3)]
    assert totals(*several) == (None, 9)
    assert totals(*several, Clip([shade(0)] * 3)) == (None, None)


# the deadline


@pytest.fixture
def priced(monkeypatch):
    """A clock that goes on only in the network, by the price of each pixel."""
    clock = SimpleNamespace(now=0.0, price=0.0, seen=[], last={})
    clock.monotonic = clock.perf_counter = lambda: clock.now

    def step(model, images, states, window, **options):
        clock.seen.append(tuple(images.shape[2:]))
        clock.last[int(images[0, 0, 0, 0])] = clock.seen[-1]
        clock.now += clock.price * images[0, 0].numel()
        return look(images, **options)

    monkeypatch.setattr(pipeline, "step_batch", step)
    monkeypatch.setattr(pipeline, "time", clock)
    return clock


FULL = (192, 320)


@pytest.mark.parametrize("share", [0.9, 0.6, 0.35])
def test_frames_are_seen_smaller_until_the_deadline_is_held_and_larger_again_when_they_can_be(model, priced, share):
    priced.price, deadline = 1e-6, share * 1e-6 * 192 * 320

    def frames():
        for i in range(360):
            priced.price = 1e-9 if i >= 240 else 3e-6 if 60 <= i < 120 else 1e-6
            yield shade(i, FULL)

    raw = io.BytesIO()
    done = run(model, Clip(frames()), deadline=deadline, raw=raw)
    sizes = [tuple(record["size"]) for record in done.records]
    late = [record["frame"] for record in done.records if record["latency_ms"] > 1000 * deadline]
    assert sizes[0] < FULL  # its sizes were measured before
    assert late
    assert 50 < min(late) <= 60
    assert math.prod(min(sizes[60:120], key=math.prod)) < math.prod(sizes[0])
    assert max(late) < 110
    assert done.outcome.late == len(late)
    assert done.outcome.size == sizes[-1] == FULL
    assert len(raw.getvalue()) == 360 * 192 * 320


def test_a_deadline_that_cannot_be_held_leaves_something_to_see(model, priced):
    priced.price, said = 1.0, []
    done = run(model, Clip([shade(0, FULL)] * 40), deadline=1e-3, observer=Callbacks(message=said.append))
    assert done.outcome.sizes == {(96, 160): 40}
    assert done.outcome.late == 40
    assert said == []


def test_below_half_it_takes_its_time_and_says_so(model, priced):
    priced.price, said = 1e-6, []
    done = run(model, Clip([shade(0, FULL)] * 60), deadline=0.1e-6 * 192 * 320, observer=Callbacks(message=said.append))
    sizes = [tuple(record["size"]) for record in done.records]
    half, least = sizes.count((96, 160)), sizes.count((64, 64))
    assert sizes == [(96, 160)] * half + [(64, 64)] * least
    assert half >= 22
    assert done.outcome.size == done.outcome.smallest == (64, 64)
    assert done.outcome.late == half
    assert said == [
        "To hold the deadline frames are now seen at 64 x 64, where labels get poor; the smallest is 64 x 64."
    ]


def test_a_deadline_that_is_held_warns_of_nothing_though_small_sizes_were_prepared(model, priced):
    priced.price, said = 1e-6, []
    done = run(model, Clip([shade(0, FULL)] * 5), deadline=0.3e-6 * 192 * 320, observer=Callbacks(message=said.append))
    assert done.outcome.sizes == {(96, 160): 5}
    assert (64, 64) in priced.seen
    assert said == []


def test_each_record_has_the_size_at_which_its_frame_was_seen(model, priced):
    priced.price = 1e-6

    def frames():
        for i in range(60):
            priced.price = 1e-6 if i < 20 else 2e-6
            yield shade(i, FULL)

    done = run(model, Clip(frames()), deadline=0.8e-6 * 192 * 320)
    sizes = [tuple(record["size"]) for record in done.records]
    # the passes before the last of a frame prepared a size
    assert sizes == [priced.last[i] for i in range(60)]
    assert done.outcome.sizes == Counter(sizes)
    assert len(done.outcome.sizes) > 1
    assert list(done.outcome.sizes) == sorted(done.outcome.sizes, key=math.prod, reverse=True)
    assert done.outcome.smallest == min(sizes, key=math.prod)


@pytest.fixture
def costly(priced, monkeypatch):
    """The same, where each of the first two passes at a size takes a thousand frames' time more; 8 sizes are kept."""
    step, met = pipeline.step_batch, Counter()

    def prepare_and_step(model, images, states, window, **options):
        key = tuple(images.shape)
        priced.now += 1000 * priced.price * 192 * 320 * (met[key] < 2)
        met[key] += 1
        if len(met) > 8:
            del met[next(iter(met))]
        return step(model, images, states, window, **options)

    monkeypatch.setattr(pipeline, "step_batch", prepare_and_step)
    return priced


def test_preparing_a_size_is_no_lateness_and_no_reason_for_another(model, costly):
    costly.price, deadline = 1e-6, 0.8e-6 * 192 * 320

    def frames():
        for i in range(200):
            costly.price = 3e-6 if 60 <= i < 120 else 1e-6
            yield shade(i, FULL)

    done = run(model, Clip(frames()), deadline=deadline)
    sizes = [tuple(record["size"]) for record in done.records]
    assert sum(a != b for a, b in pairwise(sizes)) <= 4
    assert max(record["latency_ms"] for record in done.records) < 1000 * 1000 * 1e-6 * 192 * 320
    assert done.outcome.late < 0.1 * 200
    assert min(map(math.prod, sizes)) >= 96 * 160


def test_frames_of_a_batch_that_was_not_prepared_are_late_but_decide_nothing(model, costly):
    costly.price = 1e-6
    clips = [Clip([shade(i, FULL)] * length, f"clip{i}") for i, length in enumerate((6, 12))]
    done = run(model, *clips, deadline=2.5e-6 * 192 * 320)
    assert done.outcome.sizes == {FULL: 18}
    assert done.outcome.late <= 2 * 2 + 2  # of two frames at once, and then of one


def test_int8_learns_its_ranges_from_frames_of_the_stream_and_not_from_preparing(model, priced, monkeypatch):
    engine = SimpleNamespace(predict=None, device=torch.device("cpu"), calibrating=True)
    priced.price, step = 1e-6, pipeline.step_batch

    def learn(model, images, *rest, **options):
        if len(priced.seen) == 8:
            engine.calibrating = False
        return step(model, images, *rest, **options)

    monkeypatch.setattr(pipeline, "step_batch", learn)
    done = run(engine, Clip([shade(i, FULL) for i in range(20)]), deadline=0.5e-6 * 192 * 320)
    assert priced.seen[:9] == [FULL] * 9
    assert [tuple(record["size"]) for record in done.records][:9] == [FULL] * 9
    assert done.outcome.late == 9
    assert done.outcome.size == (96, 160)


def test_the_smallest_size_is_that_of_the_fewest_pixels(model, priced):
    clips = [Clip([shade(0, size)] * 2, f"clip{i}") for i, size in enumerate([(32, 320), (64, 96), (320, 32)])]
    assert run(model, *clips).outcome.smallest == (64, 96)


def test_a_slow_writer_raises_the_age_of_a_mask_and_not_the_latency_of_the_network(model, priced, monkeypatch):
    priced.price = 1e-3

    @contextmanager
    def slow(results, source, classes):
        def keep(drawn):
            priced.now += 30.0

        yield keep

    monkeypatch.setattr(pipeline, "open_writer", slow)
    done = run(model, Clip([shade(0, (64, 96))]))
    (record,) = done.records
    network = 1e-3 * 64 * 96
    assert record["latency_ms"] == pytest.approx(1000 * network)
    assert record["mask_age_ms"] == pytest.approx(1000 * (network + 30))


def test_drawing_and_writing_are_no_reason_to_see_frames_smaller(model, priced):
    priced.price = 1e-6

    def wrote(capture, shares, results):
        time.sleep(0.002)

    done = run(model, Clip([shade(0, (64, 96))] * 60), deadline=2e-6 * 64 * 96, observer=Callbacks(frame_written=wrote))
    assert done.outcome.size == done.outcome.smallest == (64, 96)
    assert done.outcome.late == 0


# how it ends


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def interrupt_twice(handler):
    """Send a signal, wait until it is heard, which gives it back the handler that it had before, and send another."""
    interrupt()
    until(lambda: signal.getsignal(signal.SIGINT) == handler)
    interrupt()


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_video_in_good_order(model, quick, tmp_path, number, live):
    def endless():
        for i in range(10**6):
            if i == 30:
                interrupt(number)
            time.sleep(0.001)
            yield shade(i)

    path = tmp_path / "a.mp4"
    done = run(model, Clip(endless(), live=live), results=[OutputFiles(overlay=path)])
    assert done.outcome.signal == number
    with open_video(path) as written:
        assert sum(1 for _ in written) == done.outcome.frames == done.summary.labelled
    assert done.summary.read == done.summary.labelled + done.summary.dropped
    assert live or done.summary.dropped == 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_signal_is_heard_while_a_source_is_silent(model, quick, tmp_path):
    silent = threading.Event()

    def frames():
        yield shade(0)
        interrupt()
        silent.wait(PATIENCE)

    path = tmp_path / "a.mp4"
    assert run(model, Clip(frames()), results=[OutputFiles(overlay=path)]).outcome.frames == 1
    assert not silent.is_set()
    silent.set()
    with open_video(path) as written:
        assert sum(1 for _ in written) == 1


def test_a_second_signal_breaks_off_and_leaves_nothing(model, quick, tmp_path, monkeypatch):
    handler, fail, failed = signal.getsignal(signal.SIGINT), ThreadGroup.fail, threading.Event()

    def noted(self, error):
        fail(self, error)
        failed.set()

    def wrote(capture, shares, results):
        if capture.index == 3:
            interrupt_twice(handler)
            assert failed.wait(PATIENCE)

    monkeypatch.setattr(ThreadGroup, "fail", noted)

    with pytest.raises(KeyboardInterrupt):
        run(
            model,
            Clip(shade(i) for i in range(10**6)),
            results=[OutputFiles(overlay=tmp_path / "a.mp4")],
            observer=Callbacks(frame_written=wrote),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_does_not_wait_for_a_pipe_that_nobody_reads(model, quick, monkeypatch):
    monkeypatch.setattr(pipeline, "STOP_TIMEOUT", 0.1)
    handler, read, written = signal.getsignal(signal.SIGINT), threading.Event(), threading.Event()

    def wrote(capture, shares, results):
        interrupt_twice(handler)
        read.wait(PATIENCE)
        written.set()

    with pytest.raises(KeyboardInterrupt):
        run(model, Clip([shade(0)]), observer=Callbacks(frame_written=wrote))
    assert not written.is_set()
    read.set()


@pytest.mark.parametrize("problem", [CutShort("it is cut short."), ValueError("it is damaged."), OSError("it left.")])
def test_a_source_that_breaks_off_keeps_what_came_and_holds_up_no_other(model, quick, tmp_path, problem):
    def frames():
        yield from (shade(i) for i in range(7))
        raise problem

    places = [OutputFiles(overlay=tmp_path / "a.mp4"), OutputFiles(overlay=tmp_path / "b.mp4")]
    done = run(model, Clip(frames(), "a"), Clip([shade(0)] * 20, "b"), results=places)
    assert done.outcome.problems == [str(problem)]
    assert done.outcome.frames == 27
    for path, length in ((tmp_path / "a.mp4", 7), (tmp_path / "b.mp4", 20)):
        with open_video(path) as written:
            assert sum(1 for _ in written) == length


def test_a_source_without_a_frame_leaves_no_file(model, quick, tmp_path):
    def frames():
        raise ValueError("there is nothing.")
        yield

    done = run(model, Clip(frames()), results=[OutputFiles(overlay=tmp_path / "a.mp4", labels=tmp_path / "b.mkv")])
    assert (done.outcome.frames, done.outcome.problems) == (0, ["there is nothing."])
    assert list(tmp_path.iterdir()) == []


def test_a_video_ends_where_its_size_changes(model, quick, tmp_path):
    frames = [shade(0, (32, 48))] * 5 + [shade(0, (64, 96))] * 5
    done = run(model, Clip(frames, live=False), results=[OutputFiles(overlay=tmp_path / "a.mp4")])
    assert done.outcome.problems == [
        "clip ends after 5 frames: what follows has 96 x 64 pixels, and what came before 48 x 32; make all of them one "
        "size."
    ]
    with open_video(tmp_path / "a.mp4") as written:
        assert sum(1 for _ in written) == 5


def test_pictures_may_differ_in_size(model, quick):
    raw = io.BytesIO()
    sizes = [(32, 48), (1, 1), (64, 33), (200, 2)]
    frames = [shade(i, size) for i, size in enumerate(sizes)]
    assert run(model, Clip(frames, moving=False), raw=raw).outcome.problems == []
    assert raw.getvalue() == b"".join(bytes([i]) * (height * width) for i, (height, width) in enumerate(sizes))


class Fault(Exception):  # noqa: N818 (not an error, a test)
    pass


def fail_after(count, function):
    """A function that works so many times."""
    calls = 0

    def failing(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls > count:
            raise Fault(threading.current_thread().name)
        return function(*arguments, **options)

    return failing


@pytest.mark.parametrize("place", ["reader", "network", "drawer", "writer", "main"])
@pytest.mark.parametrize("late", [False, True])
def test_an_error_anywhere_ends_the_run_and_leaves_nothing(model, quick, tmp_path, monkeypatch, place, late):
    options, frames = {}, [shade(i) for i in range(20)]
    if place == "reader":

        def broken():
            yield from (shade(i) for i in range(8))
            raise Fault

        frames = broken()
    elif place == "network":
        monkeypatch.setattr(pipeline, "step_batch", fail_after(8, pipeline.step_batch))
    elif place == "drawer":
        monkeypatch.setattr(draw, "overlay", fail_after(8, draw.overlay))
    elif place == "writer":
        options["observer"] = Callbacks(frame_written=fail_after(8, lambda *_: None))
    else:
        slow, failing = (lambda *_: time.sleep(0.05)), fail_after(2, lambda: None)
        options["observer"] = Callbacks(frame_written=slow, tick=failing)
    if late:  # the other threads go on for a while before they hear of it
        fail = ThreadGroup.fail

        def slowly(self, error):
            time.sleep(0.1)
            fail(self, error)

        monkeypatch.setattr(ThreadGroup, "fail", slowly)
    places = [OutputFiles(tmp_path / "a.mp4", tmp_path / "a.mkv"), OutputFiles(tmp_path / "b.mp4")]
    long = Clip((shade(0) for _ in range(10**6)), "long")
    before = torch.get_num_threads()
    with pytest.raises(Fault):
        run(model, Clip(frames), long, results=places, **options)
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == before


def test_a_run_leaves_torchs_threads_as_they_were_and_none_of_its_own(model, quick):
    before, others = torch.get_num_threads(), threading.enumerate()
    torch.set_num_threads(2)
    try:
        run(model, Clip([shade(0)] * 5), Clip([shade(0)] * 5, "other"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [thread for thread in threading.enumerate() if not thread.daemon and thread not in others] == []


def test_the_network_has_all_threads_and_the_others_one_each(model, monkeypatch):
    found = {}

    def step(model, images, states, window, **options):
        found["network"] = torch.get_num_threads()
        return look(images, **options)

    def frames():
        found["reader"] = torch.get_num_threads()
        yield shade(0)

    def wrote(capture, shares, results):
        found["writer"] = torch.get_num_threads()

    monkeypatch.setattr(pipeline, "step_batch", step)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(model, Clip(frames()), observer=Callbacks(frame_written=wrote))
    finally:
        torch.set_num_threads(before)
    assert found == {"reader": 1, "network": 2, "writer": 1}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("live", [False, True])
def test_a_gpu_labels_draws_and_tells_the_time_of_every_stage(model, tmp_path, live):
    network = copy.deepcopy(model).to(f"cuda:{torch.cuda.device_count() - 1}")
    clips = [Clip(noise(i, 20, (240, 320)), f"clip{i}", live=live) for i in range(3)]
    places = [OutputFiles(tmp_path / f"{i}.mp4", tmp_path / f"{i}.mkv", tmp_path / f"{i}-sure.mkv") for i in range(3)]
    done = run(network, *clips, results=places, frames=3, confident=True)
    stages = ["upload", "network", "download", "draw", "encode"]
    assert list(done.summary.stages) == (stages if live else ["decode", *stages])
    assert all(record["latency_ms"] > 0 for record in done.records)
    for clip, place in zip(clips, places, strict=True):
        indices = [record["frame"] for record in done.records if record["source"] == clip.name]
        assert live or indices == list(range(20))
        seen = [clip.frames[i] for i in indices]
        expected = torch.stack([labels for _, labels in label_frames(network, seen, 3)])
        found = torch.stack([labels for labels, _ in read_label_video(place.labels)])
        # batches round otherwise than single frames
        assert (found == expected).float().mean() > 0.97


# what is drawn


@dataclass
class Screen:
    """A window without a screen."""

    frames: list = field(default_factory=list)
    updates: int = 0
    last: int = 10**6

    @property
    def closed(self):
        return len(self.frames) >= self.last

    def show(self, frame):
        if not self.closed:
            self.frames.append(frame)

    def update(self):
        self.updates += 1


def test_a_window_shows_the_overlays_and_ends_the_run_when_it_is_closed(model, quick):
    screen = Screen(last=3)

    def endless():
        for _ in range(10**6):
            time.sleep(0.001)
            yield shade(3)

    done = run(model, Clip(endless()), window=screen)
    assert len(screen.frames) == 3
    expected = draw.overlay(shade(3), torch.full((32, 48), 3, dtype=torch.uint8), streamseg.CAMVID)
    assert all(frame.equal(expected) for frame in screen.frames)
    assert done.outcome.signal == 0
    assert done.outcome.frames == done.summary.read


def test_the_last_picture_is_shown_however_short_the_run(model, quick):
    screen = Screen()
    run(model, Clip([shade(i) for i in range(3)], moving=False), window=screen)
    expected = draw.overlay(shade(2), torch.full((32, 48), 2, dtype=torch.uint8), streamseg.CAMVID)
    assert screen.frames[-1].equal(expected)


def test_a_frame_under_its_colours_is_what_overlay_draws(model, quick, tmp_path):
    frame, labels = noise(5, 1)[0], torch.empty(48, 64, dtype=torch.uint8)
    labels.fill_(int(frame[0, 0, 0]) % 11)
    for style, expected in (
        (DrawStyle(), draw.overlay(frame, labels, streamseg.CAMVID)),
        (DrawStyle(alpha=0.9), draw.overlay(frame, labels, streamseg.CAMVID, 0.9)),
        (DrawStyle(only=(3, 4)), draw.overlay(frame, labels, streamseg.CAMVID, 0.5, (3, 4))),
        (DrawStyle(side_by_side=True), torch.cat([frame, draw.overlay(frame, labels, streamseg.CAMVID)], dim=2)),
    ):
        run(model, Clip([frame], moving=False), results=[OutputFiles(tmp_path / "a.png")], style=style)
        assert streamseg.read_image(tmp_path / "a.png").equal(expected)


def test_the_legend_of_a_video_does_not_flicker(model, quick):
    screen = Screen()
    # what is coloured differs, what is under it does not
    frames = [shade(i, (300, 400)) for i in range(4)]

    def wrote(capture, *_):
        until(lambda: len(screen.frames) > capture.index)

    run(
        model,
        Clip(frames),
        window=screen,
        style=DrawStyle(alpha=0.0, legend=True),
        observer=Callbacks(frame_written=wrote),
    )
    assert len(screen.frames) == 4
    changed = [(frame != frame[:, :1, -1:]).any(dim=0) for frame in screen.frames]
    assert changed[0].any()
    assert all(changed[0].equal(other) for other in changed)


def test_the_shares_of_all_frames_are_those_of_their_pixels(model, quick):
    frames = [shade(1, (32, 32)), shade(2, (64, 96))]
    done = run(model, Clip(frames, moving=False))
    small, large = 32 * 32, 64 * 96
    assert done.outcome.shares[1] == pytest.approx(small / (small + large))
    assert done.outcome.shares[2] == pytest.approx(large / (small + large))
    assert [record["shares"] for record in done.records] == [{"Building": 1.0}, {"Pole": 1.0}]


def test_a_note_about_a_frame_is_said(model, quick):
    class Noted(Clip):
        def captures(self):
            yield Capture(shade(0), "a", 0, 0.0, time.monotonic(), "It came back.")

    said = []
    run(model, Noted([]), observer=Callbacks(message=said.append))
    assert said == ["It came back."]


# hostile files


def spoil(data, dice):
    """A file with some bits flipped, or cut, or both."""
    data = bytearray(data)
    for _ in range(dice.choice([0, 1, 3, 30])):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.3:
        del data[dice.randrange(len(data)) :]
    return bytes(data)


def count_open_files():
    """How many files this process has open, where the system tells."""
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


def make_picture(path):
    first = Image.fromarray(picture(1, (20, 30)).permute(1, 2, 0).numpy())
    more = {"save_all": True, "append_images": [first.rotate(180)]} if path.suffix != ".jpg" else {}
    first.save(path, **more)


VIDEOS = [
    ("a.mp4", {"sound": "aac"}),
    ("a.mkv", {"codec": "mpeg4"}),
    ("a.avi", {"codec": "mjpeg", "pixels": "yuvj420p"}),
    ("a.webm", {"codec": "libvpx"}),
    ("a.mov", {"codec": "mpeg4"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [*VIDEOS, *((name, None) for name in ("a.png", "a.jpg", "a.webp", "a.tiff", "a.gif"))]
)
def test_a_spoilt_file_becomes_a_file_or_a_sentence(model, quick, tmp_path, name, options):
    path, out, dice = tmp_path / name, tmp_path / "out", random.Random(name)
    out.mkdir()
    if options is None:
        make_picture(path)
    else:
        make_clip(path, 5, size=(32, 48), **options)
    whole, written, sentences = path.read_bytes(), 0, []
    gc.collect()
    files, threads = count_open_files(), threading.active_count()
    for _ in range(100):
        path.write_bytes(spoil(whole, dice))
        frames = 0
        try:
            sources = find_sources([str(path)])
            outcome = run(model, *sources, results=plan_outputs(sources, str(out), labels=True)).outcome
            frames, sentences = outcome.frames, sentences + outcome.problems
        except (ValueError, OSError) as problem:
            sentences.append(str(problem))
        assert not list(tmp_path.rglob(f"{UNFINISHED}*"))
        assert len(list(out.iterdir())) == (2 if frames else 0)
        for result in out.iterdir():
            result.unlink()
        written += frames > 0
    assert written > 20
    assert len(sentences) > 5
    assert all(line.endswith(".") and str(path) in line for line in sentences)
    # nothing leaks: a reader's end is not waited for, but comes
    deadline = time.monotonic() + PATIENCE
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    gc.collect()
    assert (threading.active_count(), count_open_files()) == (threads, files)


def test_what_is_left_of_a_video_has_its_frames_and_their_times(model, quick, tmp_path):
    path = make_clip(tmp_path / "a.mkv", 30)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    sources = find_sources([str(path)])
    done = run(model, *sources, results=[OutputFiles(tmp_path / "b.mp4")], style=DrawStyle(alpha=0.0))
    (sentence,) = done.outcome.problems
    assert f"{done.outcome.frames} frames" in sentence
    with open_video(tmp_path / "b.mp4") as written:
        frames = list(written)
    assert 3 < len(frames) == done.outcome.frames < 30
    assert [number(frame) for frame, _ in frames[:-1]] == list(range(len(frames) - 1))
    assert [seconds for _, seconds in frames] == pytest.approx([i / 25 for i in range(len(frames))], abs=1e-3)
