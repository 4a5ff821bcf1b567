import math

import pytest

from streamseg.stream.batch_limit import BATCH_SECONDS, KEPT_SIZES, MAX_BATCH, BatchLimit, floor_power_of_two

HD = (720, 1280)


def test_files_share_batches_of_any_duration():
    limit = BatchLimit(math.inf)
    assert limit.frames(HD) == MAX_BATCH
    limit.record(HD, 1, 1000.0)
    assert limit.frames(HD) == MAX_BATCH


def test_the_largest_frames_share_smaller_batches():
    assert BatchLimit(math.inf).frames((1024, 2048)) == 8
    assert BatchLimit(math.inf).frames((10_000, 10_000)) == 1


def test_a_live_frame_is_alone_until_it_is_known_how_long_the_network_takes():
    limit = BatchLimit(BATCH_SECONDS)
    assert limit.frames(HD) == 1
    limit.record((360, 640), 1, 0.001)
    assert limit.frames(HD) == 1


@pytest.mark.parametrize(("milliseconds", "frames"), [(1, 16), (3.125, 16), (10, 5), (24, 2), (26, 1), (500, 1)])
def test_a_batch_holds_what_the_budget_allows(milliseconds, frames):
    limit = BatchLimit(0.05)
    limit.record(HD, 1, milliseconds / 1000)
    assert limit.frames(HD) == frames


def test_where_a_batch_takes_little_longer_than_a_frame_batches_grow():
    limit = BatchLimit(0.05)
    limit.record(HD, 1, 0.01)
    limit.record(HD, limit.frames(HD), 0.015)
    assert limit.frames(HD) == MAX_BATCH


def test_a_batch_that_was_slow_once_is_corrected_by_the_next():
    limit = BatchLimit(0.05)
    limit.record(HD, 8, 13.0)
    assert limit.frames(HD) == 1
    limit.record(HD, 1, 0.004)
    assert limit.frames(HD) == 12


def test_a_batch_may_have_other_limits_of_frames_and_pixels():
    assert BatchLimit(math.inf, max_frames=32).frames((360, 640)) == 32
    assert BatchLimit(math.inf, max_frames=32, max_pixels=4 * 720 * 1280).frames(HD) == 4


def test_the_times_of_the_latest_sizes_are_kept_and_no_more():
    limit = BatchLimit(0.05)
    limit.record(HD, 1, 0.01)
    for side in range(KEPT_SIZES - 1):
        limit.record((64, 64 + side), 1, 0.01)
    limit.record(HD, 1, 0.01)  # it is the latest again
    limit.record((32, 32), 1, 0.01)
    assert len(limit.frame_seconds) == KEPT_SIZES
    assert (limit.frames(HD), limit.frames((64, 64))) == (5, 1)


def test_on_a_gpu_batches_are_powers_of_two():
    assert [floor_power_of_two(count) for count in (1, 2, 3, 4, 7, 8, 15, 16, 17)] == [1, 2, 2, 4, 4, 8, 8, 16, 16]
