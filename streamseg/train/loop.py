"""Training: the loop, readable top to bottom."""

import copy
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from streamseg.classes import Classes
from streamseg.data.shards import open_dataset
from streamseg.evaluate.images import validate
from streamseg.models import checkpoint
from streamseg.models.encoder import ResNet, load_imagenet
from streamseg.models.fanet import FANet, init_as_identity
from streamseg.parallel import distributed
from streamseg.parallel.signals import StopSignals
from streamseg.train import runlog
from streamseg.train.config import TrainConfig
from streamseg.train.feed import batches, build_clip_index, cache_on_device, select, weight_classes
from streamseg.train.loss_module import LossModule
from streamseg.train.resume import check_out, is_restarted, restore_state, save_state, sync_stop_signal

ATTENTIONS = {
    "fast": "FastAttention",
    "dot": "DotAttention",
    "self": "SelfAttention",
    "channel": "ChannelAttention",
    "none": "NoAttention",
}
"""The classes of the attentions that a config names."""

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    config: TrainConfig,
    data: Path,
    out: Path,
    *,
    device: torch.device,
    initial: str = "imagenet",
    encoder_weights: Path | None = None,
    resume: bool = False,
    compiled: bool = False,
    tensorboard: bool = False,
    threads: int = 2,
    save_seconds: float = 60,
    words: TextIO | None = None,
) -> Path:
    """Train a network as a config says, and return the path of its weights.

    The folder `out` gets weights.safetensors, run.json (config, command, environment, data), log.jsonl, curves.png and
    state.pt, from which a stopped run goes on.

    Args:
        initial: What the weights start from: imagenet (the encoder), nothing, or the path of a checkpoint.
        encoder_weights: The file of ImageNet weights, where it should not be downloaded.
        compiled: Compile the network with torch.compile.
        save_seconds: How often to save the state.
        words: Where to tell how far it is; standard error unless given.
    """
    config.check()
    share = rank, processes = distributed.start(device)
    again = distributed.all_reduce_sum(torch.tensor(int(is_restarted(out)), device=device))
    resume = resume or bool(again)
    check_out(out, resume)
    pieces = processes * config.accumulate
    if config.batch % pieces or (config.mixing and processes > 1 and config.batch % (2 * processes)):
        raise ValueError(
            f"A batch of {config.batch} cannot be shared by {processes} processes"
            f"{f', each in {config.accumulate} parts' if config.accumulate > 1 else ''}: choose a multiple"
            f"{', an even one for --mixing' if config.mixing else ''}."
        )
    dataset = select(open_dataset(config.dataset, data, config.split), config.leave_out)
    validation = open_dataset(config.dataset, data, config.validate) if config.validate else None

    torch.manual_seed(config.seed)
    torch.backends.cudnn.benchmark = True
    description = describe_checkpoint(config, dataset.classes)
    network = checkpoint.build_network(description)
    untrained = initial == "imagenet" and encoder_of(network) is None
    initial = "nothing" if untrained else initial
    if not resume:
        load_initial_weights(network, description, initial, encoder_weights)
        if config.gentle and initial == "imagenet" and isinstance(network, FANet):
            init_as_identity(network)
    clip_index = build_clip_index(dataset, config.window)
    cached = cache_on_device(dataset, clip_index, device, threads)
    trainee = LossModule(
        network,
        weight_classes(dataset, cached, config, threads),
        auxiliary=config.auxiliary,
        hard_pixels=config.hard_pixels,
        overlap=config.overlap,
        steadiness=config.steadiness,
        processes=processes,
    )
    trainee = trainee.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    average = copy.deepcopy(network).requires_grad_(False).eval()
    optimiser = make_optimiser(trainee, config)
    precision = PRECISIONS[config.precision] if device.type == "cuda" else torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)

    parts = {"trainee": trainee, "average": average, "optimiser": optimiser, "scaler": scaler}
    settings = {**asdict(config), "data": runlog.hash_names(dataset)}
    first = restore_state(out, settings, parts) if resume else 0
    log = runlog.RunLog(out, first, tensorboard, words) if rank == 0 else None
    if log and untrained:
        log.say(f"There are no ImageNet weights for {config.network}: it starts from nothing.")
    if log:
        log.describe_run(config, dataset, device, data, initial, processes)

    def measure(done: int) -> None:
        """Log the accuracy after so many iterations, if it is not in the log; all processes share the work."""
        wanted = log is not None and not log.has_validation(done)
        if validation and distributed.all_reduce_sum(torch.tensor(int(wanted), device=device)):
            with torch.autocast(device.type, precision, enabled=precision is not torch.float32):
                score = validate(average, validation, threads=threads, share=share)
            if log:
                log.validated(done, score.miou, score.iou)

    if first and first % config.validate_every == 0:
        measure(first)  # a killed run may not have come to it

    shared: nn.Module = trainee
    if processes > 1:
        distributed.synchronise(trainee)
        with warnings.catch_warnings():  # of an option whose new name torch 2.11 does not know
            warnings.simplefilter("ignore", FutureWarning)
            shared = DistributedDataParallel(trainee, broadcast_buffers=False)
    forward = torch.compile(shared) if compiled else shared
    trainee.train()
    averages, currents = float_tensors(average), float_tensors(network)
    last_save = time.monotonic()

    with StopSignals() as stop:
        source = batches(dataset, clip_index, cached, config, first, share, device, threads)
        for step in range(first, config.iterations):
            try:
                batch = next(source)
            except (ValueError, OSError):  # a file that cannot be read; once it is mended, the run can go on
                if log and step > first:
                    save_state(out, step, settings, parts)
                raise
            set_learning_rate(optimiser, config, step)
            torch.manual_seed(config.seed + step)  # so that dropout is the same in a run that was stopped and goes on
            for number, part in enumerate(batch.parts(config.accumulate), start=1):
                with distributed.no_gradient_sync(shared) if number < config.accumulate else nullcontext():
                    with torch.autocast(device.type, precision, enabled=precision is not torch.float32):
                        images = part.images.contiguous(memory_format=torch.channels_last)
                        loss = forward(images, *part[1:]) / config.accumulate
                    scaler.scale(loss).backward()
                trainee.losses += loss.detach()
            if config.clip:
                scaler.unscale_(optimiser)
                nn.utils.clip_grad_norm_(trainee.parameters(), config.clip)
            scaler.step(optimiser)
            scaler.update()
            optimiser.zero_grad(set_to_none=True)
            update_ema(averages, currents, config.ema, step)

            done = step + 1
            last = done == config.iterations
            logging = done % runlog.EVERY == 0 or last
            validating = done % config.validate_every == 0 or last
            stopped = sync_stop_signal(stop.signal, done, device)
            saving = validating or stopped or time.monotonic() - last_save >= save_seconds
            if (logging or saving) and not trainee.losses.isfinite():
                raise ValueError(
                    f"The loss is no longer a number at iteration {done}: start again with a lower --rate."
                )
            if logging:
                steps = (done - 1) % runlog.EVERY + 1
                mean_loss = distributed.all_reduce_sum(trainee.losses).item() / processes / steps
                trainee.losses.zero_()
                if log:
                    log.step(config, done, mean_loss, optimiser.param_groups[-1]["lr"], device)
            elif log and log.is_due(done):
                steps = (done - 1) % runlog.EVERY + 1
                log.live(config, done, trainee.losses.item() / steps, optimiser.param_groups[-1]["lr"])
            if log and saving:
                save_state(out, done, settings, parts)
                last_save = time.monotonic()
            if stopped and not last:
                if log:
                    log.say(f"Stopped at iteration {done} of {config.iterations}: go on with --resume.")
                distributed.stop()
                sys.exit(128 + stopped)
            if validating and not last:
                measure(done)

    weights = out / "weights.safetensors"
    if log:
        checkpoint.save(
            to_half(average), dataset.classes, weights, window=description.window, source=description.source
        )
    measure(config.iterations)
    if log:
        log.finish()
    distributed.stop()
    return weights


