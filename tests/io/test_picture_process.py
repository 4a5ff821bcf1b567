"""The memory and the jobs of the process that decodes pictures for a server; serve/test_codecs.py runs it."""

import os
import zlib

import numpy
import pytest
from PIL import Image

from streamseg.classes import CAMVID
from streamseg.io import codec_pool
from streamseg.io.picture_process import Jobs, SlotLayout, SlotMemory
from streamseg.io.pictures import encode_labels

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.fixture
def memory():
    file = os.memfd_create("test")
    yield SlotMemory(file, SlotLayout.of(10_000, 5_000))
    os.close(file)


def test_slots_have_room_and_do_not_overlap(memory):
    assert memory.layout.given >= 10_000
    assert memory.layout.result >= 15_000
    for slot in (2, 0, 1):
        memory.put(slot, bytes([slot]) * 10_000)
        memory.result(slot, 15_000)[:] = 100 + slot
    for slot in range(3):
        assert set(memory.given(slot, 10_000).tolist()) == {slot}
        assert set(memory.result(slot, 15_000).tolist()) == {100 + slot}


def test_the_memory_of_a_slot_can_be_given_back(memory):
    memory.put(1, b"\1" * 10_000)
    memory.discard(1)
    assert not memory.given(1, 10_000).any()


def test_jobs_are_done_in_their_slot(memory):
    jobs, labels = Jobs(memory), numpy.arange(48, dtype=numpy.uint8).reshape(6, 8)
    memory.put(1, labels)
    found = jobs.answer({"slot": 1, "encode": [6, 8], "colours": CAMVID.colours})
    png = memory.result(1, found["bytes"]).tobytes()
    assert png == encode_labels(labels, CAMVID.colours)
    found = jobs.answer({"slot": 1, "compress": [6, 8]})
    assert zlib.decompress(memory.result(1, found["bytes"]).tobytes()) == labels.tobytes()
    count = memory.put(0, png)
    assert jobs.answer({"slot": 0, "decode": count, "most": 48}) == {"shape": (3, 6, 8)}
    assert memory.result(0, 3).tolist() == [CAMVID.colours[i][0] for i in range(3)]


def test_errors_are_answered_with_their_name(memory, tmp_path):
    jobs = Jobs(memory)
    count = memory.put(0, b"no picture")
    assert jobs.answer({"slot": 0, "decode": count, "most": 9})["error"] == "UnknownFormatError"
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    count = memory.put(0, (tmp_path / "a.png").read_bytes())
    found = jobs.answer({"slot": 0, "decode": count, "most": 11})
    assert found == {"error": "TooLargeError", "text": "The picture has more than 11 pixels: make it smaller first."}
