import io
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from pipelines import Callbacks, Camera, Clip, fake_predictions, noise, run, shade
from waiting import PATIENCE, until

import streamseg
from streamseg.io.outputs import OutputFiles
from streamseg.io.sources import Capture
from streamseg.io.video_reading import read_label_video
from streamseg.models.baselines import BASELINES
from streamseg.models.video.clockwork import clockwork_pipelined
from streamseg.parallel.threads import BoundedQueue, ThreadGroup
from streamseg.stream import network_thread
from streamseg.stream.batch_limit import MAX_BATCH
from streamseg.stream.label_frames import label_frames
from streamseg.stream.latency import Meter
from streamseg.stream.pipeline import Pipeline
from streamseg.stream.settings import DrawStyle, LabelSettings
from streamseg.stream.state import FadingInTime


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
    step, batches = network_thread.step_batch, []

    def counted(network, images, *rest, **options):
        batches.append(len(images))
        return step(network, images, *rest, **options)

    monkeypatch.setattr(network_thread, "step_batch", counted)
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


def test_single_pictures_do_not_share_a_state(model):
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


def test_labels_have_the_size_of_the_frame_when_the_network_input_is_smaller(model, quick):
    raw = io.BytesIO()
    done = run(model, Clip([shade(7, (60, 90))] * 3), size=(32, 32), raw=raw)
    assert done.outcome.size == (32, 32)
    assert raw.getvalue() == bytes([7]) * (3 * 60 * 90)


def live(monkeypatch, model, camera, passing, **options):
    """Label a camera's frames by a network in whose time so many others pass; returns what it saw, and the run."""
    seen = []

    def step(model, images, states, window, **options):
        seen.append((int(images[0, 0, 0, 0]), camera.came - 1))
        camera.let_through(passing)
        return fake_predictions(images, **options)

    monkeypatch.setattr(network_thread, "step_batch", step)
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
        return fake_predictions(images, **options)

    monkeypatch.setattr(network_thread, "step_batch", step)
    done = run(model, camera)
    assert seen == [0, *range(20)]
    assert [record["frame"] for record in done.records] == list(range(20))
    assert done.summary.dropped == 0


@pytest.mark.parametrize("size", [(32, 48), (64, 96)])
def test_a_live_source_and_a_file_take_turns_at_the_network(monkeypatch, model, size):
    camera, steps, written = Camera(31), [], []
    change = threading.Condition()

    def step(model, images, states, window, **options):
        asked = sum(steps[1:])  # the first pass, for the libraries, labels nothing
        with change:  # a camera whose drawer is behind would be passed over, and this is not about that
            assert change.wait_for(lambda: written.count("camera") >= asked, PATIENCE)
        steps.append(sum(int(image[0, 0, 0]) != 200 for image in images))
        camera.let_through(1)
        return fake_predictions(images, **options)

    def wrote(capture, *_):
        with change:
            written.append(capture.name)
            change.notify_all()

    monkeypatch.setattr(network_thread, "step_batch", step)
    done = run(model, camera, Clip([shade(200, size)] * 100, "file"), observer=Callbacks(frame_written=wrote))
    streams = done.summary.streams
    assert streams["file"] == (100, 0)
    assert [record["frame"] for record in done.records if record["source"] == "file"] == list(range(100))
    shown = [record["frame"] for record in done.records if record["source"] == "camera"]
    assert streams["camera"] == (31, 31 - len(shown))
    # a camera that has always a frame to show is never passed over twice
    assert len(shown) >= 13


def test_the_smallest_size_is_that_of_the_fewest_pixels(model, priced):
    clips = [Clip([shade(0, size)] * 2, f"clip{i}") for i, size in enumerate([(32, 320), (64, 96), (320, 32)])]
    assert run(model, *clips).outcome.smallest == (64, 96)


def test_the_network_has_all_threads_and_the_others_one_each(model, monkeypatch):
    found = {}

    def step(model, images, states, window, **options):
        found["network"] = torch.get_num_threads()
        return fake_predictions(images, **options)

    def frames():
        found["reader"] = torch.get_num_threads()
        yield shade(0)

    def wrote(capture, shares, results):
        found["writer"] = torch.get_num_threads()

    monkeypatch.setattr(network_thread, "step_batch", step)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(model, Clip(frames()), observer=Callbacks(frame_written=wrote))
    finally:
        torch.set_num_threads(before)
    assert found == {"reader": 1, "network": 2, "writer": 1}


def lockstep(monkeypatch, cameras, seconds):
    """Replace the network by one whose batches take seconds of a fake clock, in which all cameras go on by a frame.

    Returns the batches, each a list of (camera, frame), and an observer that the run needs: a batch begins when the
    frames of those before are written, as a camera whose drawer is behind would miss its turn.
    """
    batches, clock, written, change = [], SimpleNamespace(now=0.0), [], threading.Condition()
    clock.monotonic = clock.perf_counter = lambda: clock.now

    def step(model, images, states, window, **options):
        labelled = sum(map(len, batches[1:]))  # the first pass, for the libraries, labels nothing
        with change:
            assert change.wait_for(lambda: len(written) >= labelled, PATIENCE)
        batches.append([(int(image[1, 0, 0]), int(image[0, 0, 0])) for image in images])
        clock.now += seconds(images)
        for camera in cameras:
            camera.let_through(1)
        return fake_predictions(images, **options)

    def wrote(capture, *_):
        with change:
            written.append(capture)
            change.notify_all()

    monkeypatch.setattr(network_thread, "step_batch", step)
    monkeypatch.setattr(network_thread, "time", clock)
    return batches, Callbacks(frame_written=wrote)


