"""Set up a training run: the data, the network with its initial weights, the losses and the optimiser."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from streamseg.classes import Classes
from streamseg.data.datasets import Dataset
from streamseg.io.masks import Mask, to_mask
from streamseg.models import checkpoint
from streamseg.models.baselines import Baseline
from streamseg.models.encoder import ResNet, load_imagenet
from streamseg.models.fanet import FANet, init_as_identity
from streamseg.models.video import VIDEO_METHODS, VideoMethod
from streamseg.models.video.flownet import FlowNetS, load_flow
from streamseg.parallel import distributed
from streamseg.train.config import TrainConfig
from streamseg.train.feed import FrameSet, build_clip_index, cache_on_device, weight_classes
from streamseg.train.label_sets import LabelSets
from streamseg.train.loss_module import LossModule
from streamseg.train.resume import check_out, is_restarted, restore_training_state
from streamseg.train.runlog import hash_names
from streamseg.train.unions import TrainingData, open_training_data

ATTENTION_OPTIONS = {
    "fast": "FastAttention",
    "dot": "DotAttention",
    "self": "SelfAttention",
    "channel": "ChannelAttention",
    "none": "NoAttention",
}
"""Class of each attention that a config can name."""

AUTOCAST_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TrainState:
    """Everything that training changes, and so everything that is saved to resume from."""

    loss_module: LossModule
    ema: checkpoint.Network
    """The network with the moving average of the weights: validated during training, and saved at the end."""
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    precision: torch.dtype

    def parts(self) -> dict[str, Any]:
        """The parts by their names in state.pt."""
        return {
            "trainee": self.loss_module,
            "average": self.ema,
            "optimiser": self.optimiser,
            "scaler": self.scaler,
        }


@dataclass(frozen=True)
class TrainingSetup:
    """A run that is ready to start or to resume."""

    share: tuple[int, int]
    """Rank of this process, and number of processes."""
    data: TrainingData
    frame_sets: tuple[FrameSet, ...]
    """The data sets to train on, with their frames on the device where they fit."""
    description: checkpoint.Description
    """Of the checkpoint that will be written."""
    initial: str
    """What the weights start from: imagenet, nothing, or the path of a checkpoint."""
    state: TrainState
    settings: dict[str, Any]
    """Config and data set, as state.pt holds them: a run can only be resumed with the same."""
    first: int
    """Iterations that are done already."""
    window: int
    """Frames per clip."""

    @property
    def masks(self) -> list[Mask | None]:
        """The mask of each data set."""
        return [frame_set.mask for frame_set in self.frame_sets]


def set_up(
    config: TrainConfig,
    data: Path,
    with_data: Path | None,
    out: Path,
    device: torch.device,
    initial: str,
    encoder_weights: Path | None,
    resume: bool,
    threads: int,
    flow_weights: Path | None = None,
) -> TrainingSetup:
    """Check the settings, open the data, and build or restore what is trained; see train for the arguments."""
    config.check()
    share = _, processes = distributed.join_process_group(device)
    restarted = distributed.all_reduce_sum(torch.tensor(int(is_restarted(out)), device=device))
    resume = resume or bool(restarted)
    check_out(out, resume)
    check_batch(config, processes)
    opened = open_training_data(config, data, with_data)

    torch.manual_seed(config.seed)
    torch.backends.cudnn.benchmark = True
    description = describe_checkpoint(config, opened.classes)
    network = checkpoint.build_network(description)
    if isinstance(network, VideoMethod):
        network.freeze()
    if initial == "imagenet" and encoder_of(network) is None:
        initial = "nothing"
    if not resume:
        load_initial_weights(network, description, initial, encoder_weights, config.identity_init)
        if flow_weights:
            load_flow_weights(network, flow_weights)
        check_flow(network)
    frame_sets = tuple(open_frame_sets(opened, config, device, threads))
    firsts = accumulate((len(dataset.classes) for dataset in opened.datasets), initial=0)
    class_weights = torch.cat(
        [
            weight_classes(frames.dataset, frames.cached, config, threads, first, frames.mask)
            for frames, first in zip(frame_sets, firsts, strict=False)
        ]
    )
    teachers = [load_teacher(name, description.classes, device) for name in config.teachers]
    state = make_state(network, class_weights, opened.label_sets(), config, device, processes, teachers)
    settings = {**asdict(config), "data": hash_names(opened.datasets, opened.table, teachers)}
    first = restore_training_state(out, settings, state.parts()) if resume else 0
    return TrainingSetup(share, opened, frame_sets, description, initial, state, settings, first, config.window)


def open_frame_sets(data: TrainingData, config: TrainConfig, device: torch.device, threads: int) -> Iterator[FrameSet]:
    """Yield the data sets of a run, each with its clips and, if they fit, its frames on the device."""
    for number, dataset in enumerate(data.datasets):
        # with clips of the first data set, a further one without recordings gives single frames
        window = 1 if number and not dataset.sequences else config.window
        clip_index = build_clip_index(dataset, window)
        mask = read_training_mask(config.mask, dataset) if config.mask and number == 0 else None
        yield FrameSet(dataset, clip_index, cache_on_device(dataset, clip_index, device, threads), mask)


def read_training_mask(path: str, dataset: Dataset) -> Mask | None:
    """Return a mask at the size of a data set's frames; None if it hides nothing."""
    mask = to_mask(path)
    if mask is None:
        return None
    _, height, width = dataset[0][0].shape
    mask.check_fits(height, width)
    return Mask(mask.pixels((height, width), torch.device("cpu")), mask.name)


