"""Images of any size in bounded memory: attention to the whole, tile by tile, and labels in bands of rows.

Shapes: K classes, H height, W width, h x w the map of Res-1, which the scores of the classes are made on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.io.images import Picture, is_picture, to_frame
from streamseg.models.attention import ChannelAttention, SelfAttention
from streamseg.models.fanet import Context, FANet, describe_type

GRID = 64
"""Pixels of an image to one of Res-4's map: the maps of tiles that begin at its multiples lie on one grid."""


@dataclass(frozen=True)
class Span:
    """A tile along one side of an image."""

    own: slice
    """The pixels that it labels."""
    seen: slice
    """The pixels that the network sees: its own, and a margin where the image goes on."""


def label_tiled(
    model: FANet,
    frame: Picture,
    past: Sequence[Tensor] | None = None,
    weight: float = 1.0,
    *,
    tile: tuple[int, int] = (2048, 2048),
    margin: int = 576,
) -> tuple[Tensor, Context]:
    """Labels (H, W), uint8, of a frame (3, H, W) too large to be seen at once, and the context that it leaves.

    Every pixel attends to the whole frame: contexts add up over pixels, so a first pass over the tiles gathers the
    frame's context, and a second one labels. It takes the memory of a tile, beside the frame and its labels. A side
    that is no multiple of 64 is seen as going on to the next one with its last row or column.

    Args:
        frame: It may be a picture of any kind that segment takes, such as an array (H, W, 3).
        past: The sum of the contexts of the earlier frames in the window, for a frame of a video.
        weight: How many frames that sum is of, for a network that averages.
        tile: Height and width of the tiles, multiples of 64.
        margin: Pixels that are seen around each tile, a multiple of 64; what lies beyond them is missed, but for its
            part in the context. With 256, 99.98 % and more of the labels are those of the frame seen at once (street
            scenes, FANet-18); from 576 on all are (FANet-34: 1024).
    """
    check_model(model)
    frame = to_checked_frame(frame)
    check_tiles(model, tile, margin)
    device = model.mean.device
    labels = torch.empty(frame.shape[1:], dtype=torch.uint8, device=frame.device)
    with torch.inference_mode():
        context = gather_context(model, frame, tile, margin)
        scale = 1 / (1 + weight) if model.averages else 1.0
        total = context if past is None else [scale * (own + x.to(own)) for own, x in zip(context, past, strict=True)]
        for rows, columns in tiles(frame, tile, margin):
            scores = score_tile(model, cut_tile(frame, rows, columns).to(device), total)
            seen = labels_from_scores(scores, (slice_length(rows.seen), slice_length(columns.seen)))
            place = labels[rows.own, columns.own]  # which ends where the frame does
            place.copy_(crop(seen, rows, columns)[: place.shape[0], : place.shape[1]])
    return labels, context


def gather_context(model: FANet, frame: Tensor, tile: tuple[int, int], margin: int) -> Context:
    """The context of a whole frame, matrices (1, D, C): the mean of its tiles' own, each by its share of the pixels."""
    precision = torch.promote_types(model.mean.dtype, torch.float32)
    total = [model.mean.new_zeros(1, *attend.context_shape, dtype=precision) for attend in model.attentions]
    places = list(tiles(frame, tile, margin))
    pixels = sum(slice_length(rows.own) * slice_length(columns.own) for rows, columns in places)
    for rows, columns in places:
        x1, x2, x3, x4 = model.encode(cut_tile(frame, rows, columns).to(model.mean.device))
        own = (crop(x1, rows, columns), crop(x2, rows, columns), crop(x3, rows, columns), crop(x4, rows, columns))
        _, context = model.attend(own)
        share = slice_length(rows.own) * slice_length(columns.own) / pixels
        for matrix, part in zip(total, context, strict=True):
            matrix.add_(part, alpha=share)
    x1, x2, x3, x4 = total
    return x1, x2, x3, x4


