"""Training in several processes that torchrun starts, with batch norm over all of them."""

import gc
import importlib
import os
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel


def join_process_group(device: torch.device) -> tuple[int, int]:
    """Join the processes that torchrun started, if any; return the rank of this one and their number."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return 0, 1
    # its functions take the group that exists when it is imported as a default argument, and keep it for ever
    importlib.import_module("torch.distributed.nn")
    store, rank, world = next(rendezvous("env://"))
    # after a restart, torchrun's store still has the addresses of the dead processes; on several machines the number
    # of restarts may differ, and a new store must be given (docs/training.md)
    alone = os.environ.get("LOCAL_WORLD_SIZE") == str(world)
    store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0) if alone else 0}", store)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=world)
    return rank, world


def leave_process_group() -> None:
    """Leave the group of processes, if there is one, and end its threads.

    They end with the last reference to the group. A DistributedDataParallel that still holds one lets Gloo's threads
    free tensors while Python is shutting down, which aborts the process.
    """
    if dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def no_gradient_sync(module: nn.Module) -> AbstractContextManager[object]:
    """Return a context without synchronisation of gradients, for all parts of a batch but the last."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


def all_reduce_sum(value: Tensor) -> Tensor:
    """Return the sum of a value over all processes, without a gradient."""
    value = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


class AllReduceSum(torch.autograd.Function):
    """The sum of a value over all processes; its gradient is the sum of the gradients."""

    @staticmethod
    def forward(_: object, value: Tensor) -> Tensor:
        return all_reduce_sum(value)

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        return all_reduce_sum(gradient)


def sum_with_gradient(value: Tensor) -> Tensor:
    """Return the sum of a value over all processes, with a gradient."""
    return AllReduceSum.apply(value) if dist.is_initialized() else value


class SyncBatchNorm(nn.BatchNorm2d):
    """Batch norm with statistics over all processes in training; PyTorch's own works on CUDA only."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        count = all_reduce_sum(torch.tensor(float(x.numel() // x.shape[1]), device=x.device))
        mean = sum_with_gradient(x.float().sum(dim=(0, 2, 3))) / count
        centred = x - mean.view(1, -1, 1, 1)
        variance = sum_with_gradient(centred.square().sum(dim=(0, 2, 3))) / count
        with torch.no_grad():
            momentum = self.momentum or 0.0
            self.running_mean.lerp_(mean, momentum)  # type: ignore[union-attr] # never None here
            self.running_var.lerp_(variance * count / (count - 1), momentum)  # type: ignore[union-attr]
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def use_sync_batch_norm(module: nn.Module) -> None:
    """Replace each batch norm of a network by SyncBatchNorm, in place."""
    for child in module.modules():
        if type(child) is nn.BatchNorm2d:
            child.__class__ = SyncBatchNorm
