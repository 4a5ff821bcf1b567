"""Which sizes keep their graphs, against a simulated clock and in the fast engine itself."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

from streamseg.engine import fast
from streamseg.engine.engine import FrameBatch
from streamseg.engine.pick import accelerate
from streamseg.engine.sizes import RECENT, SizeCounter

EAGER, CAPTURE = 5.0, 2000.0
"""Time of a frame without a graph, and of the capture of a graph, in units of a frame with a graph."""


class Clock:
    """Simulates the time that the fast engine spends on a GPU."""

    def __init__(self, engine, monkeypatch):
        self.engine, self.now, self.captures = engine, 0.0, Counter()
        self.current = None
        engine.run = lambda buffers: self.spend(EAGER)
        monkeypatch.setattr(fast, "capture_graph", self.record)

    def spend(self, seconds):
        self.now += seconds

    def record(self, run, device):
        self.captures[self.current] += 1
        self.spend(CAPTURE)
        return SimpleNamespace(replay=lambda: self.spend(1.0))

    def label(self, number):
        """Run a frame of one of many sizes and return the time that it took."""
        begin, self.current = self.now, number
        run_batch(self.engine, 32, 32 + number)
        return self.now - begin


@pytest.fixture
def clock(model, monkeypatch):
    return Clock(accelerate(model), monkeypatch)


def sizes_of(kind, count, seed=0):
    """Return sizes of requests: equally frequent, in turn, or mostly a few."""
    dice = random.Random(seed)
    if kind == "in turn":
        return [i % 20 for i in range(count)]
    if kind == "at random":
        return [dice.randrange(20) for _ in range(count)]
    if kind == "mostly three":
        return [dice.randrange(3) if dice.random() < 0.9 else dice.randrange(3, 1000) for _ in range(count)]
    return list(range(count))


@pytest.mark.parametrize("kind", ["in turn", "at random", "mostly three", "never the same"])
def test_with_many_sizes_few_graphs_are_captured_and_each_about_once(clock, kind):
    numbers = sizes_of(kind, 3000)
    took = [clock.label(number) for number in numbers]
    assert len(clock.engine.buffers) == fast.MAX_GRAPHS
    assert clock.captures.total() <= 2 * fast.MAX_GRAPHS
    # no frame takes longer than one capture, and a size that comes once is not captured
    assert max(took) <= CAPTURE + 1
    if kind == "mostly three":
        assert [clock.captures[number] for number in range(3)] == [1, 1, 1]
        assert all(clock.label(number) == 1.0 for number in range(3))
    if kind == "never the same":
        assert not clock.captures


def test_a_size_that_becomes_frequent_replaces_one_that_no_longer_comes(clock):
    for number in [*range(fast.MAX_GRAPHS)] * 30:
        clock.label(number)
    assert clock.captures == Counter(range(fast.MAX_GRAPHS))
    took = [clock.label(fast.MAX_GRAPHS) for _ in range(RECENT)]
    assert took[-1] == 1.0
    assert clock.captures.total() == fast.MAX_GRAPHS + 1


@given(st.lists(st.integers(0, 30), max_size=1200))
def test_the_counts_are_those_of_the_last_frames(keys):
    sizes = SizeCounter(8)
    for key in keys:
        sizes.add(key)
    assert sizes.counts == Counter(keys[-RECENT:])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=800))
def test_a_size_that_comes_once_replaces_no_recent_one(keys):
    sizes = SizeCounter(8)
    for key in keys:
        sizes.add(key)
    kept = list(dict.fromkeys(keys[-RECENT:]))[:8]
    sizes.add("once")
    assert sizes.admits("once", kept) == (len(kept) < 8 or not all(sizes.counts[key] for key in kept))


# in the fast engine


@pytest.fixture
def graphs(monkeypatch):
    """Replace CUDA graphs by plain functions and count the captures."""
    made = SimpleNamespace(count=0)

    def record(run, device):
        made.count += 1
        return SimpleNamespace(replay=run)

    monkeypatch.setattr(fast, "capture_graph", record)
    return made


def frames(*size):
    return FrameBatch(torch.zeros(1, 3, *size, dtype=torch.uint8), None, [0.0], [size])


def run_batch(engine, *size):
    with torch.no_grad():
        return engine.run_batch(frames(*size), torch.Size((1, 3, *size)))


def test_a_graph_is_captured_when_a_size_comes_again_and_kept_while_others_come_once(model, graphs):
    engine = accelerate(model)
    assert run_batch(engine, 64, 64).graph is None
    assert run_batch(engine, 64, 64).graph is not None
    for side in range(32, 32 + 2 * fast.MAX_GRAPHS):
        run_batch(engine, 32, side)
        assert run_batch(engine, 64, 64).graph is not None
    assert graphs.count == 1
    assert len(engine.buffers) == fast.MAX_GRAPHS


def test_a_size_that_another_engine_has_labelled_is_worth_a_graph_when_it_comes_again(model, graphs):
    engine, size = accelerate(model), (torch.Size((1, 3, 64, 64)), False, False, False, None)
    assert [engine.is_frequent(size) for _ in range(3)] == [False, True, True]
    for side in range(32, 32 + fast.MAX_GRAPHS):
        for _ in range(20):
            run_batch(engine, 32, side)
    # now it is rare among as many sizes as are kept
    assert not engine.is_frequent(size)
    engine.keep_buffers(size, engine.allocate(size))  # as if a preparation had begun before
    assert len(engine.buffers) == fast.MAX_GRAPHS
    assert size in engine.buffers


def test_labels_are_the_same_with_and_without_a_graph(model, graphs):
    engine = accelerate(model)
    dice = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8, generator=dice)
    batch = FrameBatch(image, None, [0.0], [(64, 96)])
    with torch.no_grad():
        first = engine.run_batch(batch, image.shape).labels.clone()
        for side in range(32, 32 + 2 * fast.MAX_GRAPHS):
            for _ in range(3):
                run_batch(engine, 32, side)
        assert first.equal(engine.run_batch(batch, image.shape).labels)
        assert first.equal(engine.run_batch(batch, image.shape).labels)
