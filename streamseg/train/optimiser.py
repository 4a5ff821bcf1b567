"""The optimiser, the learning rate schedule, and the moving average of the weights."""

import torch
from torch import Tensor, nn

from streamseg.train.config import TrainConfig


def make_optimiser(module: nn.Module, encoder: nn.Module | None, config: TrainConfig) -> torch.optim.Optimizer:
    """Return SGD or AdamW with weight decay for convolutions only, and a learning rate of its own for the encoder."""
    groups = []
    in_encoder = set() if encoder is None else {id(parameter) for parameter in encoder.parameters()}
    for share, members in ((config.encoder_rate_factor, True), (1.0, False)):
        chosen = [parameter for parameter in module.parameters() if (id(parameter) in in_encoder) == members]
        for decay, deep in ((config.weight_decay, True), (0.0, False)):
            parameters = [parameter for parameter in chosen if (parameter.ndim > 1) == deep]
            if parameters:
                # "share" is stored in state.pt, and so keeps its name
                groups.append({"params": parameters, "weight_decay": decay, "share": share})
    fused = next(module.parameters()).is_cuda
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=0.9, fused=fused)
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=fused)


def set_learning_rate(optimiser: torch.optim.Optimizer, config: TrainConfig, step: int) -> None:
    """Set the learning rate of a step: the paper's schedule, (1 - progress)^0.9, after a linear warm-up."""
    progress = step / config.iterations
    warm_up = min(1.0, (step + 1) / (config.warm_up * config.iterations + 1))
    rate = config.learning_rate * (1 - progress) ** 0.9 * warm_up
    for group in optimiser.param_groups:
        group["lr"] = rate * group["share"]


def float_tensors(network: nn.Module) -> list[Tensor]:
    """Return all weights and statistics of a network; they share memory with it."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]


@torch.no_grad()
def update_ema(ema: list[Tensor], current: list[Tensor], decay: float, step: int) -> None:
    """Move the average of the weights one step towards the weights; the decay is lower in the first steps."""
    torch._foreach_lerp_(ema, current, 1 - min(decay, (1 + step) / (10 + step)))
