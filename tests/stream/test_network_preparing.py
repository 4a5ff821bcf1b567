"""The network thread with an engine that is prepared in the background."""

import io
import threading
from types import SimpleNamespace

import pytest
import torch
from pipelines import FULL, Callbacks, Camera, Clip, noise, run, shade
from preparing import SlowEngine, batch_of
from waiting import until

import streamseg
from streamseg.engine.engine import EagerEngine
from streamseg.engine.prepare import PreparingEngine
from streamseg.stream import network_thread
from streamseg.stream.deadline import SCALES, scale_size
from streamseg.stream.label_frames import label_frames
from streamseg.stream.settings import LabelSettings
from streamseg.stream.state import LastFrames


@pytest.fixture
def preparing(plus):
    slow = SlowEngine(plus)
    engine = PreparingEngine(EagerEngine(plus), slow)
    yield engine
    slow.may_go_on.set()
    engine.preparation.stop()


@pytest.mark.parametrize("is_live", [True, False])
def test_a_preparation_gives_way_to_live_sources_and_time_does_not_limit_their_batches(preparing, is_live):
    settings = LabelSettings(preparing, streamseg.CAMVID, LastFrames(1))
    deadline = SimpleNamespace(seconds=None, scale=1.0)
    device = torch.device("cpu")
    shared = SimpleNamespace(settings=settings, deadline=deadline, live=is_live, on_device=False, device=device)
    thread = network_thread.NetworkThread(preparing, [], shared)
    assert preparing.preparation.gives_way == is_live
    job = SimpleNamespace(stream=SimpleNamespace(size=None), shape=(3, 32, 48))
    streams = [SimpleNamespace(inbox=SimpleNamespace(waiting=[job])) for _ in range(5)]
    thread.limit.record((32, 48), 1, 10.0)
    assert len(thread.choose(streams, job)) == (1 if is_live else 5)
    preparing.request(batch_of(1, 32, 48))
    assert len(thread.choose(streams, job)) == 5


def test_a_video_is_labelled_from_its_first_frame_on_and_changes_engines_without_a_gap(preparing, plus):
    frames, raw, slow = noise(1, 8), io.BytesIO(), preparing.fast

    def read():
        for number, frame in enumerate(frames):
            if number == 6:
                until(lambda: slow.asked)
                slow.may_go_on.set()
                until(lambda: slow.ready)
            yield frame

    done = run(preparing, Clip(read()), frames=3, raw=raw)
    assert done.outcome.frames == 8
    assert 2 <= len(slow.labelled) <= 6
    expected = [labels for _, labels in label_frames(plus, frames, 3)]
    found = torch.frombuffer(bytearray(raw.getvalue()), dtype=torch.uint8).view(8, 48, 64)
    assert all((x == y).float().mean() > 0.98 for x, y in zip(found, expected, strict=True))


def test_no_frame_of_a_live_source_waits_for_a_preparation(preparing):
    camera, written = Camera(12), threading.Semaphore(0)

    def wrote(*_):
        camera.let_through(1)  # the next frame comes when this one is labelled
        written.release()

    done = run(preparing, camera, observer=Callbacks(frame_written=wrote))
    # the run is over, and its size still being prepared
    assert [record["frame"] for record in done.records] == list(range(12))
    assert preparing.preparation.thread.is_alive()
    assert preparing.fast.labelled == []


@pytest.mark.parametrize(("share", "scale"), [(3.0, 1.0), (0.9, 0.59)])
def test_times_of_the_eager_engine_do_not_mislead_the_deadline(preparing, priced, monkeypatch, share, scale):
    step, slow, eager = network_thread.step_batch, preparing.fast, []
    fast_seconds = 1e-6 * 192 * 320

    def price(model, images, *rest, **options):
        ready = (images.shape, False, False, False, None) in slow.ready
        priced.price = 1e-6 if ready else 50e-6
        eager.append(not ready)
        return step(model, images, *rest, **options)

    def frames():
        for number in range(80):
            if number == 40:
                slow.may_go_on.set()
            if number >= 40:  # what has been asked for is ready
                until(lambda: preparing.preparation.thread is None)
            yield shade(number, FULL)

    monkeypatch.setattr(network_thread, "step_batch", price)
    done = run(preparing, Clip(frames()), deadline=share * fast_seconds)
    sizes = [tuple(record["size"]) for record in done.records]
    assert sizes[:36] == [FULL] * 36  # all of them late, by an engine that is about to be replaced
    assert sizes[-1] == scale_size(FULL, scale)
    assert len({*sizes}) <= 2
    assert done.outcome.late >= 36
    assert not any(eager[-20:])
    # the sizes that may be needed, one after the other
    assert [tuple(shape[2:]) for shape, *_ in slow.asked] == [scale_size(FULL, x) for x in SCALES[: len(slow.asked)]]
