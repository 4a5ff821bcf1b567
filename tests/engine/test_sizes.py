"""Which sizes are kept ready, against a simulated clock and on the fast form itself."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

from streamseg.engine import fast
from streamseg.engine.engine import FrameBatch
from streamseg.engine.sizes import RECENT, SizeCounter

EAGER, CAPTURE = 5.0, 2000.0
"""What a frame takes without a graph, and what a graph takes to be made, in frames that have one."""


class Clock:
    """What the fast form spends on a GPU, where graphs are none: it shows on any machine."""

    def __init__(self, engine, monkeypatch):
        self.engine, self.now, self.captures = engine, 0.0, Counter()
        self.seen = None
        engine.run = lambda ready: self.spend(EAGER)
        monkeypatch.setattr(fast, "capture_graph", self.record)

    def spend(self, seconds):
        self.now += seconds

    def record(self, run, device):
        self.captures[self.seen] += 1
        self.spend(CAPTURE)
        return SimpleNamespace(replay=lambda: self.spend(1.0))

    def see(self, number):
        """Let it see a frame of one of many sizes; how long that took."""
        begin, self.seen = self.now, number
        replay(self.engine, 32, 32 + number)
        return self.now - begin


@pytest.fixture
def clock(model, monkeypatch):
    return Clock(fast.accelerate(model), monkeypatch)


def sizes_of(kind, count, seed=0):
    """Sizes of requests: all alike, in turn, or most of a few."""
    dice = random.Random(seed)
    if kind == "in turn":
        return [i % 20 for i in range(count)]
    if kind == "at random":
        return [dice.randrange(20) for _ in range(count)]
    if kind == "mostly three":
        return [dice.randrange(3) if dice.random() < 0.9 else dice.randrange(3, 1000) for _ in range(count)]
    return list(range(count))


@pytest.mark.parametrize("kind", ["in turn", "at random", "mostly three", "never the same"])
def test_many_sizes_prepare_few_and_each_about_once(clock, kind):
    numbers = sizes_of(kind, 3000)
    took = [clock.see(number) for number in numbers]
    assert len(clock.engine.ready) == fast.MAX_GRAPHS
    assert clock.captures.total() <= 2 * fast.MAX_GRAPHS
    # no frame takes longer than one graph, and a size that comes once does not even take that
    assert max(took) <= CAPTURE + 1
    if kind == "mostly three":
        assert [clock.captures[number] for number in range(3)] == [1, 1, 1]
        assert all(clock.see(number) == 1.0 for number in range(3))
    if kind == "never the same":
        assert not clock.captures


def test_a_size_that_has_become_common_takes_the_place_of_one_that_no_longer_comes(clock):
    for number in [*range(fast.MAX_GRAPHS)] * 30:
        clock.see(number)
    assert clock.captures == Counter(range(fast.MAX_GRAPHS))
    took = [clock.see(fast.MAX_GRAPHS) for _ in range(RECENT)]
    assert took[-1] == 1.0
    assert clock.captures.total() == fast.MAX_GRAPHS + 1


def test_a_patient_engine_takes_no_longer_for_a_size_than_without_a_graph(clock):
    clock.engine.capture_when_idle = True
    took = [clock.see(number) for number in sizes_of("mostly three", 300)]
    assert set(took) == {EAGER}
    while clock.engine.capture_next():
        pass
    assert all(clock.see(number) == 1.0 for number in range(3))


@given(st.lists(st.integers(0, 30), max_size=1200))
def test_the_counts_are_those_of_the_last_frames(keys):
    sizes = SizeCounter(8)
    for key in keys:
        sizes.note(key)
    assert sizes.counts == Counter(keys[-RECENT:])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=800))
def test_a_size_that_comes_once_drives_none_out_that_came_lately(keys):
    sizes = SizeCounter(8)
    for key in keys:
        sizes.note(key)
    kept = list(dict.fromkeys(keys[-RECENT:]))[:8]
    sizes.note("once")
    assert sizes.admits("once", kept) == (len(kept) < 8 or not all(sizes.counts[key] for key in kept))


# the fast form


@pytest.fixture
def graphs(monkeypatch):
    """Graphs that are none, so that what is kept ready shows on any machine; `made` is how many."""
    made = SimpleNamespace(count=0)

    def record(run, device):
        made.count += 1
        return SimpleNamespace(replay=run)

    monkeypatch.setattr(fast, "capture_graph", record)
    return made


def frames(*size):
    return FrameBatch(torch.zeros(1, 3, *size, dtype=torch.uint8), None, [0.0], [size])


def replay(engine, *size):
    with torch.no_grad():
        return engine.replay(frames(*size), torch.Size((1, 3, *size)))


def test_a_graph_is_made_when_a_size_comes_again_and_kept_while_others_come_once(model, graphs):
    engine = fast.accelerate(model)
    assert replay(engine, 64, 64).graph is None
    assert replay(engine, 64, 64).graph is not None
    for side in range(32, 32 + 2 * fast.MAX_GRAPHS):
        replay(engine, 32, side)
        assert replay(engine, 64, 64).graph is not None
    assert graphs.count == 1
    assert len(engine.ready) == fast.MAX_GRAPHS


def test_a_patient_engine_makes_graphs_only_when_told_to_the_commonest_first(model, graphs):
    engine = fast.accelerate(model)
    engine.capture_when_idle = True
    for size, times in (((32, 32), 3), ((64, 64), 5), ((32, 64), 1)):
        for _ in range(times):
            replay(engine, *size)
    assert graphs.count == 0
    assert engine.capture_next() is True
    assert replay(engine, 64, 64).graph is not None
    assert replay(engine, 32, 32).graph is None
    assert engine.capture_next() is False
    assert graphs.count == 2
    assert engine.capture_next() is False
    assert replay(engine, 32, 32).graph is not None
    assert graphs.count == 2  # of the size that came once there is none


def test_labels_are_the_same_whether_a_size_is_kept_ready_or_not(model, graphs):
    engine = fast.accelerate(model)
    dice = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8, generator=dice)
    views = FrameBatch(image, None, [0.0], [(64, 96)])
    with torch.no_grad():
        first = engine.replay(views, image.shape).labels.clone()
        for side in range(32, 32 + 2 * fast.MAX_GRAPHS):
            for _ in range(3):
                replay(engine, 32, side)
        assert first.equal(engine.replay(views, image.shape).labels)
        assert first.equal(engine.replay(views, image.shape).labels)
