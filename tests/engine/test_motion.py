"""Laws of the estimated motion, and of maps that are moved by it."""

import pytest
import torch
from torch.nn import functional as F

from streamseg.engine.motion import blur, estimate_motion, move, stays_inside


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
    inside = stays_inside(shift(3, 0, 4, 10))
    assert inside[0, 0].tolist() == [[1.0] * 7 + [0.0] * 3] * 4


def test_blurring_is_the_mean_of_the_neighbours_inside():
    values = torch.rand(1, 2, 7, 6)
    found = blur(values, 3)
    torch.testing.assert_close(found[0, :, 3, 2], values[0, :, 2:5, 1:4].mean(dim=(1, 2)))
    torch.testing.assert_close(found[0, :, 0, 0], values[0, :, :2, :2].mean(dim=(1, 2)))
