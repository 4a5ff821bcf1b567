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

import streamseg
from streamseg import early
from streamseg.cli import segmenting, starting
from streamseg.engine.engine import EagerEngine
from streamseg.io import codec_pool
from streamseg.io.sources import Pictures, VideoFile
from streamseg.models.baselines import BASELINES
from streamseg.models.bundled import find_weights
from streamseg.models.video import VIDEO_METHODS
from streamseg.stream import transfers

CPU = torch.device("cpu")

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


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The CPU stands for a GPU, whose default precision is another."""
    monkeypatch.setattr("streamseg.engine.open.fast_precisions", lambda device: ("bf16", "fp16"))


@pytest.fixture
def sent(monkeypatch):
    """The shapes of the labels that are sent to the CPU, and how many classes were counted."""
    seen, download = [], transfers.download

    def kept(counts, *others):
        seen.extend((tuple(labels.shape), counts.shape[1]) for labels in others)
        return download(counts, *others)

    monkeypatch.setattr(transfers, "download", kept)
    return seen


@pytest.fixture
def labelled(monkeypatch):
    """The shapes and precisions of what networks label."""
    seen, predict = [], EagerEngine.predict

    def counted(engine, batch):
        seen.append((tuple(batch.images.shape), engine.model.mean.dtype))
        return predict(engine, batch)

    monkeypatch.setattr(EagerEngine, "predict", counted)
    return seen


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_network_without_its_weights_labels_two_frames_ahead(labelled, sent):
    starting.use_network(CPU, find_weights("road"), "")
    assert labelled == [((1, 3, *starting.FIRST_SIZE), torch.bfloat16)] * 2
    assert sent == [(starting.FIRST_SIZE, 5)] * 2


def test_labels_are_made_and_sent_ahead_without_a_network(labelled, sent):
    starting.use_labels(CPU)
    assert labelled == []
    assert sent == [(starting.FIRST_SIZE, 16)]


def test_it_reads_no_weights_and_uses_no_random_numbers(as_on_a_gpu, labelled, monkeypatch):
    monkeypatch.setattr("streamseg.io.tensors.check_checksum", failing(AssertionError()))
    monkeypatch.setattr("streamseg.models.checkpoint.load_tensors", failing(AssertionError()))
    before = torch.get_rng_state()
    starting.use_network(CPU, find_weights("street"), "")
    assert len(labelled) == 2
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("precision", ["fp32", "int8", "nonsense"])
def test_nothing_is_labelled_ahead_in_a_precision_that_starts_otherwise(as_on_a_gpu, labelled, precision):
    starting.use_network(CPU, find_weights("road"), precision)
    assert labelled == []


def test_no_baseline_video_method_or_exported_file_is_labelled_ahead(as_on_a_gpu, labelled, tmp_path):
    for name, network in (("a", BASELINES["enet"](5)), ("b", VIDEO_METHODS["dff-fanet18"](5))):
        streamseg.save(network, streamseg.COMMA10K, tmp_path / f"{name}.safetensors")
        starting.use_network(CPU, tmp_path / f"{name}.safetensors", "")
    starting.use_network(CPU, tmp_path / "c.pt2", "")
    assert labelled == []


def test_what_goes_wrong_ahead_is_left_to_those_who_open_the_weights(as_on_a_gpu, labelled, monkeypatch, tmp_path):
    (tmp_path / "damaged.safetensors").write_bytes(b"x")
    for name in ("damaged", "missing"):
        starting.use_network(CPU, tmp_path / f"{name}.safetensors", "")
    for error in (RuntimeError("CUDA error"), MemoryError(), OSError(5, "x")):
        for name in ("send", "empty_picture"):
            monkeypatch.setattr(starting, name, failing(error))
            starting.use_network(CPU, find_weights("road"), "")
            starting.use_labels(CPU)
    monkeypatch.setattr("torch.nn.functional.conv2d", failing(RuntimeError("cuDNN")))
    starting.use_convolutions(CPU)


def test_the_threads_start_for_a_gpu_only(monkeypatch):
    started, gpu = [], torch.device("cuda:1")
    monkeypatch.setattr(early, "run_in_thread", lambda name, work, *given: started.append((work, *given)))
    for device in (CPU, gpu):
        starting.start_libraries(device)
        starting.start_network(device, Path("a"), "fp16")
    assert started == [
        (starting.use_convolutions, gpu),
        (starting.use_labels, gpu),
        (starting.use_network, gpu, Path("a"), "fp16"),
    ]


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_starts_in_a_thread(labelled):
    starting.start_network(torch.device("cuda:0"), find_weights("street"), "")
    join("start network")
    assert labelled == [((1, 3, *starting.FIRST_SIZE), torch.float16)] * 2


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
    # what torch and the command-line library import by themselves differs from version to version
    program = "import sys, cyclopts, torch; print(*sys.modules)"
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported -= set(alone.stdout.split())
    unneeded = "av cv2 huggingface_hub matplotlib onnx onnxruntime pandas ray rich scipy starlette sympy triton"
    assert not imported & {*unneeded.split(), "torch._dynamo", "torch._inductor", "streamseg.io.pyav"}
