"""Short training runs that several test files share."""

from dataclasses import replace

import torch

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
    rate=2e-3,
    warm_up=0.3,
    clip=5.0,
    auxiliary=0.4,
    class_weighting=0.3,
    ema=0.9,
)

FANET = replace(TINY, network="fanet18")


def run(data, out, config=TINY, **options):
    return train(config, data, out, device=CPU, **{"initial": "nothing", **options})
