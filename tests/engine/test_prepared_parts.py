"""Batches that are labelled in parts until their own size is prepared."""

import pytest
import torch
from preparing import agreement, batch_of, engine as engine, frames as frames, slow as slow
from waiting import PATIENCE, until

import streamseg
from streamseg.engine.buffers import key_of
from streamseg.io.masks import to_mask
from streamseg.stream.label_frames import step_batch
from streamseg.stream.state import LastFrames

STEADY = LastFrames(3, steady=streamseg.STEADY_LOW)


def keys_of(*counts, masked=False):
    """The keys of batches of so many frames, with steady labels."""
    keys = set()
    for count in counts:
        batch = batch_of(count, 96, 160)._replace(steady=STEADY.steady)
        keys.add(key_of(batch._replace(mask=torch.ones(count, 96, 160) if masked else None)))
    return keys


@pytest.mark.parametrize(
    ("ready", "parts"), [([1], [1, 1, 1, 1, 1]), ([1, 2], [2, 1, 2]), ([1, 3], [1, 1, 3]), ([2, 3], [2, 3]), ([5], [5])]
)
def test_batches_that_are_not_prepared_are_labelled_in_parts_that_are(engine, slow, plus, frames, ready, parts):
    images, sizes = torch.stack(frames[3:8]), [(96, 160)] * 5
    _, (past,) = step_batch(plus, torch.stack(frames[:1]), [None], STEADY, sizes=[(96, 160)], times=[0.0])
    states = [None, past, None, past, past]
    mask = to_mask(torch.ones(96, 160, dtype=torch.bool).tril(40))
    given = {"sizes": sizes, "times": [0.04, 0.5, 0.0, 0.04, 0.05], "masks": [None, mask, None, None, mask]}
    expected, expected_states = step_batch(plus, images, states, STEADY, **given)
    slow.ready = keys_of(*ready, masked=True)
    found, found_states = step_batch(engine, images, states, STEADY, **given)
    assert [shape[0] for shape in slow.labelled] == parts
    assert agreement([one.labels for one in found], [one.labels for one in expected]) > 0.995
    for ours, theirs in zip(found_states, expected_states, strict=True):
        torch.testing.assert_close(ours.contexts, theirs.contexts, rtol=1e-3, atol=1e-3)
        assert ours.evidence.mirror_next == theirs.evidence.mirror_next
    assert len({one.evidence.mirror_next.item() for one in found_states}) == 2


def test_the_eager_network_labels_a_batch_if_a_part_is_not_prepared(engine, slow, frames):
    images, sizes = torch.stack(frames[:5]), [(96, 160)] * 5
    slow.ready = keys_of(2)  # but not three
    step_batch(engine, images, [None] * 5, STEADY, sizes=sizes)
    slow.ready = keys_of(1)
    step_batch(engine, images, [None] * 5, STEADY, sizes=[*sizes[:4], (48, 80)])  # labels of a size of their own
    assert slow.labelled == []


def test_a_frame_of_each_size_of_labels_is_prepared(engine, slow, frames):
    slow.may_go_on.set()
    for count in (3, 4, 5, 6):  # cameras of two sizes whose frames are labelled at one
        sizes = [(96, 160)] * (count - 1) + [(48, 80)]
        step_batch(engine, torch.stack(frames[:count]), [None] * count, STEADY, sizes=sizes)
        until(lambda: engine.preparation.thread is None)
    assert [(shape[0], steady[1]) for shape, *_, steady in slow.asked] == [(1, (96, 160)), (1, (48, 80))]
    assert [shape[0] for shape in slow.labelled] == [1] * (5 + 6)


def test_frames_that_attend_to_one_context_stay_together(engine, slow, frames):
    slow.ready = keys_of(1)
    for _ in range(3):
        together = {"sizes": [(96, 160)] * 2, "shares": torch.tensor([0.5, 0.5])}
        step_batch(engine, torch.stack(frames[:2]), [None] * 2, STEADY, **together)
    assert slow.labelled == []
    assert slow.started.acquire(timeout=PATIENCE)
    assert [shape[0] for shape, *_ in slow.asked] == [2]


def test_a_single_frame_is_prepared_first_whatever_batches_come(engine, slow):
    for count in (5, 3, 8, 3):  # such as the newest frames of many cameras
        engine.predict(batch_of(count, 32, 32))
    assert slow.started.acquire(timeout=PATIENCE)
    slow.may_go_on.set()
    until(lambda: engine.preparation.thread is None)
    assert [shape[0] for shape, *_ in slow.asked] == [1, 3]
    engine.predict(batch_of(5, 32, 32))
    assert [shape[0] for shape in slow.labelled] == [1, 1, 3]
