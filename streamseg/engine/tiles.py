"""Images of any size in bounded memory: attention to the whole image, computed tile by tile.

Shapes: K classes, H height, W width, h x w the map of Res-1, which is also that of the scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from streamseg.engine.inputs import check_model, to_checked_frame
from streamseg.engine.labels import labels_from_scores
from streamseg.io.images import Picture
from streamseg.io.masks import Mask, paint_over, remove_labels, to_mask
from streamseg.models.fanet import Context, FANet
from streamseg.models.fanet_plus import FANetPlus

MARGIN = 576
"""Default margin, rounded up to the grid of the network."""


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
    margin: int | None = None,
    mask: Mask | Picture | None = None,
) -> tuple[Tensor, Context]:
    """Return the labels (H, W), uint8, of a frame (3, H, W) too large for the memory, and its context.

    Every pixel attends to the whole frame: contexts add up over pixels, so a first pass over the tiles computes the
    frame's context, and a second pass the labels. It takes the memory of a tile, plus the frame and its labels; for a
    FANet+, whose pyramid pooling sees the whole frame too, also that of the Res-4 map, a tenth of the frame's.
    Tiles begin on the network's grid (64 for a FANet, 256 for a FANet+) and end with the frame. A frame of one tile has
    the labels of one pass at any size; of several, a few differ where a side is no multiple of the grid.

    Args:
        frame: Any picture that segment accepts, such as an array (H, W, 3).
        past: Sum of the contexts of the earlier frames in the window, for a frame of a video.
        weight: Number of frames in that sum, for a network that averages.
        tile: Height and width of the tiles, multiples of the grid.
        margin: Pixels around each tile that the network also runs on, a multiple of the grid; pixels further away count
            only through the context. With 256, 99.9 % of the labels are those of the whole frame in one pass (street
            scenes, sides on the grid); with 576 all are, of FANet-18 (FANet-34: 1024). Default: 576, of a FANet+ 768.
        mask: Pixels to ignore, as in label_frames: they are left out of the context, and their labels are 255.
    """
    check_model(model)
    mask = to_mask(mask)
    frame = paint_over(to_checked_frame(frame), mask)
    grid = model.tile_grid
    margin = -(-MARGIN // grid) * grid if margin is None else margin
    check_tiles(model, tile, margin)
    device = model.mean.device
    labels = torch.empty(frame.shape[1:], dtype=torch.uint8, device=frame.device)
    spans = list(tiles(frame, tile, margin))
    with torch.inference_mode():
        pixels = None if mask is None else weigh_frame(model, frame, mask)
        context, deep = tiled_context(model, frame, spans, pixels)
        scale = 1 / (1 + weight) if model.averages else 1.0
        total = context if past is None else [scale * (own + x.to(own)) for own, x in zip(context, past, strict=True)]
        pooled = pool_whole(model, deep, total) if isinstance(model, FANetPlus) else None
        for rows, columns in spans:
            image = cut_tile(frame, rows, columns).to(device)
            scores = score_tile(model, image, total, None if pooled is None else cut_map(pooled, rows, columns, spans))
            outer = labels_from_scores(scores, (slice_length(rows.outer), slice_length(columns.outer)))
            labels[rows.inner, columns.inner] = crop(outer, rows, columns).to(labels.device)
    return remove_labels(labels, mask), context


def weigh_frame(model: FANet, frame: Tensor, mask: Mask) -> list[Tensor]:
    """Return the weight of each pixel of the maps with attention of a whole frame (3, H, W), (1, h, w) each.

    The sizes of the maps are those of a row and of a column of the frame.
    """
    _, height, width = frame.shape
    device, side = model.mean.device, min(model.tile_grid, height, width)
    shares = mask.shares((height, width), device)[None]
    tall = model.encode(torch.zeros(1, 3, height, side, dtype=torch.uint8, device=device))
    wide = model.encode(torch.zeros(1, 3, side, width, dtype=torch.uint8, device=device))
    return [
        F.interpolate(shares[None], (a.shape[2], b.shape[3]), mode="area")[0]
        for a, b in list(zip(tall, wide, strict=True))[-len(model.attentions) :]
    ]


def tiled_context(
    model: FANet, frame: Tensor, spans: Sequence[tuple[Span, Span]], pixels: Sequence[Tensor] | None = None
) -> tuple[Context, Tensor]:
    """Return the context of a whole frame, matrices (1, D, C): at each stage the mean over the pixels of all tiles.

    Args:
        pixels: The weight of each pixel of the frame's maps with attention; None for 1.

    Returned with it, for a FANet+, is the frame's whole Res-4 map before attention (1, C, h, w); else it is empty.
    """
    precision = torch.promote_types(model.mean.dtype, torch.float32)
    total = [model.mean.new_zeros(1, *attend.context_shape, dtype=precision) for attend in model.attentions]
    counts = [0.0] * len(total)
    deep: list[Tensor] = []
    for rows, columns in spans:
        x1, x2, x3, x4 = model.encode(cut_tile(frame, rows, columns).to(model.mean.device))
        inner = (crop(x1, rows, columns), crop(x2, rows, columns), crop(x3, rows, columns), crop(x4, rows, columns))
        own = pixels and [cut_inner(x, rows, columns, spans) for x in pixels]
        context = model.compute_context(inner, own)
        # a FANet+ has contexts of the last stages only
        for stage, (part, x) in enumerate(zip(context, inner[-len(context) :], strict=True)):
            # rounded up at the frame's edges, so stages differ in their shares
            count = own[stage].sum().item() if own else x.shape[-2] * x.shape[-1]
            counts[stage] += count
            if count:
                total[stage].add_(part - total[stage], alpha=count / counts[stage])
        if isinstance(model, FANetPlus):
            deep.append(inner[3])
    return tuple(total), join_tiles(deep, spans) if deep else total[-1].new_empty(0)


def join_tiles(parts: Sequence[Tensor], spans: Sequence[tuple[Span, Span]]) -> Tensor:
    """Join the maps (1, C, h, w) of the inner pixels of all tiles, row by row."""
    across = len({columns.inner.start for _, columns in spans})
    rows = [torch.cat([*parts[start : start + across]], dim=3) for start in range(0, len(parts), across)]
    return torch.cat(rows, dim=2)


def pool_whole(model: FANetPlus, x4: Tensor, total: Sequence[Tensor]) -> Tensor:
    """Return the pyramid pooling of a whole frame, by its Res-4 map before attention and its context."""
    attended, _ = model.attend4(x4, total[-1] - model.attend4.compute_context(x4))
    return model.pool(attended)


def cut_map(x: Tensor, rows: Span, columns: Span, spans: Sequence[tuple[Span, Span]]) -> Tensor:
    """Crop a map (…, h, w) of a whole frame to the outer pixels of a tile."""
    height, width = (span.inner.stop for span in spans[-1])
    return crop(x, Span(rows.outer, slice(0, height)), Span(columns.outer, slice(0, width)))


def cut_inner(x: Tensor, rows: Span, columns: Span, spans: Sequence[tuple[Span, Span]]) -> Tensor:
    """Crop a map (…, h, w) of a whole frame to the inner pixels of a tile."""
    height, width = (span.inner.stop for span in spans[-1])
    return crop(x, Span(rows.inner, slice(0, height)), Span(columns.inner, slice(0, width)))


def score_tile(model: FANet, image: Tensor, total: Sequence[Tensor], pooled: Tensor | None = None) -> Tensor:
    """Return the scores (K, h, w) of a part of a frame (1, 3, H, W) that attends to a given context.

    Args:
        pooled: The part of the frame's pyramid pooling, for a FANet+.
    """
    maps = model.encode(image)
    own = model.compute_context(maps)
    # attention adds the part's own context to the past; with a weight of 0 the sum is not averaged
    maps, _ = model.attend(maps, [whole - part for whole, part in zip(total, own, strict=True)], 0.0)
    merged = model.merge(maps, pooled) if isinstance(model, FANetPlus) else model.merge(maps)
    return model.score(merged)[0]


def tiles(frame: Tensor, tile: tuple[int, int], margin: int) -> Iterator[tuple[Span, Span]]:
    """Yield the rows and columns of each tile of a frame (3, H, W)."""
    _, height, width = frame.shape
    return product(tile_spans(height, tile[0], margin), tile_spans(width, tile[1], margin))


def tile_spans(side: int, tile: int, margin: int) -> Iterator[Span]:
    """Yield the tiles along one side of an image."""
    for start in range(0, side, tile):
        end = min(start + tile, side)
        yield Span(slice(start, end), slice(max(start - margin, 0), min(end + margin, side)))


def slice_length(part: slice) -> int:
    """Return the number of pixels of a slice."""
    return part.stop - part.start


def cut_tile(frame: Tensor, rows: Span, columns: Span) -> Tensor:
    """Return the outer pixels of a tile, (1, 3, H, W)."""
    return frame[None, :, rows.outer, columns.outer]


def crop(x: Tensor, rows: Span, columns: Span) -> Tensor:
    """Crop a map (…, h, w) of the outer pixels of a tile to the inner ones."""
    # Inner edges are on the grid, or those of the frame. Where the frame ends off the grid a map is rounded up by less
    # than a pixel, which rounding down removes.
    top, bottom, left, right = (
        (edge - span.outer.start) * size // slice_length(span.outer)
        for span, size in zip((rows, columns), x.shape[-2:], strict=True)
        for edge in (span.inner.start, span.inner.stop)
    )
    return x[..., top:bottom, left:right]


def check_tiles(model: FANet, tile: tuple[int, int], margin: int) -> None:
    """Raise a ValueError if a network cannot run tile by tile, or the tiles are off its grid."""
    grid = model.tile_grid
    if not isinstance(tile, (tuple, list)) or len(tile) != 2:
        raise ValueError(f"tile is {tile!r:.80}; expected the height and width of the tiles, such as (2048, 2048).")
    for side in tile:
        if type(side) is not int or side < 1 or side % grid:
            raise ValueError(f"A side of the tiles is {side!r:.80}; expected a multiple of {grid}, such as 1024.")
    if type(margin) is not int or margin < 0 or margin % grid:
        raise ValueError(f"The margin is {margin!r:.80}; expected a multiple of {grid}, such as 256, or 0.")
    for attend in model.attentions:
        if not getattr(attend, "linear", False):
            raise ValueError(
                f"{type(attend).__name__} needs all pixels at once: use a linear attention, such as FastAttention."
            )
