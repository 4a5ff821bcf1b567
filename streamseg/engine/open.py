"""Open weights as an engine."""

from pathlib import Path
from typing import NamedTuple

import torch

from streamseg.classes import Classes
from streamseg.engine.engine import EagerEngine, Engine
from streamseg.engine.fast import FastEngine
from streamseg.engine.pick import pick_engine
from streamseg.engine.prepare import PreparingEngine
from streamseg.engine.runtime import OPENERS, ExportedEngine, open_exported
from streamseg.models import checkpoint
from streamseg.models.bundled import find_weights
from streamseg.models.fanet import FANet
from streamseg.models.video import VideoMethod


class OpenedEngine(NamedTuple):
    """An engine, and the metadata of its weights."""

    engine: Engine
    classes: Classes
    window: int
    """Number of frames that the weights were trained on; 1 for an exported file without video state."""


def open_engine(
    weights: Path | None, device: torch.device, precision: str = "", *, eager: bool = False, trust: bool = False
) -> OpenedEngine:
    """Open a checkpoint or an exported file as the fastest engine for a device.

    Args:
        weights: A checkpoint, an exported file (.onnx, .xml, .pt2), or the name of bundled weights; None for the
            default of these.
        precision: fp32, fp16, bf16 or int8; the default is fp16 on a GPU and fp32 on the CPU.
        eager: Keep the network itself, which tiles need, instead of its fast form.
        trust: Allow a .pt2 file, which is a program, to run.
    """
    model, classes, window = open_weights(weights, device, trust=trust)
    return OpenedEngine(pick_engine(model, device, precision, eager=eager), classes, window)


def open_preparing_engine(
    weights: Path | None, device: torch.device, precision: str = "", *, eager: bool = False, trust: bool = False
) -> OpenedEngine:
    """Open weights like open_engine, for labels at once.

    On a GPU the network itself labels frames while the fast engine is prepared for their size in the background. Its
    labels are the same up to rounding, so that two runs may differ: verbs that measure use open_engine.
    """
    model, classes, window = open_weights(weights, device, trust=trust)
    engine = pick_engine(model, device, precision, eager=eager)
    if isinstance(engine, FastEngine) and device.type == "cuda":
        assert isinstance(model, FANet)
        # the fast engine has its own weights by now
        engine = PreparingEngine(EagerEngine(model.to(engine.precision)), engine)
    return OpenedEngine(engine, classes, window)


def open_weights(
    path: Path | None, device: torch.device, *, trust: bool = False
) -> tuple["checkpoint.Network | ExportedEngine", Classes, int]:
    """Return the network in a checkpoint, or an exported file; its classes; and the window that it was trained on.

    The window of an exported file without video state, and of a video method, which has an interval instead, is 1.

    Args:
        path: A checkpoint, an exported file (.onnx, .xml, .pt2), or the name of bundled weights; None for the default
            of these.
        device: Device on which an exported file runs.
        trust: Allow a .pt2 file, which is a program, to run.
    """
    path = find_weights(path)
    if path.suffix.lower() not in OPENERS:
        model, description = checkpoint.read_checkpoint(path)
        return model, description.classes, 1 if isinstance(model, VideoMethod) else description.window
    file = open_exported(path, device, trust=trust)
    return file, file.manifest.classes, file.manifest.window if file.manifest.state else 1