def check_batch(config: TrainConfig, processes: int) -> None:
    """Raise a ValueError if the processes cannot share a batch evenly."""
    pieces = processes * config.accumulate
    # ClassMix pairs images, and both must be in the same process
    if config.batch % pieces or (config.classmix and processes > 1 and config.batch % (2 * processes)):
        raise ValueError(
            f"A batch of {config.batch} cannot be shared by {processes} processes"
            f"{f', each in {config.accumulate} parts' if config.accumulate > 1 else ''}: choose a multiple"
            f"{', an even one for --classmix' if config.classmix else ''}."
        )


def make_state(
    network: checkpoint.Network,
    class_weights: Tensor,
    label_sets: LabelSets | None,
    config: TrainConfig,
    device: torch.device,
    processes: int,
    teachers: Sequence[FANet | Baseline] = (),
) -> TrainState:
    """Return a network with its losses, EMA, optimiser and gradient scaler, on a device."""
    loss_module = LossModule(
        network,
        class_weights,
        label_sets=label_sets,
        auxiliary_loss=config.auxiliary_loss,
        ohem_threshold=config.ohem_threshold,
        iou_loss=config.iou_loss,
        consistency_loss=config.consistency_loss,
        loss_stride=config.loss_stride,
        auxiliary_stride=config.auxiliary_stride,
        teachers=teachers,
        teacher_scales=config.teacher_scales,
        distillation_loss=config.distillation_loss,
        moved_clips=config.moved_clips,
        processes=processes,
    )
    loss_module = loss_module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    precision = AUTOCAST_DTYPES[config.precision] if device.type == "cuda" else torch.float32
    return TrainState(
        loss_module,
        ema=copy.deepcopy(network).requires_grad_(False).eval(),
        optimiser=make_optimiser(loss_module, encoder_of(network), config),
        scaler=torch.amp.GradScaler(device.type, enabled=precision is torch.float16),
        precision=precision,
    )


def make_optimiser(module: nn.Module, encoder: nn.Module | None, config: TrainConfig) -> torch.optim.Optimizer:
    """Return SGD or AdamW with weight decay for convolutions only, and a learning rate of its own for the encoder."""
    groups = []
    in_encoder = set() if encoder is None else {id(parameter) for parameter in encoder.parameters()}
    for share, members in ((config.encoder_rate_factor, True), (1.0, False)):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        chosen = [parameter for parameter in trained if (id(parameter) in in_encoder) == members]
        for decay, deep in ((config.weight_decay, True), (0.0, False)):
            parameters = [parameter for parameter in chosen if (parameter.ndim > 1) == deep]
            if parameters:
                # "share" is stored in state.pt, and so keeps its name
                groups.append({"params": parameters, "weight_decay": decay, "share": share})
    fused = next(module.parameters()).is_cuda
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=0.9, fused=fused)
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=fused)


def describe_checkpoint(config: TrainConfig, classes: Classes) -> checkpoint.Description:
    """Return the description that the checkpoint of a run will hold."""
    plus = config.network in checkpoint.PLUS_FANETS
    variant = checkpoint.Variant(
        attention=ATTENTION_OPTIONS[config.attention],
        key_channels=config.key_channels,
        reduction="Res-4" if plus else config.reduction,
        reduce_by="average" if plus else config.reduce_by,
        averages=config.averages,
    )
    return checkpoint.Description(
        network=config.network,
        variant=variant if config.network in checkpoint.FANETS else None,
        classes=classes,
        window=method_interval(config) if config.network in VIDEO_METHODS else config.window,
        source=f"trained on {name_data(config)}, {config.iterations} iterations, by streamseg",
    )


def method_interval(config: TrainConfig) -> int:
    """Return the key interval that a checkpoint of a video method holds: the window, if the method has an interval."""
    with torch.device("meta"):
        method = VIDEO_METHODS[config.network](1)
    return checkpoint.NO_INTERVAL if method.interval is None else config.window


def name_data(config: TrainConfig) -> str:
    """Return the names of the data that a run trains on."""
    first = f"{config.dataset} {config.split}"
    if config.with_dataset == "none":
        return first
    return f"{first} and {config.with_dataset} {config.with_split} ({config.with_share:.0%} of each batch)"


