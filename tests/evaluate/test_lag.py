"""The lag of predictions after changes of the true label."""

import json
import math

import pytest
import torch

from streamseg.classes import IGNORE
from streamseg.evaluate.lag import HELD, LagTally, format_lag, lag_to_json, quantile

CPU = torch.device("cpu")


def moving_box(frames=30, size=(24, 40)):
    """True labels of a box of class 2 that moves to the right over two grounds, and never stands where it was."""
    video = []
    for i in range(frames):
        labels = torch.zeros(size, dtype=torch.uint8)
        labels[size[0] // 2 :] = 1
        labels[6:18, i : i + 10] = 2
        video.append(labels)
    return video


def lag_of(*videos):
    """The lag of videos, each of frames (true, predicted, alone)."""
    tally = LagTally(CPU)
    for video in videos:
        for i, frame in enumerate(video):
            tally.add(*frame, first=i == 0)
    return tally.result()


def delayed(video, frames):
    return [video[max(0, i - frames)] for i in range(len(video))]


@pytest.mark.parametrize("frames", [0, 1, 3, HELD - 1])
def test_a_prediction_that_is_late_by_some_frames_has_this_lag(frames):
    true = moving_box()
    lag = lag_of(zip(true, delayed(true, frames), true, strict=True))
    assert lag.changes > 100
    assert lag.median == lag.p90 == lag.mean == lag.added_median == lag.added_p90 == lag.added_mean == frames
    assert lag.missed == 0


def test_only_what_is_later_than_frame_by_frame_is_added():
    true = moving_box()
    lag = lag_of(zip(true, delayed(true, 5), delayed(true, 2), strict=True))
    assert (lag.median, lag.added_median, lag.added_p90, lag.added_mean) == (5, 3, 3, 3)
    ahead = lag_of(zip(true, delayed(true, 2), delayed(true, 5), strict=True))
    assert (ahead.median, ahead.added_median) == (2, -3)


def test_a_still_video_has_no_changes_and_no_lag():
    still = [torch.ones(4, 5, dtype=torch.uint8)] * 20
    lag = lag_of(zip(still, still, still, strict=True))
    assert lag.changes == 0
    assert all(math.isnan(value) for name, value in vars(lag).items() if name != "changes")
    assert format_lag(lag) == "Lag: no true label changes and then stays for 8 frames"


def test_a_network_that_never_sees_a_class_misses_the_changes_to_it():
    true = [torch.tensor([[0, 0]]).byte()] * 3 + [torch.tensor([[1, 2]]).byte()] * HELD
    blind = [labels.clamp(max=1) for labels in true]
    lag = lag_of(zip(true, blind, true, strict=True))
    assert (lag.changes, lag.missed, lag.p90, lag.mean) == (2, 50, HELD, HELD / 2)
    assert (lag.added_p90, lag.added_mean) == (HELD, HELD / 2)
    # what is missed frame by frame too is nobody's delay
    both = lag_of(zip(true, blind, blind, strict=True))
    assert (both.changes, both.missed, both.added_p90, both.added_mean) == (2, 50, 0, 0)


def test_a_label_that_does_not_stay_is_no_change():
    def video(kept):
        labels = [0] * 3 + [1] * kept + [0] * (HELD - 1)
        return [torch.tensor([[label]], dtype=torch.uint8) for label in labels]

    assert [lag_of(zip(video(kept), video(kept), video(kept), strict=True)).changes for kept in (HELD - 1, HELD)] == [
        0,
        1,
    ]


def test_pixels_without_a_class_before_or_within_are_no_changes():
    for labels in ([IGNORE] + [1] * HELD, [0] + [1] * 4 + [IGNORE] + [1] * (HELD - 1), [0, IGNORE] + [1] * HELD):
        video = [torch.tensor([[label]], dtype=torch.uint8) for label in labels]
        assert lag_of(zip(video, video, video, strict=True)).changes == 0


def test_a_new_sequence_begins_without_changes():
    zero, one = torch.zeros(2, 2).byte(), torch.ones(2, 2).byte()
    parts = [[(zero, zero, zero)] * 3, [(one, one, one)] * (HELD + 1)]
    assert lag_of(*parts).changes == 0
    assert lag_of([*parts[0], *parts[1]]).changes == 4


def test_a_prediction_that_is_right_early_has_no_lag_and_a_later_error_does_not_count():
    true = [torch.tensor([[label]], dtype=torch.uint8) for label in [0] * 3 + [1] * HELD]
    early = [torch.tensor([[label]], dtype=torch.uint8) for label in [0] + [1] * 4 + [0] * 6]
    assert lag_of(zip(true, early, true, strict=True)).median == 0


def test_a_quantile_is_the_one_of_the_values_written_out():
    values, counts = torch.tensor([3, -1, 0, 7]), torch.tensor([2, 3, 0, 5])
    written = sorted(values.repeat_interleave(counts).tolist())
    for share in (0.1, 0.3, 0.31, 0.5, 0.51, 0.9, 1.0):
        assert quantile(values, counts, share) == written[math.ceil(share * len(written)) - 1]
    assert math.isnan(quantile(values, torch.zeros(4).long(), 0.5))


def test_a_lag_is_strict_json_and_two_lines():
    true = moving_box()
    lag = lag_of(zip(true, delayed(true, 1), true, strict=True))
    assert json.loads(json.dumps(lag_to_json(lag), allow_nan=False))["added_median"] == 1
    changes = f"Lag after {lag.changes} changes of a pixel's true label"
    assert format_lag(lag).splitlines() == [
        f"{changes}: median 1, p90 1, mean 1.00 frames (0.0 % not within 8)",
        "more than frame by frame: median 1, p90 1, mean 1.00 frames",
    ]
    still = lag_of([(true[0], true[0], true[0])] * 3)
    assert json.loads(json.dumps(lag_to_json(still), allow_nan=False))["median"] is None
