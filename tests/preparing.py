"""A fast engine whose preparation a test holds up."""

import threading

import torch

from streamseg.engine.buffers import key_of
from streamseg.engine.fast import FastEngine


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
