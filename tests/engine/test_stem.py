import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.engine.folded import fold_network, to_int8
from streamseg.models.fanet_plus import fanetplus18, shrink

SIZES = [(64, 96), (65, 97), (130, 66), (131, 67), (133, 32)]


def street(height, width, seed=0):
    picture = streamseg.read_image("samples/suburb-1.jpg")
    return picture[None, :, 300 : 300 + height, 300 + 50 * seed : 300 + 50 * seed + width]


def same(image):
    return image


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("factory", "prepare"), [(streamseg.fanet18, same), (fanetplus18, shrink)])
def test_the_first_map_in_strips_is_the_whole_map(size, factory, prepare):
    folded = fold_network(factory(classes=3).eval(), torch.float32)
    stem = folded.stem.convolution
    for frame in (street(*size), street(*size, seed=1)):
        pixels = prepare(frame.float() - folded.mean.view(1, 3, 1, 1))
        expected = F.conv2d(pixels, stem.weight, stem.bias, stride=2, padding=3).relu()
        found = folded.run_stem(frame, None)
        torch.testing.assert_close(found, F.max_pool2d(expected, 3, stride=2, padding=1), atol=1e-4, rtol=1e-4)
        assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", SIZES[:4])
@pytest.mark.parametrize("factory", [streamseg.fanet18, fanetplus18])
def test_the_first_map_in_int8_is_nearly_that_in_fp32(size, factory):
    torch.manual_seed(0)
    folded, frame = fold_network(factory(classes=3).eval(), torch.float32), street(*size)
    found, expected = to_int8(folded, [frame]).run_stem(frame, None), folded.run_stem(frame, None)
    assert found.shape == expected.shape
    assert (found - expected).norm() < 0.01 * expected.norm()
