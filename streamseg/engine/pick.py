"""The fastest engine for a network, on a device and in a precision."""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from streamseg.checks import check_choice
from streamseg.engine.convolutions import has_int8
from streamseg.engine.engine import EagerEngine, Engine, ImageEngine, to_engine
from streamseg.engine.fast import FastEngine
from streamseg.engine.inputs import check_model
from streamseg.io.images import Picture
from streamseg.models.attention import FastAttention
from streamseg.models.checkpoint import Network
from streamseg.models.encoder import ResNet
from streamseg.models.fanet import FANet
from streamseg.models.fanet_plus import FANetPlus

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.uint8}
"""Precisions by their names on the command line."""


def accelerate(
    model: FANet, precision: str | None = None, calibration: Sequence[Picture] = ()
) -> FastEngine | EagerEngine | ImageEngine:
    """Return the fast form of a network, an engine that gives the same labels in less time.

    Call it as a function, `labels = fast(frame)`, from any number of threads, or pass it to any function that takes a
    network. It has a copy of the weights: call accelerate again after they have changed.

    Args:
        precision: fp16 (the default) or bf16 on a GPU; fp32 (the default) or int8 on the CPU.
        calibration: Frames for the calibration of int8; without any, the first frames that it labels.

    Returns:
        For a network without a fast form, such as one with SelfAttention: an engine that runs the network itself, in
        the given precision.
    """
    check_model(model)
    device = next(model.parameters()).device
    supported = fast_precisions(device)
    if precision == "int8" and device.type != "cuda":
        check_int8(model)
    check_choice("precision", supported[0] if precision is None else precision, supported)
    if not why_not_fast(model):
        return FastEngine(model, PRECISIONS[precision or supported[0]], calibration)
    if precision and next(model.parameters()).dtype != PRECISIONS[precision]:
        model = copy.deepcopy(model).to(PRECISIONS[precision])
    engine = to_engine(model)
    assert isinstance(engine, (EagerEngine, ImageEngine))
    return engine


def why_not_fast(model: nn.Module) -> str:
    """Return why a network has no fast form; empty if it has one."""
    if not isinstance(model, FANet) or type(model) not in (FANet, FANetPlus):
        return "the network is " + type(model).__name__
    if type(model.encoder) is not ResNet:
        return "this one has the encoder " + type(model.encoder).__name__
    other = next((type(attend).__name__ for attend in model.attentions if type(attend) is not FastAttention), "")
    if other:
        return "this one has " + other
    has_plain_stem = model.encoder.conv1.stride[0] == 2 and isinstance(model.encoder.pool[0], nn.Identity)
    return "" if has_plain_stem else "this one has Conv-0 reduced"


def check_int8(model: nn.Module) -> None:
    """Raise a ValueError if a network cannot run in int8 on this machine's CPU."""
    reason = why_not_fast(model)
    if reason:
        raise ValueError(f"int8 needs a FANet with fast attention, and {reason}: choose fp32.")
    if not has_int8():
        raise ValueError(f"int8 needs convolutions that torch {torch.__version__} does not have here: choose fp32.")


def fast_precisions(device: torch.device) -> tuple[str, ...]:
    """Return the precisions of the fast form on a device, the default first."""
    if device.type == "cuda":
        return ("fp16", "bf16")
    return ("fp32", "int8") if has_int8() else ("fp32",)


def pick_engine(model: Network | Engine, device: torch.device, precision: str = "", eager: bool = False) -> Engine:
    """Return the fastest engine for a network on a device; an engine is returned unchanged.

    Args:
        precision: fp32, fp16, bf16 or, on the CPU, int8; the default is fp16 on a GPU and fp32 on the CPU.
        eager: Keep the network itself, which tiles need, instead of its fast form.
    """
    check_choice("precision", precision, ("", *PRECISIONS))
    if not isinstance(model, nn.Module):
        return model
    network: Network = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in torch's stub
    if isinstance(network, FANet) and not eager:
        if not precision:
            return accelerate(network)
        if not why_not_fast(network) and precision in fast_precisions(device):
            return accelerate(network, precision)
    if precision == "int8" and device.type != "cuda" and not eager:
        check_int8(network)
    precision = precision or ("fp16" if device.type == "cuda" else "fp32")
    if precision == "int8":
        raise ValueError("int8 works only on the CPU, for FANets, and without tiles: choose fp32.")
    return to_engine(network.to(PRECISIONS[precision]))