def score_tile(model: FANet, image: Tensor, total: Sequence[Tensor]) -> Tensor:
    """Scores (K, h, w) of a part of a frame (1, 3, H, W) that attends to a given context in place of its own."""
    maps = model.encode(image)
    _, own = model.attend(maps)
    # attention adds its own context to the past; a past without weight is not averaged with it
    maps, _ = model.attend(maps, [whole - part for whole, part in zip(total, own, strict=True)], 0.0)
    return model.score(model.merge(maps))[0]


def tiles(frame: Tensor, tile: tuple[int, int], margin: int) -> Iterator[tuple[Span, Span]]:
    """The rows and columns of each tile of a frame (3, H, W), whose sides are taken up to multiples of 64."""
    _, height, width = frame.shape
    return product(spans(height, tile[0], margin), spans(width, tile[1], margin))


def spans(side: int, tile: int, margin: int) -> Iterator[Span]:
    """The tiles along one side of an image."""
    side = -(-side // GRID) * GRID
    for start in range(0, side, tile):
        end = min(start + tile, side)
        yield Span(slice(start, end), slice(max(start - margin, 0), min(end + margin, side)))


def slice_length(part: slice) -> int:
    """How many pixels a slice has."""
    return part.stop - part.start


def cut_tile(frame: Tensor, rows: Span, columns: Span) -> Tensor:
    """What is seen for a tile, (1, 3, H, W); beyond the frame, its last row and column go on."""
    y = torch.arange(rows.seen.start, rows.seen.stop, device=frame.device).clamp(max=frame.shape[1] - 1)
    x = torch.arange(columns.seen.start, columns.seen.stop, device=frame.device).clamp(max=frame.shape[2] - 1)
    return frame[None, :, y[:, None], x]


def crop(x: Tensor, rows: Span, columns: Span) -> Tensor:
    """A tile's own part of a map (…, h, w) of all that is seen for it."""
    top, bottom, left, right = (
        (edge - span.seen.start) * size // slice_length(span.seen)
        for span, size in zip((rows, columns), x.shape[-2:], strict=True)
        for edge in (span.own.start, span.own.stop)
    )
    return x[..., top:bottom, left:right]


def labels_from_scores(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Labels, uint8, of a height and width: the highest of the scores (K, h, w), resized bilinearly."""
    labels = torch.empty(size, dtype=torch.uint8, device=scores.device)
    for band in bands(scores, size):
        part = labels[band.rows]
        if scores.device.type != "cpu":
            part.copy_(band.logits().max(dim=0).indices)
            continue
        # Between two lines that agree on a label no other is higher: most pixels need no scores of their own.
        best = band.lines.max(dim=0).indices.to(torch.uint8)  # not argmax, which takes ten times as long
        torch.index_select(best, 0, band.above, out=part)
        open_to_doubt = (best[band.above] != best[band.below]).flatten().nonzero().flatten()
        rows, columns = open_to_doubt // size[1], open_to_doubt % size[1]
        part.view(-1)[open_to_doubt] = band.logits_at(rows, columns).max(dim=0).indices.to(torch.uint8)
    return labels


def labels_and_confidence_from_scores(scores: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Labels as labels_of gives them, and the probability of each, uint8: 255 is 1."""
    labels, confidence = (torch.empty(size, dtype=torch.uint8, device=scores.device) for _ in range(2))
    for band in bands(scores, size):
        logits = band.logits()
        highest, labels[band.rows] = logits.max(dim=0)
        # the softmax of the highest alone
        confidence[band.rows] = (255 / (logits - highest).exp_().sum(dim=0)).round_()
    return labels, confidence


class Band(NamedTuple):
    """Rows of resized scores."""

    rows: slice
    lines: Tensor
    """(K, n, W): the rows of the map between which they lie, resized across."""
    above: Tensor
    below: Tensor
    share: Tensor
    """For each row: the lines above and below it, and how far it is from the one to the other."""

    def logits(self) -> Tensor:
        """The scores (K, rows, W)."""
        return torch.lerp(self.lines[:, self.above], self.lines[:, self.below], self.share[:, None])

    def logits_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Those of some pixels (K, n)."""
        width = self.lines.shape[2]
        lines = self.lines.flatten(1)
        above, below = (lines.index_select(1, line[rows] * width + columns) for line in (self.above, self.below))
        return torch.lerp(above, below, self.share[rows])


def bands(scores: Tensor, size: tuple[int, int]) -> Iterator[Band]:
    """Scores (K, h, w) resized bilinearly to a height and width, in fp32, a band of rows at a time."""
    classes, rows, _ = scores.shape
    height, width = size
    # On the CPU what stays in its cache, and is not handed back to the system after each band: at 720 x 960 and 19
    # classes 18 ms, at once 40 ms. Elsewhere each band is a few more calls, so only memory counts.
    numbers = 2**20 if scores.device.type == "cpu" else 2**26
    step = max(1, numbers // (classes * width))
    # One side at a time: the columns of the few rows of the map that a band needs, then between pairs of these rows.
    # Where a row lies on the map, in halves of 1 / height: whole numbers, so that bands agree to the last bit.
    whole = 2 * height
    place = ((2 * torch.arange(height, device=scores.device) + 1) * rows - height).clamp(min=0)
    above = place // whole
    below = (above + 1).clamp(max=rows - 1)
    share = (place % whole) / whole
    for start in range(0, height, step):
        band = slice(start, min(start + step, height))
        first = max((2 * band.start + 1) * rows - height, 0) // whole
        last = max((2 * band.stop - 1) * rows - height, 0) // whole + 1
        part = scores[None, :, first : last + 1].float()
        lines = F.interpolate(part, (part.shape[2], width), mode="bilinear", align_corners=False)[0]
        yield Band(band, lines, above[band] - first, below[band] - first, share[band])


def check_model(model: nn.Module) -> None:
    """Raise a ValueError if a network is none, or is not ready for use."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"The model is a {describe_type(model)}; expected the network: model, classes = streamseg.load(PATH)."
        )
    if model.training:
        raise ValueError("The network is in training mode, in which frames would change it: call model.eval() first.")


def to_checked_frame(given: Picture) -> Tensor:
    """A frame (3, H, W), bytes, of a picture of any kind; a ValueError if something is none."""
    if is_picture(given):
        return to_frame(given)
    check_frame(given)
    assert isinstance(given, Tensor)
    return given


def check_frame(frame: object) -> None:
    """Raise a ValueError if something is no frame."""
    if isinstance(frame, Tensor) and frame.is_floating_point():
        raise ValueError(
            f"The frame is a {describe_type(frame)}; expected RGB bytes, a tensor of torch.uint8: give "
            "(255 * frame).byte() of values from 0 to 1, or frame.byte() of values from 0 to 255."
        )
    if not isinstance(frame, Tensor) or frame.dtype != torch.uint8:
        raise ValueError(f"The frame is a {describe_type(frame)}; expected RGB bytes, a tensor of torch.uint8.")
    if frame.ndim != 3 or frame.shape[0] != 3 or 0 in frame.shape:
        hint = ": give frame.permute(2, 0, 1)" if frame.ndim == 3 and frame.shape[2] == 3 else ""
        raise ValueError(f"The frame's shape is {tuple(frame.shape)}; expected RGB, channels first: (3, H, W){hint}.")


def check_tiles(model: FANet, tile: tuple[int, int], margin: int) -> None:
    """Raise a ValueError if a network cannot see an image tile by tile, or not by such tiles."""
    if not isinstance(tile, (tuple, list)) or len(tile) != 2:
        raise ValueError(f"tile is {tile!r:.80}; expected the height and width of the tiles, such as (2048, 2048).")
    for side in tile:
        if type(side) is not int or side < 1 or side % GRID:
            raise ValueError(f"A side of the tiles is {side!r:.80}; expected a multiple of {GRID}, such as 1024.")
    if type(margin) is not int or margin < 0 or margin % GRID:
        raise ValueError(f"The margin is {margin!r:.80}; expected a multiple of {GRID}, such as 256, or 0.")
    for attend in model.attentions:
        if isinstance(attend, (SelfAttention, ChannelAttention)):
            raise ValueError(
                f"{type(attend).__name__} needs all pixels at once: only a network of FastAttention can see an image "
                "tile by tile."
            )
