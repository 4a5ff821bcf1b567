import threading

import pytest
import torch
from waiting import PATIENCE

from streamseg.engine import convolutions, graphs
from streamseg.engine.graphs import capture_graph, record_graph

CUDA = torch.cuda.is_available()


@pytest.fixture
def fake(monkeypatch):
    """Replace CUDA graphs by a list of what happens to them."""
    events = []

    class Graph:
        def capture_begin(self, capture_error_mode):
            events.append(capture_error_mode)

        def capture_end(self):
            events.append("end")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("free"))
    return events


def test_a_capture_allows_other_threads_to_use_the_gpu_and_excludes_other_captures(fake):
    def run():
        assert graphs.CAPTURE_LOCK.locked()
        fake.append("run")

    record_graph(run)
    assert fake == ["thread_local", "run", "end"]
    assert not graphs.CAPTURE_LOCK.locked()


def test_without_memory_a_capture_is_tried_again_with_what_torch_keeps_for_later(fake):
    def run():
        fake.append("run")
        if fake.count("run") == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    record_graph(run)
    assert fake == ["thread_local", "run", "end", "free", "thread_local", "run", "end"]


def test_a_capture_that_fails_is_ended(fake):
    def run():
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        record_graph(run)
    assert fake == ["thread_local", "end"]
    assert not graphs.CAPTURE_LOCK.locked()


def test_algorithms_are_measured_in_the_thread_that_asks_for_it_and_for_one_convolution_at_a_time(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # training sets it
    seen = {}

    def convolve(name):
        before = torch.backends.cudnn.benchmark
        with convolutions.cudnn_flags():
            seen[name] = (before, torch.backends.cudnn.benchmark)

    def prepare():
        convolve("in the background")
        other = threading.Thread(target=convolve, args=("elsewhere",))
        other.start()
        other.join(PATIENCE)

    with convolutions.measure_algorithms():
        prepare()
    convolve("afterwards")
    assert seen == {"in the background": (False, True), "elsewhere": (False, False), "afterwards": (False, False)}


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_a_graph_is_captured_while_another_thread_allocates_computes_and_waits():
    device = torch.device("cuda", torch.cuda.current_device())
    x, y = torch.ones(256, 256, device=device), torch.empty(256, 256, device=device)
    stop, problems, rounds = threading.Event(), [], 0

    def work():
        nonlocal rounds
        try:
            while not stop.is_set():
                z = torch.ones(512, 512, device=device) * 2
                assert (z @ z).sum().item() == 512**3 * 4
                torch.cuda.current_stream().synchronize()
                rounds += 1
        except Exception as error:
            problems.append(error)

    other = threading.Thread(target=work)
    other.start()
    try:
        for _ in range(20):
            graph = capture_graph(lambda: torch.mm(x, x, out=y), device)
            y.zero_()
            graph.replay()
            assert (y == 256).all()
    finally:
        stop.set()
        other.join(PATIENCE)
    assert not problems
    assert rounds
