"""Training: a network, its losses, and the loop, readable top to bottom."""

import copy
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from streamseg import checkpoint, distributed, runlog
from streamseg.config import TrainConfig
from streamseg.datasets import DATASETS
from streamseg.encoder import load_imagenet
from streamseg.evaluate import evaluate
from streamseg.feed import batches, hold, select, weigh_classes
from streamseg.files import written_whole
from streamseg.layers import conv
from streamseg.losses import cross_entropy, enlarge, hard_cross_entropy, overlap_loss
from streamseg.model import FANet

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Trainee(nn.Module):
    """A network with auxiliary heads on Res-3 and Res-4 and its loss; the heads exist in training alone."""

    class_weights: Tensor
    losses: Tensor
    """Their sum since the last entry of the log: part of the state that a run goes on from."""

    def __init__(self, network: FANet, config: TrainConfig, weights: Tensor, processes: int):
        super().__init__()
        self.network = network
        _, _, c3, c4 = network.encoder.channels
        self.head3 = auxiliary_head(c3, network.classes)
        self.head4 = auxiliary_head(c4, network.classes)
        self.config = config
        self.processes = processes
        self.register_buffer("class_weights", weights, persistent=False)
        self.register_buffer("losses", torch.zeros(()))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss of images (B, 3, h, w) with labels (B, h, w)."""
        maps, _ = self.network.features(images)
        loss = self.loss(self.network.score(maps), labels)
        if self.config.auxiliary:
            auxiliary = self.loss(self.head3(maps[2]), labels) + self.loss(self.head4(maps[3]), labels)
            loss = loss + self.config.auxiliary * auxiliary
        return loss

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits = enlarge(logits, labels)
        if self.config.hard_pixels:
            loss, weight = hard_cross_entropy(logits, labels, self.class_weights, self.config.hard_pixels)
        else:
            loss, weight = cross_entropy(logits, labels, self.class_weights)
        # gradients are averaged over the processes, so each divides by its share of the whole batch's weight
        mean = loss * self.processes / distributed.total(weight).clamp(min=1e-6)
        return mean + self.config.overlap * overlap_loss(logits, labels) if self.config.overlap else mean


def auxiliary_head(channels: int, classes: int) -> nn.Sequential:
    """Logits from the middle of the decoder."""
    return nn.Sequential(conv(channels, 128, 3), conv(128, 64, 3), nn.Conv2d(64, classes, 1))


def train(
    config: TrainConfig,
    data: Path,
    out: Path,
    *,
    device: torch.device,
    start: str = "imagenet",
    encoder_weights: Path | None = None,
    resume: bool = False,
    compiled: bool = False,
    tensorboard: bool = False,
    threads: int = 2,
    save_seconds: float = 60,
) -> Path:
    """Train a network as a config says, and return the path of its weights.

    The folder `out` gets weights.safetensors, run.json (config, command, environment, data), log.jsonl, curves.png and
    state.pt, from which a stopped run goes on.

    Args:
        start: What the weights start from: imagenet (the encoder), nothing, or the path of a checkpoint.
        encoder_weights: The file of ImageNet weights, where it should not be downloaded.
        compiled: Compile the network with torch.compile.
        save_seconds: How often to save the state.
    """
    config.check()
    check_out(out, resume)
    rank, processes = distributed.start(device)
    if config.batch % processes:
        raise ValueError(f"A batch of {config.batch} cannot be shared by {processes} processes: choose a multiple.")
    dataset = select(DATASETS[config.dataset](data, config.split), config.leave_out)
    validation = DATASETS[config.dataset](data, config.validate) if config.validate else None

    torch.manual_seed(config.seed)
    network = checkpoint.NETWORKS[config.network](classes=len(dataset.classes))
    if not resume:
        begin(network, start, encoder_weights)
    held = hold(dataset, device, threads)
    trainee = Trainee(network, config, weigh_classes(dataset, held, config, threads), processes)
    trainee = trainee.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks it
    average = copy.deepcopy(network).requires_grad_(False)
    optimiser = make_optimiser(trainee, config)
    precision = PRECISIONS[config.precision] if device.type == "cuda" else torch.float32
    scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)

    parts = {"trainee": trainee, "average": average, "optimiser": optimiser, "scaler": scaler}
    settings = {**asdict(config), "data": runlog.fingerprint(dataset)}
    first = restore(out, settings, parts) if resume else 0
    log = runlog.Log(out, first, tensorboard) if rank == 0 else None
    if log:
        log.describe_run(config, dataset, device, data)

    forward: nn.Module = trainee
    if processes > 1:
        distributed.synchronise(trainee)
        forward = DistributedDataParallel(trainee, broadcast_buffers=False, find_unused_parameters=not config.auxiliary)
    if compiled:
        forward = torch.compile(forward)  # type: ignore[assignment] # behaves as the module that it wraps
    trainee.train()
    averages, currents = floats_of(average), floats_of(network)
    last_save = time.monotonic()

    with stopping() as stop:
        source = batches(dataset, held, config, first, rank, processes, device, threads)
        for step, (images, labels) in enumerate(source, start=first):
            set_rate(optimiser, config, step)
            with torch.autocast(device.type, precision, enabled=precision is not torch.float32):
                loss = forward(images.contiguous(memory_format=torch.channels_last), labels)
            scaler.scale(loss).backward()
            if config.clip:
                scaler.unscale_(optimiser)
                nn.utils.clip_grad_norm_(trainee.parameters(), config.clip)
            scaler.step(optimiser)
            scaler.update()
            optimiser.zero_grad(set_to_none=True)
            follow(averages, currents, config.ema, step)
            trainee.losses += loss.detach()

            done = step + 1
            last = done == config.iterations
            if done % runlog.EVERY == 0 or last:
                steps = (done - 1) % runlog.EVERY + 1
                mean_loss = distributed.total(trainee.losses).item() / processes / steps
                trainee.losses.zero_()
                if not mean_loss < float("inf"):
                    raise ValueError(
                        f"The loss is no longer a number at iteration {done}: start again with a lower --rate."
                    )
                if log:
                    log.step(config, done, mean_loss, optimiser.param_groups[-1]["lr"], device)
            if log and (done % config.validate_every == 0 or last) and validation:
                result = evaluate(average, validation, device, precision=precision, threads=threads)
                log.write({"step": done, "val_miou": result.miou, "val_iou": result.iou})
            stopped = agree(stop.signal, device)
            due = time.monotonic() - last_save >= save_seconds
            if log and (last or stopped or due):
                save_state(out, done, settings, parts)
                last_save = time.monotonic()
            if stopped and not last:
                if log:
                    log.say(f"Stopped at iteration {done} of {config.iterations}: go on with --resume.")
                sys.exit(128 + stopped)

    weights = out / "weights.safetensors"
    if log:
        words = f"trained on {config.dataset} {config.split}, {config.iterations} iterations, by streamseg"
        checkpoint.save(halve(average), dataset.classes, weights, source=words)
        log.finish()
    distributed.leave()
    return weights


def check_out(out: Path, resume: bool) -> None:
    """Raise an error if there is no run to go on with, or one that would be overwritten."""
    if resume and not (out / "state.pt").exists():
        raise FileNotFoundError(f"No state at {out / 'state.pt'} to resume from: start the run without --resume.")
    if not resume and any((out / name).exists() for name in ("state.pt", "weights.safetensors")):
        raise ValueError(f"{out} already holds a run: go on with --resume, or give another --out.")


def begin(network: FANet, start: str, encoder_weights: Path | None) -> None:
    """Give a network the weights that it starts from."""
    if start == "nothing":
        return
    if start == "imagenet":
        load_imagenet(network.encoder, encoder_weights)
        return
    other, _ = checkpoint.load(None if start == "shipped" else start)
    ours, theirs = network.state_dict(), other.state_dict()
    if other.classes != network.classes:  # all but the last layer, whose outputs are the classes
        theirs["classify.1.weight"] = ours["classify.1.weight"]
    if {name: x.shape for name, x in ours.items()} != {name: x.shape for name, x in theirs.items()}:
        raise ValueError(f"{start} holds another kind of network: start from one of the same kind.")
    network.load_state_dict(theirs)


def make_optimiser(trainee: Trainee, config: TrainConfig) -> torch.optim.Optimizer:
    """SGD or AdamW; convolutions decay, the rest does not; the encoder has a rate of its own."""
    groups = []
    encoder = {id(parameter) for parameter in trainee.network.encoder.parameters()}
    for share, members in ((config.encoder_rate, True), (1.0, False)):
        chosen = [parameter for parameter in trainee.parameters() if (id(parameter) in encoder) == members]
        for decay, deep in ((config.weight_decay, True), (0.0, False)):
            parameters = [parameter for parameter in chosen if (parameter.ndim > 1) == deep]
            groups.append({"params": parameters, "weight_decay": decay, "share": share})
    fused = next(trainee.parameters()).is_cuda
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=config.rate, momentum=0.9, fused=fused)
    return torch.optim.AdamW(groups, lr=config.rate, fused=fused)


def set_rate(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int) -> None:
    """The paper's schedule, (1 - progress)^0.9, after a linear warm-up."""
    rate = config.rate * (1 - step / config.iterations) ** 0.9 * min(1.0, (step + 1) / (config.warm_up + 1))
    for group in optimiser.param_groups:
        group["lr"] = rate * group["share"]


