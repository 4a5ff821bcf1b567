"""The training loop."""

import copy
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from streamseg.evaluate.images import validate
from streamseg.evaluate.video_methods import validate_method
from streamseg.models import checkpoint
from streamseg.models.video import VideoMethod
from streamseg.parallel import distributed
from streamseg.parallel.signals import StopSignals
from streamseg.train import runlog
from streamseg.train.config import TrainConfig
from streamseg.train.feed import Batch, batches
from streamseg.train.gradient_graph import GradientGraph
from streamseg.train.resume import save_training_state, sync_stop_signal
from streamseg.train.setup import TrainingSetup, TrainState, set_up


class TrainingStopped(Exception):  # noqa: N818 # not an error: the user asked for it
    """Training was stopped by a signal, at the end of an iteration, and its state was saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"Training was stopped by signal {signal}.")
        self.signal = signal


def train(
    config: TrainConfig,
    data: Path,
    out: Path,
    *,
    with_data: Path | None = None,
    device: torch.device,
    initial: str = "imagenet",
    encoder_weights: Path | None = None,
    flow_weights: Path | None = None,
    resume: bool = False,
    compiled: bool = False,
    tensorboard: bool = False,
    threads: int = 2,
    save_seconds: float = 60,
    messages: TextIO | None = None,
) -> Path:
    """Train a network and return the path of its weights; a stop signal raises TrainingStopped.

    The folder `out` gets weights.safetensors, run.json (config, command, environment, data), log.jsonl, curves.png and
    state.pt, from which a stopped run can be resumed.

    Args:
        with_data: Folder of the second data set, if the config has one.
        initial: What the weights start from: imagenet (the encoder), nothing, or the path of a checkpoint.
        encoder_weights: File of ImageNet weights, instead of a download.
        flow_weights: File of a trained flow network, for a video method that has one.
        compiled: Compile the network with torch.compile.
        save_seconds: Time between saves of the state.
        messages: Where to print progress; the default is standard error.
    """
    setup = set_up(config, data, with_data, out, device, initial, encoder_weights, resume, threads, flow_weights)
    first = setup.first
    save = partial(save_training_state, out, settings=setup.settings, parts=setup.state.parts())
    log = start_log(setup, config, out, initial, tensorboard, messages)
    if first and first % config.validate_every == 0:
        log_accuracy(setup, log, first, threads)  # a killed run may not have reached it

    stopped = train_iterations(setup, config, log, save, save_seconds, compiled=compiled, threads=threads)
    if stopped:
        distributed.leave_process_group()
        raise TrainingStopped(stopped)

    weights = out / "weights.safetensors"
    if log:
        save_weights(setup, weights)
    log_accuracy(setup, log, config.iterations, threads)
    if log:
        log.finish()
    distributed.leave_process_group()
    return weights


def train_iterations(
    setup: TrainingSetup,
    config: TrainConfig,
    log: runlog.RunLog | None,
    save: Callable[[int], None],
    save_seconds: float,
    *,
    compiled: bool,
    threads: int,
) -> int:
    """Run the iterations that are left; return the signal that stopped them, or 0.

    Args:
        save: Saves the state of training after a number of iterations.
    """
    state, first, (_, processes), device = setup.state, setup.first, setup.share, setup.state.loss_module.losses.device
    shared = share_gradients(state.loss_module.train(), processes)
    # a video method takes another path for each length of a clip
    one_path = not isinstance(state.loss_module.network, VideoMethod)
    forward = torch.compile(shared) if compiled and one_path else shared
    compute_gradients: Callable[[Batch], None] = partial(add_gradients, forward, shared, state, config)
    if one_path and device.type == "cuda" and processes == 1:
        trained = [parameter for parameter in state.loss_module.parameters() if parameter.requires_grad]
        compute_gradients = GradientGraph(compute_gradients, trained)
    ema, current = float_tensors(state.ema), float_tensors(state.loss_module.network)
    last_save = time.monotonic()
    with StopSignals() as stop:
        feed = batches(setup.frame_sets, config, first, setup.share, device, threads)
        for step in range(first, config.iterations):
            try:
                batch = next(feed)
            except (ValueError, OSError):  # a file that cannot be read: once it is repaired, the run can be resumed
                if log and step > first:
                    save(step)
                raise
            set_learning_rate(state.optimiser, config, step)
            torch.manual_seed(config.seed + step)  # so that dropout is the same in a run that was stopped and resumed
            compute_gradients(batch)
            update_weights(state, config)
            update_ema(ema, current, config.ema_decay, step)

            done, last = step + 1, step + 1 == config.iterations
            validating = done % config.validate_every == 0 or last
            stopped = sync_stop_signal(stop.signal, done, device)
            saving = validating or stopped or time.monotonic() - last_save >= save_seconds
            log_loss(state, log, config, done, processes, saving=bool(saving))
            if log and saving:
                save(done)
                last_save = time.monotonic()
            if stopped and not last:
                if log:
                    log.say(f"Stopped at iteration {done} of {config.iterations}: continue with --resume.")
                return stopped
            if validating and not last:
                log_accuracy(setup, log, done, threads)
    return 0


def start_log(
    setup: TrainingSetup, config: TrainConfig, out: Path, initial: str, tensorboard: bool, messages: TextIO | None
) -> runlog.RunLog | None:
    """Open the log of a run and write what it trains, and from which weights; None in all processes but the first.

    Args:
        initial: The initial weights that were asked for.
    """
    rank, processes = setup.share
    if rank:
        return None
    log = runlog.RunLog(out, setup.first, tensorboard, messages)
    if setup.initial != initial:
        log.say(f"There are no ImageNet weights for {config.network}: it starts from random weights.")
    log.describe_run(config, setup.data, setup.state.loss_module.losses.device, setup.initial, processes)
    return log


def share_gradients(module: nn.Module, processes: int) -> nn.Module:
    """Return a module that averages its gradients over all processes, if there are several."""
    if processes == 1:
        return module
    distributed.use_sync_batch_norm(module)
    with warnings.catch_warnings():  # of an option whose new name torch 2.11 does not know
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(module, broadcast_buffers=False)


def set_learning_rate(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int) -> None:
    """Set the learning rate of a step: the paper's schedule, (1 - progress)^0.9, after a linear warm-up."""
    progress = step / config.iterations
    warm_up = min(1.0, (step + 1) / (config.warm_up * config.iterations + 1))
    rate = config.learning_rate * (1 - progress) ** 0.9 * warm_up
    for group in optimiser.param_groups:
        group["lr"] = rate * group["share"]


