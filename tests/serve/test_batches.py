import threading
from contextlib import contextmanager

import pytest
import torch
from exports import moving
from serving import Held, plain, serving
from waiting import PATIENCE

from streamseg.serve.batches import Batcher
from streamseg.stream.label_frames import label_frame, label_frames


@pytest.fixture
def engine():
    return Held(plain())


@contextmanager
def queue_up(engine, frames, **options):
    """Give frames to a batcher while it is busy with another; when that is done, so are they."""
    batcher = Batcher(engine, **options)
    with engine.hold():
        first = batcher.submit(moving(1, 64, 64)[0])
        assert engine.asked.wait(PATIENCE)
        answers = [batcher.submit(frame) for frame in frames]
        yield batcher, answers
    first.result(PATIENCE)
    batcher.close()


def test_frames_of_one_size_are_seen_together_and_labelled_as_alone(engine):
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


@pytest.mark.parametrize(("most", "batches"), [(2, [1, 2, 2, 1]), (8, [1, 5])])
def test_a_batch_has_no_more_frames_than_allowed(engine, most, batches):
    with queue_up(engine, moving(5), most=most):
        pass
    assert engine.batches == batches


def test_large_frames_are_seen_two_at_a_time_whatever_is_allowed(engine, monkeypatch):
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


def test_streams_of_different_pasts_share_a_batch_and_are_labelled_as_alone(engine):
    streams = [moving(3), moving(3)[::-1], [255 - frame for frame in moving(3)]]
    expected, states = [], []
    for frames in streams:
        state = None
        for frame in frames[:2]:
            _, state = label_frame(engine.engine, frame, state, 3)
        states.append(state)
        expected.append(label_frame(engine.engine, frames[2], state, 3))
    batcher = Batcher(engine, window=3)
    with engine.hold():
        first = batcher.submit(moving(1, 64, 64)[0])
        assert engine.asked.wait(PATIENCE)
        answers = [batcher.submit(frames[2], state) for frames, state in zip(streams, states, strict=True)]
    first.result(PATIENCE)
    batcher.close()
    assert engine.batches == [1, 3]
    for (labels, state), answer in zip(expected, answers, strict=True):
        found, after = answer.result(PATIENCE)
        assert (found == labels).float().mean() > 0.995
        torch.testing.assert_close(after.contexts, state.contexts, atol=1e-4, rtol=1e-3)
    # and it matters whose past it is
    wrong, _ = label_frame(engine.engine, streams[2][2], states[0], 3)
    assert (wrong == expected[2][0]).float().mean() < 0.98


def test_what_was_cancelled_is_not_worked_for(engine):
    with queue_up(engine, moving(3)) as (_, answers):
        for answer in answers:
            assert answer.cancel()
    assert engine.batches == [1]


def test_a_failure_is_told_to_those_that_it_concerns_and_the_next_batch_is_labelled(engine):
    batcher = Batcher(engine)
    with pytest.raises(ValueError, match="expected RGB bytes"):
        batcher.submit(torch.zeros(3, 64, 64)).result(PATIENCE)
    labels, _ = batcher.submit(moving(1)[0]).result(PATIENCE)
    assert labels.shape == (72, 96)
    batcher.close()


def test_a_closed_queue_has_finished_what_it_had_and_takes_no_more(engine):
    with queue_up(engine, moving(2)) as (batcher, answers):
        batcher.closed = True
        with pytest.raises(RuntimeError, match="closed"):
            batcher.submit(moving(1)[0])
    assert all(answer.done() for answer in answers)
    assert not batcher.thread.is_alive()


class Preparing(Held):
    """An engine that would prepare sizes, of which so many are wanted; each time it waits until it is let go on."""

    def __init__(self, wanted, fails=False):
        super().__init__(plain())
        self.capture_when_idle, self.wanted, self.fails = False, wanted, fails
        self.told = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def capture_next(self):
        self.told.release()
        assert self.may_go_on.wait(20)
        self.wanted -= 1
        if self.fails:
            raise MemoryError("no room")
        return self.wanted > 0


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("streamseg.serve.batches.IDLE_SECONDS", 0.01)


def test_sizes_are_prepared_when_nobody_waits_until_none_is_wanted(at_once):
    engine = Preparing(2)
    engine.may_go_on.set()
    batcher = Batcher(engine)
    assert engine.capture_when_idle
    batcher.submit(moving(1)[0]).result(10)
    assert engine.told.acquire(timeout=10)
    assert engine.told.acquire(timeout=10)
    labels, _ = batcher.submit(moving(1)[0]).result(10)
    assert labels.shape == (72, 96)
    batcher.close()


def test_no_size_is_prepared_while_a_request_is_on_its_way(at_once):
    engine, asked, answers = Preparing(1), threading.Event(), [True, True, False]

    def busy():
        answer = answers.pop(0)
        if not answer:
            asked.set()
        else:
            assert not engine.told.acquire(blocking=False)
        return answer

    engine.may_go_on.set()
    batcher = Batcher(engine, busy=busy)
    batcher.submit(moving(1)[0]).result(10)
    assert asked.wait(10)
    assert engine.told.acquire(timeout=10)
    assert answers == []
    batcher.close()


def test_frames_that_come_meanwhile_are_taken_and_a_size_that_cannot_be_prepared_stops_nobody(at_once):
    engine = Preparing(5, fails=True)
    batcher = Batcher(engine)
    batcher.submit(moving(1)[0]).result(10)
    assert engine.told.acquire(timeout=10)
    answer = batcher.submit(moving(1)[0])  # who submits is not held up by what is prepared
    assert not answer.done()
    engine.may_go_on.set()
    labels, _ = answer.result(10)
    assert labels.shape == (72, 96)
    batcher.close()
    assert not batcher.thread.is_alive()


def test_while_frames_wait_nothing_is_prepared(at_once):
    engine = Preparing(1)
    engine.may_go_on.set()
    with queue_up(engine, [*moving(2), *moving(2, 80, 64)]) as (batcher, _):
        assert not engine.told.acquire(blocking=False)
        batches = engine.batches
    assert batches == [1, 2, 2]
    assert not batcher.thread.is_alive()


def test_a_server_is_busy_from_the_arrival_of_a_request_to_its_answer():
    with serving() as running:
        batcher, gate = running.gate.batcher, running.gate
        assert not batcher.busy()
        with gate.place("picture"):
            assert batcher.busy()
        assert not batcher.busy()
