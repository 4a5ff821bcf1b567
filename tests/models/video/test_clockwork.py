"""Clockwork: which part runs when, and that a part that does not run reuses exactly its old map."""

from unittest.mock import patch

import pytest
import torch

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.fanet import fanet18
from streamseg.models.layers import initialise, resize
from streamseg.models.video.clockwork import AdaptiveClockwork, Clockwork, PipelinedClockwork

CLOCKS = (Clockwork, PipelinedClockwork, AdaptiveClockwork)
BACKBONES = (swiftnet18, fanet18)


@pytest.fixture(scope="module")
def frames():
    generator = torch.Generator().manual_seed(0)
    return [*torch.randint(0, 256, (5, 1, 3, 64, 96), dtype=torch.uint8, generator=generator)]


def make(clock, network=swiftnet18, **options):
    torch.manual_seed(0)
    method = clock(network(4), **options).eval()
    if isinstance(method, AdaptiveClockwork):
        initialise(method.score2)  # as if it were trained: labels that depend on the frame
    return method


@torch.no_grad()
def run(method, frames, state=None):
    results = []
    for frame in frames:
        logits, state = method.step(frame, state)
        results.append(logits)
    return results


@torch.no_grad()
def fused(method, image, deep_image):
    """Return the logits of the shallow part of a frame and the deep part of another."""
    backbone = method.backbone
    deep = backbone.deep(backbone.shallow(deep_image))
    return resize(backbone.head(backbone.merge(backbone.shallow(image), deep)), image)


@pytest.mark.parametrize("network", BACKBONES)
@pytest.mark.parametrize("clock", CLOCKS)
def test_interval_1_is_exactly_the_backbone(clock, network, frames):
    method = make(clock, network, interval=1)
    with torch.no_grad():
        expected = [method.backbone.network(frame) for frame in frames]
    assert all(a.equal(b) for a, b in zip(run(method, frames), expected, strict=True))


def test_the_alternating_clock_reuses_the_deep_map_on_every_other_frame(frames):
    method = make(Clockwork)
    results = run(method, frames)
    for number, logits in enumerate(results):
        assert logits.equal(fused(method, frames[number], frames[number // 2 * 2]))
    assert not results[1].equal(fused(method, frames[1], frames[1]))


def test_the_deep_part_runs_as_often_as_the_clock_says(frames):
    method = make(Clockwork, interval=3)
    with patch.object(method.backbone, "deep", wraps=method.backbone.deep) as deep:
        run(method, frames)
    assert deep.call_count == 2


def test_the_pipelined_clock_is_one_frame_late(frames):
    method = make(PipelinedClockwork)
    results = run(method, frames)
    for number, logits in enumerate(results):
        assert logits.equal(fused(method, frames[number], frames[max(0, number - 1)]))


def test_finishing_a_pipelined_frame_early_changes_no_label(frames):
    method = make(PipelinedClockwork)
    state, results = None, []
    with torch.no_grad():
        for frame in frames:
            logits, state = method.step(frame, state)
            state = method.finish(state)
            results.append(logits)
            assert method.finish(state) is state
    assert all(a.equal(b) for a, b in zip(results, run(method, frames), strict=True))


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_still_picture_is_exactly_the_backbone(clock, frames):
    method = make(clock)
    with torch.no_grad():
        expected = method.backbone.network(frames[0])
    assert all(logits.equal(expected) for logits in run(method, frames[:1] * 4))


def test_the_adaptive_clock_fires_on_change_and_not_on_a_still_picture(frames):
    method = make(AdaptiveClockwork, threshold=0.1)
    with patch.object(method.backbone, "deep", wraps=method.backbone.deep) as deep:
        run(method, [frames[0]] * 4)
        assert deep.call_count == 1
        run(method, [frames[0], frames[0], 255 - frames[0], 255 - frames[0]])
        assert deep.call_count == 3


@pytest.mark.parametrize(("threshold", "runs"), [(0, 5), (float("inf"), 1)])
def test_the_threshold_goes_from_every_frame_to_none(frames, threshold, runs):
    method = make(AdaptiveClockwork, threshold=threshold)
    with patch.object(method.backbone, "deep", wraps=method.backbone.deep) as deep:
        results = run(method, frames)
    assert deep.call_count == runs
    assert results[-1].equal(fused(method, frames[-1], frames[-1 if runs == 5 else 0]))


def test_an_adaptive_clock_that_fires_on_every_second_frame_is_the_alternating_one(frames):
    method = make(AdaptiveClockwork, threshold=0.5)
    labels = (torch.full((1, 8, 12), number // 2, dtype=torch.uint8) for number in range(len(frames)))
    with patch.object(method, "shallow_labels", side_effect=labels):
        results = run(method, frames)
    assert all(map(torch.equal, results, run(make(Clockwork), frames)))


def test_an_untrained_adaptive_clock_does_not_fire(frames):
    method = AdaptiveClockwork(swiftnet18(4), threshold=0.01).eval()
    with patch.object(method.backbone, "deep", wraps=method.backbone.deep) as deep:
        run(method, frames)
    assert deep.call_count == 1


def test_the_adaptive_clock_decides_for_each_stream_of_a_batch(frames):
    method = make(AdaptiveClockwork, threshold=0.1)
    still, changing = [frames[0]] * 2, [frames[0], 255 - frames[0]]
    together = run(method, [torch.cat(pair) for pair in zip(still, changing, strict=True)])
    alone = [torch.cat(pair) for pair in zip(run(method, still), run(method, changing), strict=True)]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("clock", CLOCKS)
def test_interleaved_streams_equal_each_alone(clock, frames):
    method = make(clock)
    one, other = frames[:3], frames[2:]
    state_one = state_other = None
    with torch.no_grad():
        for number in range(3):
            first, state_one = method.step(one[number], state_one)
            second, state_other = method.step(other[number], state_other)
    assert first.equal(run(method, one)[-1])
    assert second.equal(run(method, other)[-1])


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_frame_of_another_size_starts_anew(clock, frames):
    method = make(clock)
    small = frames[1][..., :50, :70]
    assert run(method, [frames[0], small])[-1].equal(run(method, [small])[-1])


def test_a_cut_is_forgotten_at_the_next_key_frame(frames):
    method = make(Clockwork)
    assert run(method, [*frames[:2], *frames[3:]])[2:][0].equal(run(method, frames[3:])[0])


def test_if_a_key_frame_is_dropped_the_next_frame_is_one(frames):
    method = make(Clockwork)
    dropped = run(method, [frames[0], frames[1], frames[3]])
    assert dropped[-1].equal(fused(method, frames[3], frames[3]))


@pytest.mark.parametrize("threshold", [-0.1, 2, float("nan"), True, "0.5"])
def test_a_threshold_that_is_no_share_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold is .*; expected 0 to 1"):
        make(AdaptiveClockwork, threshold=threshold)


def test_only_the_classifier_of_the_adaptive_clock_is_trained(frames):
    method = make(AdaptiveClockwork)
    method.freeze()
    logits, loss = method.train().clip_outputs(frames[:2])
    assert loss is None
    logits.mean().backward()
    assert {name for name, x in method.named_parameters() if x.grad is not None} == {"score2.weight", "score2.bias"}
