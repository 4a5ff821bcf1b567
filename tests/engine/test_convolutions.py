import pytest
import torch
from torch.nn import functional as F

from streamseg.engine import convolutions
from streamseg.engine.convolutions import FusedConv, Int8Conv, Int8Map, RangeObserver, WinogradConv, quantise, to_float
from streamseg.engine.scratch import Scratch


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).contiguous(
        memory_format=torch.channels_last
    )


@pytest.fixture
def convolution():
    return FusedConv(noise(16, 8, 3, 3) / 8, torch.linspace(-1, 1, 16), 2, 1)


def test_a_fused_convolution_equals_separate_steps(convolution):
    x, shortcut = noise(2, 8, 9, 12), noise(2, 16, 5, 6, seed=1)
    expected = F.conv2d(x, convolution.weight, convolution.bias, 2, 1)
    torch.testing.assert_close(convolution.relu(x), expected.relu())
    torch.testing.assert_close(convolution.add_relu(x, shortcut), (expected + shortcut).relu())
    torch.testing.assert_close(convolution.linear(x), expected)


def test_int8_maps_are_bytes_times_a_scale():
    x = torch.tensor([-1.0, 0.0, 0.1, 1.0, 2.0]).view(1, 1, 1, 5)
    found = quantise(x, 1 / 255)
    assert found.values.flatten().tolist() == [0, 0, 26, 255, 255]
    torch.testing.assert_close(to_float(found), x.clamp(0, 1), atol=0.002, rtol=0)
    assert to_float(x) is x


def test_an_observer_records_the_largest_inputs_and_outputs(convolution):
    observer = RangeObserver(convolution)
    for scale in (1.0, 3.0, 2.0):
        x = scale * noise(1, 8, 6, 6)
        torch.testing.assert_close(observer.relu(x), convolution.relu(x))
    assert observer.max_input == pytest.approx(3 * noise(1, 8, 6, 6).max().item())
    assert observer.max_output == pytest.approx(convolution.relu(3 * noise(1, 8, 6, 6)).max().item())


@pytest.mark.parametrize("quantised", [True, False])
def test_an_int8_convolution_is_close_to_one_in_fp32(convolution, quantised):
    x, shortcut = noise(2, 8, 9, 12).relu(), noise(2, 16, 5, 6, seed=1)
    expected, summed = convolution.relu(x), convolution.add_relu(x, shortcut)
    ours = Int8Conv(convolution, x.max().item(), max(expected.max(), summed.max()).item() if quantised else None)
    for found, correct in (
        (ours.relu(x), expected),
        (ours.relu(quantise(x, x.max().item() / 255)), expected),
        (ours.add_relu(x, shortcut), summed),
    ):
        assert isinstance(found, Int8Map) == quantised
        assert (to_float(found) - correct).abs().max() < 0.02 * correct.max()
    assert (ours.linear(x) - convolution.linear(x)).abs().max() < 0.02 * expected.max()


def test_one_int8_convolution_takes_maps_of_several_sizes(convolution):
    ours = Int8Conv(convolution, 3.0, None)
    for size in (8, 12, 8):
        x = noise(1, 8, size, size).relu().clamp(max=3)
        assert (ours.relu(x) - convolution.relu(x)).abs().max() < 0.05


@pytest.mark.parametrize(("inputs", "side"), [(12, 4), (64, 3), (64, 1), (3, 3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_int8_sums_of_the_largest_inputs_and_weights_are_exact(inputs, side, sign):
    ours = Int8Conv(FusedConv(sign * torch.ones(16, inputs, side, side), torch.zeros(16)), 255.0, None)
    found = ours.linear(Int8Map(torch.full((1, inputs, 8, 8), 255, dtype=torch.uint8), 1.0))
    torch.testing.assert_close(found, torch.full_like(found, sign * 255.0 * inputs * side**2), atol=0, rtol=1e-5)


@pytest.mark.parametrize("size", [(8, 12), (5, 7), (1, 1), (9, 4)])
def test_winograd_equals_the_convolution(size, monkeypatch):
    monkeypatch.setattr(convolutions, "MAX_SQUARES", 2)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 32, *size, generator=generator).contiguous(memory_format=torch.channels_last)
    plain = FusedConv(torch.randn(16, 32, 3, 3, generator=generator), torch.randn(16, generator=generator), 1, 1)
    ours = WinogradConv(plain, Scratch())
    ours.relu(-x)
    shortcut = noise(2, 16, *size, seed=1)
    for found, expected in (
        (ours.relu(x), plain.relu(x)),
        (ours.linear(x), plain.linear(x)),
        (ours.add_relu(x, shortcut), plain.add_relu(x, shortcut)),
    ):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
        assert found.is_contiguous(memory_format=torch.channels_last)
