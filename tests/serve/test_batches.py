import math
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest
import torch
from exports import moving
from preparing import SlowEngine
from serving import PausableEngine, small_engine
from video_methods import build
from waiting import PATIENCE, until

from streamseg.engine.engine import EagerEngine, VideoEngine
from streamseg.engine.prepare import PreparingEngine
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW
from streamseg.io.masks import Mask
from streamseg.models.baselines import BASELINES
from streamseg.models.video.accel import accel
from streamseg.models.video.clockwork import clockwork_pipelined
from streamseg.models.video.dff import dff
from streamseg.models.video.grfp import grfp
from streamseg.models.video.netwarp import netwarp
from streamseg.serve.batches import Batcher, limit_batches
from streamseg.stream.batch_limit import BATCH_SECONDS
from streamseg.stream.label_frames import label_frame, label_frames
from streamseg.stream.state import LastFrames


@pytest.fixture
def engine():
    return PausableEngine(small_engine())


@contextmanager
def queue_up(engine, frames, **options):
    """Queue frames while the batcher is busy with another; they are labelled when the block ends."""
    batcher = Batcher(engine, **options)
    with engine.pause():
        first = batcher.submit(moving(1, 64, 64)[0])
        assert engine.called.wait(PATIENCE)
        answers = [batcher.submit(frame) for frame in frames]
        yield batcher, answers
    first.result(PATIENCE)
    batcher.close()


def test_frames_of_one_size_share_a_batch_and_are_labelled_as_alone(engine):
    large, other = moving(3), moving(2, 80, 64)
    frames = [large[0], other[0], large[1], other[1], large[2]]
    with queue_up(engine, frames) as (_, answers):
        pass
    assert engine.batches == [1, 3, 2]
    for frame, answer in zip(frames, answers, strict=True):
        labels, state = answer.result(PATIENCE)
        alone, _ = label_frame(engine.engine, frame)
        assert (labels == alone).float().mean() > 0.99
        assert state.weights == ()


def test_frames_with_one_network_input_size_share_a_batch_each_with_its_own_mask(engine):
    upper = torch.arange(72)[:, None].expand(72, 96) < 40
    given = [
        (moving(1)[0], (48, 64), Mask(upper)),
        (moving(1)[0], (64, 48), None),
        (moving(1, 80, 64)[0], (48, 64), None),
    ]
    batcher = Batcher(engine)
    with engine.pause():
        first = batcher.submit(moving(1, 64, 64)[0])
        assert engine.called.wait(PATIENCE)
        answers = [batcher.submit(frame, size=size, mask=mask) for frame, size, mask in given]
    first.result(PATIENCE)
    batcher.close()
    assert engine.batches == [1, 2, 1]
    for (frame, size, mask), answer in zip(given, answers, strict=True):
        labels, _ = answer.result(PATIENCE)
        alone, _ = label_frame(engine.engine, frame, size=size, mask=mask)
        assert (labels == alone).float().mean() > 0.99
    assert answers[0].result()[0][40:].eq(255).all()
    assert answers[2].result()[0].ne(255).all()


@pytest.mark.parametrize(("max_frames", "batches"), [(2, [1, 2, 2, 1]), (8, [1, 5])])
def test_a_batch_has_no_more_frames_than_allowed(engine, max_frames, batches):
    with queue_up(engine, moving(5), max_frames=max_frames):
        pass
    assert engine.batches == batches


def test_the_oldest_request_is_in_the_next_batch_whatever_others_ask(engine):
    large, other = moving(1)[0], moving(1, 80, 64)[0]
    frames = [large] * 3 + [other] + [large] * 10
    with queue_up(engine, frames, max_frames=4) as (_, answers):
        done = []
        for number, answer in enumerate(answers):
            answer.add_done_callback(lambda _, number=number: done.append(number))
    # the one of another size waits for those that came before it, and not for the many after it
    assert engine.batches == [1, 4, 1, 4, 4, 1]
    assert done == [0, 1, 2, 4, 3, *range(5, 14)]


def test_a_batch_has_at_most_two_of_the_largest_frames(engine, monkeypatch):
    monkeypatch.setattr("streamseg.serve.batches.MAX_PIXELS", 72 * 96)
    with queue_up(engine, moving(4)):
        pass
    assert engine.batches == [1, 2, 2]


