"""Labels made visible.

Every function gives a new picture, laid out in memory as the frame it is drawn on, so that a frame which was decoded
with its colours side by side goes to the encoder as it is.

Shapes: H height, W width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from streamseg.classes import IGNORE, Classes
from streamseg.io.images import Picture, to_frame

GREY_WEIGHTS = (0.17, 0.33, 0.06)
"""Parts of red, green and blue in what is not highlighted: those of a grey as bright as the colour, and 0.56 of it."""

LEGEND_OPACITY = 0.75
"""Share of a legend's ground where it lies on a picture."""


def overlay(frame: Picture, labels: Tensor, classes: Classes, alpha: float = 0.5, only: Sequence[int] = ()) -> Tensor:
    """A frame (3, H, W) under the colours of its labels (H, W); pixels of no class stay as they are.

    Args:
        frame: It may be a picture of any kind that segment takes, such as an array (H, W, 3).
        alpha: Share of the colour, from 0 (the frame alone) to 1 (the colours alone).
        only: Numbers of the classes to highlight: all else is then shown dark and grey. If empty, all are coloured.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; expected the share of the colours, from 0 to 1.")
    frame = to_frame(frame)
    labels = check_labels(labels, frame)
    # looked up, not computed: the same to the last bit as torch.lerp, in 3 ms instead of 20 (1280 x 720, one core)
    table = blend_table(classes, alpha)
    if only:
        hidden = torch.full((IGNORE + 1,), 255, dtype=torch.uint8)
        hidden[list(only)] = 0
        table &= ~hidden[:, None]
        rest = dark_grey(frame) & lookup(hidden, labels)
    row = labels.to(torch.int32) << 8
    drawn = torch.empty_like(frame)
    for mixed, plane, values in zip(table.to(frame.device).flatten(1), frame, drawn, strict=True):
        values.copy_(mixed.index_select(0, (row + plane).flatten()).view_as(plane))
        if only:
            values |= rest
    return drawn


def check_labels(labels: Tensor, frame: Tensor) -> Tensor:
    """The labels of a frame (3, H, W), if they are some: a tensor or an array (H, W) of whole numbers."""
    try:
        labels = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"The labels are a {type(labels).__name__}; expected what streamseg.segment gives.") from None
    if labels.shape != frame.shape[1:] or labels.is_floating_point():
        raise ValueError(
            f"The labels are {labels.dtype} of shape {tuple(labels.shape)}; expected whole numbers, one for each pixel "
            f"of the frame: {tuple(frame.shape[1:])}."
        )
    return labels


def blend_table(classes: Classes, alpha: float) -> Tensor:
    """What becomes of each value under each label, of red, green and blue: (3, 256 labels, 256 values)."""
    values = torch.arange(256)
    table = values.to(torch.uint8).repeat(3, IGNORE + 1, 1)
    colours = torch.tensor(classes.colours, dtype=torch.float32)
    table[:, : len(classes)] = torch.lerp(values.float(), colours.t()[:, :, None], alpha).round().to(torch.uint8)
    return table


def dark_grey(frame: Tensor) -> Tensor:
    """A frame (3, H, W) without its colours and darker, (H, W)."""
    # 16 bits hold 127 · 255
    red, green, blue = (
        plane.to(torch.int16).mul_(round(127 * part)) for part, plane in zip(GREY_WEIGHTS, frame, strict=True)
    )
    return (red.add_(green).add_(blue) >> 7).to(torch.uint8)


def lookup(table: Tensor, labels: Tensor) -> Tensor:
    """The entry of a table (256,) for each label (H, W)."""
    # several times as fast as table[labels.long()]
    return table.to(labels.device).index_select(0, labels.to(torch.int32).flatten()).view_as(labels)


def side_by_side(left: Tensor, right: Tensor) -> Tensor:
    """Two pictures (3, H, W) of one height as one (3, H, 2 W)."""
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"Pictures of {left.shape[1]} and {right.shape[1]} rows cannot stand side by side.")
    # as rows of pixels or as planes, as the left one is: anything else takes ten times as long
    order = (1, 2, 0) if left.stride(0) == 1 else (0, 1, 2)
    both = torch.cat([left.permute(order), right.to(left.device).permute(order)], dim=order.index(2))
    return both.permute([order.index(axis) for axis in range(3)])


def add_legend(picture: Tensor, legend: Tensor) -> Tensor:
    """A picture (3, H, W) with a legend in its lower left corner, whose ground lets the picture shine through."""
    _, height, width = picture.shape
    gap = min(height, width) // 60
    # a picture too small for its legend shows what fits
    legend = legend.to(picture.device)[:, : max(0, height - 2 * gap), : max(0, width - 2 * gap)]
    _, rows, columns = legend.shape
    ground = (legend == legend[:, :1, :1]).all(dim=0)
    drawn = picture.clone()
    corner = drawn[:, height - gap - rows : height - gap, gap : gap + columns]
    corner.copy_(torch.where(ground, torch.lerp(corner.float(), legend.float(), LEGEND_OPACITY).round(), legend))
    return drawn
