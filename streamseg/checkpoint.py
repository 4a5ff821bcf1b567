"""Checkpoints: one safetensors file holds a network's weights and, in its metadata, all that is needed to use them.

Nothing in a file is ever run: it is JSON and numbers, and both are checked before a network has them.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch

from streamseg.attention import ATTENTIONS
from streamseg.classes import Classes
from streamseg.encoder import ReduceBy, Reduction, ResNet
from streamseg.layers import check_choice, check_count
from streamseg.model import FANet, fanet18, fanet34
from streamseg.tensors import check_weights, open_tensors, take_tensors, write_tensors

NETWORKS = {"fanet18": fanet18, "fanet34": fanet34}

SHIPPED = Path(__file__).parent / "weights" / "camvid-18.safetensors"
"""FANet-18, trained on CamVid: the weights that ship with streamseg."""

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
    averages: bool = False
    """Whether it attends to the mean of the frames in the window, rather than to their sum."""

    def __post_init__(self) -> None:
        check_choice("network", self.network, tuple(NETWORKS))
        check_choice("attention", self.attention, tuple(ATTENTIONS))
        check_choice("reduction", self.reduction, get_args(Reduction))
        check_choice("reduce_by", self.reduce_by, get_args(ReduceBy))
        for option, given in (("key_channels", self.key_channels), ("window", self.window)):
            check_count(option, given)
            if given > 1024:  # a file must not make its reader build something huge
                raise ValueError(f"{option} is {given!r:.80}; a checkpoint may have up to 1024.")
        if not isinstance(self.averages, bool):
            raise ValueError(f"averages is {self.averages!r:.80}; expected true or false.")
        if not (isinstance(self.source, str) and self.source.isprintable()):
            raise ValueError(f"source is {self.source!r:.80}; expected printable text in one line.")


def save(model: FANet, classes: Classes, path: str | Path, *, window: int = 1, source: str = "") -> None:
    """Write a network and its classes to a file, whole or not at all, in the precision that it has.

    Args:
        window: How many frames of a video the network was trained to look at.
        source: Where the weights came from, in words: data, recipe, command.
    """
    if type(model) is not FANet or type(model.encoder) is not ResNet:
        raise ValueError(f"save() takes a FANet itself, not a {type(model).__name__}, compiled, wrapped or foreign.")
    if not isinstance(classes, Classes):
        raise ValueError(f"The classes are a {type(classes).__name__}; expected streamseg.Classes(names, colours).")
    if len(classes) != model.classes:
        raise ValueError(f"The network tells {model.classes} classes apart, but {len(classes)} are named.")
    description = Description(
        network=f"fanet{model.encoder.depth}",
        attention=type(model.attend1).__name__,
        key_channels=model.key_channels,
        reduction=model.encoder.reduction,
        reduce_by=model.encoder.reduce_by,
        classes=classes,
        window=window,
        source=source,
        averages=model.averages,
    )
    twin = build(description)
    if [type(attend) for attend in model.attends] != [type(attend) for attend in twin.attends]:
        raise ValueError(f"The network's attentions are not all {description.attention}: load() could not build it.")
    weights = model.state_dict()
    check_weights(f"The network cannot be saved as a {description.network}", weights, twin.state_dict())
    weights = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    write_tensors(Path(path), weights, {"format": "pt", ENTRY: json.dumps(asdict(description))})


def describe(path: str | Path) -> Description:
    """What a checkpoint says of itself, without loading its weights."""
    path = Path(path)
    with open_tensors(path) as file:
        return read_description(path, file.metadata())


def load(path: str | Path | None = None) -> tuple[FANet, Classes]:
    """The network in a checkpoint, in fp32 and ready for use, and its classes; without a path, the one that ships."""
    path = SHIPPED if path is None else Path(path)
    with open_tensors(path) as file:
        description = read_description(path, file.metadata())
        weights = take_tensors(path, file)
    model = build(description)
    check_weights(f"{path} does not hold the {description.network} that it describes", weights, model.state_dict())
    model.load_state_dict(weights)
    return model.eval(), description.classes


def read_description(path: Path, metadata: dict[str, str] | None) -> Description:
    """The description in a file's metadata."""
    if not metadata or ENTRY not in metadata:
        raise ValueError(f"{path} was not written by streamseg: it does not say which network it holds.")
    try:
        entry = json.loads(metadata[ENTRY])
        return Description(**{**entry, "classes": Classes(**entry["classes"])})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} describes itself wrongly ({error!r:.200}): it cannot be used.") from None


def build(description: Description) -> FANet:
    """The network that a description speaks of, untrained; torch's random numbers go on as if it had not been built."""
    with torch.random.fork_rng(devices=[]):
        return NETWORKS[description.network](
            classes=len(description.classes),
            attention=ATTENTIONS[description.attention],
            key_channels=description.key_channels,
            reduction=description.reduction,
            reduce_by=description.reduce_by,
            averages=description.averages,
        )
