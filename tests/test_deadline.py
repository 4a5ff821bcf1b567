import math

import pytest
from hypothesis import given, strategies as st

from streamseg.deadline import LEAST, Deadline, smaller


@given(st.tuples(st.integers(32, 5000), st.integers(32, 5000)), st.floats(LEAST, 1.0))
def test_a_deadline_makes_no_side_of_a_frame_larger(size, scale):
    seen = smaller(size, scale)
    assert all(32 <= after <= before for before, after in zip(size, seen, strict=True))
    assert all(after >= min(before, scale * before - 16) for before, after in zip(size, seen, strict=True))


def drive(deadline, price, frames):
    """Frames whose labels take the price of a whole frame times their pixels; the share of pixels of the last."""
    for _ in range(frames):
        scale = deadline.scale
        deadline.took(price * scale**2, scale)
    return deadline.scale**2


@pytest.mark.parametrize("price", [0.02, 0.11, 0.3, 2.0])
def test_frames_become_as_small_as_needed_and_no_smaller(price):
    deadline = Deadline(0.1)
    share = drive(deadline, price, 50)
    assert price * share <= 0.1
    assert share == 1.0 or price * share >= 0.06
    assert deadline.out_of_reach == 0
    assert drive(deadline, 0.02, 200) == 1.0


def test_what_no_size_holds_is_counted():
    deadline = Deadline(0.001)
    assert drive(deadline, 1.0, 30) == pytest.approx(LEAST**2)
    assert deadline.late == 30
    assert deadline.out_of_reach == 29  # the first was seen whole


def test_without_a_deadline_frames_keep_their_size_and_none_is_late():
    deadline = Deadline(None)
    assert drive(deadline, math.inf, 3) == 1.0
    assert deadline.late == 0
