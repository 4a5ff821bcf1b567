import numpy
import pytest
import torch

import streamseg
from streamseg.regions.polygons import TOLERANCE, rasterise, region_polygon, region_polygons, simplify, trace_rings
from streamseg.regions.regions import find_regions

CLASSES = streamseg.Classes(("a", "b", "c"), ((0, 0, 0), (1, 1, 1), (2, 2, 2)))


def regions_of(labels, **options):
    return find_regions(numpy.asarray(labels, dtype=numpy.uint8), CLASSES, **{"min_area": 1} | options)


def signed_area(ring):
    x, y = ring.T
    return (x @ numpy.roll(y, -1) - y @ numpy.roll(x, -1)) / 2


def disc(size, radius):
    y, x = numpy.mgrid[:size, :size]
    return numpy.hypot(x - size / 2, y - size / 2) < radius


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("seed", range(10))
def test_an_outline_along_the_pixels_is_exact(connectivity, seed):
    dice = numpy.random.default_rng(seed)
    labels = dice.integers(0, 3, dice.integers(1, 16, 2))
    for region in regions_of(labels, connectivity=connectivity):
        outline, *holes = rings = region_polygon(region, 0)
        assert numpy.array_equal(rasterise(rings, *labels.shape), region.mask())
        assert signed_area(outline) > 0
        assert all(signed_area(hole) < 0 for hole in holes)
        assert sum(map(signed_area, rings)) == region.area


def test_the_rings_of_a_region_are_its_outline_and_its_holes():
    labels = numpy.ones((7, 9))
    labels[2:4, 2:4] = 0
    labels[3:5, 5:8] = 0
    region = regions_of(labels)[0]
    outline, *holes = region_polygon(region)
    assert outline.tolist() == [[0, 0], [9, 0], [9, 7], [0, 7]]
    assert sorted(hole.min(axis=0).tolist() for hole in holes) == [[2, 2], [5, 3]]


def test_pixels_that_meet_at_a_corner_are_one_hole_or_two():
    labels = numpy.ones((4, 4))
    labels[1, 1] = labels[2, 2] = 0
    # a hole is connected as the region is not
    assert len(region_polygon(regions_of(labels)[0], 0)) == 2
    assert len(region_polygon(regions_of(labels, connectivity=8)[0], 0)) == 3


def test_simplified_outlines_keep_99_5_percent_of_the_pixels_with_half_of_the_points():
    labels = numpy.zeros((300, 300))
    labels[disc(300, 110)] = 1
    labels[disc(300, 40)] = 2
    regions = regions_of(labels)
    exact, simple = region_polygons(regions, 0), region_polygons(regions)
    pairs = [(rasterise(rings, *labels.shape), region.mask()) for region, rings in zip(regions, simple, strict=True)]
    common, either = (sum(join(*pair).sum() for pair in pairs) for join in (numpy.logical_and, numpy.logical_or))
    assert common >= 0.995 * either
    points = [sum(len(ring) for rings in polygons for ring in rings) for polygons in (exact, simple)]
    assert points[1] < points[0] / 2


@pytest.mark.parametrize("tolerance", [0.5, TOLERANCE, 3.0])
def test_no_point_is_further_from_the_simplified_outline_than_the_tolerance(tolerance):
    dice = numpy.random.default_rng(0)
    angles = numpy.linspace(0, 2 * numpy.pi, 200, endpoint=False)
    ring = ((20 + dice.random(200)) * numpy.stack([numpy.cos(angles), numpy.sin(angles)])).T
    (kept,) = simplify([ring], tolerance)
    begin, along = kept, numpy.roll(kept, -1, axis=0) - kept
    offset = ring[:, None] - begin
    share = numpy.clip((offset * along).sum(axis=2) / (along**2).sum(axis=1), 0, 1)
    assert numpy.linalg.norm(offset - share[..., None] * along, axis=2).min(axis=1).max() <= tolerance + 1e-9
    assert {*map(tuple, kept)} <= {*map(tuple, ring)}


def test_rings_are_simplified_together_as_alone():
    labels = numpy.random.default_rng(3).integers(0, 2, (30, 30))
    rings = [ring for region in regions_of(labels) for ring in trace_rings(region.spans, 4)]
    for together, ring in zip(simplify(rings, 1.0), rings, strict=True):
        assert numpy.array_equal(together, simplify([ring], 1.0)[0])


def test_a_region_never_vanishes():
    labels = numpy.zeros((5, 12))
    labels[2, 2:10] = 1
    line = next(region for region in regions_of(labels) if region.label == 1)
    assert len(region_polygon(line, 5.0)[0]) == 4


def test_a_polygon_that_leaves_the_frame_is_cut():
    square = numpy.array([[-5.0, -5], [3, -5], [3, 2], [-5, 2]])
    assert rasterise([square], 4, 6).tolist() == [[True] * 3 + [False] * 3] * 2 + [[False] * 6] * 2


def test_a_negative_tolerance_is_refused():
    with pytest.raises(ValueError, match="tolerance is -1; expected a distance in pixels, 0 or more."):
        region_polygon(regions_of(torch.zeros(3, 3))[0], -1)
