"""Polygons of regions: outlines along the edges of pixels, simplification, and rasterising.

A ring is a closed outline, (N, 2) points x and y, without the first point again at its end. The first ring of a polygon
is its outline, clockwise on the screen; the others are its holes, counterclockwise. A pixel is inside if its centre is.

Shapes: H height, W width, N points, S spans.
"""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from streamseg.regions.regions import Region
from streamseg.regions.spans import Ints

TOLERANCE = 0.75
"""How far, in pixels, a simplified outline may be from the edges of the region's pixels, by default."""

Points = NDArray[numpy.float64]


def region_polygon(region: Region, tolerance: float = TOLERANCE) -> list[Points]:
    """Return the polygon of a region: its outline, then its holes, each as points (N, 2), x and y.

    Args:
        region: A region that find_regions returned.
        tolerance: How far, in pixels, the polygon may be from the edges of the region's pixels; 0 follows every pixel.
    """
    return region_polygons([region], tolerance)[0]


def region_polygons(regions: Sequence[Region], tolerance: float = TOLERANCE) -> list[list[Points]]:
    """Return the polygons of regions; this is faster than one by one."""
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance!r:.80}; expected a distance in pixels, 0 or more.")
    traced = [trace_rings(region.spans, region.connectivity) for region in regions]
    simplified = iter(simplify([ring for rings in traced for ring in rings], tolerance))
    return [[next(simplified) for _ in rings] for rings in traced]


def trace_rings(spans: Ints, connectivity: int) -> list[Points]:
    """Return the outline and the holes of spans (S, 3) that form one region, along the edges of its pixels.

    At a corner where two pixels of the region touch and two others do too, a connectivity of 4 separates the region's
    two, and one of 8 joins them.
    """
    row, left, right = spans.T
    # sides of pixels that end at a point: a left side above a left side goes on, and leaves no corner
    left_first = int(connectivity == 8)
    is_left = numpy.repeat([left_first ^ 1, left_first], 2 * len(row))
    x, y = numpy.concatenate([left, left, right, right]), numpy.concatenate([row, row + 1, row, row + 1])
    pitch = int(right.max()) + 1
    keys, count = numpy.unique((y * pitch + x) * 2 + is_left, return_counts=True)
    keys = keys[count == 1]
    side, place = keys % 2, keys // 2
    x, y = place % pitch, place // pitch
    # sorted by rows, two corners in turn are the ends of a horizontal edge; sorted by columns, of a vertical one
    order = numpy.lexsort((y, x, side))
    across = numpy.empty(len(order), dtype=numpy.int64)
    across[order] = order.reshape(-1, 2)[:, ::-1].reshape(-1)

    corners = numpy.stack([x, y], axis=1).astype(numpy.float64)
    rings = [corners[ring] for ring in walk(across.tolist())]
    return [ring if i == 0 else ring[::-1] for i, ring in enumerate(rings)]


def walk(across: list[int]) -> list[list[int]]:
    """Return the corners of each ring in turn. Corners 2 i and 2 i + 1 are joined, and each with the one across.

    The first ring begins at the first corner of all, and is therefore the outline.
    """
    rings, seen = [], [False] * len(across)
    for start in range(0, len(across), 2):
        if not seen[start]:
            ring, corner = [], start
            while not seen[corner]:
                seen[corner] = seen[corner ^ 1] = True
                ring += [corner, corner ^ 1]
                corner = across[corner ^ 1]
            rings.append(ring)
    return rings


def simplify(rings: Sequence[Points], tolerance: float) -> list[Points]:
    """Return the points of each ring that are needed to stay within a distance of all its points (Douglas and Peucker).

    All rings are divided at once, level by level. A ring of which less than a triangle would remain stays as it is.
    """
    if not rings or tolerance == 0:
        return list(rings)
    after = numpy.cumsum([len(ring) + 1 for ring in rings])
    points = numpy.concatenate([part for ring in rings for part in (ring, ring[:1])])
    kept = numpy.zeros(len(points), dtype=bool)
    # each part is a line from its first point to its last, with the points between; at first, each ring is one part
    first, last = numpy.append(0, after[:-1]), after - 1
    kept[first] = True
    while len(first):
        middle, distance = farthest_points(points, first, last)
        far = distance > tolerance
        first, middle, last = first[far], middle[far], last[far]
        kept[middle] = True
        first, last = numpy.concatenate([first, middle]), numpy.concatenate([middle, last])
        longer = last - first > 1
        first, last = first[longer], last[longer]
    masks = numpy.split(kept, after[:-1])
    return [ring[mask[:-1]] if mask.sum() > 2 else ring for ring, mask in zip(rings, masks, strict=True)]


def farthest_points(points: Points, first: Ints, last: Ints) -> tuple[Ints, NDArray[numpy.float64]]:
    """Return the point of each part that is farthest from the line between its ends, and its distance."""
    count = last - first - 1
    begin = numpy.cumsum(count) - count
    part = numpy.repeat(numpy.arange(len(first)), count)
    inner = numpy.arange(len(part)) + (first + 1 - begin)[part]
    along = points[last] - points[first]
    offset = points[inner] - points[first][part]
    share = (offset * along[part]).sum(axis=1) / numpy.maximum((along**2).sum(axis=1), 1e-12)[part]
    distance = numpy.hypot(*(offset - numpy.clip(share, 0, 1)[:, None] * along[part]).T)
    greatest = numpy.maximum.reduceat(distance, begin)
    farthest = numpy.flatnonzero(distance == greatest[part])
    # the first of several
    return inner[farthest[numpy.searchsorted(part[farthest], numpy.arange(len(first)))]], greatest


def rasterise(rings: Sequence[Points], height: int, width: int) -> NDArray[numpy.bool_]:
    """Return which pixels of a frame have their centre inside of an odd number of rings, (H, W)."""
    toggles = numpy.zeros(height * (width + 1), dtype=numpy.int64)
    for ring in rings:
        x, y = numpy.asarray(ring, dtype=numpy.float64).T
        upper, lower = (numpy.stack(pair) for pair in ((x, y), (numpy.roll(x, -1), numpy.roll(y, -1))))
        upper, lower = numpy.where(upper[1] <= lower[1], (upper, lower), (lower, upper))
        # the rows whose centres an edge crosses, the upper end included
        first = numpy.clip(numpy.ceil(upper[1] - 0.5), 0, height).astype(numpy.int64)
        count = numpy.clip(numpy.ceil(lower[1] - 0.5), 0, height).astype(numpy.int64) - first
        edge = numpy.repeat(numpy.arange(len(x)), count)
        row = numpy.arange(len(edge)) + numpy.repeat(first - (numpy.cumsum(count) - count), count)
        run, rise = (lower - upper)[:, edge]
        crossing = upper[0, edge] + (row + 0.5 - upper[1, edge]) * run / rise
        column = numpy.clip(numpy.ceil(crossing - 0.5), 0, width).astype(numpy.int64)
        toggles += numpy.bincount(row * (width + 1) + column, minlength=len(toggles))
    inside = numpy.cumsum(toggles.reshape(height, width + 1), axis=1) % 2 == 1
    return inside[:, :width]