def describe_checkpoint(config: TrainConfig, classes: Classes) -> checkpoint.Description:
    """What the checkpoint of a run will say of itself."""
    variant = checkpoint.Variant(
        attention=ATTENTIONS[config.attention],
        key_channels=config.key_channels,
        reduction=config.reduction,
        reduce_by=config.reduce_by,
        averages=config.averages,
    )
    return checkpoint.Description(
        network=config.network,
        variant=variant if config.network in checkpoint.FANETS else None,
        classes=classes,
        window=config.window,
        source=f"trained on {config.dataset} {config.split}, {config.iterations} iterations, by streamseg",
    )


def encoder_of(network: checkpoint.Network) -> ResNet | None:
    """A network's encoder, where it has one that ImageNet weights fit."""
    return getattr(network, "encoder", None)


def load_initial_weights(
    network: checkpoint.Network, description: checkpoint.Description, initial: str, encoder_weights: Path | None
) -> None:
    """Give a network the weights that it starts from."""
    encoder = encoder_of(network)
    if encoder is None and encoder_weights:
        raise ValueError(f"{network.name} has no ResNet to fill with {encoder_weights}: leave out --encoder-weights.")
    if initial == "nothing":
        return
    if initial == "imagenet" and encoder is not None:
        load_imagenet(encoder, encoder_weights)
        return
    other, their_classes = checkpoint.load(initial)
    ours, theirs = network.state_dict(), other.state_dict()
    if their_classes.names != description.classes.names:
        theirs |= {name: ours[name] for name in class_layers(description)}
    if {name: x.shape for name, x in ours.items()} != {name: x.shape for name, x in theirs.items()}:
        raise ValueError(f"{initial} holds another kind of network: start from one of the same kind.")
    network.load_state_dict(theirs)


