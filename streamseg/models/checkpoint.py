"""Checkpoints: one safetensors file with a network's weights and, in its metadata, all that is needed to use them.

A file holds no code, only JSON and numbers, and both are checked before they reach a network.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_args, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from streamseg.checks import check_choice, check_count
from streamseg.classes import Classes
from streamseg.io.checksums import BLANK_CHECKSUM, pop_checksum
from streamseg.io.tensors import check_state_dict, load_tensors, open_tensors, write_tensors
from streamseg.models.attention import ATTENTIONS, Attention
from streamseg.models.baselines import BASELINES, Baseline
from streamseg.models.bundled import find_weights
from streamseg.models.encoder import ReduceBy, Reduction, ResNet
from streamseg.models.fanet import FANet, fanet18, fanet34
from streamseg.models.fanet_plus import FANetPlus, fanetplus18, fanetplus34
from streamseg.models.video import VIDEO_METHODS, VideoMethod
from streamseg.models.video.schedule import is_number

ImageNetwork = FANet | FANetPlus | Baseline
Network = ImageNetwork | VideoMethod

PAPER_FANETS = {"fanet18": fanet18, "fanet34": fanet34}
PLUS_FANETS = {"fanetplus18": fanetplus18, "fanetplus34": fanetplus34}
FANETS: dict[str, Callable[..., FANet]] = {**PAPER_FANETS, **PLUS_FANETS}
"""The functions that build FANets, by name."""

NO_INTERVAL = 0
"""The window in the checkpoint of a video method whose key frames have no fixed interval."""

# key in the file's metadata, beside "format", which other readers of safetensors expect
ENTRY = "streamseg"


@dataclass(frozen=True)
class Variant:
    """The options of fanet18() and fanet34(), and of fanetplus18() and fanetplus34(), whose reduction is fixed."""

    attention: str
    """Name of the class."""
    key_channels: int
    reduction: Reduction
    reduce_by: ReduceBy
    averages: bool = False
    """Whether it attends to the mean over the frames in the window instead of their sum."""

    def __post_init__(self) -> None:
        if not (isinstance(self.attention, str) and self.attention.isidentifier() and len(self.attention) <= 80):
            raise ValueError(f"attention is {self.attention!r:.80}; expected the name of a class.")
        check_choice("reduction", self.reduction, get_args(Reduction))
        check_choice("reduce_by", self.reduce_by, get_args(ReduceBy))
        check_small_count("key_channels", self.key_channels)
        if not isinstance(self.averages, bool):
            raise ValueError(f"averages is {self.averages!r:.80}; expected true or false.")


@dataclass(frozen=True)
class Description:
    """The metadata of a checkpoint."""

    network: str
    """Name of the function that builds it: fanet18, fanet34, fanetplus18, fanetplus34, or one of
    streamseg.models.baselines or streamseg.models.video."""
    variant: Variant | None
    """The options of a FANet; None for a baseline or a video method."""
    classes: Classes
    window: int
    """Number of frames that it was trained on; 1 for an image network. For a video method, its key interval; 0 if
    only the first frame is a key frame."""
    source: str
    """Origin of the weights, in words."""
    schedule: float | None = None
    """The threshold or the target by which the schedule of a video method chooses key frames; None for the default."""

    def __post_init__(self) -> None:
        check_choice("network", self.network, (*FANETS, *BASELINES, *VIDEO_METHODS))
        if (self.variant is None) != (self.network not in FANETS):
            raise ValueError(f"network is {self.network}; expected options for a FANet, and none for a baseline.")
        if self.variant is not None and self.network in PLUS_FANETS:
            given = f"{self.variant.reduction} by {self.variant.reduce_by}"
            if given != "Res-4 by average":
                raise ValueError(f"The reduction of this {self.network} is {given}; expected Res-4 by average.")
        if not (self.window == NO_INTERVAL and type(self.window) is int and self.network in VIDEO_METHODS):
            check_small_count("window", self.window)
        if self.schedule is not None and not (is_number(self.schedule) and self.network in VIDEO_METHODS):
            raise ValueError(f"schedule is {self.schedule!r:.80}; expected a number, for a video method.")
        if not (isinstance(self.source, str) and self.source.isprintable()):
            raise ValueError(f"source is {self.source!r:.80}; expected printable text in one line.")


def check_small_count(option: str, given: object) -> None:
    """Raise a ValueError if an option is not a whole number from 1 to 1024."""
    check_count(option, given)
    if given > 1024:  # type: ignore[operator] # a hostile file must not make its reader allocate a huge network
        raise ValueError(f"{option} is {given!r:.80}; a checkpoint may have up to 1024.")


def save(model: Network, classes: Classes, path: str | Path, *, window: int = 1, source: str = "") -> None:
    """Write a network and its classes to a file, in the precision of the network; an incomplete file is never left.

    Args:
        window: Number of frames of a video that the network was trained on; a video method has its key interval.
        source: Origin of the weights, in words: data, recipe, command.
    """
    encoder = getattr(model, "encoder", None)
    if type(model) not in get_args(Network) and not isinstance(model, VideoMethod):
        raise ValueError(
            f"The model is a {type(model).__name__}; expected a FANet or a baseline itself, not compiled or wrapped."
        )
    if type(encoder) not in (ResNet, type(None)):
        raise ValueError(
            f"A checkpoint cannot describe the encoder {type(encoder).__name__}: "
            "save model.state_dict() with torch.save instead."
        )
    if not isinstance(classes, Classes):
        raise ValueError(f"The classes are a {type(classes).__name__}; expected streamseg.Classes(names, colours).")
    if len(classes) != model.classes:
        raise ValueError(f"The network has {model.classes} classes, but {len(classes)} are named.")
    if isinstance(model, VideoMethod):
        window = model.interval or NO_INTERVAL
    description = Description(model.name, variant_of(model), classes, window, source, schedule_of(model))
    rebuilt = rebuild(model, description)
    weights = model.state_dict()
    check_state_dict(f"The network cannot be saved as a {description.network}", weights, rebuilt.state_dict())
    weights = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    entry = asdict(description)
    entry |= entry.pop("variant") or {}  # flat, as in the first version of the format
    if entry["schedule"] is None:
        del entry["schedule"]  # older versions can read the file
    entry["checksum"] = BLANK_CHECKSUM
    write_tensors(Path(path), weights, {"format": "pt", ENTRY: json.dumps(entry)})


def rebuild(model: Network, description: Description) -> Network:
    """Build a network as load() will; a ValueError if it would differ from the one that is to be saved."""
    attention = type(model.attentions[0]) if isinstance(model, FANet) else None
    known = attention is None or attention.__name__ in ATTENTIONS
    with torch.random.fork_rng(devices=[]):
        rebuilt = build_network(description, None if known else attention)
    if isinstance(model, FANet) and isinstance(rebuilt, FANet):
        if [type(module) for module in model.attentions] != [type(module) for module in rebuilt.attentions]:
            name = type(model.attentions[0]).__name__
            raise ValueError(f"The network's attentions are not all {name}: load() could not build it.")
    elif isinstance(model, VideoMethod):
        check_default_options(model, rebuilt)
    elif getattr(getattr(model, "encoder", None), "reduction", "None") != "None":
        raise ValueError(f"A {model.name} has no extra spatial reduction: load() could not build this one.")
    return rebuilt


def schedule_of(model: Network) -> float | None:
    """Return the threshold or the target of a video method, if it has one and it is not the default."""
    if not isinstance(model, VideoMethod) or not model.decides_by:
        return None
    with torch.device("meta"):
        default = VIDEO_METHODS[model.name](1).schedule_value
    return None if model.schedule_value == default else model.schedule_value


def check_default_options(method: VideoMethod, rebuilt: Network) -> None:
    """Raise a ValueError if a video method has options that a checkpoint does not hold."""
    for option in ("grid", "overlap"):
        given, default = getattr(method, option, None), getattr(rebuilt, option, None)
        if given != default:
            raise ValueError(
                f"{option} of this {method.name} is {given}, and a checkpoint holds only the default, {default}: "
                f"save it with that, and set {option} after loading."
            )


def describe(path: str | Path) -> Description:
    """Return the metadata of a checkpoint without building its network.

    Args:
        path: The checkpoint, the name of bundled weights, or hf:USER/NAME, see load.
    """
    path = find_weights(path)
    with open_tensors(path) as file:
        return read_description(path, file.metadata())


@overload
def load(path: None = None) -> tuple[FANet, Classes]: ...


@overload
def load(path: str | Path | None, *, attention: type[Attention] | None = None) -> tuple[Network, Classes]: ...


def load(path: str | Path | None = None, *, attention: type[Attention] | None = None) -> tuple[Network, Classes]:
    """Return the network in a checkpoint, in fp32 and evaluation mode, and its classes.

    Args:
        path: The checkpoint; the name of bundled weights, see streamseg weights; or hf:USER/NAME, a repository of the
            Hugging Face Hub, with @REVISION after it for a branch, a tag or a commit. Without one, the default of the
            bundled weights.
        attention: The attention class of the network, if it is not one of streamseg's.
    """
    model, description = read_checkpoint(find_weights(path), attention)
    return model, description.classes


def read_checkpoint(path: Path, attention: type[Attention] | None = None) -> tuple[Network, Description]:
    """Return the network in a checkpoint, in fp32 and evaluation mode, and its metadata."""
    with open_tensors(path) as file:
        description = read_description(path, file.metadata())
        weights = load_tensors(path, file)
    with torch.random.fork_rng(devices=[]), WithoutRandomWeights():  # leaves torch's random state unchanged
        model = build_network(description, attention)
    check_state_dict(f"{path} does not hold the {description.network} that it describes", weights, model.state_dict())
    model.load_state_dict(weights)
    return model.eval(), description


class WithoutRandomWeights(TorchFunctionMode):
    """Leaves parameters as their memory is where they would be filled with random numbers.

    For networks that are read from a file, which holds all parameters: the random numbers take longer than the file.
    (On the device "meta" nothing would be filled either, but the first use of that device takes much longer.)
    """

    FILLS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(
        self, function: Callable, types: object, given: tuple = (), options: dict | None = None
    ) -> object:
        options = options or {}
        if function in self.FILLS:
            filled = given[0] if given else options["tensor"]
            if isinstance(filled, nn.Parameter):
                return filled
        return function(*given, **options)


def read_description(path: Path, metadata: dict[str, str] | None) -> Description:
    """Parse and check the metadata of a file."""
    if not metadata or ENTRY not in metadata:
        raise ValueError(f"{path} was not written by streamseg: give a file of streamseg.save or streamseg train.")
    try:
        entry = json.loads(metadata[ENTRY])
        pop_checksum(path, entry)
        options = {field.name: entry.pop(field.name) for field in fields(Variant) if field.name in entry}
        variant = Variant(**options) if options else None
        description = Description(**{**entry, "variant": variant, "classes": Classes(**entry["classes"])})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} has invalid metadata ({error!r:.200}): it cannot be used.") from None
    return description


def variant_of(model: Network) -> Variant | None:
    """Return the options of a FANet; None for a baseline or a video method."""
    if not isinstance(model, FANet):
        return None
    assert isinstance(model.encoder, ResNet)
    return Variant(
        attention=type(model.attentions[0]).__name__,
        key_channels=model.key_channels,
        reduction=model.encoder.reduction,
        reduce_by=model.encoder.reduce_by,
        averages=model.averages,
    )


def build_network(description: Description, attention: type[Attention] | None = None) -> Network:
    """Build the described network, with random weights.

    Args:
        attention: The attention class, if it is not one of streamseg's.
    """
    classes, variant = len(description.classes), description.variant
    if description.network in VIDEO_METHODS:
        method = VIDEO_METHODS[description.network](classes)
        method.interval = None if description.window == NO_INTERVAL else description.window
        if description.schedule is not None:
            method.set_schedule(description.schedule)
        return method
    if variant is None:
        return BASELINES[description.network](classes)
    # the reduction of a FANet+ is no option
    reduction = {"reduction": variant.reduction, "reduce_by": variant.reduce_by}
    return FANETS[description.network](
        classes=classes,
        attention=find_attention(variant.attention, attention),
        key_channels=variant.key_channels,
        averages=variant.averages,
        **({} if description.network in PLUS_FANETS else reduction),
    )


def find_attention(name: str, given: type[Attention] | None) -> Callable[[int, int], Attention]:
    """Return the attention class of that name: one of streamseg's, or the given one."""
    if given is None and name in ATTENTIONS:
        return ATTENTIONS[name]
    if given is not None and given.__name__ == name:
        return given
    if given is not None:
        raise ValueError(f"The network has the attention {name}, which is not {given.__name__}.")
    raise ValueError(
        f"The network has the attention {name}, which is not part of streamseg: "
        f"load it with streamseg.load(PATH, attention={name})."
    )


def require_fanet(model: Network, use: str) -> FANet:
    """Return a network if it is a FANet; a ValueError names the use that needs one."""
    if not isinstance(model, FANet):
        raise ValueError(f"{use} needs a FANet, but these weights are of {model.name}: give weights of a FANet.")
    return model