def encoder_of(network: checkpoint.Network) -> ResNet | None:
    """Return the encoder of a network, if it has one that ImageNet weights fit."""
    image_network = network.backbone.network if isinstance(network, VideoMethod) else network
    return getattr(image_network, "encoder", None)


def load_initial_weights(
    network: checkpoint.Network,
    description: checkpoint.Description,
    initial: str,
    encoder_weights: Path | None,
    identity_init: bool = False,
) -> None:
    """Load the weights that training starts from.

    Args:
        initial: imagenet (only the encoder), nothing, or the path of a checkpoint.
        identity_init: With imagenet, let a FANet start close to its encoder.
    """
    encoder = encoder_of(network)
    if encoder is None and encoder_weights:
        raise ValueError(f"{network.name} has no ResNet to fill with {encoder_weights}: leave out --encoder-weights.")
    if initial == "nothing":
        return
    if isinstance(network, VideoMethod):
        load_backbone(network, description, initial)
        return
    if initial == "imagenet" and encoder is not None:
        load_imagenet(encoder, encoder_weights)
        if identity_init and isinstance(network, FANet):
            init_as_identity(network)
        return
    other, other_classes = checkpoint.load(initial)
    ours, theirs = network.state_dict(), other.state_dict()
    if other_classes.names != description.classes.names:
        theirs |= {name: ours[name] for name in class_layers(description)}
    if {name: x.shape for name, x in ours.items()} != {name: x.shape for name, x in theirs.items()}:
        raise ValueError(f"{initial} holds another kind of network: start from one of the same kind.")
    network.load_state_dict(theirs)


def load_teacher(name: str, classes: Classes, device: torch.device) -> FANet | Baseline:
    """Return a trained network that knows the classes of a run, on a device."""
    teacher, known = checkpoint.load(name)
    if not isinstance(teacher, (FANet, Baseline)):
        raise ValueError(f"{name} is a video method; expected a network for images as a teacher.")
    if known.names != classes.names:
        raise ValueError(
            f"The teacher {name} knows {', '.join(known.names)}; expected the classes of the run: "
            f"{', '.join(classes.names)}."
        )
    return teacher.requires_grad_(False).eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it


def load_backbone(method: VideoMethod, description: checkpoint.Description, initial: str) -> None:
    """Load the weights of a backbone into a video method, or the parts that it has in common with another method."""
    name = description.network.rpartition("-")[2]
    if initial == "imagenet":
        raise ValueError(f"{description.network} starts from a trained {name}: give its weights, --initial FILE.")
    other, other_classes = checkpoint.load(initial)
    if other_classes.names != description.classes.names:
        raise ValueError(f"{initial} has other classes than the data: train a {name} on them first.")
    ours, theirs = method.state_dict(), other.state_dict()
    if not isinstance(other, VideoMethod):
        theirs = {f"backbone.network.{key}": x for key, x in theirs.items()}
    if not any(key.startswith("update.") for key in theirs):
        # the update branch of Accel starts from the same weights
        theirs |= {f"update.{key.removeprefix('backbone.')}": x for key, x in theirs.items() if "backbone." in key}
    known = {key: x for key, x in theirs.items() if key in ours and ours[key].shape == x.shape}
    if any(key.startswith("update.") and key not in known for key in ours):
        # it is of another kind: it starts from nothing, and is trained
        known = {key: x for key, x in known.items() if not key.startswith("update.")}
    if missing := [key for key in ours if key.startswith("backbone.") and key not in known]:
        raise ValueError(f"{initial} holds a {other.name}, which lacks {missing[0]}; expected weights of a {name}.")
    method.load_state_dict(ours | known)


def load_flow_weights(network: checkpoint.Network, file: Path) -> None:
    """Load a trained flow network into a video method."""
    flow = getattr(network, "flow", None)
    if not isinstance(flow, FlowNetS):
        raise ValueError(f"{network.name} has no flow network to fill with {file}: leave out --flow-weights.")
    load_flow(flow, file)


def check_flow(network: checkpoint.Network) -> None:
    """Raise a ValueError if a video method uses its flow network as it is, and nobody has trained that."""
    flow = getattr(network, "flow", None)
    if not isinstance(network, VideoMethod) or not isinstance(flow, FlowNetS) or "flow" in network.trained:
        return
    if not flow.flow2.weight.any():  # it starts as zero
        raise ValueError(
            f"{network.name} does not train its flow network: give a trained one, --flow-weights FILE, or weights of a "
            "method that has one, --initial FILE."
        )


def class_layers(description: checkpoint.Description) -> list[str]:
    """Return the names of the weights whose shapes depend on the number of classes: those of the last layers."""
    with torch.device("meta"):
        one, two = (
            checkpoint.build_network(
                replace(description, classes=Classes(names, ((0, 0, 0),) * len(names)))
            ).state_dict()
            for names in (("a",), ("a", "b"))
        )
    return [name for name in one if one[name].shape != two[name].shape]
