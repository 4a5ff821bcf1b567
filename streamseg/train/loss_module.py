"""A network together with its losses.

Shapes: B batch, K classes, L labels of all data sets, h x w the crops, P frames before each.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from streamseg.data.augment import shift_camera
from streamseg.models.baselines import Baseline
from streamseg.models.fanet import FANet
from streamseg.models.layers import conv, resize, resize_to
from streamseg.models.video import VideoMethod
from streamseg.parallel import distributed
from streamseg.train.label_sets import LabelSets, label_probabilities, overlap_in_own_pixels, set_cross_entropy
from streamseg.train.losses import (
    cross_entropy,
    distillation_loss,
    hard_cross_entropy,
    iou_loss,
    kl_divergence,
    soft_iou_counts,
    take_grid,
)


class LossModule(nn.Module):
    """A network with its losses and, for training only, auxiliary heads on its deep feature maps.

    Args:
        class_weights: (K,), or (L,) with label sets.
        label_sets: The classes that each label means; None if the labels are the classes.
        auxiliary_loss: Weight of the losses of the auxiliary heads; 0 for no such heads.
        ohem_threshold: Count only pixels whose true class has a lower probability than this; 0 counts all.
        iou_loss: Weight of the soft IoU loss.
        consistency_loss: Weight of the loss on probabilities that change when the camera moves a little.
        loss_stride: Compute the loss at every n-th pixel of each row and column.
        auxiliary_stride: The same for the losses of the auxiliary heads.
        teachers: Trained networks with the same classes. Their mean probabilities are a second target (distillation).
        teacher_scales: Scales at which each teacher sees the images.
        distillation_loss: Weight of the loss on the divergence from the teachers.
        moved_clips: Make the past frames of a video method's clips by moving the camera over the present ones.
        processes: Number of processes that share each batch.
    """

    class_weights: Tensor
    members: Tensor | None
    owners: Tensor | None
    losses: Tensor
    """Sum of the losses since the last log entry. A buffer, so that a resumed run continues it."""

    def __init__(
        self,
        network: FANet | Baseline | VideoMethod,
        class_weights: Tensor,
        *,
        label_sets: LabelSets | None = None,
        auxiliary_loss: float = 0.0,
        ohem_threshold: float = 0.0,
        iou_loss: float = 0.0,
        consistency_loss: float = 0.0,
        loss_stride: int = 1,
        auxiliary_stride: int = 1,
        teachers: Sequence[FANet | Baseline] = (),
        teacher_scales: Sequence[float] = (1.0,),
        distillation_loss: float = 1.0,
        moved_clips: bool = False,
        processes: int = 1,
    ):
        super().__init__()
        self.network = network
        # a tuple, which torch does not search for modules: teachers stay in eval mode and out of the saved state
        self.teachers = tuple(teachers)
        self.teacher_scales = tuple(teacher_scales)
        self.distillation_loss = distillation_loss
        channels = network.deep_channels if auxiliary_loss and not isinstance(network, VideoMethod) else ()
        self.heads = nn.ModuleList(auxiliary_head(count, network.classes) for count in channels)
        self.auxiliary_loss = auxiliary_loss
        self.ohem_threshold = ohem_threshold
        self.iou_loss = iou_loss
        self.consistency_loss = consistency_loss
        self.loss_stride = loss_stride
        self.auxiliary_stride = auxiliary_stride
        self.moved_clips = moved_clips
        self.processes = processes
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.register_buffer("members", label_sets and label_sets.members, persistent=False)
        self.register_buffer("owners", label_sets and label_sets.owners, persistent=False)
        self.register_buffer("losses", torch.zeros(()))

    def forward(
        self,
        images: Tensor,
        labels: Tensor,
        past: Tensor | None = None,
        used: Tensor | None = None,
        motion: Tensor | None = None,
        place: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of images (B, 3, h, w) with labels (B, h, w).

        Args:
            past: Frames (B, P, 3, h, w) before each image, for clips; only for a FANet or a video method.
            used: (B, P): 1 for the past frames that the clip uses, 0 for the others.
            motion: (B, 3): camera motion for the consistency loss; see AugmentParams.
            place: (2,): where the grids of the strides start; needed with a stride.
            mask: (B, h, w): 1 for the pixels that a FANet attends to, 0 for those that are painted over; None for all.
        """
        if isinstance(self.network, VideoMethod):
            if self.moved_clips and past is not None and motion is not None:
                past = move_camera_back(images, motion, past.shape[1])
            return self.clip_loss(self.network, images, labels, past, place)
        predict: Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]] = self.network.outputs
        moved_predict = predict
        if isinstance(self.network, FANet):
            context, weight = None, torch.ones((), device=images.device)
            if past is not None and used is not None:
                context, weight = sum_contexts(self.network, past, used, mask), used.sum(dim=1).view(-1, 1, 1)
            if context is not None or mask is not None:
                predict = partial(self.network.outputs, past=context, weight=weight, mask=mask)
                moved_mask = None if mask is None or motion is None else move_mask(mask, motion)
                moved_predict = partial(self.network.outputs, past=context, weight=weight, mask=moved_mask)
        logits, feature_maps = predict(images)
        loss = self.label_loss(logits, labels, self.loss_stride, place)
        for head, feature_map in zip(self.heads, feature_maps, strict=False):
            auxiliary = self.label_loss(head(feature_map), labels, self.auxiliary_stride, place)
            loss = loss + self.auxiliary_loss * auxiliary
        if self.teachers:
            loss = loss + self.distillation_loss * self.teacher_loss(logits, images, place)
        if self.consistency_loss and motion is not None:
            with torch.no_grad():  # the prediction for the moved camera is the target, and gets no gradient
                moved = shift_camera(images, motion).contiguous(memory_format=torch.channels_last)
                target = shift_camera(moved_predict(moved)[0], motion, back=True)
            loss = loss + self.consistency_loss * kl_divergence(logits, target)
        return loss

    def clip_loss(
        self, method: VideoMethod, images: Tensor, labels: Tensor, past: Tensor | None, place: Tensor | None
    ) -> Tensor:
        """Return the loss of a video method on the last frames of clips, 0 to P frames after a key frame.

        At distance 0 the key frame is the frame itself, a second time: so key frames are trained too, and every part
        of the method takes part in every step, as several processes need it.
        """
        count = 0 if past is None else int(torch.randint(past.shape[1] + 1, ()))
        earlier = [images] if past is None or not count else list(past[:, :count].unbind(dim=1))
        frames = [frame.contiguous(memory_format=torch.channels_last) for frame in reversed(earlier)]
        logits, regression = method.clip_outputs([*frames, images])
        loss = self.label_loss(logits, labels, self.loss_stride, place)
        return loss if regression is None else loss + regression

    def teacher_loss(self, logits: Tensor, images: Tensor, place: Tensor | None) -> Tensor:
        """Return the divergence of logits of any size from the mean probabilities of the teachers for the images."""
        with torch.no_grad():
            views = [(teacher, scale) for teacher in self.teachers for scale in self.teacher_scales]
            target = torch.stack(
                [
                    self.on_loss_grid(teacher.outputs(scale_images(images, scale))[0], images, place).float().softmax(1)
                    for teacher, scale in views
                ]
            ).mean(dim=0)
        weights = self.class_weights
        if self.members is not None:  # of labels: a class has the mean weight of the labels that mean it
            weights = (weights @ self.members) / self.members.sum(dim=0)
        return distillation_loss(self.on_loss_grid(logits, images, place), target, weights)

    def on_loss_grid(self, logits: Tensor, images: Tensor, place: Tensor | None) -> Tensor:
        """Return logits at the pixels of the images that the loss is computed at."""
        if self.loss_stride > 1 and place is not None:
            return take_grid(logits, images[:, 0], place, self.loss_stride)[0]
        return resize(logits, images)

    def label_loss(self, logits: Tensor, labels: Tensor, stride: int = 1, place: Tensor | None = None) -> Tensor:
        """Return the loss of logits of any size with labels (B, h, w), at every stride-th pixel.

        Gradients are averaged over processes, so each process divides by the weight of the whole batch and multiplies
        by the number of processes.
        """
        if stride > 1 and place is not None:
            logits, labels = take_grid(logits, labels, place, stride)
        elif logits.shape[-2:] != labels.shape[-2:]:
            logits = resize(logits, labels)
        probabilities = None if self.members is None else label_probabilities(logits, self.members)
        if probabilities is not None:
            loss, weight = set_cross_entropy(probabilities, labels, self.class_weights, self.ohem_threshold)
        elif self.ohem_threshold:
            loss, weight = hard_cross_entropy(logits, labels, self.class_weights, self.ohem_threshold)
        else:
            loss, weight = cross_entropy(logits, labels, self.class_weights)
        mean = loss * self.processes / distributed.all_reduce_sum(weight).clamp(min=1e-6)
        if not self.iou_loss:
            return mean
        if probabilities is not None and self.owners is not None:
            counts = overlap_in_own_pixels(probabilities, labels, self.owners)
        else:
            counts = soft_iou_counts(logits, labels)
        return mean + self.iou_loss * iou_loss(distributed.sum_with_gradient(counts))


