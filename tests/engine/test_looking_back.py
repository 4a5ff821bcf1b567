"""Frames are compared with those before beside the network, if a core is free: with the same labels as after it."""

import threading
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.engine import looking_back
from streamseg.engine.engine import FrameBatch, to_engine
from streamseg.engine.evidence import Evidence
from streamseg.engine.looking_back import free_thread, start_looking_back
from streamseg.engine.steadying import STEADY_HIGH
from streamseg.models.baselines import BASELINES
from streamseg.models.fanet import fanet18

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
    one.evidence.scores.add_(1)  # no tensor of inference mode, which could not be changed


def test_a_first_frame_starts_nothing(cores):
    threads = cores(99)
    assert start_looking_back(picture(0)[None], [None], [0.0], STEADY_HIGH) is None
    assert start_looking_back(picture(0)[None], [], [0.0], STEADY_HIGH) is None
    assert threads == []


def test_evidence_of_another_size_is_looked_at_again_when_the_scores_are_known(cores):
    engine, frame = make_engine("eager"), picture(0)[None]
    batch = FrameBatch(frame, None, [0.0], [SIZE], False, replace(STEADY_HIGH, mirror=False))
    with torch.no_grad():
        (first,), _ = engine.predict(batch)
        luma, scores, *rest = first.evidence
        small = Evidence(luma[::2, ::2].contiguous(), scores[:, ::2, ::2].contiguous(), *rest)
        now = batch._replace(evidence=[small], gaps=[0.04])
        cores(1)
        (expected,), _ = engine.predict(now)
        threads = cores(99)
        (found,), _ = engine.predict(now)
    assert [thread is threading.current_thread() for thread in threads] == [False, True]
    assert found.labels.equal(expected.labels)


def test_an_error_beside_the_network_is_not_lost(cores, monkeypatch):
    cores(99)
    monkeypatch.setattr(looking_back, "shrink_to_luma", lambda *_: 1 / 0)
    engine, frame = make_engine("baseline"), picture(0)[None]
    evidence = Evidence(torch.zeros(16, 24), torch.zeros(5, 8, 12), torch.zeros(SIZE, dtype=torch.uint8))
    with pytest.raises(ZeroDivisionError), torch.no_grad():
        engine.predict(FrameBatch(frame, None, [0.0], [SIZE], False, STEADY_HIGH, evidence=[evidence], gaps=[0.04]))


def test_the_free_thread_computes_with_one_thread_and_others_as_before():
    threads = torch.get_num_threads()
    free_thread.cache_clear()
    assert free_thread(0).submit(torch.get_num_threads).result() == 1
    assert torch.get_num_threads() == threads
    seen = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [threads]


def test_a_forked_process_has_a_free_thread_of_its_own():
    assert free_thread(1) is free_thread(1)
    assert free_thread(1) is not free_thread(2)