def class_layers(description: checkpoint.Description) -> list[str]:
    """The weights whose shapes follow from the number of classes: those of the last layers."""
    with torch.device("meta"):
        one, two = (
            checkpoint.build_network(
                replace(description, classes=Classes(names, ((0, 0, 0),) * len(names)))
            ).state_dict()
            for names in (("a",), ("a", "b"))
        )
    return [name for name in one if one[name].shape != two[name].shape]


def make_optimiser(trainee: LossModule, config: TrainConfig) -> torch.optim.Optimizer:
    """SGD or AdamW; convolutions decay, the rest does not; the encoder has a rate of its own."""
    groups = []
    encoder = encoder_of(trainee.network)
    inside = set() if encoder is None else {id(parameter) for parameter in encoder.parameters()}
    for share, members in ((config.encoder_rate, True), (1.0, False)):
        chosen = [parameter for parameter in trainee.parameters() if (id(parameter) in inside) == members]
        for decay, deep in ((config.weight_decay, True), (0.0, False)):
            parameters = [parameter for parameter in chosen if (parameter.ndim > 1) == deep]
            if parameters:
                groups.append({"params": parameters, "weight_decay": decay, "share": share})
    fused = next(trainee.parameters()).is_cuda
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=config.rate, momentum=0.9, fused=fused)
    return torch.optim.AdamW(groups, lr=config.rate, fused=fused)


def set_learning_rate(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int) -> None:
    """The paper's schedule, (1 - progress)^0.9, after a linear warm-up."""
    progress = step / config.iterations
    warmth = min(1.0, (step + 1) / (config.warm_up * config.iterations + 1))
    rate = config.rate * (1 - progress) ** 0.9 * warmth
    for group in optimiser.param_groups:
        group["lr"] = rate * group["share"]


def float_tensors(network: nn.Module) -> list[Tensor]:
    """All weights and statistics of a network; they stay its own."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]


@torch.no_grad()
def update_ema(average: list[Tensor], current: list[Tensor], memory: float, step: int) -> None:
    """Move the average of the weights a step towards the weights; young averages forget faster."""
    torch._foreach_lerp_(average, current, 1 - min(memory, (1 + step) / (10 + step)))


def to_half(network: checkpoint.Network) -> checkpoint.Network:
    """A network in fp16, half the size; as it is, if any of its numbers are too large for that."""
    half = copy.deepcopy(network).half()
    return half if all(tensor.isfinite().all() for tensor in half.state_dict().values()) else network
