"""Draw labels over frames.

Every function returns a new picture with the memory layout of the frame, so that a frame that was decoded as planes
can be encoded as planes.

Shapes: H height, W width.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from streamseg.classes import IGNORE, Classes
from streamseg.engine import kernels
from streamseg.io.captions import render_legend
from streamseg.io.images import Picture, PilPicture, to_frame, to_pil
from streamseg.palette import bright_colours

MID_GREY = 128
"""What the colours of a legend are blended with."""

LEGEND_OPACITY = 0.75
"""Opacity of a legend's background."""

CPU = torch.device("cpu")


def overlay(
    frame: Picture,
    labels: Tensor,
    classes: Classes,
    alpha: float = 0.5,
    only: Sequence[int] = (),
    *,
    borders: bool = False,
) -> Tensor:
    """Return a frame (3, H, W) with the colours of its labels (H, W); pixels without a class keep their colour.

    Args:
        frame: A frame, or anything that segment takes, such as an array (H, W, 3).
        alpha: The opacity of the colours, from 0 (frame only) to 1 (colours only).
        only: Numbers of the classes to highlight; all other pixels are shown in dark grey. All classes if empty.
        borders: Whether to draw a line of one pixel between the classes; there is none at an opacity of 0.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; expected the opacity of the colours, from 0 to 1.")
    frame = to_frame(frame)
    labels = check_labels(labels, frame)
    # looked up, not computed: the same bits as torch.lerp, in 3 ms instead of 20 (1280 x 720, one core)
    table = blend_table(classes, alpha, frame.device)
    hidden = hidden_labels(tuple(only), frame.device) if only else None
    return kernels.blend_labels(frame, labels, table, hidden, borders and alpha > 0)


def show(
    frame: Picture, labels: Tensor | None = None, classes: Classes | None = None, alpha: float = 0.5
) -> PilPicture:
    """Return a frame as a PIL picture, which notebooks display: alone, or as an overlay with borders and a legend.

    Args:
        frame: A frame, or anything that segment takes, such as an array (H, W, 3).
        labels: Its labels (H, W), to draw over it.
        classes: The classes of the labels; they are drawn in bright colours, if these are known for all of them.
        alpha: The opacity of the colours, from 0 (frame only) to 1 (colours only).
    """
    frame = to_frame(frame)
    if labels is None:
        return to_pil(frame)
    if classes is None:
        raise ValueError("The labels have no classes: give those of the network, show(frame, labels, classes).")
    labels = check_labels(labels, frame)
    drawn = bright_colours(classes)
    picture = overlay(frame, labels, drawn, alpha, borders=True)
    numbers = [number for number in labels.unique().tolist() if number < len(classes)]
    if numbers:
        picture = add_legend(picture, render_legend(blended_classes(drawn, alpha), numbers, *frame.shape[1:]))
    return to_pil(picture)


def check_labels(labels: Tensor, frame: Tensor) -> Tensor:
    """Return the labels of a frame (3, H, W) as a tensor; a ValueError unless they are integers (H, W)."""
    try:
        labels = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"The labels are a {type(labels).__name__}; expected a tensor, as streamseg.segment returns."
        ) from None
    if labels.shape != frame.shape[1:] or labels.is_floating_point():
        raise ValueError(
            f"The labels are {labels.dtype} of shape {tuple(labels.shape)}; expected integers of the frame's height "
            f"and width: {tuple(frame.shape[1:])}."
        )
    return labels


@lru_cache(maxsize=256)  # each camera of a fleet may have its own
def hidden_labels(only: tuple[int, ...], device: torch.device) -> Tensor:
    """Return 255 for each label that is not among those to highlight, else 0: (256,)."""
    with torch.inference_mode(False):  # it is kept for later calls, which may be outside of inference mode
        hidden = torch.full((IGNORE + 1,), 255, dtype=torch.uint8)
        hidden[list(only)] = 0
        return hidden.to(device)


@lru_cache(maxsize=8)
def blend_table(classes: Classes, alpha: float, device: torch.device = CPU) -> Tensor:
    """Return each value of red, green and blue under the colour of each label: (3, 256 labels, 256 values)."""
    with torch.inference_mode(False):  # it is kept for later calls, which may be outside of inference mode
        values = torch.arange(256)
        table = values.to(torch.uint8).repeat(3, IGNORE + 1, 1)
        colours = torch.tensor(classes.colours, dtype=torch.float32)
        table[:, : len(classes)] = torch.lerp(values.float(), colours.t()[:, :, None], alpha).round().to(torch.uint8)
        return table.to(device)


def paint_labels(labels: Tensor, classes: Classes) -> Tensor:
    """Return the colours (3, H, W) of labels (H, W); pixels without a class are black."""
    return torch.stack([kernels.lookup(values, labels) for values in colour_table(classes, labels.device)])


@lru_cache(maxsize=8)
def colour_table(classes: Classes, device: torch.device) -> Tensor:
    """Return red, green and blue of each label: (3, 256)."""
    with torch.inference_mode(False):  # it is kept for later calls, which may be outside of inference mode
        table = torch.zeros(3, IGNORE + 1, dtype=torch.uint8)
        table[:, : len(classes)] = torch.tensor(classes.colours, dtype=torch.uint8).t()
        return table.to(device)


@lru_cache(maxsize=8)
def blended_classes(classes: Classes, alpha: float) -> Classes:
    """Return a class set in the colours that an overlay of mid-grey things has, for its legend."""
    blended = blend_table(classes, alpha)[:, : len(classes), MID_GREY].t()
    return Classes(classes.names, tuple((red, green, blue) for red, green, blue in blended.tolist()))


def side_by_side(left: Tensor, right: Tensor) -> Tensor:
    """Return two pictures (3, H, W) of the same height as one (3, H, 2 W)."""
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"Pictures of {left.shape[1]} and {right.shape[1]} rows do not fit side by side: resize one.")
    # interleaved or as planes, like the left one: anything else takes ten times as long
    order = (1, 2, 0) if left.stride(0) == 1 else (0, 1, 2)
    both = torch.cat([left.permute(order), right.to(left.device).permute(order)], dim=order.index(2))
    return both.permute([order.index(axis) for axis in range(3)])


def add_legend(picture: Tensor, legend: Tensor) -> Tensor:
    """Return a picture (3, H, W) with a legend on a translucent background in its lower left corner."""
    _, height, width = picture.shape
    gap = min(height, width) // 60
    # a legend that is too large is cropped
    legend = legend.to(picture.device)[:, : max(0, height - 2 * gap), : max(0, width - 2 * gap)]
    _, rows, columns = legend.shape
    background = (legend == legend[:, :1, :1]).all(dim=0)
    drawn = picture.clone()
    corner = drawn[:, height - gap - rows : height - gap, gap : gap + columns]
    translucent = torch.lerp(corner.float(), legend.float(), LEGEND_OPACITY).round()
    corner.copy_(torch.where(background, translucent, legend))
    return drawn
