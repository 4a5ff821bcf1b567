import copy
import json
import os
import pickle
import runpy
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from commands import complaint, run
from exports import SIZE, exported as exported, moving, small, small_plus
from PIL import Image
from torch.nn import functional as F

import streamseg
from streamseg import Fading, LastFrames
from streamseg.class_table import STREET_TABLE
from streamseg.data import datasets
from streamseg.deploy.export import export_model
from streamseg.engine import runtime
from streamseg.engine.engine import FrameBatch
from streamseg.engine.open import open_weights
from streamseg.engine.runtime import open_exported
from streamseg.evaluate.images import evaluate
from streamseg.evaluate.video import evaluate_video
from streamseg.io.images import write_image
from streamseg.stream.label_frames import label_batch, label_frame

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = ["any.onnx", "fixed.xml", "fixed.pt2"]


@pytest.fixture(scope="module")
def network():
    return small()


# frames and streams


def test_a_frame_of_another_size_is_resized_for_a_file_and_its_labels_back(exported):
    file = open_exported(exported("still.onnx"))
    frame = moving(1, 150, 210)[0]
    labels, _ = label_frame(file, frame)
    resized, _ = label_frame(file, F.interpolate(frame[None], SIZE, mode="bilinear", antialias=True)[0])
    assert resized.shape == SIZE
    assert labels.equal(F.interpolate(resized[None, None], (150, 210), mode="nearest-exact")[0, 0])


@pytest.mark.parametrize(
    ("size", "network_size"), [((1, 1), (65, 65)), ((5, 200), (65, 200)), ((64, 64), (65, 65)), ((9000, 1), (8192, 65))]
)
def test_frames_too_small_or_too_long_for_a_file_are_labelled_at_their_own_size(exported, size, network_size):
    file = open_exported(exported("any.onnx"))
    run, shapes = file.run, []
    file.run = lambda given: shapes.append(given["frame"].shape) or run(given)
    labels, _ = label_frame(file, torch.full((3, *size), 90, dtype=torch.uint8))
    assert (labels.dtype, labels.shape) == (torch.uint8, size)
    assert shapes == [(1, *network_size, 3)]


@pytest.mark.parametrize("name", FILES)
def test_streams_in_a_batch_do_not_mix(exported, name):
    file = open_exported(exported(name), trust=True)
    one, other = moving(4), [frame.flip(2) for frame in moving(4)]
    states = [None, None]
    for frames in zip(one, other, strict=True):
        labels, states = label_batch(file, frames, states, window=3)
    for own, found in zip((one, other), labels, strict=True):
        *_, (_, alone) = streamseg.label_frames(file, own, 3)
        assert found.equal(alone)


@pytest.mark.parametrize("name", FILES)
def test_threads_share_a_file(exported, name):
    file, frames = open_exported(exported(name), trust=True), moving(4)
    expected = [label_frame(file, frame)[0] for frame in frames]
    start = threading.Barrier(4)

    def work(frame):
        start.wait()
        return [label_frame(file, frame)[0] for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        for labels, theirs in zip(expected, threads.map(work, frames), strict=True):
            assert all(found.equal(labels) for found in theirs)


@pytest.mark.parametrize("name", FILES)
def test_an_open_file_cannot_be_copied(exported, name):
    file = open_exported(exported(name), trust=True)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=f"{name} is open in this process and cannot be copied: open it again"):
            copied(file)


def test_what_a_file_cannot_do_is_refused_in_a_sentence(exported):
    file = open_exported(exported("still.onnx"))
    frame = moving(1)[0]
    with pytest.raises(ValueError, match="labels each frame alone: leave out the window, .* exported with --video."):
        list(streamseg.label_frames(file, [frame, frame], Fading(0.5)))
    with pytest.raises(ValueError, match="gives no confidence: export it again with --confidence."):
        file.predict(FrameBatch(frame[None], None, [0.0], [SIZE], with_confidence=True))
    with pytest.raises(ValueError, match="gives labels, and no scores: leave out steady, or use a network"):
        streamseg.label_frame(file, frame, window=LastFrames(1, steady=1.0))
    with pytest.raises(ValueError, match="failed on a frame"):
        file.run({"frame": torch.zeros(1, 3, 3, 3, dtype=torch.uint8)})


# through the pipeline and the evaluation


