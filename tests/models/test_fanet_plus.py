"""What FANet+ has and FANet does not; test_fanet.py states for both networks what they share."""

import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.models.encoder import load_imagenet, resnet18
from streamseg.models.fanet_plus import average_cells, pyramid_columns, shrink


@pytest.mark.parametrize("height", [1, 2, 7, 8, 12, 13])
@pytest.mark.parametrize("width", [1, 3, 12, 23])
def test_averaging_by_matrices_is_adaptive_average_pooling(height, width):
    x = torch.randn(2, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for rows in (8, 4, 2):
        columns = pyramid_columns(rows, x)
        expected = F.adaptive_avg_pool2d(x, (rows, columns))
        torch.testing.assert_close(average_cells(x, rows, columns), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("size", "columns"), [((12, 24), (16, 8, 4)), ((9, 12), (11, 5, 3)), ((12, 12), (8, 4, 2)), ((24, 6), (2, 2, 2))]
)
def test_the_cells_of_the_pyramid_are_nearly_square_and_no_row_has_a_single_one(size, columns):
    assert tuple(pyramid_columns(rows, torch.zeros(1, 1, *size)) for rows in (8, 4, 2)) == columns


@pytest.mark.parametrize(("size", "expected"), [((64, 96), (48, 72)), ((65, 97), (49, 73)), ((33, 47), (25, 36))])
def test_the_image_shrinks_to_three_quarters_rounded_up(size, expected):
    assert shrink(torch.zeros(1, 3, *size)).shape[2:] == expected


def test_a_part_of_an_image_on_the_tile_grid_shrinks_to_a_part_of_the_shrunk_image():
    image = torch.rand(1, 3, 64, 3 * streamseg.FANetPlus.tile_grid, generator=torch.Generator().manual_seed(0)).double()
    part = image[:, :, :, streamseg.FANetPlus.tile_grid :]
    whole = shrink(image)[:, :, :, 3 * streamseg.FANetPlus.tile_grid // 4 :]
    # the edge has another neighbour
    torch.testing.assert_close(shrink(part)[..., 2:], whole[..., 2:])


def test_attention_starts_with_a_tenth_of_its_share_and_imagenet_fits_every_layer_of_the_encoder(tmp_path):
    imagenet = resnet18("None")
    torch.save(imagenet.state_dict(), tmp_path / "resnet18.pth")
    network = streamseg.fanetplus18(3)
    load_imagenet(network.encoder, tmp_path / "resnet18.pth")
    found, expected = network.encoder.state_dict(), imagenet.state_dict()
    assert all(found[name].equal(expected[name]) for name in expected)
    assert found.keys() == expected.keys()
    assert all((attend.out[1].weight == 0.1).all() for attend in network.attentions)


def test_the_smallest_image_with_a_res_4_map_of_more_than_a_pixel_is_the_least_free_side_of_exports():
    for network in (streamseg.fanet18(2), streamseg.fanetplus18(2)):
        side = network.eval().min_free_side
        with torch.inference_mode():
            sizes = [network.encode(torch.zeros(1, 3, length, length))[3].shape[2] for length in (side - 1, side)]
        assert sizes == [1, 2]


def test_a_given_pyramid_pooling_replaces_that_of_the_map(plus, image):
    with torch.inference_mode():
        maps, _ = plus.attend(plus.encode(image))
        own = plus.merge(maps)[0]
        assert plus.merge(maps, plus.pool(maps[3]))[0].equal(own)
        assert not plus.merge(maps, torch.zeros_like(plus.pool(maps[3])))[0].equal(own)