@dataclass(eq=False)
class Numbered(Camera):
    """A camera whose frames say which camera and which frame they are."""

    number: int = 0
    size: tuple[int, int] = (32, 48)

    def captures(self):
        for capture in super().captures():
            frame = shade(capture.index, self.size)
            frame[1] = self.number
            yield replace(capture, pixels=frame)


def test_many_cameras_take_turns_and_each_gives_its_newest_frame(monkeypatch, model):
    cameras = [Numbered(40, number=i, name=f"camera{i}") for i in range(12)]
    # two frames fit into the 50 ms of a batch
    batches, observer = lockstep(monkeypatch, cameras, lambda images: 0.02 * len(images))
    done = run(model, *cameras, observer=observer)
    # those after the first, when all have begun, and before the cameras end
    middle = list(enumerate(batches))[2:39]
    assert {len(batch) for _, batch in middle} == {2}
    # six batches are a round of twelve cameras: at any time nobody waits longer than that
    for start in range(3, 32):
        assert len({camera for batch in batches[start : start + 6] for camera, _ in batch}) == 12
    # in each batch every camera goes on by a frame, and the one that is labelled is the last
    assert all(frame == number for number, batch in middle for _, frame in batch)
    assert all(read == 40 for read, _ in done.summary.streams.values())
    assert done.summary.labelled + done.summary.dropped == done.summary.read


def test_frames_of_different_sizes_share_a_batch_if_their_network_input_is_one_size(monkeypatch, model):
    sizes, begun, batches, raw = [(32, 48), (64, 96), (40, 40), (128, 32)], Counter(), [], io.BytesIO()

    def frames(size):
        for i in range(6):
            begun[size] += 1
            yield shade(i, size)

    def step(model, images, states, window, **options):
        until(lambda: all(begun[size] > 1 for size in sizes))
        batches.append((tuple(images.shape), list(options["sizes"])))
        return fake_predictions(images, **options)

    monkeypatch.setattr(network_thread, "step_batch", step)
    run(model, *(Clip(frames(size), f"clip{i}") for i, size in enumerate(sizes)), size=(32, 64), raw=raw)
    assert ((4, 3, 32, 64), sizes) in [(shape, sorted(labels, key=sizes.index)) for shape, labels in batches]
    # each has labels of its own size
    assert len(raw.getvalue()) == 6 * sum(height * width for height, width in sizes)


@pytest.mark.parametrize(("waiting", "sizes"), [(1, [1]), (7, [4, 2, 1]), (19, [16, 2, 1])])
def test_on_a_gpu_batches_are_powers_of_two(waiting, sizes):
    settings, group = SimpleNamespace(size=None, tiled=False, together=False), ThreadGroup()
    deadline = SimpleNamespace(seconds=None, scale=1.0)
    shared = SimpleNamespace(
        device=torch.device("cuda"), deadline=deadline, live=False, settings=settings, group=group, on_device=False
    )
    streams = []
    for _ in range(waiting):
        inbox, labelled = BoundedQueue(group, 1), BoundedQueue(group, 1)
        streams.append(SimpleNamespace(inbox=inbox, labelled=labelled, output=labelled, size=(32, 48), last_batch=-1))
        inbox.put(SimpleNamespace(stream=streams[-1], frame=shade(0), shape=shade(0).shape))
        inbox.close()
    thread = network_thread.NetworkThread(None, streams, shared)
    assert [len(jobs) for jobs in thread.batches()] == sizes


def test_work_after_the_labels_is_done_when_they_are_out(monkeypatch):
    events = []
    method = clockwork_pipelined(BASELINES["swiftnet18"](11)).eval()
    finish, put = method.finish, BoundedQueue.put

    def finished(state):
        if not state.deep.numel() and threading.current_thread().name == "network":
            events.append("finish")
        return finish(state)

    def handed_on(queue, entry):
        if getattr(entry, "labels", None) is not None and threading.current_thread().name == "network":
            events.append("labels")
        return put(queue, entry)

    monkeypatch.setattr(method, "finish", finished)
    monkeypatch.setattr(BoundedQueue, "put", handed_on)
    done = run(method, Clip(noise(1, 3)))
    assert done.outcome.frames == 3
    assert events == ["labels", "labels", "finish", "labels", "finish"]


def test_cameras_that_look_together_wait_for_each_other_but_not_for_a_silent_one():
    group, now = ThreadGroup(), time.monotonic()
    settings = SimpleNamespace(size=None, tiled=False, together=True)
    shared = SimpleNamespace(
        device=torch.device("cpu"),
        on_device=False,
        deadline=SimpleNamespace(seconds=None, scale=1.0),
        live=True,
        settings=settings,
        group=group,
    )
    streams = [
        SimpleNamespace(
            inbox=BoundedQueue(group, 1),
            labelled=BoundedQueue(group, 1),
            output=BoundedQueue(group, 1),
            size=(32, 48),
            last_batch=-1,
            last_capture=now,
            source=SimpleNamespace(live=live),
        )
        for live in (True, True, False)
    ]
    front, rear, file = streams
    thread = network_thread.NetworkThread(None, streams, shared)
    for stream in (front, file):
        stream.inbox.put(SimpleNamespace(stream=stream, frame=shade(0)))
    assert not thread.can_continue()  # the rear has sent a frame a moment ago
    rear.last_capture = now - 2 * network_thread.ABSENT_SECONDS
    assert thread.can_continue()
    assert {job.stream.source.live for job in next(thread.batches())} == {True, False}
    front.inbox.put(SimpleNamespace(stream=front, frame=shade(1)))
    file.last_capture = now - 2 * network_thread.ABSENT_SECONDS
    assert not thread.can_continue()  # a file comes as fast as it can be read
    file.inbox.close()
    assert thread.can_continue()
