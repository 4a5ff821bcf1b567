"""The network as it is exported: uint8 frames in, uint8 labels out, and the state of a stream beside them.

Shapes: K classes, H height, W width, h x w the map of scores, D key channels, C channels of a stage.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.classes import IGNORE
from streamseg.engine.mirroring import mirror_some
from streamseg.engine.steadying import (
    Steadiness,
    average,
    class_shares,
    luma_size,
    margin_share,
    move_evidence,
    to_luma,
)
from streamseg.io.masks import GREY, Mask
from streamseg.models.fanet import FANet
from streamseg.models.layers import resize


class ExportModule(nn.Module):
    """The network as it is exported: uint8 frames in, uint8 labels out."""

    hidden: Tensor | None

    def __init__(
        self,
        network: FANet,
        confident: bool,
        mask: Mask | None = None,
        size: tuple[int, int] = (0, 0),
        steady: Steadiness | None = None,
    ):
        """
        Args:
            mask: Pixels to ignore in frames of the size; it becomes a constant of the file.
        """
        super().__init__()
        self.network = network
        self.confident = confident
        self.steady = steady
        device = network.mean.device
        self.register_buffer("hidden", None if mask is None else ~mask.pixels(size, device)[None])
        weights = [] if mask is None else self.weigh(mask, size)
        self.weights = [f"weights{number}" for number in range(len(weights))]
        for name, weight in zip(self.weights, weights, strict=True):
            self.register_buffer(name, weight)

    def weigh(self, mask: Mask, size: tuple[int, int]) -> list[Tensor]:
        """Return the weight of each pixel in the contexts of frames of a size."""
        device = self.network.mean.device
        maps = self.network.encode(torch.zeros(1, 3, *size, device=device))
        return self.network.weigh_pixels(mask.shares(size, device)[None], maps)

    def forward(self, frame: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return labels (1, H, W); then, if asked for, confidence; then, with a state, the context of each stage.

        Args:
            frame: RGB (1, H, W, 3), uint8, the layout of cameras and canvases.
            state: For each stage with attention, the sum of the contexts of the earlier frames in the window,
                (1, D, C); zeros for the first frame. Then, for a network that averages, the number of frames in that
                sum, (1,). Then, for steady labels, brightness, scores and labels of the frame before, and how far they
                count, (1,): 0 for the first frame. Then, if every second frame is mirrored, 1 for those and 0 for the
                others, (1,).
        """
        # float from the first operator to the last: TensorRT takes uint8 only as an input or output
        image = frame.to(self.network.mean.dtype).permute(0, 3, 1, 2)
        stages, counts = len(self.network.attentions), int(self.network.averages)
        past, weight, before = state[:stages], state[stages : stages + counts], state[stages + counts :]
        count = weight[0].view(1, 1, 1) if weight else 1.0
        if self.hidden is not None:
            image = image.masked_fill(self.hidden, GREY)
        if self.steady and self.steady.mirror:
            before, mirrored = before[:-1], before[-1]
            scores, context = self.score(mirror_some(image, mirrored), past or None, count, mirrored)
            scores = mirror_some(scores, mirrored)
        else:
            scores, context = self.score(image, past or None, count)
        evidence: tuple[Tensor, ...] = ()
        if self.steady:
            labels, logits, behind, *rest = self.label_steadily(image, scores, *before)
            evidence = tuple(rest)
        else:
            logits = resize(scores, image)
            labels, behind = logits.argmax(dim=1), None
        outputs = [self.hide(cast_uint8(labels), IGNORE)]
        if self.confident:
            # the softmax of the highest logit only
            others = (logits - logits.amax(dim=1, keepdim=True)).exp().sum(dim=1)
            share = 1 / others if behind is None else (-behind).exp() / others
            outputs.append(self.hide(cast_uint8((255 * share).round()), 0))
        return (*outputs, *(context if past else ()), *evidence)

    def score(
        self, image: Tensor, past: Sequence[Tensor] | None, weight: Tensor | float, mirrored: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the scores (1, K, h, w) and the context of an image whose hidden pixels are painted over.

        Args:
            mirrored: 1 if the image is mirrored, or else 0, (1,); None if no image is.
        """
        network = self.network
        pixels = [self.get_buffer(name) for name in self.weights] or None
        if pixels and mirrored is not None:
            pixels = [mirror_some(each, mirrored) for each in pixels]
        maps, context = network.attend(network.encode(image), past, weight, pixels)
        return network.score(network.merge(maps)), context

    def label_steadily(
        self, image: Tensor, scores: Tensor, before: Tensor, earlier: Tensor, previous: Tensor, share: Tensor
    ) -> tuple[Tensor, ...]:
        """Return labels, logits, by how much the labels lose; and, for the next frame, brightness and scores."""
        assert self.steady is not None
        luma = to_luma(shrink_bytes(image, luma_size(scores.shape[2:], image.shape[2:])))
        seen = None if self.hidden is None else (~self.hidden).float()
        fused = average(scores, move_evidence(luma, before, earlier, share, self.steady, seen), self.steady)
        logits = resize(fused.scores, image)
        # as keep_labels, for all pixels
        classes = logits.shape[1]
        known, best = previous.to(torch.int64).clamp(max=classes - 1), logits.argmax(dim=1)
        lead = logits.amax(dim=1) - logits.gather(1, known[:, None])[:, 0]
        shares = class_shares(previous, classes)[0]
        keep = lead < resize(fused.margin, image)[:, 0] * margin_share(shares[best], shares[known])
        labels = torch.where(keep, known.float(), best.float())
        return labels, logits, torch.where(keep, lead, 0.0), fused.luma, fused.carried

    def hide(self, values: Tensor, value: int) -> Tensor:
        """Return values (1, H, W) with another one where the mask hides the frame."""
        return values if self.hidden is None else torch.where(self.hidden, value, values).to(torch.uint8)


def cast_uint8(values: Tensor) -> Tensor:
    return values.float().to(torch.uint8)


def shrink_bytes(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Return an image (1, 3, H, W) in a smaller size, as a CPU resizes bytes: rounded after the columns and the rows.

    The motion between two frames, and so the labels of many, would differ more from the network's without it.
    """
    rows = F.interpolate(image, (image.shape[2], size[1]), mode="bilinear", antialias=True).round()
    return F.interpolate(rows, size, mode="bilinear", antialias=True).round()
