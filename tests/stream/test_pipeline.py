import copy
import io
import signal
import threading
import time
import weakref
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from pipelines import Callbacks, Clip, Screen, fake_predictions, interrupt, interrupt_twice, noise, run, shade
from waiting import PATIENCE, until

import streamseg
from streamseg import draw
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.io.video_reading import open_video, read_label_video
from streamseg.parallel.threads import ThreadGroup
from streamseg.stream import network_thread, pipeline
from streamseg.stream.label_frames import label_frames
from streamseg.stream.latency import Meter
from streamseg.stream.pipeline import MAX_FILES, Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.source_threads import QUEUE_SIZE
from streamseg.stream.state import LastFrames


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


def test_many_files_are_read_a_few_at_a_time_and_each_output_appears_when_it_is_finished(model, quick, tmp_path):
    begun, there = [], {}

    def frames(number):
        begun.append(number)
        there[number] = len(list(tmp_path.glob("*.mp4")))
        yield from [shade(number)] * 3

    clips = [Clip(frames(i), f"clip{i}") for i in range(2 * MAX_FILES + 3)]
    done = run(model, *clips, results=[OutputFiles(tmp_path / f"{clip.name}.mp4") for clip in clips])
    assert done.outcome.frames == 3 * len(clips)
    assert sorted(begun) == list(range(len(clips)))
    # before the one after another eight begins, the first of these is whole
    assert all(there[number] > number - MAX_FILES for number in begun)
    assert len(list(tmp_path.iterdir())) == len(clips)


def test_cameras_wait_for_no_file(model, quick):
    meeting = threading.Barrier(2 * MAX_FILES + 2)

    def frames():
        meeting.wait(PATIENCE)  # for all the others, of which none goes on before they have met
        yield shade(0)

    cameras = [Clip(frames(), f"camera{i}", live=True) for i in range(MAX_FILES + 2)]
    files = [Clip(frames(), f"file{i}") for i in range(MAX_FILES)]
    done = run(model, *files, *cameras)
    assert done.outcome.frames == 2 * MAX_FILES + 2
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
        return fake_predictions(images, **options)

    def paint(frame, *style, borders):
        meet(int(frame[0, 0, 0]), 1)
        return overlay(frame, *style, borders=borders)

    monkeypatch.setattr(network_thread, "step_batch", step)
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


def test_the_main_thread_sleeps_while_the_others_work(model, quick):
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


def test_the_total_is_known_once_all_sources_have_a_length(model, quick):
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


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_the_video_is_complete(model, quick, tmp_path, number, live):
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


def test_a_signal_stops_a_run_whose_source_is_silent(model, quick, tmp_path):
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


def test_a_second_signal_aborts_and_leaves_no_file(model, quick, tmp_path, monkeypatch):
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
        monkeypatch.setattr(network_thread, "step_batch", fail_after(8, network_thread.step_batch))
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


def test_a_window_shows_the_overlays_and_ends_the_run_when_it_is_closed(model, quick):
    screen = Screen(last=3)

    def endless():
        for _ in range(10**6):
            time.sleep(0.001)
            yield shade(3)

    done = run(model, Clip(endless()), display=screen)
    assert len(screen.frames) == 3
    expected = draw.overlay(shade(3), torch.full((32, 48), 3, dtype=torch.uint8), streamseg.CAMVID)
    assert all(frame.equal(expected) for frame in screen.frames)
    assert done.outcome.signal == 0
    assert done.outcome.frames == done.summary.read


def test_the_last_picture_is_shown_however_short_the_run(model, quick):
    screen = Screen()
    run(model, Clip([shade(i) for i in range(3)], moving=False), display=screen)
    expected = draw.overlay(shade(2), torch.full((32, 48), 2, dtype=torch.uint8), streamseg.CAMVID)
    assert screen.frames[-1].equal(expected)


def test_several_sources_are_shown_in_a_grid_and_the_last_picture_of_each(model, quick):
    screen = Screen()
    clips = [Clip([shade(i, (90, 160)) for i in range(last + 1)], f"clip{last}") for last in (3, 5)]
    run(model, *clips, display=screen, style=DrawStyle(alpha=0.0))
    grid = screen.frames[-1]
    assert tuple(grid.shape) == (3, 90, 320)
    assert (grid[:, 80, 80].tolist(), grid[:, 80, 240].tolist()) == ([3] * 3, [5] * 3)