def add_gradients(
    forward: Callable[..., Tensor], shared: nn.Module, state: TrainState, config: TrainConfig, batch: Batch
) -> None:
    """Compute the loss of a batch and its gradients, part by part.

    Args:
        forward: The module that is called, compiled or not.
        shared: The same module, not compiled, which averages gradients over processes.
    """
    for number, part in enumerate(batch.parts(config.accumulate), start=1):
        with distributed.no_gradient_sync(shared) if number < config.accumulate else nullcontext():
            with autocast(state):
                images = part.images.contiguous(memory_format=torch.channels_last)
                loss = forward(images, *part[1:]) / config.accumulate
            state.scaler.scale(loss).backward()
        state.loss_module.losses += loss.detach()


def update_weights(state: TrainState, config: TrainConfig) -> None:
    """Take a step of the optimiser with the gradients, which are then gone."""
    optimiser, scaler = state.optimiser, state.scaler
    if config.grad_clip:
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(state.loss_module.parameters(), config.grad_clip)
    scaler.step(optimiser)
    scaler.update()
    optimiser.zero_grad(set_to_none=True)


def autocast(state: TrainState) -> torch.autocast:
    """Return a context in which networks run in the precision of training."""
    device = state.loss_module.losses.device
    return torch.autocast(device.type, state.precision, enabled=state.precision is not torch.float32)


def float_tensors(network: nn.Module) -> list[Tensor]:
    """Return all weights and statistics of a network; they share memory with it."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]


@torch.no_grad()
def update_ema(ema: list[Tensor], current: list[Tensor], decay: float, step: int) -> None:
    """Move the average of the weights one step towards the weights; the decay is lower in the first steps."""
    torch._foreach_lerp_(ema, current, 1 - min(decay, (1 + step) / (10 + step)))


def log_loss(
    state: TrainState, log: runlog.RunLog | None, config: TrainConfig, done: int, processes: int, *, saving: bool
) -> None:
    """Log the mean loss since the last entry, if an entry or a line on the terminal is due.

    A loss that is not finite raises a ValueError before it is logged or saved.
    """
    losses, rate = state.loss_module.losses, state.optimiser.param_groups[-1]["lr"]
    logging = done % runlog.EVERY == 0 or done == config.iterations
    if (logging or saving) and not losses.isfinite():
        raise ValueError(f"The loss is not finite at iteration {done}: start again with a lower --learning-rate.")
    steps = (done - 1) % runlog.EVERY + 1
    if logging:
        mean_loss = distributed.all_reduce_sum(losses).item() / processes / steps
        losses.zero_()
        if log:
            log.step(config, done, mean_loss, rate, losses.device)
    elif log and log.is_due(done):
        log.live(config, done, losses.item() / steps, rate)


def log_accuracy(setup: TrainingSetup, log: runlog.RunLog | None, done: int, threads: int) -> None:
    """Validate the EMA and log its accuracy, unless the log has it; all processes share the work."""
    needed = log is not None and not log.has_validation(done)
    device = setup.state.loss_module.losses.device
    if setup.data.validations and distributed.all_reduce_sum(torch.tensor(int(needed), device=device)):
        with autocast(setup.state):
            scores = [
                validate_method(setup.state.ema, dataset, setup.window, share=setup.share, label_of=label_of)
                if isinstance(setup.state.ema, VideoMethod)
                else validate(
                    setup.state.ema, dataset, threads=threads, share=setup.share, label_of=label_of, mask=mask
                )
                for (dataset, label_of), mask in zip(setup.data.validations, setup.masks, strict=False)
            ]
        if log:
            log.validated(done, scores)


def save_weights(setup: TrainingSetup, path: Path) -> None:
    """Write the checkpoint of a finished run."""
    network, description = to_half(setup.state.ema), setup.description
    checkpoint.save(network, description.classes, path, window=description.window, source=description.source)


def to_half(network: checkpoint.Network) -> checkpoint.Network:
    """Return a copy in fp16, half the size; or the network itself, if a number is too large for fp16."""
    half = copy.deepcopy(network).half()
    return half if all(tensor.isfinite().all() for tensor in half.state_dict().values()) else network