class TimedEngine(PausableEngine):
    """An engine whose batches take a known time, by a clock of its own."""

    def __init__(self, engine, monkeypatch, batch_seconds=0.0, frame_seconds=0.01):
        super().__init__(engine)
        self.now, self.batch_seconds, self.frame_seconds = 0.0, batch_seconds, frame_seconds
        monkeypatch.setattr("streamseg.serve.batches.perf_counter", lambda: self.now)

    def predict(self, batch):
        found = super().predict(batch)
        self.now += self.batch_seconds + len(batch.images) * self.frame_seconds
        return found


# the first batch is the one that the others wait for, the second shows how long a frame of their size takes
@pytest.mark.parametrize(
    ("seconds", "batches"), [(0.035, [1, 1, 3, 3, 1]), (0.001, [1] * 9), (math.inf, [1, 8]), (None, [1, 8])]
)
def test_a_batch_has_as_many_frames_as_are_labelled_in_its_time(monkeypatch, seconds, batches):
    engine = TimedEngine(small_engine(), monkeypatch)
    with queue_up(engine, moving(8), seconds=seconds) as (_, answers):
        pass
    assert engine.batches == batches
    assert all(answer.done() for answer in answers)


def test_where_frames_cost_little_beside_the_batch_batches_grow_up_to_the_most_frames(monkeypatch):
    engine = TimedEngine(small_engine(), monkeypatch, batch_seconds=0.02, frame_seconds=0.001)
    with queue_up(engine, moving(18), max_frames=8, seconds=0.05):
        pass
    assert engine.batches == [1, 1, 2, 4, 8, 3]


def test_while_an_engine_is_prepared_the_time_of_a_batch_neither_limits_nor_counts(monkeypatch):
    engine = TimedEngine(small_engine(), monkeypatch)
    monkeypatch.setattr("streamseg.serve.batches.is_preparing", lambda asked, _: asked is engine)
    with queue_up(engine, moving(9), seconds=0.001) as (batcher, _):
        pass
    assert engine.batches == [1, 8, 1]
    assert not batcher.limit.frame_seconds


def test_a_batch_that_failed_says_nothing_about_the_time(monkeypatch):
    engine = TimedEngine(small_engine(), monkeypatch)
    batcher = Batcher(engine, seconds=0.05)
    with pytest.raises(ValueError, match="expected RGB bytes"):
        batcher.submit(torch.zeros(3, 64, 64)).result(PATIENCE)
    batcher.close()
    assert not batcher.limit.frame_seconds


@pytest.mark.parametrize(
    ("device", "size", "frames"),
    [
        ("cuda", (720, 1280), 8),
        ("cuda", (1024, 2048), 8),
        ("cpu", (360, 640), 8),
        ("cpu", (720, 1280), 4),
        ("cpu", (1024, 2048), 2),
    ],
)
def test_eight_frames_of_any_size_share_a_batch_on_a_gpu_and_two_of_the_largest_on_a_cpu(device, size, frames):
    limit = limit_batches(torch.device(device), 8, None)
    limit.record(size, 1, 0.001)
    assert limit.frames(size) == frames


def test_the_time_of_a_batch_is_limited_on_a_gpu_or_where_asked():
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    found = [limit_batches(device, 8, seconds).budget for device in (cuda, cpu) for seconds in (None, 0.2, math.inf)]
    assert found == [BATCH_SECONDS, 0.2, math.inf, math.inf, 0.2, math.inf]


def test_the_state_of_a_stream_goes_in_and_comes_out(engine):
    frames = moving(4)
    batcher, state = Batcher(engine, window=3), None
    for frame, (_, expected) in zip(frames, label_frames(engine.engine, frames, 3), strict=True):
        labels, state = batcher.submit(frame, state).result(PATIENCE)
        assert labels.equal(expected)
    batcher.close()


def test_the_time_between_frames_counts(engine):
    policy = LastFrames(2, steady=STEADY_HIGH)
    batcher, state, known = Batcher(engine, policy), None, None
    for i, frame in enumerate(moving(4)):
        labels, state = batcher.submit(frame, state, 70.0 + 0.5 * i).result(PATIENCE)
        expected, known = label_frame(engine.engine, frame, known, policy, seconds=0.5 * i)
        assert labels.equal(expected)
    assert state.longest_gap == pytest.approx(0.5)
    batcher.close()


