"""Frames are compared with those before beside the network, if a core is free: with the same labels as after it."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.engine import looking_back
from streamseg.engine.engine import FrameBatch, to_engine
from streamseg.engine.evidence import Evidence
from streamseg.engine.looking_back import make_thread
from streamseg.engine.steadying import STEADY_HIGH
from streamseg.models.baselines import BASELINES
from streamseg.models.fanet import fanet18
from streamseg.parallel.threads import set_torch_threads

SIZE = (64, 96)


def picture(seed):
    coarse = torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(255 * coarse, SIZE, mode="bicubic", align_corners=False).clamp(0, 255).byte()[0]


@pytest.fixture
def cores(monkeypatch):
    """Set the number of cores, and count how often another thread looks back."""
    threads, plain = [], looking_back.look_back

    def count(*given):
        threads.append(threading.current_thread())
        return plain(*given)

    monkeypatch.setattr(looking_back, "look_back", count)

    def set_cores(number):
        monkeypatch.setattr(looking_back, "count_cores", lambda: number)
        threads.clear()
        return threads

    return set_cores


def make_engine(name):
    torch.manual_seed(0)
    if name == "baseline":
        return to_engine(BASELINES["enet"](5).eval())
    model = fanet18(5).eval()
    return streamseg.accelerate(model) if name == "fast" else to_engine(model)


def label_two(engine, **given):
    """Label two frames of one stream beside a first frame of another; return all predictions."""
    frames = torch.stack([picture(0), picture(1)])
    batch = FrameBatch(frames, None, [0.0, 0.0], [SIZE] * 2, True, STEADY_HIGH)
    with torch.no_grad():
        first, _ = engine.predict(batch)
        moved = batch._replace(images=frames.roll((1, 2), (2, 3)), gaps=[0.04, 0.04], **given)
        second, _ = engine.predict(moved._replace(evidence=[first[0].evidence, None]))
    return [*first, *second]


@pytest.mark.parametrize(
    ("name", "masked"), [("eager", False), ("eager", True), ("fast", False), ("fast", True), ("baseline", False)]
)
def test_labels_are_the_same_beside_the_network_and_after_it(cores, name, masked):
    engine, mask = make_engine(name), torch.ones(2, *SIZE)
    mask[:, 40:] = 0
    given = {"mask": mask} if masked else {}
    threads = cores(1)
    expected = label_two(engine, **given)
    assert set(threads) == {threading.current_thread()}
    threads = cores(torch.get_num_threads() + 1)
    found = label_two(engine, **given)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
    for one, other in zip(found, expected, strict=True):
        # sums of other numbers of threads are rounded differently
        assert (one.labels != other.labels).float().mean() < 0.001
        for part, expected_part in zip(one.evidence, other.evidence, strict=True):
            torch.testing.assert_close(part, expected_part, rtol=1e-3, atol=1e-3)
        assert not any(part.is_inference() for part in (one.labels, one.confidence, *one.evidence))


def test_a_first_frame_starts_nothing(cores):
    threads = cores(99)
    for evidence in ([None], []):
        with looking_back.looking_back(picture(0)[None], evidence, [0.0], STEADY_HIGH) as looked_back:
            assert looked_back is None
    assert threads == []


def second_frame(engine, **changed):
    """A batch of one frame, and the evidence of the one before."""
    batch = FrameBatch(picture(0)[None], None, [0.0], [SIZE], False, replace(STEADY_HIGH, mirror=False))
    with torch.no_grad():
        (first,), _ = engine.predict(batch)
    return batch._replace(images=picture(1)[None], evidence=[first.evidence], gaps=[0.04], **changed)


def test_evidence_of_another_size_is_looked_at_again_when_the_scores_are_known(cores):
    engine = make_engine("eager")
    batch = second_frame(engine)
    luma, scores, *rest = batch.evidence[0]
    small = Evidence(luma[::2, ::2].contiguous(), scores[:, ::2, ::2].contiguous(), *rest)
    batch = batch._replace(evidence=[small])
    with torch.no_grad():
        cores(1)
        (expected,), _ = engine.predict(batch)
        threads = cores(99)
        (found,), _ = engine.predict(batch)
    assert [thread is threading.current_thread() for thread in threads] == [False, True]
    assert found.labels.equal(expected.labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_stream_of_a_gpu_goes_on_on_the_cpu(cores):
    engine = make_engine("eager")
    batch = second_frame(engine)
    with torch.no_grad():
        (expected,), _ = engine.predict(batch)
        for number in (1, 99):
            cores(number)
            elsewhere = Evidence(*(part.cuda() for part in batch.evidence[0]))
            (found,), _ = engine.predict(batch._replace(evidence=[elsewhere]))
            assert found.labels.equal(expected.labels)


def test_scores_of_any_device_give_their_shape_alone(cores, monkeypatch):
    cores(99)
    devices = []
    monkeypatch.setattr(looking_back, "look_back", lambda *given: devices.append(given[4].device.type))
    evidence = Evidence(*(torch.zeros(size, device="meta") for size in ((16, 24), (5, 8, 12), SIZE)))
    with looking_back.looking_back(picture(0)[None], [evidence], [0.04], STEADY_HIGH) as looked_back:
        looked_back.result()
    assert devices == ["cpu"]


def test_an_error_beside_the_network_is_not_lost(cores, monkeypatch):
    cores(99)
    engine = make_engine("baseline")
    batch = second_frame(engine)
    monkeypatch.setattr(looking_back, "shrink_to_luma", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), torch.no_grad():
        engine.predict(batch)


def test_after_an_error_of_the_network_nothing_reads_the_frames(cores, monkeypatch):
    cores(99)
    engine = make_engine("baseline")
    batch = second_frame(engine)
    began, ended = threading.Event(), []

    def look_slowly(*_):
        began.set()
        time.sleep(0.2)
        ended.append(True)

    def fail(_):
        assert began.wait(60)
        raise ValueError("of the network")

    monkeypatch.setattr(looking_back, "look_back", look_slowly)
    monkeypatch.setattr(engine, "score", fail)
    with pytest.raises(ValueError, match="of the network"), torch.no_grad():
        engine.predict(batch)
    assert ended == [True]


def test_who_comes_while_the_thread_works_looks_back_itself(cores):
    engine = make_engine("baseline")
    batch = second_frame(engine)
    threads = cores(99)
    with looking_back.BUSY, torch.no_grad():
        engine.predict(batch)
    assert threads == [threading.current_thread()]
    with torch.no_grad():
        engine.predict(batch)
    assert threads[1] is not threading.current_thread()


class SlowLock:
    """A lock that is released late."""

    def __init__(self):
        self.lock = threading.Lock()
        self.acquire = self.lock.acquire

    def release(self):
        time.sleep(0.1)
        self.lock.release()


def test_the_thread_is_free_when_its_result_is_there(cores, monkeypatch):
    cores(99)
    batch = second_frame(make_engine("baseline"))
    monkeypatch.setattr(looking_back, "BUSY", SlowLock())
    for _ in range(3):
        with looking_back.looking_back(batch.images, batch.evidence, batch.gaps, batch.steady) as looked_back:
            assert looked_back is not None
            looked_back.result()


def test_an_error_in_starting_the_thread_reaches_the_caller(monkeypatch):
    make_thread.cache_clear()
    monkeypatch.setattr(looking_back, "set_torch_threads", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_thread(0)


def test_the_thread_computes_with_one_thread_and_all_others_as_before():
    before = torch.get_num_threads()
    make_thread.cache_clear()
    numbers = []

    def ask():
        numbers.append(torch.get_num_threads())

    try:
        set_torch_threads(3)
        run_in_thread(lambda: numbers.append(make_thread(0).submit(torch.get_num_threads).result()))
        ask()
        run_in_thread(ask)
        assert numbers == [1, 3, 3]
    finally:
        set_torch_threads(before)
        make_thread.cache_clear()


def test_the_thread_is_no_daemon_even_if_one_starts_it():
    make_thread.cache_clear()
    daemons = []
    run_in_thread(lambda: daemons.append(make_thread(0).submit(lambda: threading.current_thread().daemon).result()))
    make_thread.cache_clear()
    assert daemons == [False]


def run_in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")
def test_a_forked_process_looks_back_in_a_thread_of_its_own():
    program = """
import os, threading, torch
torch.set_num_threads(1)
from streamseg.engine import looking_back
looking_back.count_cores = lambda: 99
parent = looking_back.make_thread(os.getpid()).submit(threading.get_native_id).result()
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
own = looking_back.make_thread(os.getpid()).submit(threading.get_native_id).result(timeout=60)
os._exit(0 if own != parent else 1)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0


def test_a_thread_that_outlives_the_main_one_labels_to_its_end(tmp_path):
    program = """
import threading, time, torch
torch.set_num_threads(1)
import streamseg
from streamseg.engine import looking_back
looking_back.count_cores = lambda: 99
model = streamseg.fanet18(5).eval()
frames = torch.randint(0, 256, (6, 3, 64, 96), dtype=torch.uint8)

def label():
    policy = streamseg.LastFrames(1, steady=streamseg.STEADY_LOW)
    for i, _ in enumerate(streamseg.label_frames(model, frames, policy)):
        if i == 1:
            threading.main_thread().join()
            time.sleep(0.2)
    print(i + 1, "frames")

threading.Thread(target=label).start()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout) == (0, "6 frames\n"), run.stderr
