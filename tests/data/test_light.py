import pytest
import torch
from torch.nn import functional as F

from streamseg.data.light import DRAWS, NIGHT, blur, change_light, noise

SEEDS = [(7, image, 0) for image in range(3)]
UNCHANGED = torch.ones(3, DRAWS)


@pytest.fixture
def images():
    return 1 + 253 * torch.rand(3, 3, 12, 20, generator=torch.Generator().manual_seed(0))


def drawn(**columns):
    """Return numbers that leave the images unchanged, except for some columns."""
    draws = UNCHANGED.clone()
    for column, value in columns.items():
        draws[:, int(column[1:])] = value
    return draws


def test_images_that_are_not_chosen_stay_as_they_are(images):
    torch.testing.assert_close(change_light(images, UNCHANGED, 1.0, SEEDS), images, rtol=1e-5, atol=1e-3)


def test_gamma_keeps_black_and_white_and_moves_the_middle(images):
    lighter, darker = (change_light(images, drawn(_0=value, _1=0.0), 1.0, SEEDS) for value in (0.0, 1.0))
    expected = 255 * (images / 255) ** torch.tensor(-0.6).exp()
    torch.testing.assert_close(lighter, expected, rtol=1e-4, atol=1e-2)
    assert (darker < images).all()
    white = torch.full_like(images, 255.0)
    torch.testing.assert_close(change_light(white, drawn(_0=1.0, _1=0.0), 1.0, SEEDS), white)


def test_a_colour_temperature_multiplies_the_channels(images):
    draws = drawn(_2=0.0, _3=0.5, _5=0.0)
    changed = change_light(images, draws, 1.0, SEEDS)
    torch.testing.assert_close(changed[:, 0], 0.8 * images[:, 0], rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(changed[:, 1], images[:, 1], rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(changed[:, 2], (1.2 * images[:, 2]).clamp(max=255), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("number", "exposure"), [(0.0, NIGHT[0]), (1.0, NIGHT[1])])
def test_a_night_is_a_short_exposure(images, number, exposure):
    changed = change_light(images, drawn(_6=0.0, _7=number), 1.0, SEEDS)
    torch.testing.assert_close(changed, exposure * images, rtol=1e-4, atol=1e-2)


def test_a_blur_has_the_weights_1_2_1(images):
    line = torch.tensor([1.0, 2.0, 1.0]) / 4
    kernel = (line[:, None] * line).expand(3, 1, 3, 3)
    expected = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), kernel, groups=3)
    torch.testing.assert_close(blur(images), expected)
    torch.testing.assert_close(change_light(images, drawn(_8=0.0), 1.0, SEEDS), expected, rtol=1e-4, atol=1e-2)
    one = UNCHANGED.clone()
    one[1, 8] = 0.0
    changed = change_light(images, one, 1.0, SEEDS)
    torch.testing.assert_close(changed[1], expected[1], rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(changed[::2], images[::2], rtol=1e-4, atol=1e-2)


def test_noise_has_its_deviation_and_depends_on_nothing_but_its_seed():
    images = torch.full((3, 3, 100, 200), 128.0)
    changed = change_light(images, drawn(_9=0.5, _10=0.0), 1.0, SEEDS)
    assert (changed - images).std().item() == pytest.approx(255 * 0.03, rel=0.02)
    assert change_light(images[1:2], drawn(_9=0.5, _10=0.0)[1:2], 1.0, SEEDS[1:2]).equal(changed[1:2])
    assert not changed[0].equal(changed[1])
    generator = torch.Generator()
    first = noise(images[0], (7, 0, 0), generator)
    torch.testing.assert_close(changed[0], images[0] + 255 * 0.03 * first, rtol=1e-4, atol=1e-2)
    assert not noise(images[0], (8, 0, 0), generator).equal(first)
    assert not noise(images[0], (7, 0, 1), generator).equal(first)
    assert noise(images[0], (7, 0, 0), generator).equal(first)


def test_the_strength_is_the_share_of_the_images_that_change():
    images = torch.full((2000, 3, 4, 4), 128.0)
    draws = torch.rand(2000, DRAWS, generator=torch.Generator().manual_seed(0))
    seeds = [(0, image, 0) for image in range(2000)]
    for strength in (0.5, 1.0):
        changed = (change_light(images, draws, strength, seeds) - images).abs().amax(dim=(1, 2, 3)) > 0.01
        # not by a blur, which a flat picture does not show
        kept = (1 - 0.5 * strength) ** 2 * (1 - 0.15 * strength) * (1 - 0.3 * strength)
        assert changed.float().mean().item() == pytest.approx(1 - kept, abs=0.04)


def test_values_stay_in_0_to_255(images):
    draws = torch.rand(3, DRAWS, generator=torch.Generator().manual_seed(1)) * 0.1
    changed = change_light(images, draws, 1.0, SEEDS)
    assert changed.min() >= 0
    assert changed.max() <= 255