@pytest.fixture
def folder(exported, tmp_path, monkeypatch):
    """A working folder with the files and a picture."""
    monkeypatch.chdir(tmp_path)
    for name in (*FILES, "fixed.bin", "still.onnx"):
        (tmp_path / name).symlink_to(exported(name))
    write_image(tmp_path / "a.png", moving(1, 100, 140)[0])
    return tmp_path


@pytest.mark.parametrize("name", [*FILES, "still.onnx"])
def test_segment_takes_a_file_in_place_of_weights(folder, monkeypatch, capsys, name):
    command = ("segment", "a.png", "out.png", "--weights", name, "--labels", "--legend", "--json", "a.json", "--trust")
    assert run(monkeypatch, *command, "--device", "cpu") == 0
    record = json.loads(Path("a.json").read_text().splitlines()[0])
    assert record["size"] == ([100, 140] if name == "any.onnx" else [*SIZE])
    expected, _ = label_frame(
        open_exported(name, trust=True), streamseg.read_image("a.png"), size=tuple(record["size"])
    )
    with Image.open("out-labels.png") as labels:
        assert numpy.array_equal(numpy.asarray(labels), expected.numpy())
    assert streamseg.read_image("out.png").shape == (3, 100, 140)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("still.onnx --size 64x64", "still.onnx takes only frames of 72 x 96: leave out --size."),
        (
            "still.onnx --window 2",
            "still.onnx labels single frames: leave out the window, or export it with --video.",
        ),
        ("still.onnx --half-life 1", "export it with --video."),
        (
            "still.onnx --tile",
            "--tile needs a checkpoint, and still.onnx is an exported file: give a checkpoint.",
        ),
        ("still.onnx --deadline 50", "leave out --deadline, or export it without --size."),
        ("still.onnx --precision fp32", "leave out --precision."),
        ("still.onnx --confidence", "still.onnx gives no confidence: leave out --confidence, or export it with"),
        ("still.onnx --steady 1", "still.onnx gives labels without scores: leave out --steady, or give a checkpoint."),
        ("still.onnx --device cuda", "GPU"),
        ("fixed.xml --device cuda", "GPU"),
        (
            "fixed.pt2",
            "fixed.pt2 is a program, which runs when it is opened: give --trust (trust=True) if you trust its origin.",
        ),
        ("nowhere.onnx", "No weights at nowhere.onnx: check the path."),
    ],
)
def test_an_option_that_contradicts_a_file_is_refused(folder, monkeypatch, capsys, options, sentence):
    before = sorted(folder.iterdir())
    assert sentence in complaint(monkeypatch, capsys, "segment", "a.png", "--weights", *options.split())
    assert sorted(folder.iterdir()) == before


def test_a_file_s_window_is_that_of_the_network_if_it_carries_state(exported):
    cpu = torch.device("cpu")
    file, classes, window = open_weights(exported("any.onnx"), cpu)
    assert (file.manifest.window, window, classes) == (3, 3, streamseg.CAMVID)
    network, classes, window = open_weights(None, cpu)
    assert (type(network), classes, window) == (streamseg.FANetPlus, STREET_TABLE.classes, 1)


@pytest.mark.slow
def test_a_file_is_measured_as_the_network_is(exported, network, drive, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frames = datasets.camvid(drive, "val")
    command = ("evaluate", exported("any.onnx"), "--data", drive, "--dataset", "camvid", "--json", "a.json")
    expected = {(): evaluate(network, frames), ("--window", "3"): evaluate_video(network, frames, 3)}
    for options, correct in expected.items():
        assert run(monkeypatch, *command, *options, "--plots", "plots") == 0
        report = json.loads(Path("a.json").read_text())
        assert report["miou"] == pytest.approx(correct.miou, abs=0.01)
        assert report["images"] == 3
    assert expected["--window", "3"].miou != pytest.approx(expected[()].miou, abs=0.01)
    shown = complaint(monkeypatch, capsys, *command, "--flip")
    assert "any.onnx returns labels, not scores to average: leave out --scales and --flip." in shown
    assert "leave out --precision" in complaint(monkeypatch, capsys, *command, "--precision", "fp32")
    still = (command[0], exported("still.onnx"), *command[2:])
    assert "labels single frames" in complaint(monkeypatch, capsys, *still, "--window", "3")
    assert run(monkeypatch, *still) == 0


# broken, foreign and hostile files


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".pt2"])
@pytest.mark.parametrize("content", [b"", b"hello, world", b"\x80\x04K\x01.", b"<net/>", b"PK\x03\x04", None])
def test_a_broken_file_is_refused_in_one_sentence(exported, tmp_path, monkeypatch, capsys, suffix, content):
    whole = {".onnx": "still.onnx", ".xml": "fixed.xml", ".pt2": "fixed.pt2"}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(exported(whole).read_bytes()[:5000] if content is None else content)
    if suffix == ".xml":
        shutil.copyfile(exported("fixed.bin"), tmp_path / "a.bin")
    shown = complaint(monkeypatch, capsys, "segment", "a.png", "--weights", path, "--trust", "--device", "cpu")
    assert "No such" not in shown
    with pytest.raises(ValueError, match=r"(is no .* file, or is cut short|was not exported by streamseg)"):
        open_exported(path, trust=True)


