"""Checkpoints: one safetensors file holds a network's weights and, in its metadata, all that is needed to use them.

Nothing in a file is ever run: it is JSON and numbers, and both are checked before a network is built.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from streamseg.attention import ChannelAttention, DotAttention, FastAttention, NoAttention, SelfAttention
from streamseg.classes import Classes
from streamseg.encoder import ReduceBy, Reduction, check_choice
from streamseg.files import written_whole
from streamseg.model import FANet, fanet18, fanet34

NETWORKS = {"fanet18": fanet18, "fanet34": fanet34}
ATTENTIONS = {
    kind.__name__: kind for kind in (FastAttention, DotAttention, SelfAttention, ChannelAttention, NoAttention)
}

# in the file's metadata beside "format", which other readers of safetensors look for
ENTRY = "streamseg"


@dataclass(frozen=True)
class Description:
    """What a checkpoint says of itself."""

    network: str
    """The function that builds it: fanet18 or fanet34."""
    attention: str
    key_channels: int
    reduction: Reduction
    reduce_by: ReduceBy
    classes: Classes
    window: int
    """How many frames it was trained to look at; 1 for an image network."""
    source: str
    """Where the weights came from, in words."""


def save(model: FANet, classes: Classes, path: str | Path, *, window: int = 1, source: str = "") -> None:
    """Write a network and its classes to a file, whole or not at all, in the precision that it has.

    Args:
        window: How many frames of a video the network was trained to look at.
        source: Where the weights came from, in words: data, recipe, command.
    """
    if not isinstance(model, FANet):
        raise ValueError(f"save() takes a FANet itself, not a {type(model).__name__}, compiled, wrapped or foreign.")
    if len(classes) != model.classes:
        raise ValueError(f"The network tells {model.classes} classes apart, but {len(classes)} are named.")
    check_window(window)
    path = Path(path)
    entry = {
        "network": f"fanet{model.encoder.depth}",
        "attention": type(model.attend1).__name__,
        "key_channels": model.key_channels,
        "reduction": model.encoder.reduction,
        "reduce_by": model.encoder.reduce_by,
        "names": classes.names,
        "colours": classes.colours,
        "window": window,
        "source": source,
    }
    weights = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        with written_whole(path) as temporary:
            save_file(weights, temporary, {"format": "pt", ENTRY: json.dumps(entry)})
    except SafetensorError as error:  # its word for a full disk
        raise OSError(f"Could not write {path}: {error}") from error


def describe(path: str | Path) -> Description:
    """What a checkpoint says of itself, without loading its weights."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"No weights at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no safetensors file, or is cut short ({error}): get a whole copy of it.") from None
    if ENTRY not in metadata:
        raise ValueError(f"{path} was not written by streamseg: it does not say which network it holds.")
    try:
        return parse(json.loads(metadata[ENTRY]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} describes itself wrongly ({error!r}): it cannot be used.") from None


def parse(entry: dict) -> Description:
    """A description from a file's JSON, every field checked."""
    colours = tuple((red, green, blue) for red, green, blue in entry["colours"])
    description = Description(
        network=entry["network"],
        attention=entry["attention"],
        key_channels=entry["key_channels"],
        reduction=entry["reduction"],
        reduce_by=entry["reduce_by"],
        classes=Classes(tuple(entry["names"]), colours),
        window=entry["window"],
        source=entry["source"],
    )
    check_choice("network", description.network, tuple(NETWORKS))
    check_choice("attention", description.attention, tuple(ATTENTIONS))
    check_choice("reduction", description.reduction, get_args(Reduction))
    check_choice("reduce_by", description.reduce_by, get_args(ReduceBy))
    if type(description.key_channels) is not int or not 1 <= description.key_channels <= 1024:
        raise ValueError(f"key_channels is {description.key_channels!r}")
    if not isinstance(description.source, str):
        raise ValueError(f"source is {description.source!r}")
    check_window(description.window)
    return description


def check_window(window: int) -> None:
    if type(window) is not int or window < 1:
        raise ValueError(f"window is {window!r}; expected a number of frames, 1 or more.")


def load(path: str | Path | None = None) -> tuple[FANet, Classes]:
    """The network in a checkpoint, in fp32 and ready for use, and its classes; without a path, the one that ships."""
    if path is None:
        raise FileNotFoundError("No trained weights ship with streamseg yet: give the path of a checkpoint.")
    path = Path(path)
    description = describe(path)
    with torch.device("meta"):
        expected = {name: list(tensor.shape) for name, tensor in build(description).state_dict().items()}
    with safe_open(path, framework="pt") as file:
        # names and shapes are compared before memory is taken for them
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (not a dict)
        if found != expected:
            wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            raise ValueError(f"{path} does not hold the {description.network} that it describes: {wrong[0]} differs.")
        weights = {name: file.get_tensor(name) for name in expected}
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise ValueError(f"{path} holds weights that are not finite numbers: its training went wrong.")
    model = build(description)
    model.load_state_dict(weights)
    return model.eval(), description.classes


def build(description: Description) -> FANet:
    """The network that a description speaks of, untrained."""
    return NETWORKS[description.network](
        classes=len(description.classes),
        attention=ATTENTIONS[description.attention],
        key_channels=description.key_channels,
        reduction=description.reduction,
        reduce_by=description.reduce_by,
    )
