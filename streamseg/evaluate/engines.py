"""Open weights for an evaluation: eager in fp32, in a fast precision, or averaged over scales and flips.

Shapes: B batch, K classes, H height, W width.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.classes import Classes
from streamseg.data.datasets import Dataset
from streamseg.engine.engine import EagerEngine, Engine, ImageEngine, VideoEngine
from streamseg.engine.fast import CALIBRATION_FRAMES, FastEngine
from streamseg.engine.open import open_engine
from streamseg.engine.pick import accelerate
from streamseg.models.checkpoint import Network
from streamseg.models.fanet import FANet


def open_evaluation_engine(
    weights: Path | None,
    device: torch.device,
    dataset: Dataset,
    *,
    precision: str = "",
    scales: Sequence[float] = (1.0,),
    flip: bool = False,
    trust: bool = False,
) -> tuple[Engine, Classes]:
    """Open a checkpoint or an exported file as an engine to evaluate on a data set; return it with its classes.

    Args:
        weights: A checkpoint, an exported file, or the name of bundled weights; None for the default of these.
        precision: Precision of the fast form; empty for the network itself, eager in fp32.
        scales: Sizes of the network input, relative to the frame; their probabilities are averaged.
        flip: Average with the mirrored frame as well.
        trust: Allow a .pt2 file, which is a program, to run.
    """
    averaged = flip or tuple(scales) != (1.0,)
    if precision and averaged:
        raise ValueError("--precision works with one scale and no flip: leave out --scales and --flip.")
    engine, classes, _ = open_engine(weights, device, "fp32", eager=True, trust=trust)
    if isinstance(engine, VideoEngine) and (averaged or precision):
        name = engine.model.name
        raise ValueError(f"{name} is a video method, which runs as it is: leave out --precision, --scales and --flip.")
    if not isinstance(engine, EagerEngine | ImageEngine):
        if averaged:
            raise ValueError(f"{weights} returns labels, not scores to average: leave out --scales and --flip.")
        return engine, classes
    if averaged:
        return averaging_engine(engine.model, scales, flip), classes
    return accelerate_for(dataset, engine.model, precision) if precision else engine, classes


def accelerate_for(dataset: Dataset, network: Network, precision: str) -> FastEngine:
    """Return the fast form of a network; int8 is calibrated on frames of the data set."""
    if isinstance(network, FANet):
        frames = sample_frames(dataset, CALIBRATION_FRAMES) if precision == "int8" else ()
        engine = accelerate(network, precision, frames)
        if isinstance(engine, FastEngine):
            return engine
    raise ValueError(f"This {network.name} has no fast form: leave out --precision.")


def sample_frames(dataset: Dataset, count: int) -> list[Tensor]:
    """Return up to `count` frames, evenly spread over a data set."""
    return [dataset[i][0] for i in range(0, len(dataset), max(1, -(-len(dataset) // count)))]


def averaging_engine(network: Network, scales: Sequence[float] = (1.0,), flip: bool = False) -> Engine:
    """Return an engine that labels frames by the scores of average_scores."""
    check_scales(scales)
    return ImageEngine(network, partial(average_scores, network, scales=scales, flip=flip))


def average_scores(network: nn.Module, frames: Tensor, scales: Sequence[float] = (1.0,), flip: bool = False) -> Tensor:
    """Return the mean probabilities (B, K, H, W) of frames (B, 3, H, W) over scales and flips.

    With one scale of 1 and no flip, return the network's own logits, so that the labels are exactly its own.
    """
    check_scales(scales)
    if list(scales) == [1] and not flip:
        return network(frames)
    height, width = frames.shape[-2:]
    total = torch.zeros((), device=frames.device)
    for scale in scales:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        scaled = frames if scale == 1 else F.interpolate(frames.float(), size, mode="bilinear", antialias=True)
        probabilities = resized_softmax(network(scaled), (height, width))
        if flip:
            mirrored = resized_softmax(network(scaled.flip(-1)).flip(-1), (height, width))
            probabilities = (probabilities + mirrored) / 2
        total = total + probabilities
    return total / len(scales)


def check_scales(scales: Sequence[float]) -> None:
    """Raise a ValueError if a scale is not a positive number."""
    if not scales or not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise ValueError(f"The scales are {list(scales)}; expected one or more numbers above 0, such as 1.0.")


def resized_softmax(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the probabilities of logits that are resized to a height and width."""
    return F.interpolate(logits.float(), size, mode="bilinear", align_corners=False).softmax(dim=1)
