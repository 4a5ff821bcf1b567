import threading
from contextlib import nullcontext

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


class Queue:
    """A stand-in for a CUDA stream."""

    device = torch.device("cpu")

    def __init__(self, name, events):
        self.name, self.events = name, events

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def branch(fake, monkeypatch):
    """A branch beside the main stream of such a graph."""
    side = graphs.SideStream(torch.device("cpu"))
    side.stream = Queue("branch", fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Queue("main", fake))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return side


def test_a_capture_that_fails_in_or_beside_a_branch_joins_it_before_it_is_ended(fake, branch):
    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory")

    def run():
        fake.append("run")
        if fake.count("run") == 1:
            branch.run(fail)  # in the branch
        branch.run(lambda: fake.append("beside"))
        if fake.count("run") == 2:
            fail()  # beside it
        branch.join()

    with pytest.raises(torch.OutOfMemoryError):
        record_graph(run)
    fork, join = "branch waits for main", "main waits for branch"
    first = ["thread_local", "run", fork, join, "end"]
    assert fake == [*first, "free", "thread_local", "run", fork, "beside", join, "end"]
    fake.clear()
    fake += ["run", "run"]
    record_graph(run)
    assert fake[2:] == ["thread_local", "run", fork, "beside", join, "end"]


def test_a_branch_that_an_earlier_run_has_left_is_no_part_of_a_capture(fake, branch):
    with pytest.raises(RuntimeError, match="no kernel"):
        branch.run(lambda: raise_error("no kernel"))
    fake.clear()
    with pytest.raises(RuntimeError, match="no compiler"):
        record_graph(lambda: raise_error("no compiler"))
    assert fake == ["thread_local", "end"]


def raise_error(text):
    raise RuntimeError(text)


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
