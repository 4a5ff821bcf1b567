"""What segment starts early: only what it will use, and without torch."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from clips import make_clip
from commands import failing, run
from preparing import SlowEngine

from streamseg import early
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
    monkeypatch.setattr(early, "GPU_FILES", (str(tmp_path),))
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
    monkeypatch.setattr(early, "GPU_FILES", ("/nothing",))
    starting.start_decoders(VIDEOS, "")
    assert started == []


def test_exported_files_which_run_on_the_cpu_start_nothing_for_a_gpu(started, contexts, monkeypatch, tmp_path):
    monkeypatch.setattr(segmenting, "open_model", failing(ValueError("enough")))
    for name in ("a.onnx", "a.mp4"):
        (tmp_path / name).touch()
    assert run(monkeypatch, "segment", tmp_path / "a.mp4", tmp_path / "b.mp4", "--weights", tmp_path / "a.onnx") == 2
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
def contexts(monkeypatch):
    """The numbers of GPUs that are started."""
    numbers = []
    monkeypatch.setattr(early, "start_gpu", numbers.append)
    return numbers


def join(name):
    """Wait for the threads of a name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(60)


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


# ends at the first line of JSON, with the modules that were imported until then
FIRST_LABELS = """
import os, sys
from streamseg import cli
from streamseg.cli import segmenting

run_plan = segmenting.run_plan

def stop(*_):
    os.write(1, " ".join(sys.modules).encode())
    os._exit(0)

def run_until_labels(*given):
    from streamseg.stream.source_writer import SourceWriter
    SourceWriter.write_record = stop
    return run_plan(*given)

segmenting.run_plan = run_until_labels
cli.run_program()
"""


@pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")
def test_the_first_labels_wait_for_no_module_that_they_do_not_need(tmp_path):
    clip = make_clip(tmp_path / "a.mp4", 1)
    command = [sys.executable, "-c", FIRST_LABELS, "segment", clip, "-o", tmp_path / "b.mp4", "--no-overlay", "--json"]
    done = subprocess.run(
        [*command, tmp_path / "c.jsonl", "--device", "cpu"],
        env=os.environ | {"STREAMSEG_CODECS": "processes"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(done.stdout.split())
    assert "streamseg.io.codec_client" in imported
    unneeded = "av cv2 huggingface_hub matplotlib onnx onnxruntime pandas ray rich scipy starlette sympy triton"
    assert not imported & {*unneeded.split(), "torch._dynamo", "torch._inductor", "streamseg.io.pyav"}
