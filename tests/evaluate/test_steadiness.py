"""Steadiness of labels without true ones."""

import math
from itertools import pairwise

import pytest
import torch

from streamseg.classes import IGNORE
from streamseg.evaluate.motion import Motion
from streamseg.evaluate.steadiness import FARTHEST, SteadinessTally, boundary_distances

CPU = torch.device("cpu")


def uniform(x, y, size):
    """The motion of a whole picture: what is at p was at p + (x, y)."""
    flow = torch.tensor([float(x), float(y)]).view(2, 1, 1).repeat(1, *size)
    visible = torch.zeros(size, dtype=torch.bool)
    visible[max(0, -y) : size[0] - max(0, y), max(0, -x) : size[1] - max(0, x)] = True
    return Motion(flow, visible)


def steadiness(maps, motion, classes=5):
    tally = SteadinessTally(classes, CPU)
    for previous, current in pairwise(maps):
        tally.add(previous, current, motion)
    return tally.result()


def blocks(height=48, width=64, seed=0):
    """Labels in blocks of 8 pixels."""
    cells = torch.randint(0, 5, (height // 8, width // 8), generator=torch.Generator().manual_seed(seed))
    return cells.repeat_interleave(8, 0).repeat_interleave(8, 1).to(torch.uint8)


def test_a_still_video_is_wholly_consistent():
    found = steadiness([blocks()] * 4, uniform(0, 0, (48, 64)))
    assert (found.consistency, found.consistency_miou, found.boundary_shift, found.flip_rate) == (100, 100, 0, 0)


@pytest.mark.parametrize(("x", "y"), [(3, 0), (0, -2), (-5, 4)])
def test_labels_that_move_with_the_picture_are_wholly_consistent(x, y):
    whole = blocks(96, 128)
    maps = [whole[20 + i * y : 68 + i * y, 20 + i * x : 84 + i * x] for i in range(4)]
    found = steadiness(maps, uniform(x, y, (48, 64)))
    assert (found.consistency, found.consistency_miou, found.boundary_shift) == (100, 100, 0)
    assert found.flip_rate > 5
    # and under a wrong motion they are not
    assert steadiness(maps, uniform(0, 0, (48, 64))).consistency == pytest.approx(100 - found.flip_rate)


def test_random_labels_agree_by_chance():
    generator = torch.Generator().manual_seed(0)
    maps = [torch.randint(0, 5, (100, 120), generator=generator).to(torch.uint8) for _ in range(6)]
    found = steadiness(maps, uniform(2, 1, (100, 120)))
    assert found.consistency == pytest.approx(100 / 5, abs=0.5)
    # intersection 1/25 of the pixels, union 9/25
    assert found.consistency_miou == pytest.approx(100 / 9, abs=0.5)
    assert found.flip_rate == pytest.approx(80, abs=0.5)


@pytest.mark.parametrize("pixels", [1, 2, 5, FARTHEST])
def test_a_boundary_that_jumps_in_a_still_picture_is_displaced_by_its_jump(pixels):
    one, other = torch.zeros(2, 40, 60, dtype=torch.uint8)
    one[:, 30:], other[:, 30 + pixels :] = 1, 1
    found = steadiness([one, other], uniform(0, 0, (40, 60)))
    assert found.boundary_shift == pytest.approx(pixels)


def test_a_boundary_that_appears_counts_as_the_farthest():
    nothing, box = torch.zeros(2, 40, 60, dtype=torch.uint8)
    box[10:20, 10:20] = 1
    assert steadiness([nothing, box], uniform(0, 0, (40, 60))).boundary_shift == FARTHEST


def test_distances_are_those_of_a_brute_force_search():
    generator = torch.Generator().manual_seed(3)
    for _ in range(4):
        draws = torch.rand(2, 6, 7, generator=generator).repeat_interleave(3, 1).repeat_interleave(3, 2)
        carried, current = (2 * draws).to(torch.uint8)
        carried[torch.rand(18, 21, generator=generator) < 0.02] = IGNORE
        total, count = boundary_distances(carried, current).tolist()
        expected = brute_force(carried, current)
        assert count == len(expected)
        assert total == pytest.approx(sum(expected))


def brute_force(carried, current):
    current = torch.where(carried == IGNORE, IGNORE, current)
    rows, columns = carried.shape
    hidden = [divmod(i, columns) for i, label in enumerate(carried.flatten().tolist()) if label == IGNORE]

    def boundary(labels):
        places = []
        for y in range(rows):
            for x in range(columns):
                own = labels[y, x].item()
                sides = [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
                near = [labels[b, a].item() for b, a in sides if 0 <= b < rows and 0 <= a < columns]
                if own != IGNORE and any(other not in (own, IGNORE) for other in near):
                    places.append((y, x, own))
        return places

    found = []
    one, other = boundary(carried), boundary(current)
    for ours, theirs in ((one, other), (other, one)):
        for y, x, own in ours:
            matches = [math.dist((y, x), place) for *place, label in theirs if label == own]
            distance = min([FARTHEST, *matches])
            if distance <= min([math.inf, *(d for d in (math.dist((y, x), h) for h in hidden) if d <= FARTHEST)]):
                found.append(distance)
    return found


def test_a_boundary_behind_which_nothing_is_known_is_left_out():
    carried, current = torch.zeros(2, 40, 60, dtype=torch.uint8)
    carried[:, 28:], current[:, 25:] = IGNORE, 1
    # the boundary of the current frame is 3 pixels from what the one before does not show
    assert boundary_distances(carried, current).tolist() == [0, 0]


def test_a_cut_leaves_nothing_to_compare():
    hidden = Motion(torch.zeros(2, 48, 64), torch.zeros(48, 64, dtype=torch.bool))
    found = steadiness([blocks(seed=1), blocks(seed=2)], hidden)
    assert math.isnan(found.consistency)
    assert math.isnan(found.consistency_miou)
    assert math.isnan(found.boundary_shift)
    assert found.flip_rate > 0


def test_pixels_without_a_class_in_either_frame_count_in_no_figure():
    generator = torch.Generator().manual_seed(7)
    maps = torch.randint(0, 3, (2, 20, 30), generator=generator).to(torch.uint8)
    maps[:, :5], maps[0, 9, 4], maps[1, 15, 8:20] = IGNORE, IGNORE, IGNORE
    motion = uniform(3, -1, (20, 30))
    tally = SteadinessTally(3, CPU)
    tally.add(*maps, motion)
    found, (before, now) = tally.result(), maps.tolist()
    compared, flips, pixels = [], 0, 0
    for y in range(20):
        for x in range(30):
            if IGNORE not in (before[y][x], now[y][x]):
                flips, pixels = flips + (before[y][x] != now[y][x]), pixels + 1
            if motion.visible[y, x] and IGNORE not in (before[y - 1][x + 3], now[y][x]):
                compared.append((before[y - 1][x + 3], now[y][x]))
    shares = []
    for label in range(3):
        both = sum(pair == (label, label) for pair in compared)
        shares.append(both / sum(label in pair for pair in compared))
    assert found.flip_rate == pytest.approx(100 * flips / pixels)
    assert found.consistency == pytest.approx(100 * sum(one == other for one, other in compared) / len(compared))
    assert found.consistency_miou == pytest.approx(100 * sum(shares) / 3)
    assert tally.compared() == pytest.approx(100 * len(compared) / pixels)


def test_distances_do_not_depend_on_which_frame_hides_a_pixel():
    maps = torch.stack([blocks(seed=1), blocks(seed=2)])
    hidden = torch.zeros(48, 64, dtype=torch.bool)
    hidden[20:30, 10:50] = True
    still = uniform(0, 0, (48, 64))
    distances = brute_force(maps[0].masked_fill(hidden, IGNORE), maps[1])
    expected = pytest.approx(sum(distances) / len(distances))
    for which in ([0], [1], [0, 1]):
        marked = maps.clone()
        marked[which] = marked[which].masked_fill(hidden, IGNORE)
        assert steadiness(marked, still).boundary_shift == expected
    assert steadiness(maps, still).boundary_shift != expected


def test_one_frame_has_no_steadiness():
    assert all(map(math.isnan, vars(steadiness([blocks()], uniform(0, 0, (48, 64)))).values()))
