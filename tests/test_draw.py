import pytest
import torch

from streamseg import Classes, overlay

RED_BLUE = Classes(("red", "blue"), ((255, 0, 0), (0, 0, 255)))


@pytest.fixture
def grey():
    return torch.full((3, 4, 6), 100, dtype=torch.uint8)


def test_an_overlay_mixes_each_pixel_with_the_colour_of_its_class(grey):
    labels = torch.zeros(4, 6, dtype=torch.long)
    labels[:, 3:] = 1
    drawn = overlay(grey, labels, RED_BLUE, alpha=0.25)
    assert drawn.dtype == torch.uint8
    assert drawn[:, 0, 0].tolist() == [139, 75, 75]
    assert drawn[:, 3, 5].tolist() == [75, 75, 139]


def test_alpha_goes_from_the_frame_to_the_colours(grey):
    labels = torch.ones(4, 6, dtype=torch.uint8)
    assert overlay(grey, labels, RED_BLUE, alpha=0).equal(grey)
    assert overlay(grey, labels, RED_BLUE, alpha=1)[:, 2, 2].tolist() == [0, 0, 255]


def test_pixels_of_no_class_stay_as_they_are(grey):
    labels = torch.full((4, 6), 255, dtype=torch.uint8)
    assert overlay(grey, labels, RED_BLUE).equal(grey)
