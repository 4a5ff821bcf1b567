"""The messages of the process of a codec; its videos are tested with codec_client."""

import io
import json
import threading

import pytest
from clips import make_clip
from waiting import PATIENCE

from streamseg.io import codec_pool
from streamseg.io.codec_process import ENCODED_AHEAD, serve, slot_size
from streamseg.io.codec_slots import LABELS, RGB, SLOTS
from streamseg.io.video_writing import VideoWriter

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (1, 1)])
def test_a_slot_has_room_for_rgb_and_for_planes_of_16_bits(size):
    height, width = size
    assert slot_size(size) >= 3 * height * width
    assert slot_size(size) == 2 * (height * width + 2 * ((height + 1) // 2) * ((width + 1) // 2))


def test_what_is_left_of_a_failed_job_is_ignored(shared_memory, tmp_path):
    lines = [
        {"read": {"address": str(tmp_path / "none.mp4"), "name": "a", "hardware": "", "planes": True}},
        {"free": 0},
        {"frame": 1},
        {"close": True},
        {"write": {"path": "a.mp3", "size": [8, 8], "rate": [1, 1], "labels": False, "audio_from": None}},
    ]
    answers = []
    serve(shared_memory, io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), answers.append)
    assert [answer["error"] for answer in answers] == ["FileNotFoundError", "ValueError"]
    assert answers[0]["text"].startswith("No video at ")


def test_it_ends_when_the_other_process_has_gone(shared_memory, tmp_path):
    job = {"path": str(tmp_path / "a.mkv"), "size": [8, 8], "rate": [1, 1], "labels": True, "audio_from": None}
    with pytest.raises(SystemExit):
        serve(shared_memory, io.BytesIO(json.dumps({"write": job}).encode() + b"\n"), [].append)


def test_the_first_frame_that_cannot_be_encoded_ends_the_job_with_its_error(shared_memory, tmp_path, monkeypatch):
    encoded = []

    def encode(self, picture, seconds):
        encoded.append(seconds)
        if seconds == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(VideoWriter, "encode", encode)
    job = {"path": str(tmp_path / "a.mkv"), "size": [8, 8], "rate": [1, 1], "labels": True, "audio_from": None}
    frames = [{"frame": i % SLOTS, "kind": LABELS, "seconds": i, "shape": [8, 8]} for i in range(9)]
    answers, lines = [], [{"write": job}, *frames, {"close": True}]
    serve(shared_memory, io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), answers.append)
    assert answers[-1]["errno"] == 28
    assert [answer for answer in answers if "error" in answer] == answers[-1:]
    assert encoded[:2] == [0, 1]
    assert len(encoded) <= 2 + ENCODED_AHEAD


def test_the_next_frames_are_copied_while_one_is_encoded(shared_memory, tmp_path, monkeypatch):
    answers, copied = [], threading.Event()

    def encode(self, picture, seconds):
        if seconds == 0:
            assert copied.wait(PATIENCE)

    def answer(message):
        answers.append(message)
        if sum("free" in known for known in answers) == 1 + ENCODED_AHEAD:
            copied.set()

    monkeypatch.setattr(VideoWriter, "encode", encode)
    job = {"path": str(tmp_path / "a.mkv"), "size": [8, 8], "rate": [1, 1], "labels": True, "audio_from": None}
    frames = [{"frame": i % SLOTS, "kind": LABELS, "seconds": i, "shape": [8, 8]} for i in range(5)]
    lines = [{"write": job}, *frames, {"close": True}]
    serve(shared_memory, io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), answer)
    assert answers[-1] == {"end": True}


def test_a_frame_that_waits_for_a_slot_takes_the_one_that_is_given_back(shared_memory, tmp_path):
    job = {"address": str(make_clip(tmp_path / "a.mp4", SLOTS + 1)), "name": "a", "hardware": "", "planes": False}
    answers = []
    lines = [{"read": job}, {"free": 2}]
    serve(shared_memory, io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), answers.append)
    slots = [answer["frame"] for answer in answers if "frame" in answer]
    assert sorted(slots[:SLOTS]) == list(range(SLOTS))
    assert slots[SLOTS:] == [2]
    assert answers[-1] == {"end": True}
    assert answers[1]["kind"] == RGB
