"""The memory that the process of a codec shares."""

import os

import pytest

from streamseg.io import codec_pool
from streamseg.io.codec_slots import SLOTS, Slots

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


def test_two_views_of_the_slots_share_their_memory_and_slots_do_not_overlap(shared_memory):
    ours, theirs = Slots(shared_memory, 8), Slots(shared_memory, 8)
    for slot in range(SLOTS):
        ours.array(slot, 4, "uint16")[:] = slot
    assert [theirs.array(slot, 4, "uint16").tolist() for slot in range(SLOTS)] == [[i] * 4 for i in range(SLOTS)]


def test_the_memory_grows_and_does_not_shrink(shared_memory):
    for slot_bytes, size in ((8, 8 * SLOTS), (100, 100 * SLOTS), (8, 100 * SLOTS)):
        Slots(shared_memory, slot_bytes)
        assert os.fstat(shared_memory).st_size == size