def test_streams_with_different_pasts_share_a_batch_and_are_labelled_as_alone(engine):
    streams = [moving(3), moving(3)[::-1], [255 - frame for frame in moving(3)]]
    expected, states = [], []
    for frames in streams:
        state = None
        for frame in frames[:2]:
            _, state = label_frame(engine.engine, frame, state, 3)
        states.append(state)
        expected.append(label_frame(engine.engine, frames[2], state, 3))
    batcher = Batcher(engine, window=3)
    with engine.pause():
        first = batcher.submit(moving(1, 64, 64)[0])
        assert engine.called.wait(PATIENCE)
        answers = [batcher.submit(frames[2], state) for frames, state in zip(streams, states, strict=True)]
    first.result(PATIENCE)
    batcher.close()
    assert engine.batches == [1, 3]
    for (labels, state), answer in zip(expected, answers, strict=True):
        found, after = answer.result(PATIENCE)
        assert (found == labels).float().mean() > 0.995
        torch.testing.assert_close(after.contexts, state.contexts, atol=1e-4, rtol=1e-3)
    # with the past of another stream the labels differ
    wrong, _ = label_frame(engine.engine, streams[2][2], states[0], 3)
    assert (wrong == expected[2][0]).float().mean() < 0.98


def test_cancelled_requests_are_not_labelled(engine):
    with queue_up(engine, moving(3)) as (_, answers):
        for answer in answers:
            assert answer.cancel()
    assert engine.batches == [1]


def test_a_failure_reaches_its_requests_only_and_the_next_batch_is_labelled(engine):
    batcher = Batcher(engine)
    with pytest.raises(ValueError, match="expected RGB bytes"):
        batcher.submit(torch.zeros(3, 64, 64)).result(PATIENCE)
    labels, _ = batcher.submit(moving(1)[0]).result(PATIENCE)
    assert labels.shape == (72, 96)
    batcher.close()


def test_a_closed_queue_finishes_its_requests_and_takes_no_more(engine):
    with queue_up(engine, moving(2)) as (batcher, answers):
        batcher.closed = True
        with pytest.raises(RuntimeError, match="closed"):
            batcher.submit(moving(1)[0])
    assert all(answer.done() for answer in answers)
    assert not batcher.thread.is_alive()


def test_requests_are_answered_while_an_engine_is_prepared_for_their_size(plus):
    slow = SlowEngine(plus)
    engine = PreparingEngine(EagerEngine(plus), slow)
    batcher, state = Batcher(engine, window=3), None
    for number, (frame, (_, expected)) in enumerate(zip(moving(6), label_frames(plus, moving(6), 3), strict=True)):
        if number == 4:
            slow.may_go_on.set()
            until(lambda: slow.ready)
        labels, state = batcher.submit(frame, state).result(PATIENCE)
        assert (labels == expected).float().mean() > 0.98
    assert len(slow.labelled) == 2
    batcher.close()
    engine.preparation.stop()


def test_work_after_the_labels_is_done_once_and_used_for_the_next_frame():
    method = clockwork_pipelined(BASELINES["swiftnet18"](11)).eval()
    frames, state, found = moving(3), None, []
    batcher = Batcher(VideoEngine(method))
    with patch.object(method.backbone, "deep", wraps=method.backbone.deep) as deep:
        for frame in frames:
            labels, state = batcher.submit(frame, state).result(PATIENCE)
            found.append(labels)
        batcher.close()
    assert deep.call_count == 3
    assert not batcher.finished or state in batcher.finished
    expected = [labels for _, labels in label_frames(method, frames)]
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    "method", [partial(dff, interval=3), netwarp, accel, grfp, None], ids=["dff", "netwarp", "accel", "grfp", "fanet"]
)
def test_the_memory_of_a_frame_may_be_used_again_after_its_labels(method):
    # as that of pictures that processes decode
    network = None if method is None else build(method)
    engine = small_engine() if network is None else VideoEngine(network)
    policy = LastFrames(3, steady=STEADY_LOW) if network is None else 1
    frames, state, batcher = moving(4), None, Batcher(engine, policy)
    memory = torch.empty_like(frames[0])
    for frame, (_, expected) in zip(frames, label_frames(engine, frames, policy), strict=True):
        memory.copy_(frame)
        labels, state = batcher.submit(memory, state).result(PATIENCE)
        memory.random_(0, 256)
        assert labels.equal(expected)
    batcher.close()
