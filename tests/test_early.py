"""What starts before the command line is imported: only what it will use."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamseg import early


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The numbers of GPUs that are started, on a machine that seems to have some."""
    numbers = []
    monkeypatch.setattr(early, "start_gpu", numbers.append)
    monkeypatch.setattr(early, "GPU_FILES", (str(tmp_path),))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in early.ENVIRONMENT.items():  # as it will be set, so that nothing is left of it
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return numbers


@pytest.mark.parametrize(("device", "numbers"), [("", [0]), ("cuda", [0]), ("cuda:2", [2])])
def test_the_driver_starts_for_the_gpu_that_will_be_used(started, device, numbers):
    early.start_driver(device)
    assert started == numbers


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "mps"])
def test_no_driver_starts_for_other_devices(started, device):
    early.start_driver(device)
    assert started == []


def test_no_driver_starts_without_a_gpu(started, monkeypatch):
    monkeypatch.setattr(early, "GPU_FILES", ("/nothing",))
    early.start_driver("")
    assert started == []


def test_segment_starts_the_first_gpu_before_its_options_are_read(started):
    early.start_early(["segment", "a.mp4", "-o", "b.mp4", "--half-life", "2"])
    assert started == [0]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--version"],
        ["train", "segment"],
        ["segment", "a.mp4", "--device", "cpu"],
        ["segment", "a.mp4", "--device=cuda:1"],
        ["segment", "a.mp4", "--weights", "a.onnx"],
        ["segment", "a.mp4", "b", "--ray"],
        ["segment", "--help"],
        ["segment", "-h"],
    ],
)
def test_nothing_starts_for_what_may_need_no_gpu_or_another(started, arguments):
    early.start_early(arguments)
    assert started == []


def test_the_environment_is_set_before_threads_start(started, monkeypatch):
    names = ("CUDA_MODULE_LOADING", "HF_HUB_DISABLE_PROGRESS_BARS")
    for name in names:
        monkeypatch.delenv(name)
    monkeypatch.setattr(early, "start_gpu", lambda number: started.extend(os.environ[name] for name in names))
    early.start_early(["segment", "a.mp4", "--quiet"])
    assert started == ["LAZY", "1"]


@pytest.mark.parametrize(
    ("status", "asked"), [(0, ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]), (100, ["cuInit"])]
)
def test_the_primary_context_is_made_unless_the_driver_reports_an_error(status, asked):
    called = []

    def function(name):
        return lambda *given: called.append(name) or status

    early.make_context(tuple(map(function, ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"))), 0)
    assert called == asked


def test_a_machine_without_a_driver_goes_on(monkeypatch):
    monkeypatch.setattr(early, "DRIVER", "libnothing.so.1")
    early.start_gpu.__wrapped__(0)


def make_libraries(folder, monkeypatch):
    """Make files of torch's libraries, and return them."""
    files = [folder / "lib" / name for name in early.LIBRARIES]
    files[0].parent.mkdir()
    for file in files:
        file.touch()
    monkeypatch.setattr(early, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(folder)]))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return files


def test_the_libraries_of_torch_for_a_gpu_are_found(tmp_path, monkeypatch):
    files = make_libraries(tmp_path, monkeypatch)
    assert early.find_libraries() == files


def test_torch_loads_its_libraries_by_itself_where_they_may_be_others(tmp_path, monkeypatch):
    files = make_libraries(tmp_path, monkeypatch)
    (tmp_path / "libnvJitLink.so.13").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nothing:{tmp_path}")
    assert early.find_libraries() == []
    monkeypatch.delenv("LD_LIBRARY_PATH")
    files[-1].unlink()  # torch for the CPU
    assert early.find_libraries() == []
    monkeypatch.setattr(early, "find_spec", lambda name: None)
    assert early.find_libraries() == []


@pytest.mark.skipif(not hasattr(os, "RTLD_GLOBAL"), reason="not on Windows")
def test_libraries_are_loaded_in_order_until_one_fails(monkeypatch):
    opened = []

    def dlopen(file, mode):
        opened.append((file, bool(mode & os.RTLD_GLOBAL)))
        return None if file == b"b" else 1

    monkeypatch.setattr(early, "LOADED", [])
    early.load_libraries(dlopen, [Path("a"), Path("b"), Path("c")])
    assert opened == [(b"a", True), (b"b", False)]
    assert [Path("a")] == early.LOADED


# the real libraries, of whatever torch is installed
LOADS = """
import sys
from pathlib import Path
from streamseg import early

early.LIBRARIES = "libtorch_global_deps.so", "libtorch_cpu.so"
early.run_in_thread(early.LOADER, early.load_libraries, early.find_dlopen(), early.find_libraries())
early.wait_for_libraries()
assert "libtorch_cpu.so" in Path("/proc/self/maps").read_text()
assert "torch" not in sys.modules
import torch
print(torch.ones(3).sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_torch_works_with_libraries_that_were_loaded_before_it():
    # a folder of CUDA's libraries there leaves the loading to torch
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", LOADS], stdout=subprocess.PIPE, text=True, env=environment)
    assert (done.stdout, done.returncode) == ("3.0\n", 0)


def test_what_changes_the_environment_waits_for_the_libraries():
    loaded, end = [], threading.Event()
    early.run_in_thread(early.LOADER, lambda: end.wait(60) and loaded.append(True))
    threading.Timer(0.05, end.set).start()
    early.wait_for_libraries()
    assert loaded


def test_it_imports_neither_torch_nor_the_command_line():
    program = "import sys, streamseg.early; assert not {'torch', 'cyclopts', 'streamseg.cli'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True)


# the suffixes of libraries are those of importlib.machinery
NEW_LIBRARIES = """
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from streamseg import early

def libraries():
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return {name for name, file in files.items() if file and file.endswith(tuple(EXTENSION_SUFFIXES))}

for name in early.MODULES:
    with suppress(ImportError):
        import_module(name)
before = libraries()
import streamseg.cli, streamseg.io.codec_pool, streamseg.io.outputs, streamseg.io.resolve
print(*(libraries() - before))
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="which modules are libraries depends on Python's version")
def test_the_command_line_waits_for_no_library_while_those_of_torch_are_loaded():
    done = subprocess.run([sys.executable, "-c", NEW_LIBRARIES], capture_output=True, text=True, check=True)
    assert not done.stdout.split()
