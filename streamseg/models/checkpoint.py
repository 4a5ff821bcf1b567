"""Checkpoints: one safetensors file holds a network's weights and, in its metadata, all that is needed to use them.

Nothing in a file is ever run: it is JSON and numbers, and both are checked before a network has them.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_args, overload

import torch

from streamseg.checks import check_choice, check_count
from streamseg.classes import Classes
from streamseg.io.checksums import BLANK_CHECKSUM, check_pinned, pop_checksum
from streamseg.io.tensors import check_weights, load_tensors, open_tensors, write_tensors
from streamseg.models.attention import ATTENTIONS
from streamseg.models.baselines import BASELINES, Baseline
from streamseg.models.encoder import ReduceBy, Reduction, ResNet
from streamseg.models.fanet import FANet, fanet18, fanet34

Network = FANet | Baseline

FANETS = {"fanet18": fanet18, "fanet34": fanet34}

BUNDLED = Path(__file__).parents[1] / "weights" / "camvid-18.safetensors"
"""FANet-18, trained on CamVid: the weights that ship with streamseg."""

# they were written before files had checksums; a copy of them is known by its source
BUNDLED_SHA256 = "18baf69349f317e0451aef4a84ca47374a0d09fb8deefbe4a9c487eeb40e80a5"
BUNDLED_SOURCE = "trained on camvid trainval, 10000 iterations on images and 1000 on clips, by streamseg"

# in the file's metadata beside "format", which other readers of safetensors look for
ENTRY = "streamseg"


@dataclass(frozen=True)
class Variant:
    """Which of the FANets of one depth it is: the options of fanet18() and fanet34()."""

    attention: str
    """The name of its class."""
    key_channels: int
    reduction: Reduction
    reduce_by: ReduceBy
    averages: bool = False
    """Whether it attends to the mean of the frames in the window, rather than to their sum."""

    def __post_init__(self) -> None:
        check_choice("attention", self.attention, tuple(ATTENTIONS))
        check_choice("reduction", self.reduction, get_args(Reduction))
        check_choice("reduce_by", self.reduce_by, get_args(ReduceBy))
        check_small_count("key_channels", self.key_channels)
        if not isinstance(self.averages, bool):
            raise ValueError(f"averages is {self.averages!r:.80}; expected true or false.")


@dataclass(frozen=True)
class Description:
    """What a checkpoint says of itself."""

    network: str
    """The function that builds it: fanet18, fanet34, or one of streamseg.models.baselines."""
    variant: Variant | None
    """Of a FANet; its rivals have none."""
    classes: Classes
    window: int
    """How many frames it was trained to look at; 1 for an image network."""
    source: str
    """Where the weights came from, in words."""

    def __post_init__(self) -> None:
        check_choice("network", self.network, (*FANETS, *BASELINES))
        if (self.variant is None) != (self.network in BASELINES):
            raise ValueError(f"The options of a FANet are there, or not, but the network is {self.network}.")
        check_small_count("window", self.window)
        if not (isinstance(self.source, str) and self.source.isprintable()):
            raise ValueError(f"source is {self.source!r:.80}; expected printable text in one line.")


def check_small_count(option: str, given: object) -> None:
    """Raise a ValueError if an option is not a whole number from 1 to 1024."""
    check_count(option, given)
    if given > 1024:  # type: ignore[operator] # a file must not make its reader build something huge
        raise ValueError(f"{option} is {given!r:.80}; a checkpoint may have up to 1024.")


def save(model: Network, classes: Classes, path: str | Path, *, window: int = 1, source: str = "") -> None:
    """Write a network and its classes to a file, whole or not at all, in the precision that it has.

    Args:
        window: How many frames of a video the network was trained to look at.
        source: Where the weights came from, in words: data, recipe, command.
    """
    encoder = getattr(model, "encoder", None)
    if type(model) not in get_args(Network) or type(encoder) not in (ResNet, type(None)):
        name = type(model).__name__
        raise ValueError(f"save() takes a FANet itself, or a rival, not a {name}, compiled, wrapped or foreign.")
    if not isinstance(classes, Classes):
        raise ValueError(f"The classes are a {type(classes).__name__}; expected streamseg.Classes(names, colours).")
    if len(classes) != model.classes:
        raise ValueError(f"The network tells {model.classes} classes apart, but {len(classes)} are named.")
    description = Description(model.name, variant_of(model), classes, window, source)
    with torch.random.fork_rng(devices=[]):
        twin = build_network(description)
    if isinstance(model, FANet) and isinstance(twin, FANet):
        if [type(attend) for attend in model.attentions] != [type(attend) for attend in twin.attentions]:
            kind = type(model.attend1).__name__
            raise ValueError(f"The network's attentions are not all {kind}: load() could not build it.")
    elif encoder is not None and encoder.reduction != "None":
        raise ValueError(f"A {model.name} has no extra spatial reduction: load() could not build this one.")
    weights = model.state_dict()
    check_weights(f"The network cannot be saved as a {description.network}", weights, twin.state_dict())
    weights = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    entry = asdict(description)
    entry |= entry.pop("variant") or {}  # side by side, as in files from before there were rivals
    entry["checksum"] = BLANK_CHECKSUM
    write_tensors(Path(path), weights, {"format": "pt", ENTRY: json.dumps(entry)})


def describe(path: str | Path) -> Description:
    """What a checkpoint says of itself, without building its network."""
    path = Path(path)
    with open_tensors(path) as file:
        return read_description(path, file.metadata())


@overload
def load(path: None = None) -> tuple[FANet, Classes]: ...


@overload
def load(path: str | Path | None) -> tuple[Network, Classes]: ...


def load(path: str | Path | None = None) -> tuple[Network, Classes]:
    """The network in a checkpoint, in fp32 and ready for use, and its classes; without a path, the one that ships."""
    model, description = read_checkpoint(BUNDLED if path is None else Path(path))
    return model, description.classes


def read_checkpoint(path: Path) -> tuple[Network, Description]:
    """The network in a checkpoint, in fp32 and ready for use, and what the file says of itself."""
    with open_tensors(path) as file:
        description = read_description(path, file.metadata())
        weights = load_tensors(path, file)
    with torch.random.fork_rng(devices=[]):  # torch's random numbers go on as if nothing had been built
        model = build_network(description)
    check_weights(f"{path} does not hold the {description.network} that it describes", weights, model.state_dict())
    model.load_state_dict(weights)
    return model.eval(), description


def read_description(path: Path, metadata: dict[str, str] | None) -> Description:
    """The description in a file's metadata."""
    if not metadata or ENTRY not in metadata:
        raise ValueError(f"{path} was not written by streamseg: it does not say which network it holds.")
    try:
        entry = json.loads(metadata[ENTRY])
        has_checksum = pop_checksum(path, entry)
        options = {field.name: entry.pop(field.name) for field in fields(Variant) if field.name in entry}
        variant = Variant(**options) if options else None
        description = Description(**{**entry, "variant": variant, "classes": Classes(**entry["classes"])})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} describes itself wrongly ({error!r:.200}): it cannot be used.") from None
    if not has_checksum and (description.source == BUNDLED_SOURCE or path == BUNDLED):
        check_pinned(path, BUNDLED_SHA256)
    return description


def variant_of(model: Network) -> Variant | None:
    """Which FANet a network is; None for a rival."""
    if not isinstance(model, FANet):
        return None
    return Variant(
        attention=type(model.attend1).__name__,
        key_channels=model.key_channels,
        reduction=model.encoder.reduction,
        reduce_by=model.encoder.reduce_by,
        averages=model.averages,
    )


def build_network(description: Description) -> Network:
    """The network that a description speaks of, untrained."""
    classes, variant = len(description.classes), description.variant
    if variant is None:
        return BASELINES[description.network](classes)
    return FANETS[description.network](
        classes=classes,
        attention=ATTENTIONS[variant.attention],
        key_channels=variant.key_channels,
        reduction=variant.reduction,
        reduce_by=variant.reduce_by,
        averages=variant.averages,
    )


def require_fanet(model: Network, use: str) -> FANet:
    """A network, if it is a FANet; a ValueError says what use needs one."""
    if not isinstance(model, FANet):
        raise ValueError(f"{use} needs a FANet, but these weights are of {model.name}: give weights of a FANet.")
    return model