def floats_of(network: FANet) -> list[Tensor]:
    """All weights and statistics of a network; they stay its own."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]


@torch.no_grad()
def follow(average: list[Tensor], current: list[Tensor], memory: float, step: int) -> None:
    """Move the average of the weights a step towards the weights; young averages forget faster."""
    torch._foreach_lerp_(average, current, 1 - min(memory, (1 + step) / (10 + step)))


def halve(network: FANet) -> FANet:
    """A network in fp16, half the size; as it is, if any of its numbers are too large for that."""
    half = copy.deepcopy(network).half()
    return half if all(tensor.isfinite().all() for tensor in half.state_dict().values()) else network


def save_state(out: Path, step: int, settings: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write all that a run needs to go on."""
    state = {"step": step, "settings": json.dumps(settings), **{name: x.state_dict() for name, x in parts.items()}}
    path = out / "state.pt"
    try:
        with written_whole(path) as temporary:
            torch.save(state, temporary)
    except RuntimeError as error:  # torch's word for a full disk
        raise OSError(f"Could not write {path}: make room on the disk, then go on with --resume.") from error


def restore(out: Path, settings: dict[str, Any], parts: dict[str, Any]) -> int:
    """Put a stopped run's state back; returns the step to go on from."""
    path = out / "state.pt"
    damaged = f"{path} is not the state of a run, or is damaged: start again in another folder."
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        theirs = json.loads(state["settings"])
        changed = [name for name, ours in json.loads(json.dumps(settings)).items() if ours != theirs.get(name)]
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise ValueError(damaged) from error
    if changed:
        raise ValueError(f"The run in {out} was started with another {', '.join(changed)}: give the same to go on.")
    try:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        return int(state["step"])
    except Exception as error:  # likewise
        raise ValueError(damaged) from error


def agree(signal_number: int, device: torch.device) -> int:
    """A stop signal that any of the processes got, so that all stop at the same iteration."""
    if not torch.distributed.is_initialized():
        return signal_number
    value = torch.tensor(signal_number, device=device)
    torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
    return int(value.item())


class stopping:  # noqa: N801 (used as a with statement's verb)
    """Within it, the first Ctrl-C or SIGTERM is noted and lets the iteration end; a second one is obeyed at once."""

    signal = 0

    def __enter__(self) -> "stopping":
        self.before = {number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, self.before[signal.Signals(number)])

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
