"""What segment starts early: only what it will use, and without torch."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from commands import failing, run
from preparing import SlowEngine

from streamseg.cli import segmenting, starting
from streamseg.engine.engine import EagerEngine
from streamseg.engine.prepare import PreparingEngine
from streamseg.io import codec_pool
from streamseg.io.sources import Pictures, VideoFile

VIDEOS = [VideoFile("a", "a.mp4"), VideoFile("b", "b.mp4")]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The numbers of processes that are asked for, on a machine that seems to have a GPU."""
    numbers = []
    monkeypatch.setattr(codec_pool.IDLE, "start", numbers.append)
    monkeypatch.setattr(codec_pool, "are_possible", lambda: True)
    monkeypatch.setattr(starting, "GPU_FILES", (str(tmp_path),))
    monkeypatch.delenv("STREAMSEG_CODECS", raising=False)
    return numbers


def test_a_decoder_starts_for_each_of_the_first_videos(started):
    starting.start_decoders(VIDEOS, "")
    starting.start_decoders(4 * VIDEOS, "cuda")
    starting.start_decoders([Pictures("c", [Path("c.png")])], "")
    assert started == [2, starting.MAX_DECODERS, 0]


def test_no_decoder_starts_without_a_gpu_or_if_threads_are_asked_for(started, monkeypatch):
    starting.start_decoders(VIDEOS, "cpu")
    monkeypatch.setenv("STREAMSEG_CODECS", "threads")
    starting.start_decoders(VIDEOS, "")
    monkeypatch.delenv("STREAMSEG_CODECS")
    monkeypatch.setattr(starting, "GPU_FILES", ("/nothing",))
    starting.start_decoders(VIDEOS, "")
    assert started == []


def test_exported_files_which_run_on_the_cpu_start_nothing_for_a_gpu(started, contexts, monkeypatch, tmp_path):
    monkeypatch.setattr(segmenting, "open_model", failing(ValueError("enough")))
    for name in ("a.onnx", "a.mp4"):
        (tmp_path / name).touch()
    assert run(monkeypatch, "segment", tmp_path / "a.mp4", tmp_path / "b.mp4", "--weights", tmp_path / "a.onnx") == 2
    join("start driver")
    assert started == contexts == []


def test_decoders_that_cannot_start_are_left_to_the_pipeline(started, monkeypatch):
    def refuse(count):
        raise OSError("no process")

    monkeypatch.setattr(codec_pool.IDLE, "start", refuse)
    starting.start_decoders(VIDEOS, "")


def test_decoders_start_without_torch():
    program = (
        "import sys\nfrom streamseg.cli import starting\nfrom streamseg.io.sources import VideoFile\n"
        "starting.start_decoders([VideoFile('a', 'a.mp4')], '')\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture
def contexts(monkeypatch, tmp_path):
    """The numbers of GPUs whose driver is asked for, on a machine that seems to have some."""
    numbers = []
    monkeypatch.setattr(starting, "make_context", numbers.append)
    monkeypatch.setattr(starting, "GPU_FILES", (str(tmp_path),))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    return numbers


def join(name):
    """Wait for the threads of a name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(60)


@pytest.mark.parametrize(("device", "numbers"), [("", [0]), ("cuda", [0]), ("cuda:2", [2])])
def test_the_driver_starts_for_the_gpu_that_will_be_used(contexts, device, numbers):
    starting.start_driver(device)
    join("start driver")
    assert contexts == numbers


def test_the_environment_of_the_driver_is_set_before_its_thread_starts(contexts, monkeypatch):
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: contexts.append(os.environ["CUDA_MODULE_LOADING"]))
    starting.start_driver("")
    assert contexts == ["LAZY"]


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "mps"])
def test_no_driver_starts_for_other_devices(contexts, device):
    starting.start_driver(device)
    assert contexts == []


def test_no_driver_starts_without_a_gpu(contexts, monkeypatch):
    monkeypatch.setattr(starting, "GPU_FILES", ("/nothing",))
    starting.start_driver("")
    assert contexts == []


class Driver:
    """A stand-in for the driver that returns a status for each function, and remembers what it was asked."""

    def __init__(self, status):
        self.status, self.asked = status, []

    def __getattr__(self, name):
        return lambda *given: self.asked.append(name) or self.status


@pytest.mark.parametrize(
    ("status", "asked"), [(0, ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]), (100, ["cuInit"])]
)
def test_the_primary_context_is_made_unless_the_driver_reports_an_error(monkeypatch, status, asked):
    driver = Driver(status)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    starting.make_context(0)
    assert driver.asked == asked


def test_a_machine_without_a_driver_goes_on(monkeypatch):
    monkeypatch.setattr(starting, "DRIVER", "libnothing.so.1")
    starting.make_context(0)


def test_what_is_made_while_the_collector_is_off_is_left_out_of_collections():
    with starting.collector_off():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    with starting.unfrozen_at_the_end():
        assert gc.isenabled()
        assert gc.get_freeze_count() >= len(made)
    assert gc.get_freeze_count() == 0


def test_only_an_engine_that_starts_eagerly_labels_a_picture_ahead(plus):
    labelled = []

    class Counted(EagerEngine):
        def predict(self, batch):
            labelled.append(tuple(batch.images.shape))
            return super().predict(batch)

    starting.start_network(Counted(plus))
    engine = PreparingEngine(Counted(plus), SlowEngine(plus))
    starting.start_network(engine)
    join("start network")
    assert labelled == [(1, 3, *starting.FIRST_SIZE)]
    assert engine.preparation.thread is None


def test_the_cpu_needs_no_start(monkeypatch):
    monkeypatch.setattr(starting, "use_libraries", None)
    starting.start_device(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_starts_in_a_thread():
    starting.use_libraries(torch.device("cuda"))
    assert torch.cuda.is_initialized()
