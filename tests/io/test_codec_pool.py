"""Processes of codecs start ahead, wait for videos, and need no torch."""

import os
import signal
import subprocess
import sys

import pytest

from streamseg.io import codec_pool
from streamseg.io.codec_pool import IDLE, CodecProcess

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


def test_processes_start_without_torch():
    program = "import sys\nfrom streamseg.io.codec_pool import IDLE\nIDLE.start(1)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
