"""The memory that the process of a codec shares."""

import os

import pytest

from streamseg.io import codec_pool
from streamseg.io.codec_slots import SLOTS, Slots

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.fixture
def file():
    file = os.memfd_create("test")
    yield file
    os.close(file)


def test_two_views_of_the_slots_share_their_memory_and_slots_do_not_overlap(file):
    ours, theirs = Slots(file, 8), Slots(file, 8)
    for slot in range(SLOTS):
        ours.array(slot, 4, "uint16")[:] = slot
    assert [theirs.array(slot, 4, "uint16").tolist() for slot in range(SLOTS)] == [[i] * 4 for i in range(SLOTS)]


def test_the_memory_grows_and_does_not_shrink(file):
    for slot_bytes, size in ((8, 8 * SLOTS), (100, 100 * SLOTS), (8, 100 * SLOTS)):
        Slots(file, slot_bytes)
        assert os.fstat(file).st_size == size
