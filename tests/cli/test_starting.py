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

from streamseg import early
from streamseg.cli import segmenting, starting
from streamseg.early_operators import load_kernels
from streamseg.io import codec_pool
from streamseg.io.sources import Pictures, VideoFile
from streamseg.models.bundled import find_weights

CPU = torch.device("cpu")

VIDEOS = [VideoFile("a", "a.mp4"), VideoFile("b", "b.mp4")]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The videos that are begun, and the numbers of processes, on a machine that seems to have a GPU."""
    found = []

    def begin(kind, job):
        assert (kind, job["hardware"], job["planes"]) == ("read", "", True)
        found.append(job["address"])

    monkeypatch.setattr(codec_pool.IDLE, "begin", begin)
    monkeypatch.setattr(codec_pool.IDLE, "start", found.append)
    monkeypatch.setattr(codec_pool, "are_possible", lambda: True)
    monkeypatch.setattr(early, "GPU_FILES", (str(tmp_path),))
    monkeypatch.delenv("STREAMSEG_CODECS", raising=False)
    return found


def test_the_first_videos_are_decoded_ahead(started):
    starting.start_decoders(VIDEOS, "", "")
    starting.start_decoders(4 * VIDEOS, "cuda", "")
    starting.start_decoders([Pictures("c", [Path("c.png")]), VideoFile("d", "http://127.0.0.1/d.mp4")], "", "")
    names = ["a.mp4", "b.mp4"]
    assert started == [*names, 2, *names, *names, starting.MAX_DECODERS, 1]


def test_no_decoder_starts_without_a_gpu_beside_a_hardware_decoder_or_if_threads_are_asked_for(started, monkeypatch):
    starting.start_decoders(VIDEOS, "cpu", "")
    starting.start_decoders(VIDEOS, "", "cuda")
    monkeypatch.setenv("STREAMSEG_CODECS", "threads")
    starting.start_decoders(VIDEOS, "", "")
    monkeypatch.delenv("STREAMSEG_CODECS")
    monkeypatch.setattr(early, "GPU_FILES", ("/nothing",))
    starting.start_decoders(VIDEOS, "", "")
    assert started == []


def test_exported_files_which_run_on_the_cpu_start_nothing_for_a_gpu(started, contexts, monkeypatch, tmp_path):
    monkeypatch.setattr(segmenting, "open_model", failing(ValueError("enough")))
    for name in ("a.onnx", "a.mp4"):
        (tmp_path / name).touch()
    assert run(monkeypatch, "segment", tmp_path / "a.mp4", tmp_path / "b.mp4", "--weights", tmp_path / "a.onnx") == 2
    assert started == contexts == []


def test_decoders_that_cannot_start_are_left_to_the_pipeline(started, monkeypatch):
    def refuse(kind, job):
        raise OSError("no process")

    monkeypatch.setattr(codec_pool.IDLE, "begin", refuse)
    starting.start_decoders(VIDEOS, "", "")
    assert started == []


@pytest.mark.skipif(not codec_pool.are_possible(), reason="needs Linux")
def test_decoders_start_without_torch():
    program = (
        "import sys\nfrom streamseg.cli import starting\nfrom streamseg.io.sources import VideoFile\n"
        "starting.start_decoders([VideoFile('a', 'a.mp4')], '', '')\nassert 'torch' not in sys.modules\n"
        "from streamseg.io.codec_pool import IDLE\nassert len(IDLE.begun) == 1"
    )
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"STREAMSEG_CODECS": "processes"}, check=True)


@pytest.fixture
def contexts(monkeypatch):
    """The numbers of GPUs that are started."""
    numbers = []
    monkeypatch.setattr(early, "start_gpu", numbers.append)
    return numbers


def test_what_is_made_while_the_collector_is_off_is_left_out_of_collections():
    with starting.collector_off():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    with starting.unfrozen_at_the_end():
        assert gc.isenabled()
        assert gc.get_freeze_count() >= len(made)
    assert gc.get_freeze_count() == 0


@pytest.fixture
def threads(monkeypatch):
    """What threads are started for."""
    started = []

    class Recorder(threading.Thread):
        def start(self):
            started.append((self._target, self._args, self.daemon))

    monkeypatch.setattr(starting.threading, "Thread", Recorder)
    return started


@pytest.mark.usefixtures("started")
def test_kernels_are_loaded_for_the_gpu_that_will_be_used(threads, monkeypatch):
    loaded = [Path(name) for name in early.LIBRARIES]
    monkeypatch.setattr(early, "LOADED", loaded)
    monkeypatch.setattr(starting, "are_deferred", lambda: True)
    for device in ("cuda:1", "cpu", "mps"):
        starting.start_kernels(device)
    assert threads == [(load_kernels, (loaded[-1], 1), False)]
    monkeypatch.setattr(starting, "are_deferred", lambda: False)
    starting.start_kernels("cuda:1")
    monkeypatch.setattr(starting, "are_deferred", lambda: True)
    loaded.pop()  # torch for the CPU, or no driver
    starting.start_kernels("cuda:1")
    assert len(threads) == 1


def test_weights_are_checked_while_torch_is_imported(monkeypatch):
    for name in ("start_decoders", "start_kernels"):
        monkeypatch.setattr(starting, name, lambda *given: None)
    checked = []
    monkeypatch.setattr(starting, "check_ahead", checked.append)
    for weights in (None, Path("road"), Path("a.onnx"), Path("hf://user/name")):
        starting.start_beside_torch([], "cpu", weights, "")
    assert checked == [find_weights(None), find_weights("road")]


def test_weights_are_read_by_one_thread_beside_a_gpu():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with starting.one_torch_thread(CPU):
            assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), starting.one_torch_thread(torch.device("cuda")):
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


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
    SourceWriter.make_record = stop
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
    # what torch and the command-line library import by themselves differs from version to version
    program = "import sys, cyclopts, torch; print(*sys.modules)"
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported -= set(alone.stdout.split())
    unneeded = "av cv2 huggingface_hub matplotlib onnx onnxruntime pandas ray rich scipy starlette sympy triton"
    assert not imported & {*unneeded.split(), "torch._dynamo", "torch._inductor", "streamseg.io.pyav"}
