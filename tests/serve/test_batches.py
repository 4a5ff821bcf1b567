import threading
from contextlib import contextmanager

import pytest
import torch
from exports import moving
from serving import PausableEngine, small_engine
from waiting import PATIENCE

from streamseg.serve.batches import Batcher
from streamseg.stream.label_frames import label_frame, label_frames


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


def test_the_state_of_a_stream_goes_in_and_comes_out(engine):
    frames = moving(4)
    batcher, state = Batcher(engine, window=3), None
    for frame, (_, expected) in zip(frames, label_frames(engine.engine, frames, 3), strict=True):
        labels, state = batcher.submit(frame, state).result(PATIENCE)
        assert labels.equal(expected)
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


class PreparingEngine(PausableEngine):
    """An engine with a number of sizes left to prepare; each preparation waits for may_go_on."""

    def __init__(self, left, fails=False):
        super().__init__(small_engine())
        self.capture_when_idle, self.left, self.fails = False, left, fails
        self.started = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def capture_next(self):
        self.started.release()
        assert self.may_go_on.wait(20)
        self.left -= 1
        if self.fails:
            raise MemoryError("no room")
        return self.left > 0


@pytest.fixture
def no_idle_time(monkeypatch):
    monkeypatch.setattr("streamseg.serve.batches.PREPARE_AFTER_SECONDS", 0.01)


def test_sizes_are_prepared_while_the_server_is_idle_until_none_is_left(no_idle_time):
    engine = PreparingEngine(2)
    engine.may_go_on.set()
    batcher = Batcher(engine)
    assert engine.capture_when_idle
    batcher.submit(moving(1)[0]).result(10)
    assert engine.started.acquire(timeout=10)
    assert engine.started.acquire(timeout=10)
    labels, _ = batcher.submit(moving(1)[0]).result(10)
    assert labels.shape == (72, 96)
    batcher.close()


def test_no_size_is_prepared_while_a_request_is_active(no_idle_time):
    engine, asked, answers = PreparingEngine(1), threading.Event(), [True, True, False]

    def busy():
        answer = answers.pop(0)
        if not answer:
            asked.set()
        else:
            assert not engine.started.acquire(blocking=False)
        return answer

    engine.may_go_on.set()
    batcher = Batcher(engine, busy=busy)
    batcher.submit(moving(1)[0]).result(10)
    assert asked.wait(10)
    assert engine.started.acquire(timeout=10)
    assert answers == []
    batcher.close()


def test_frames_are_queued_during_preparation_and_labelled_even_if_it_fails(no_idle_time):
    engine = PreparingEngine(5, fails=True)
    batcher = Batcher(engine)
    batcher.submit(moving(1)[0]).result(10)
    assert engine.started.acquire(timeout=10)
    answer = batcher.submit(moving(1)[0])  # returns at once
    assert not answer.done()
    engine.may_go_on.set()
    labels, _ = answer.result(10)
    assert labels.shape == (72, 96)
    batcher.close()
    assert not batcher.thread.is_alive()


def test_no_size_is_prepared_while_frames_are_queued(no_idle_time):
    engine = PreparingEngine(1)
    engine.may_go_on.set()
    with queue_up(engine, [*moving(2), *moving(2, 80, 64)]) as (batcher, _):
        assert not engine.started.acquire(blocking=False)
        batches = engine.batches
    assert batches == [1, 2, 2]
    assert not batcher.thread.is_alive()