def scale_images(images: Tensor, scale: float) -> Tensor:
    """Return images (B, 3, h, w) in another size."""
    if scale == 1:
        return images
    height, width = (round(scale * side) for side in images.shape[-2:])
    return resize_to(images, height, width).contiguous(memory_format=torch.channels_last)


def move_camera_back(images: Tensor, motion: Tensor, count: int) -> Tensor:
    """Return frames (B, P, 3, h, w) that a camera with a steady motion (B, 3) saw before the images, latest first."""
    zoom, shift = motion[:, :1], motion[:, 1:]
    steps = range(1, count + 1)
    return torch.stack([shift_camera(images, torch.cat([zoom**k, k * shift], dim=1)) for k in steps], dim=1)


def move_mask(mask: Tensor, motion: Tensor) -> Tensor:
    """Return a mask (B, h, w) after a camera motion (B, 3), 0 or 1."""
    return shift_camera(mask[:, None], motion)[:, 0].round()


@torch.no_grad()
def sum_contexts(network: FANet, past: Tensor, used: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """Return the sum of the contexts of the past frames that are used, for each stage.

    No gradient flows into the past: the same weights make the present frame's context, which does train them. Training
    takes half the time this way.
    """
    frames = past.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    maps = network.encode(frames)
    pixels = None if mask is None else network.weigh_pixels(mask.repeat_interleave(past.shape[1], dim=0), maps)
    contexts = network.compute_context(maps, pixels)
    return [(x.unflatten(0, used.shape) * used[:, :, None, None]).sum(dim=1) for x in contexts]


def auxiliary_head(channels: int, classes: int) -> nn.Sequential:
    """Return the layers that make logits from a deep feature map."""
    return nn.Sequential(conv(channels, 128, 3), conv(128, 64, 3), nn.Conv2d(64, classes, 1))
