"""What is trained: a network with its losses.

Shapes: B batch, K classes, h x w the crops, P frames before each.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from streamseg.data.augment import shift_camera
from streamseg.models.baselines import Baseline
from streamseg.models.fanet import FANet
from streamseg.models.layers import conv, resize
from streamseg.parallel import distributed
from streamseg.train.losses import cross_entropy, hard_cross_entropy, iou_loss, kl_divergence, soft_iou_counts


class LossModule(nn.Module):
    """A network with its losses and, in training alone, auxiliary heads on its deep maps.

    Args:
        class_weights: (K,).
        auxiliary: Weight of the auxiliary heads' losses; 0 for no such heads.
        hard_pixels: Count only pixels whose class has less than this probability; 0 counts all.
        overlap: Weight of the soft IoU loss.
        steadiness: Weight of the loss for probabilities that change when the camera moves a little.
        processes: How many share each batch.
    """

    class_weights: Tensor
    losses: Tensor
    """Their sum since the last entry of the log: part of the state that a run goes on from."""

    def __init__(
        self,
        network: FANet | Baseline,
        class_weights: Tensor,
        *,
        auxiliary: float = 0.0,
        hard_pixels: float = 0.0,
        overlap: float = 0.0,
        steadiness: float = 0.0,
        processes: int = 1,
    ):
        super().__init__()
        self.network = network
        places = network.deep_channels if auxiliary else ()
        self.heads = nn.ModuleList(auxiliary_head(channels, network.classes) for channels in places)
        self.auxiliary = auxiliary
        self.hard_pixels = hard_pixels
        self.overlap = overlap
        self.steadiness = steadiness
        self.processes = processes
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.register_buffer("losses", torch.zeros(()))

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        past: Tensor | None = None,
        seen: Tensor | None = None,
        motion: Tensor | None = None,
    ) -> Tensor:
        """The loss of images (B, 3, h, w) with labels (B, h, w).

        Args:
            past: The frames (B, P, 3, h, w) before each image, for clips; only a FANet takes them.
            seen: (B, P): 1 for those of them that are looked at, 0 for the others.
            motion: (B, 3): a motion of the camera for the loss of steadiness; see augment.Choice.
        """
        see: Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]] = self.network.outputs
        if isinstance(self.network, FANet) and past is not None and seen is not None:
            context, weight = sum_contexts(self.network, past, seen), seen.sum(dim=1).view(-1, 1, 1)
            see = partial(self.network.outputs, past=context, weight=weight)
        logits, maps = see(images)
        loss = self.loss(logits, labels)
        for head, deep_map in zip(self.heads, maps, strict=False):
            loss = loss + self.auxiliary * self.loss(head(deep_map), labels)
        if self.steadiness and motion is not None:
            with torch.no_grad():  # what the moved camera says is given, not learned
                moved = shift_camera(images, motion).contiguous(memory_format=torch.channels_last)
                wanted = shift_camera(see(moved)[0], motion, back=True)
            loss = loss + self.steadiness * kl_divergence(logits, wanted)
        return loss

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of logits of any size. Each process's gradient is averaged with the others', so it is a share."""
        if logits.shape[-2:] != labels.shape[-2:]:
            logits = resize(logits, labels)
        if self.hard_pixels:
            loss, weight = hard_cross_entropy(logits, labels, self.class_weights, self.hard_pixels)
        else:
            loss, weight = cross_entropy(logits, labels, self.class_weights)
        mean = loss * self.processes / distributed.all_reduce_sum(weight).clamp(min=1e-6)
        if not self.overlap:
            return mean
        return mean + self.overlap * iou_loss(distributed.sum_with_gradient(soft_iou_counts(logits, labels)))


@torch.no_grad()
def sum_contexts(network: FANet, past: Tensor, seen: Tensor) -> list[Tensor]:
    """The sum of the contexts of the frames that are looked at, stage by stage.

    They are given, not learned: own and past context are made by the same weights, and the own one teaches them. It
    takes half of the time.
    """
    frames = past.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    contexts = network.compute_context(network.encode(frames))
    return [(x.unflatten(0, seen.shape) * seen[:, :, None, None]).sum(dim=1) for x in contexts]


def auxiliary_head(channels: int, classes: int) -> nn.Sequential:
    """Logits from one of the deep maps."""
    return nn.Sequential(conv(channels, 128, 3), conv(128, 64, 3), nn.Conv2d(64, classes, 1))