def test_openvino_s_weights_must_exist_and_be_complete(exported, tmp_path):
    shutil.copyfile(exported("fixed.xml"), tmp_path / "a.xml")
    with pytest.raises(FileNotFoundError, match=r"No weights at .*a\.bin"):
        open_exported(tmp_path / "a.xml")
    (tmp_path / "a.bin").write_bytes(exported("fixed.bin").read_bytes()[:1000])
    with pytest.raises(
        ValueError, match=r"a\.xml is damaged \(its checksum does not match\): copy or download it again"
    ):
        open_exported(tmp_path / "a.xml")


def rewrite(source, path, text, output=None):
    """Write the same ONNX file with another manifest, as an attacker would."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(source)
    del model.metadata_props[:]
    if text is not None:
        onnx.helper.set_model_props(model, {"streamseg": text})
    if output:
        model.graph.output.remove(next(node for node in model.graph.output if node.name == output))
    onnx.save(model, path)
    return path


def test_a_network_that_streamseg_did_not_export_is_refused(exported, tmp_path):
    with pytest.raises(ValueError, match="was not exported by streamseg: create one with streamseg export."):
        open_exported(rewrite(exported("still.onnx"), tmp_path / "a.onnx", None))


@pytest.mark.parametrize(
    "change",
    [
        {"size": [32, 32]},
        {"size": [0, 96]},
        {"size": "72x96"},
        {"size": 7},
        {"size": [72, 96, 3]},
        {"state": [[8, 64], [8, 128], [8, 256], [8, 512]]},
        {"state": [[8, 64]]},
        {"state": [[2**40, 64]] * 4},
        {"state": 3},
        {"confidence": True},
        {"confidence": "yes"},
        {"window": 0},
        {"window": 1.5},
        {"averages": None},
        {"precision": "fp8"},
        {"device": "tpu"},
        {"source": "a\nb"},
        {"classes": {"names": ["a\x1b[2J"], "colours": [[0, 0, 0]]}},
        {"classes": []},
        {"unknown": 1},
    ],
)
def test_an_invalid_manifest_is_refused(exported, tmp_path, change):
    about = json.loads(open_exported(exported("still.onnx")).manifest.to_plain_json())
    path = rewrite(exported("still.onnx"), tmp_path / "a.onnx", json.dumps({**about, **change}))
    with pytest.raises(ValueError, match="has invalid metadata"):
        open_exported(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_a_manifest_that_is_not_an_object_is_refused(exported, tmp_path, text):
    with pytest.raises(ValueError, match="has invalid metadata"):
        open_exported(rewrite(exported("still.onnx"), tmp_path / "a.onnx", text))


class Malice:
    def __reduce__(self):
        return os.mkdir, ("malice",)


def test_no_program_runs_unless_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("a.pt2", "w") as archive:
        archive.writestr("a/extra/streamseg.json", "{}")
        archive.writestr("a/data/sample_inputs/model.pt", pickle.dumps(Malice()))
    with pytest.raises(ValueError, match=r"^a\.pt2 is a program, which runs when it is opened"):
        open_exported("a.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt2"]
    for name in ("A.PT2", "a.Pt2"):  # some systems write suffixes so
        Path("a.pt2").rename(name)
        for opening in (open_exported, lambda path: open_weights(Path(path), torch.device("cpu"))):
            with pytest.raises(ValueError, match=rf"^{name} is a program, which runs when it is opened"):
                opening(name)
        Path(name).rename("a.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt2"]


def test_a_package_for_another_device_is_refused(exported, tmp_path):
    about = replace(open_exported(exported("still.onnx")).manifest, device="cuda")
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as archive:
        archive.writestr("a/extra/streamseg.json", about.to_json())
        archive.writestr("a/data/aotinductor/model/a.wrapper.so", b"")
    with pytest.raises(ValueError, match="was compiled for cuda, and not for cpu: give --device, or export it again."):
        open_exported(tmp_path / "a.pt2", trust=True)


@pytest.mark.parametrize(("name", "library"), [("any.onnx", "onnxruntime"), ("fixed.xml", "openvino")])
def test_a_missing_runtime_is_named_with_the_line_that_installs_it(exported, monkeypatch, name, library):
    monkeypatch.setattr(runtime, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=rf"need {library}: pip install 'streamseg\[export\]'$"):
        open_exported(exported(name))


# the examples


def run_python_example(path, frames, folder, monkeypatch):
    """Return the labels that the example gives of frames, without torch and streamseg."""
    for i, frame in enumerate(frames):
        write_image(folder / f"{i}.png", frame)
    names = [str(folder / f"{i}.png") for i in range(len(frames))]
    monkeypatch.setattr(sys, "argv", ["label_frames.py", str(path), str(folder), *names])
    for hidden in ("torch", "streamseg"):
        monkeypatch.setitem(sys.modules, hidden, None)
    runpy.run_path(str(EXAMPLES / "label_frames.py"), run_name="__main__")
    monkeypatch.undo()
    labels = []
    for i in range(len(frames)):
        with Image.open(folder / f"{i}-labels.png") as written:
            labels.append(torch.from_numpy(numpy.array(written)))
    return labels


def test_the_python_example_carries_the_state_without_torch(exported, tmp_path, monkeypatch):
    frames = moving(6)
    found = run_python_example(exported("any.onnx"), frames, tmp_path, monkeypatch)
    expected = streamseg.label_frames(open_exported(exported("any.onnx")), frames, 3)
    assert all(one.equal(labels) for one, (_, labels) in zip(found, expected, strict=True))


def test_the_python_example_runs_a_steady_file_of_a_fanet_plus(tmp_path, monkeypatch):
    path, frames = tmp_path / "a.onnx", moving(6)
    options = {"size": SIZE, "video": True, "steady": streamseg.STEADY_HIGH, "window": 2}
    export_model(small_plus(), streamseg.CAMVID, path, **options)
    found = run_python_example(path, frames, tmp_path, monkeypatch)
    policy = LastFrames(2, steady=streamseg.STEADY_HIGH)
    expected = streamseg.label_frames(open_exported(path), frames, policy)
    assert all(one.equal(labels) for one, (_, labels) in zip(found, expected, strict=True))


def test_the_c_plus_plus_example_carries_the_state(exported, tmp_path):
    place = Path(os.environ.get("ONNXRUNTIME_DIR", "/usr"))
    headers = [path for path in (place / "include", place / "include" / "onnxruntime") if path.is_dir()]
    if not any((path / "onnxruntime_cxx_api.h").exists() for path in headers):
        pytest.skip("no headers of ONNX Runtime: set ONNXRUNTIME_DIR to an unpacked release of it")
    if not shutil.which("g++"):
        pytest.skip("no C++ compiler: install g++")
    source = EXAMPLES / "cpp" / "label_video.cpp"
    program = tmp_path / "label_video"
    includes = [f"-I{path}" for path in headers]
    libraries = [f"-L{place / 'lib'}", f"-Wl,-rpath,{place / 'lib'}", "-lonnxruntime"]
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Wextra", source, "-o", program, *includes, *libraries], check=True)
    frames = moving(6)
    raw = b"".join(frame.permute(1, 2, 0).contiguous().numpy().tobytes() for frame in frames)
    command = [program, exported("any.onnx"), *map(str, SIZE), "3"]
    done = subprocess.run(command, input=raw, capture_output=True, check=True)
    found = numpy.frombuffer(done.stdout, numpy.uint8).reshape(len(frames), *SIZE)
    expected = streamseg.label_frames(open_exported(exported("any.onnx")), frames, 3)
    for labels, (_, own) in zip(found, expected, strict=True):
        assert numpy.array_equal(labels, own.numpy())
    cut = subprocess.run(command, input=raw[:-1], capture_output=True)
    assert (cut.returncode, cut.stdout) == (1, done.stdout[: -SIZE[0] * SIZE[1]])
    assert cut.stderr == b"label_video: the last frame is cut short: is it of that height and width?\n"
    assert b"are numbers from 1 on." in subprocess.run([*command[:-1], "no"], capture_output=True).stderr
