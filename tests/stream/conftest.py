"""Fixtures for tests of streams."""

import math
from collections import Counter
from types import SimpleNamespace

import pytest
from pipelines import fake_predictions
from streams import random_frames

from streamseg.stream import network_thread, pipeline, source_threads, source_writer


@pytest.fixture(autouse=True)
def no_statistics(monkeypatch):
    """On a machine that is busy a run may take so long that it has lines with statistics."""
    monkeypatch.setattr(pipeline, "STATISTICS_SECONDS", math.inf)


@pytest.fixture
def frames():
    return random_frames(6)


@pytest.fixture
def quick(monkeypatch):
    """A fake network that takes no time; returns the list of the batches that it labelled."""
    seen = []

    def step(model, images, states, window, **options):
        seen.append([int(image[0, 0, 0]) for image in images])
        return fake_predictions(images, **options)

    monkeypatch.setattr(network_thread, "step_batch", step)
    return seen


@pytest.fixture
def priced(monkeypatch):
    """A fake network and a clock that advances in the network only, by a price per pixel."""
    clock = SimpleNamespace(now=0.0, price=0.0, seen=[], last={})
    clock.monotonic = clock.perf_counter = lambda: clock.now

    def step(model, images, states, window, **options):
        clock.seen.append(tuple(images.shape[2:]))
        clock.last[int(images[0, 0, 0, 0])] = clock.seen[-1]
        clock.now += clock.price * images[0, 0].numel()
        return fake_predictions(images, **options)

    monkeypatch.setattr(network_thread, "step_batch", step)
    monkeypatch.setattr(network_thread, "time", clock)
    monkeypatch.setattr(source_threads, "time", clock)
    monkeypatch.setattr(source_writer, "time", clock)
    return clock


@pytest.fixture
def costly(priced, monkeypatch):
    """The same, where the first two passes at a size take a thousand times as long; 8 sizes are kept ready."""
    step, met = network_thread.step_batch, Counter()

    def prepare_and_step(model, images, states, window, **options):
        key = tuple(images.shape)
        priced.now += 1000 * priced.price * 192 * 320 * (met[key] < 2)
        met[key] += 1
        if len(met) > 8:
            del met[next(iter(met))]
        return step(model, images, states, window, **options)

    monkeypatch.setattr(network_thread, "step_batch", prepare_and_step)
    return priced
