"""The waits of a thread for Python's lock: what is counted, never how long they are."""

import pytest

from streamseg.evaluate.lock_probe import LockProbe, summarise_waits, time_lock


def test_the_probe_samples_until_the_end_of_the_block():
    with LockProbe() as probe:
        while len(probe.waits) < 3:
            pass
    assert not probe.thread.is_alive()
    assert min(probe.waits) > 0
    assert probe.milliseconds()["mean"] > 0


def test_giving_up_the_lock_takes_time():
    assert time_lock() > 0


def test_waits_are_summarised_in_milliseconds():
    assert summarise_waits([0.001] * 99 + [0.101]) == pytest.approx({"mean": 2.0, "p95": 1.0})
    assert summarise_waits([]) == {"mean": 0.0, "p95": 0.0}
