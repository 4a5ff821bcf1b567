"""Short training runs that several test files share."""

import json
from dataclasses import replace

import torch

import streamseg
from streamseg.train.config import TrainConfig
from streamseg.train.loop import train

CPU = torch.device("cpu")
TINY = TrainConfig(
    dataset="folder",
    network="enet",  # whose state has a twentieth of the bytes of a FANet's
    crop=(64, 64),
    iterations=6,
    validate_every=3,
    batch=2,
    optimiser="adamw",
    learning_rate=2e-3,
    warm_up=0.3,
    grad_clip=5.0,
    auxiliary_loss=0.4,
    class_weighting=0.3,
    ema_decay=0.9,
)

FANET = replace(TINY, network="fanet18")

EVERY = 4
"""Iterations between log entries: one after 4 and one at the end, so that a stop after 3 or 5 is between two."""


def run(data, out, config=TINY, **options):
    return train(config, data, out, device=CPU, **{"initial": "nothing", **options})


def entries(out, *names):
    found = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [{name: entry.get(name) for name in ("step", *names)} for entry in found]


def assert_same_run(out, alone):
    ours, theirs = (torch.load(path / "state.pt", weights_only=True) for path in (out, alone))
    assert ours.pop("settings") == theirs.pop("settings")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    (network, classes), (same, same_classes) = (streamseg.load(path / "weights.safetensors") for path in (out, alone))
    torch.testing.assert_close(network.state_dict(), same.state_dict(), rtol=0, atol=0)
    assert classes == same_classes
    told = ("loss", "rate", "val_miou", "val_iou")
    assert entries(out, *told) == entries(alone, *told)
