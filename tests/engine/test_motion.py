"""Laws of the estimated motion, and of maps that are moved by it."""

import pytest
import torch
from torch.nn import functional as F

from streamseg.engine.motion import (
    blur,
    estimate_motion,
    halve,
    is_inside,
    move,
    sample_at_once,
    sample_in_bands,
    sum_near,
    to_grid,
)


def smooth_picture(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    coarse = 255 * torch.rand(1, 1, height // 6 + 2, width // 6 + 2, generator=generator)
    return F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)


def shift(x, y, height, width):
    return torch.tensor([x, y], dtype=torch.float32).view(1, 2, 1, 1).expand(1, 2, height, width)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (3, -2), (-5, 4)])
def test_a_shift_by_whole_pixels_carries_a_map_exactly(x, y, mode):
    values = torch.randint(-50, 50, (1, 4, 32, 64)).float()  # sides are powers of two: no place is rounded
    moved = move(values, shift(x, y, 32, 64), mode)
    rows, columns = torch.arange(8, 24), torch.arange(8, 56)
    expected = values[:, :, rows[:, None] + y, columns + x]
    torch.testing.assert_close(moved[:, :, rows[:, None], columns], expected, rtol=0, atol=0)


def test_nothing_moves_between_equal_pictures():
    picture = smooth_picture(40, 56)
    assert estimate_motion(picture, picture).abs().max() < 1e-4


@pytest.mark.parametrize(("x", "y"), [(1, 0), (-2, 1.5), (4, -3), (0.5, 6), (-9, 2)])
def test_the_motion_of_a_camera_is_found(x, y):
    wide = smooth_picture(96, 128)
    now = wide[:, :, 16:80, 16:112]
    before = move(wide, shift(-x, -y, 96, 128))[:, :, 16:80, 16:112]
    found = estimate_motion(now, before)[0, :, 8:-8, 8:-8]
    error = (2 * found - torch.tensor([x, y]).view(2, 1, 1)).norm(dim=0)
    assert error.median() < 0.2


def test_a_flat_picture_has_no_motion():
    assert estimate_motion(torch.full((1, 1, 20, 30), 90.0), torch.full((1, 1, 20, 30), 120.0)).abs().max() == 0


@pytest.mark.parametrize("size", [(4, 5), (9, 33), (17, 16)])
def test_a_picture_of_any_size_has_a_motion(size):
    picture = smooth_picture(*size)
    motion = estimate_motion(picture, picture.flip(3))
    assert motion.shape == (1, 2, (size[0] + 1) // 2, (size[1] + 1) // 2)
    assert motion.isfinite().all()


def test_pictures_of_a_batch_move_each_in_its_way():
    a, b = smooth_picture(32, 48), smooth_picture(32, 48, seed=1)
    now, before = torch.cat([a, b]), torch.cat([a.roll(2, 3), b.roll(-1, 2)])
    together = estimate_motion(now, before)
    for i in range(2):
        torch.testing.assert_close(together[i : i + 1], estimate_motion(now[i : i + 1], before[i : i + 1]))


def test_a_motion_out_of_the_frame_is_told_from_one_inside():
    inside = is_inside(to_grid(shift(3, 0, 4, 10)))
    assert inside[0, 0].tolist() == [[1.0] * 7 + [0.0] * 3] * 4


def test_blurring_is_the_mean_of_the_neighbours_inside():
    values = torch.rand(1, 2, 7, 6)
    found = blur(values, 3)
    torch.testing.assert_close(found[0, :, 3, 2], values[0, :, 2:5, 1:4].mean(dim=(1, 2)))
    torch.testing.assert_close(found[0, :, 0, 0], values[0, :, :2, :2].mean(dim=(1, 2)))


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (8, 6), (17, 23)])
def test_halving_is_the_mean_of_the_pixels_inside(size):
    values = torch.rand(2, 3, *size)
    torch.testing.assert_close(halve(values), F.avg_pool2d(values, 2, ceil_mode=True, count_include_pad=False))


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (8, 6), (17, 23)])
def test_the_sum_near_a_square_is_that_of_the_six_rows_and_columns_around_it(size):
    values = torch.rand(2, 3, *size)
    found = sum_near(values)
    assert found.shape == (2, 3, (size[0] + 1) // 2, (size[1] + 1) // 2)
    for i, j in ((0, 0), (found.shape[2] // 2, found.shape[3] // 2), (found.shape[2] - 1, found.shape[3] - 1)):
        near = values[:, :, max(2 * i - 2, 0) : 2 * i + 4, max(2 * j - 2, 0) : 2 * j + 4]
        torch.testing.assert_close(found[:, :, i, j], near.sum(dim=(2, 3)))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("bands", [2, 3, 7, 50])
@pytest.mark.parametrize("size", [(7, 9), (16, 5), (1, 3)])
def test_sampling_in_bands_is_sampling_at_once(size, bands, mode):
    values, grid = torch.rand(1, 3, *size), to_grid(3 * torch.randn(1, 2, *size))
    torch.testing.assert_close(sample_in_bands(values, grid, mode, bands), sample_at_once(values, grid, mode))


def test_one_thread_or_several_move_a_map_alike(monkeypatch):
    values, motion = torch.rand(2, 8, 91, 97), 3 * torch.randn(2, 2, 91, 97)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = move(values, motion)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    torch.testing.assert_close(move(values, motion), alone)
