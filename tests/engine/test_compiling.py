"""Kernels that are compiled in the background, while their definition in PyTorch runs."""

import threading

import pytest
import torch

from streamseg.engine import kernels
from streamseg.engine.kernels import backend, colour, compiling, drawing
from streamseg.engine.kernels.compiling import BackgroundCompiler
from streamseg.io import yuv

CPU = torch.device("cpu")
PATIENCE = 60


@pytest.fixture
def compiler(monkeypatch):
    """A compiler of its own for the kernels, which the CPU would not use otherwise."""
    compiler = BackgroundCompiler(delay=0.0)
    monkeypatch.setattr(compiling, "COMPILER", compiler)
    monkeypatch.setattr(backend, "use_triton", lambda x: True)
    yield compiler
    compiler.stop()


@pytest.fixture
def warnings(monkeypatch):
    found = []
    monkeypatch.setattr(compiling.LOG, "warning", lambda text, *parts: found.append(text % parts))
    return found


def noise(*shape):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).byte()


def test_a_kernel_is_compiled_once_and_nobody_waits_for_it(compiler):
    may_end, launches = threading.Event(), []

    def launch():
        assert may_end.wait(PATIENCE)
        launches.append(threading.current_thread().name)

    assert not any(compiler.has(("a",), CPU, launch) for _ in range(3))
    may_end.set()
    compiler.wait()
    assert compiler.has(("a",), CPU, launch)
    assert launches == ["compile"]
    assert not compiler.has(("b",), CPU, launch)  # the thread has ended and starts anew
    compiler.wait()
    assert compiler.has(("b",), CPU, launch)


def test_a_kernel_that_cannot_be_compiled_is_reported_once_and_not_tried_again(compiler, warnings):
    launches = []

    def launch():
        launches.append(1)
        raise RuntimeError("Failed to find\nC compiler.")

    for key in ("a", "a", "b"):
        assert not compiler.has((key,), CPU, launch)
        compiler.wait()
    assert len(launches) == 2
    (sentence,) = warnings
    assert "could not be compiled (Failed to find C compiler.): PyTorch does it" in sentence


def test_a_stopped_compiler_leaves_out_what_waits(compiler):
    started, may_end, late = threading.Event(), threading.Event(), []

    def launch():
        started.set()
        assert may_end.wait(PATIENCE)

    compiler.has(("a",), CPU, launch)
    compiler.has(("b",), CPU, lambda: late.append(1))
    assert started.wait(PATIENCE)
    threading.Timer(0.1, may_end.set).start()
    compiler.stop()
    assert compiler.thread is None
    assert not compiler.has(("c",), CPU, lambda: late.append(1))
    assert not late


def test_the_first_labels_do_not_share_the_interpreter_with_a_compiler():
    compiler, launches = BackgroundCompiler(delay=10 * PATIENCE), []
    compiler.has(("a",), CPU, lambda: launches.append(1))
    assert not launches
    compiler.wait()  # somebody measures, and hurries
    assert launches == [1]
    patient = BackgroundCompiler(delay=10 * PATIENCE)
    patient.has(("a",), CPU, lambda: launches.append(2))
    patient.stop()  # the end of the program does not wait
    assert patient.thread is None
    assert launches == [1]


def test_numbers_count_as_triton_distinguishes_them(compiler):
    x = noise(4)

    def is_compiled(*numbers):
        return compiling.is_compiled("kernel", (x,), numbers, lambda: None)

    assert not is_compiled(720, 1280)
    compiler.wait()
    assert is_compiled(1072, 1920)
    assert not is_compiled(1080, 1920)
    assert not is_compiled(1, 1280)
    assert not compiling.is_compiled("kernel", (x.short(),), (720, 1280), lambda: None)


def test_frames_are_converted_and_drawn_by_pytorch_until_the_kernels_are_there(compiler, monkeypatch):
    frame, labels = noise(3, 32, 48), noise(32, 48)
    table = noise(3, 256, 256)
    planes = yuv.to_yuv(frame, yuv.BT709)
    drawn = drawing.blend_labels(frame, labels.int(), table, None, True)  # no kernel takes these labels
    marked = torch.zeros(3, 32, 48, dtype=torch.uint8)
    other = planes.with_pixels(torch.zeros_like(planes.pixels))
    monkeypatch.setattr(colour, "launch_to_rgb", lambda picture: marked)
    monkeypatch.setattr(colour, "launch_to_yuv", lambda frame, matrix: other)
    monkeypatch.setattr(drawing, "launch", lambda *_: marked)
    compiler.stopped = True  # nothing is compiled
    assert kernels.to_rgb(planes).equal(yuv.to_rgb(planes))
    assert kernels.to_yuv(frame, yuv.BT709).pixels.equal(planes.pixels)
    assert kernels.blend_labels(frame, labels, table, None, True).equal(drawn)
    compiler.stopped = False
    for _ in range(2):
        results = kernels.to_rgb(planes), kernels.to_yuv(frame, yuv.BT709)
        results += (kernels.blend_labels(frame, labels, table, None, True),)
        kernels.wait_until_compiled()
    assert results == (marked, other, marked)
