"""Which engines keep the labels of videos steady without being asked."""

import pytest
import torch

import streamseg
from streamseg.cli.options import steady_by_default
from streamseg.engine.engine import EagerEngine, ImageEngine, VideoEngine
from streamseg.engine.fast import FastEngine
from streamseg.engine.prepare import PreparingEngine
from streamseg.models.baselines import BASELINES
from streamseg.models.video import VIDEO_METHODS

LOW = streamseg.STEADY_LOW
MAKERS = {
    "fast": lambda model: FastEngine(model, torch.float32),
    "preparing": lambda model: PreparingEngine(EagerEngine(model), FastEngine(model, torch.float32)),
    "eager": EagerEngine,
    "baseline": lambda _: ImageEngine(network := BASELINES["enet"](5).eval(), network),
    "video method": lambda _: VideoEngine(VIDEO_METHODS["dff-fanet18"](5).eval()),
}


@pytest.mark.parametrize(
    ("kind", "on_cpu", "on_gpu"),
    [
        ("fast", LOW, LOW),
        ("preparing", LOW, LOW),
        ("eager", LOW, 0.0),
        ("baseline", LOW, 0.0),
        ("video method", 0.0, 0.0),
    ],
)
def test_videos_are_steady_where_that_costs_little(kind, on_cpu, on_gpu, model, monkeypatch):
    engine, policy = MAKERS[kind](model), streamseg.LastFrames(3)
    assert steady_by_default(policy, engine) == streamseg.LastFrames(3, steady=on_cpu)
    monkeypatch.setattr(type(engine), "device", torch.device("cuda"))
    assert steady_by_default(policy, engine) == streamseg.LastFrames(3, steady=on_gpu)
