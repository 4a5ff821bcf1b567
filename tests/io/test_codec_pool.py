"""Processes of codecs start ahead, wait for videos, and need no torch."""

import os
import signal
import subprocess
import sys

import pytest
from clips import make_clip
from waiting import PATIENCE

from streamseg.io import codec_pool
from streamseg.io.codec_pool import IDLE, CodecProcess, ProcessDied, read_job

pytestmark = pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")


@pytest.fixture(autouse=True)
def no_processes_before_and_after():
    IDLE.end()
    yield
    IDLE.end()


def test_processes_are_started_ahead_and_dead_ones_are_not_taken():
    IDLE.start(2)
    IDLE.start(2)
    assert len(IDLE.processes) == 2
    os.kill(IDLE.processes[-1].process.pid, signal.SIGKILL)
    IDLE.processes[-1].process.wait()
    process = IDLE.take()
    assert process.alive
    assert IDLE.processes == []
    process.kill()
    assert not process.alive


def test_no_more_than_some_processes_are_kept(monkeypatch):
    monkeypatch.setattr(codec_pool, "MAX_IDLE", 1)
    first, second = CodecProcess(), CodecProcess()
    IDLE.give_back(first)
    IDLE.give_back(second)
    assert IDLE.processes == [first]
    assert not second.alive


def answers(process):
    """Return the messages of a process up to the end of its job, or an error."""
    found = []
    while "end" not in (message := process.answer("a.mp4")):
        found.append(message)
        if "frame" in message:
            process.send({"free": message["frame"]})
    return found


def test_a_job_that_was_begun_ahead_is_taken_by_the_first_who_asks_for_it(tmp_path):
    clip, other = (str(make_clip(tmp_path / name, 6)) for name in ("a.mp4", "b.mp4"))
    IDLE.begin("read", read_job(clip, "a", "", True))
    ((_, begun),) = IDLE.begun
    IDLE.start(1)
    assert IDLE.processes == []  # one is enough
    unlike = [read_job(other, "a", "", True), read_job(clip, "a", "", False)]
    processes = [IDLE.start_job("read", job) for job in (*unlike, *2 * [read_job(clip, "a", "", True)])]
    assert [process is begun for process in processes] == [False, False, True, False]
    assert [len(answers(process)) for process in processes] == 4 * [7]  # opened, and each frame
    for process in processes:
        process.end()


def test_a_job_of_another_folder_is_another_one(tmp_path, monkeypatch):
    make_clip(tmp_path / "a.mp4", 1)
    IDLE.begin("read", read_job("a.mp4", "a", "", True))
    monkeypatch.chdir(tmp_path)
    process = IDLE.start_job("read", read_job("a.mp4", "a", "", True))
    assert len(answers(process)) == 2
    assert len(IDLE.begun) == 1
    process.end()


def test_an_error_waits_for_the_one_who_asks_for_the_job(tmp_path):
    IDLE.begin("read", read_job(str(tmp_path / "missing.mp4"), "a", "", True))
    process = IDLE.start_job("read", read_job(str(tmp_path / "missing.mp4"), "a", "", True))
    with pytest.raises(FileNotFoundError):
        answers(process)
    process.end()


@pytest.mark.parametrize("end", [IDLE.end, IDLE.drop_begun])
def test_a_job_that_nobody_asks_for_ends_at_once(tmp_path, end, monkeypatch):
    monkeypatch.setattr(codec_pool, "END_SECONDS", PATIENCE)
    IDLE.begin("read", read_job(str(make_clip(tmp_path / "a.mp4", 30)), "a", "", True))
    ((_, process),) = IDLE.begun
    end()
    assert process.process.returncode == -signal.SIGKILL  # it did not first finish its frames
    assert IDLE.begun == []


def test_a_process_that_died_ahead_is_replaced(tmp_path):
    job = read_job(str(make_clip(tmp_path / "a.mp4", 2)), "a", "", True)
    IDLE.begin("read", job)
    ((_, begun),) = IDLE.begun
    begun.process.kill()
    begun.process.wait()
    process = IDLE.start_job("read", job)
    assert len(answers(process)) == 3
    process.end()


def test_processes_start_without_torch():
    program = "import sys\nfrom streamseg.io.codec_pool import IDLE\nIDLE.start(1)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_one_may_ask_whether_a_process_has_answered(tmp_path):
    process = CodecProcess()
    try:
        assert not process.has_answered(0.0)
        process.send({"read": read_job(str(tmp_path / "none.mp4"), "a", "", False)})
        assert process.has_answered(PATIENCE)
        assert process.has_answered(0.0)
        with pytest.raises(FileNotFoundError):
            process.answer("a")
        assert not process.has_answered(0.0)
        process.process.kill()
        assert process.has_answered(PATIENCE)  # that it has ended
        with pytest.raises(ProcessDied):
            process.answer("a")
    finally:
        process.end()


def test_answers_that_come_together_are_told_one_by_one(monkeypatch):
    process = CodecProcess()
    try:
        parts = [b'{"a": 1}\n{"b"', b': 2}\n{"c": 3}\n']
        monkeypatch.setattr(os, "read", lambda file, size: parts.pop(0))
        assert [process.answer("a"), process.answer("a")] == [{"a": 1}, {"b": 2}]
        assert process.has_answered(0.0)
        assert process.answer("a") == {"c": 3}
        assert not process.has_answered(0.0)
    finally:
        monkeypatch.undo()
        process.end()
