"""Images of any size in bounded memory: attention to the whole image, computed tile by tile.

Shapes: K classes, H height, W width, h x w the map of Res-1, which is also that of the scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from streamseg.engine.inputs import check_model, to_checked_frame
from streamseg.engine.labels import labels_from_scores
from streamseg.io.images import Picture
from streamseg.models.fanet import Context, FANet

GRID = 64
"""Image pixels per pixel of Res-4's map: tiles that start at multiples of it share one grid of map pixels."""


@dataclass(frozen=True)
class Span:
    """A tile along one side of an image."""

    inner: slice
    """The pixels that it labels."""
    outer: slice
    """The pixels that the network runs on: the inner ones, and a margin inside the image."""


def label_tiled(
    model: FANet,
    frame: Picture,
    past: Sequence[Tensor] | None = None,
    weight: float = 1.0,
    *,
    tile: tuple[int, int] = (2048, 2048),
    margin: int = 576,
) -> tuple[Tensor, Context]:
    """Return the labels (H, W), uint8, of a frame (3, H, W) too large for the memory, and its context.

    Every pixel attends to the whole frame: contexts add up over pixels, so a first pass over the tiles computes the
    frame's context, and a second pass the labels. It takes the memory of a tile, plus the frame and its labels. Sides
    are padded to multiples of 64 with the last row or column.

    Args:
        frame: Any picture that segment accepts, such as an array (H, W, 3).
        past: Sum of the contexts of the earlier frames in the window, for a frame of a video.
        weight: Number of frames in that sum, for a network that averages.
        tile: Height and width of the tiles, multiples of 64.
        margin: Pixels around each tile that the network also runs on, a multiple of 64; pixels further away count only
            through the context. With 256, at least 99.98 % of the labels are those of the whole frame in one pass
            (street scenes, FANet-18); from 576 on all are (FANet-34: 1024).
    """
    check_model(model)
    frame = to_checked_frame(frame)
    check_tiles(model, tile, margin)
    device = model.mean.device
    labels = torch.empty(frame.shape[1:], dtype=torch.uint8, device=frame.device)
    with torch.inference_mode():
        context = tiled_context(model, frame, tile, margin)
        scale = 1 / (1 + weight) if model.averages else 1.0
        total = context if past is None else [scale * (own + x.to(own)) for own, x in zip(context, past, strict=True)]
        for rows, columns in tiles(frame, tile, margin):
            scores = score_tile(model, cut_tile(frame, rows, columns).to(device), total)
            outer = labels_from_scores(scores, (slice_length(rows.outer), slice_length(columns.outer)))
            inner = labels[rows.inner, columns.inner]  # without the padding
            inner.copy_(crop(outer, rows, columns)[: inner.shape[0], : inner.shape[1]])
    return labels, context


def tiled_context(model: FANet, frame: Tensor, tile: tuple[int, int], margin: int) -> Context:
    """Return the context of a whole frame, matrices (1, D, C): the mean over its tiles, weighted by their pixels."""
    precision = torch.promote_types(model.mean.dtype, torch.float32)
    total = [model.mean.new_zeros(1, *attend.context_shape, dtype=precision) for attend in model.attentions]
    spans = list(tiles(frame, tile, margin))
    pixels = sum(slice_length(rows.inner) * slice_length(columns.inner) for rows, columns in spans)
    for rows, columns in spans:
        x1, x2, x3, x4 = model.encode(cut_tile(frame, rows, columns).to(model.mean.device))
        inner = (crop(x1, rows, columns), crop(x2, rows, columns), crop(x3, rows, columns), crop(x4, rows, columns))
        context = model.compute_context(inner)
        share = slice_length(rows.inner) * slice_length(columns.inner) / pixels
        for matrix, part in zip(total, context, strict=True):
            matrix.add_(part, alpha=share)
    x1, x2, x3, x4 = total
    return x1, x2, x3, x4


def score_tile(model: FANet, image: Tensor, total: Sequence[Tensor]) -> Tensor:
    """Return the scores (K, h, w) of a part of a frame (1, 3, H, W) that attends to a given context."""
    maps = model.encode(image)
    own = model.compute_context(maps)
    # attention adds the part's own context to the past; with a weight of 0 the sum is not averaged
    maps, _ = model.attend(maps, [whole - part for whole, part in zip(total, own, strict=True)], 0.0)
    return model.score(model.merge(maps))[0]


def tiles(frame: Tensor, tile: tuple[int, int], margin: int) -> Iterator[tuple[Span, Span]]:
    """Yield the rows and columns of each tile of a frame (3, H, W), whose sides are padded to multiples of 64."""
    _, height, width = frame.shape
    return product(tile_spans(height, tile[0], margin), tile_spans(width, tile[1], margin))


def tile_spans(side: int, tile: int, margin: int) -> Iterator[Span]:
    """Yield the tiles along one side of an image."""
    side = -(-side // GRID) * GRID
    for start in range(0, side, tile):
        end = min(start + tile, side)
        yield Span(slice(start, end), slice(max(start - margin, 0), min(end + margin, side)))


def slice_length(part: slice) -> int:
    """Return the number of pixels of a slice."""
    return part.stop - part.start


def cut_tile(frame: Tensor, rows: Span, columns: Span) -> Tensor:
    """Return the outer pixels of a tile, (1, 3, H, W), padded with the frame's last row and column."""
    y = torch.arange(rows.outer.start, rows.outer.stop, device=frame.device).clamp(max=frame.shape[1] - 1)
    x = torch.arange(columns.outer.start, columns.outer.stop, device=frame.device).clamp(max=frame.shape[2] - 1)
    return frame[None, :, y[:, None], x]


def crop(x: Tensor, rows: Span, columns: Span) -> Tensor:
    """Crop a map (…, h, w) of the outer pixels of a tile to the inner ones."""
    top, bottom, left, right = (
        (edge - span.outer.start) * size // slice_length(span.outer)
        for span, size in zip((rows, columns), x.shape[-2:], strict=True)
        for edge in (span.inner.start, span.inner.stop)
    )
    return x[..., top:bottom, left:right]


def check_tiles(model: FANet, tile: tuple[int, int], margin: int) -> None:
    """Raise a ValueError if a network cannot run tile by tile, or the tiles are off the grid."""
    if not isinstance(tile, (tuple, list)) or len(tile) != 2:
        raise ValueError(f"tile is {tile!r:.80}; expected the height and width of the tiles, such as (2048, 2048).")
    for side in tile:
        if type(side) is not int or side < 1 or side % GRID:
            raise ValueError(f"A side of the tiles is {side!r:.80}; expected a multiple of {GRID}, such as 1024.")
    if type(margin) is not int or margin < 0 or margin % GRID:
        raise ValueError(f"The margin is {margin!r:.80}; expected a multiple of {GRID}, such as 256, or 0.")
    for attend in model.attentions:
        if not getattr(attend, "linear", False):
            raise ValueError(
                f"{type(attend).__name__} needs all pixels at once: use a linear attention, such as FastAttention."
            )
