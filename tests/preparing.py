"""A fast engine whose preparation a test holds up, an engine that waits for it, and frames for both."""

import threading

import pytest
import torch

from streamseg.engine.buffers import key_of
from streamseg.engine.engine import EagerEngine, FrameBatch
from streamseg.engine.fast import FastEngine
from streamseg.engine.prepare import PreparingEngine


class SlowEngine(FastEngine):
    """A fast engine on the CPU whose preparation waits until a test lets it go on."""

    def __init__(self, model, precision=torch.float32):
        super().__init__(model, precision)
        self.may_go_on, self.started = threading.Event(), threading.Semaphore(0)
        self.ready, self.asked, self.labelled, self.error = set(), [], [], None

    def is_prepared(self, key):
        return key in self.ready

    def prepare(self, batch):
        key = key_of(batch)
        self.asked.append(key)
        self.started.release()
        while not self.may_go_on.wait(0.01):
            pass
        if self.error:
            raise self.error
        self.ready.add(key)

    def predict(self, batch):
        self.labelled.append(batch.images.shape)
        return super().predict(batch)


@pytest.fixture
def slow(plus):
    return SlowEngine(plus)


@pytest.fixture
def engine(plus, slow):
    made = PreparingEngine(EagerEngine(plus), slow)
    yield made
    slow.may_go_on.set()
    made.preparation.stop()


@pytest.fixture
def frames():
    dice = torch.Generator().manual_seed(0)
    picture = torch.randint(0, 256, (3, 10, 20), dtype=torch.uint8, generator=dice).float()
    still = torch.nn.functional.interpolate(picture[None], (96, 160), mode="bilinear")[0].byte()
    return [still.roll(4 * i, dims=2) for i in range(8)]


def batch_of(*shape, confidence=False):
    images = torch.zeros(shape[0], 3, *shape[1:], dtype=torch.uint8)
    return FrameBatch(images, None, [0.0] * shape[0], [shape[1:]] * shape[0], confidence)


def agreement(ours, theirs):
    return min((a == b).float().mean().item() for a, b in zip(ours, theirs, strict=True))
