"""The threshold or target of a schedule is chosen by the share of key frames on clips."""

import pytest
from video_methods import build, make_frames

from streamseg.evaluate.tune_schedule import measure_key_rate, tune_schedule
from streamseg.models.video.clockwork import clockwork_adaptive
from streamseg.models.video.dff import dff
from streamseg.models.video.dvsnet import dvsnet
from streamseg.models.video.low_latency import low_latency


@pytest.fixture(scope="module")
def clips():
    """Clips (9, 3, 64, 96) of pictures that move by two pixels a frame."""
    return [make_frames(9, seed=seed)[:, 0] for seed in (0, 1)]


@pytest.mark.parametrize("method", [clockwork_adaptive, low_latency, dvsnet])
def test_the_tuned_schedule_is_the_best_that_was_tried_and_stays_set(method, clips, monkeypatch):
    built = build(method)
    tried = {}

    def measure(method, clips):
        tried[method.schedule_value] = measure_key_rate(method, clips)
        return tried[method.schedule_value]

    monkeypatch.setattr("streamseg.evaluate.tune_schedule.measure_key_rate", measure)
    found = tune_schedule(built, clips, 25)
    assert built.schedule_value == found.value
    assert found.key_rate == tried[found.value] == measure_key_rate(built, clips)
    assert abs(found.key_rate - 25) == min(abs(rate - 25) for rate in tried.values())


@pytest.mark.parametrize("method", [clockwork_adaptive, dvsnet])
def test_a_schedule_by_how_much_the_frames_change_meets_any_rate(method, clips, monkeypatch):
    """Of a law that is known: the frame after the n-th position fires if the change, n a step, is enough."""
    built = build(method)
    downwards = method is dvsnet

    def rate(method, clips):
        value = method.schedule_value / 100 if downwards else 1 - method.schedule_value
        return 100 * value**2

    monkeypatch.setattr("streamseg.evaluate.tune_schedule.measure_key_rate", rate)
    for wanted in (5, 20, 50, 90):
        assert tune_schedule(built, clips, wanted).key_rate == pytest.approx(wanted, abs=1.0)


def test_the_key_rate_leaves_out_first_frames(clips):
    built = build(clockwork_adaptive)
    built.set_schedule(0)
    assert measure_key_rate(built, clips) == 100
    built.set_schedule(float("inf"))
    assert measure_key_rate(built, clips) == 0
    built.interval = 4
    assert measure_key_rate(built, clips) == 25


def test_what_cannot_be_tuned_is_refused(clips):
    with pytest.raises(ValueError, match="dff-swiftnet18 has no schedule"):
        tune_schedule(build(dff), clips, 20)
    built = build(low_latency)
    for rate in (0, 100, float("nan")):
        with pytest.raises(ValueError, match="expected a percentage between 0 and 100"):
            tune_schedule(built, clips, rate)
    for too_short in ([], [clips[0][:1]]):
        with pytest.raises(ValueError, match="expected one clip or more, of two frames or more"):
            tune_schedule(built, too_short, 20)
