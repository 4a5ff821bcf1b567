"""Labels of a stream that are kept steady: by hysteresis, or by scores that are carried along."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from streams import differing, run
from torch.nn import functional as F

from streamseg.engine.engine import FrameBatch, to_engine
from streamseg.engine.looking_back import fuse_scores
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW
from streamseg.models.baselines import BASELINES
from streamseg.models.video import VIDEO_METHODS
from streamseg.stream.label_frames import (
    label_frame,
)
from streamseg.stream.state import (
    LastFrames,
)


def test_the_class_of_the_frame_before_has_an_advantage_where_the_network_scores(model, frames):
    labels, state = run(model, frames, LastFrames(1, steady=0.05))
    before = None
    for frame, found in zip(frames, labels, strict=True):
        with torch.no_grad():
            scores, _ = model.outputs(frame[None])
        if before is not None:
            scores = scores + 0.05 * F.one_hot(before, model.classes).permute(0, 3, 1, 2)
        before = scores.argmax(dim=1)
        assert found.equal(F.interpolate(scores, found.shape, mode="bilinear")[0].argmax(dim=0).byte())
    assert state.low_res_labels.equal(before[0].byte())


def test_the_larger_the_advantage_the_fewer_labels_change(model, frames):
    def changes(window):
        labels, _ = run(model, frames, window)
        # not those after the first frame: an advantage moves the border between two pixels of the map, too
        return differing(labels[2:], labels[1:-1])

    none, little, all_ = (changes(LastFrames(2, steady=steady)) for steady in (0.0, 0.05, 1e6))
    assert changes(2) == none > little > all_ == 0


def test_at_another_size_no_class_has_an_advantage(model, frames):
    policy = LastFrames(1, steady=1e6)
    _, state = run(model, frames[:1], policy)
    found, after = label_frame(model, frames[1], state, policy, size=(96, 128))
    assert found.equal(label_frame(model, frames[1], size=(96, 128))[0])
    assert after.low_res_labels.shape != state.low_res_labels.shape


def test_labels_of_another_network_do_no_harm(model, frames):
    _, state = run(model, frames[:1], LastFrames(1, steady=1.0))
    foreign = replace(state, low_res_labels=torch.full_like(state.low_res_labels, 255))
    assert label_frame(model, frames[1], foreign, LastFrames(1, steady=1.0))[0].max() < model.classes


@pytest.mark.parametrize("name", ["enet"])
def test_the_labels_of_a_baseline_can_be_kept_steady_too(frames, name):
    network = BASELINES[name](3).eval()
    labels, _ = run(network, frames[:4], LastFrames(1, steady=1e6))
    assert differing(labels[2:], labels[1:-1]) == 0


@pytest.mark.parametrize("steady", [STEADY_LOW, STEADY_HIGH])
def test_a_steadiness_changes_no_first_frame_and_makes_later_ones_change_less(model, frames, steady):
    plain, steadied = (run(model, frames, policy)[0] for policy in (LastFrames(1), LastFrames(1, steady=steady)))
    assert steadied[0].equal(plain[0])
    assert (
        0
        < sum(differing([a], [b]) for a, b in pairwise(steadied))
        < sum(differing([a], [b]) for a, b in pairwise(plain))
    )


def test_the_labels_that_a_caller_gets_are_not_those_of_the_state(model, frames):
    policy = LastFrames(1, steady=STEADY_HIGH)
    labels, state = label_frame(model, frames[0], None, policy)
    expected, _ = label_frame(model, frames[1], state, policy)
    labels.fill_(3)
    assert label_frame(model, frames[1], state, policy)[0].equal(expected)


def test_a_label_that_was_kept_has_its_own_confidence(model, frames):
    engine = to_engine(model)
    steady, image = replace(STEADY_HIGH, mirror=False), frames[1][None]
    batch = FrameBatch(frames[0][None], None, [0.0], [(64, 96)], True, steady)
    (first,), _ = engine.predict(batch)
    (second,), _ = engine.predict(batch._replace(images=image, evidence=[first.evidence], gaps=[0.04]))
    with torch.no_grad():
        fused = fuse_scores(model.outputs(image)[0], image, [first.evidence], [0.04], steady)
    full = F.interpolate(fused.scores, (64, 96), mode="bilinear", align_corners=False)[0]
    expected = 255 * full.softmax(dim=0).gather(0, second.labels[None].long())[0]
    assert (second.labels != full.argmax(dim=0)).any()
    assert (second.confidence - expected).abs().max() < 1.5


def test_a_frame_of_another_size_begins_with_labels_of_its_own(model, frames):
    policy = LastFrames(1, steady=STEADY_HIGH)
    _, state = label_frame(model, frames[0], None, policy)
    small = frames[1][:, :48, :64].contiguous()
    labels, after = label_frame(model, small, state, policy)
    assert labels.shape == after.evidence.labels.shape == (48, 64)


def test_a_method_s_frames_can_be_kept_steady_too(frames):
    method = VIDEO_METHODS["copy-swiftnet18"](5).eval()
    labels, state = run(method, frames[:3], LastFrames(1, steady=STEADY_HIGH))
    assert labels[0].shape == state.evidence.labels.shape
