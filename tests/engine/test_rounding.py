import pytest
import torch
from torch.nn import functional as F

from streamseg.engine.rounding import MAX_CORRELATED, MAX_WEIGHT, InputStatistics, round_weights


def smooth_maps(number=2, channels=4, size=40, seed=0):
    """Maps with similar neighbouring pixels, as in pictures, and without negative values."""
    small = torch.rand(number, channels, size // 8, size // 8, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(small, (size, size), mode="bilinear")


def weights(outputs=16, inputs=4, side=3):
    return torch.randn(outputs, inputs, side, side, generator=torch.Generator().manual_seed(1))


def statistics(weight, *maps, stride=1, padding=1):
    found = InputStatistics(weight, stride, padding)
    for x in maps:
        found.add(x)
    return found


def test_pairs_of_products_of_bytes_and_weights_fit_16_bits():
    assert 2 * 255 * MAX_WEIGHT <= 2**15 - 1


@pytest.mark.parametrize("known", [True, False])
def test_the_largest_weight_of_each_output_determines_its_scale(known):
    weight = weights()
    rounded, scales, _ = round_weights(weight, statistics(weight, smooth_maps()) if known else None)
    assert rounded.dtype == torch.int8
    assert rounded.flatten(1).int().abs().amax(dim=1).tolist() == [MAX_WEIGHT] * 16
    torch.testing.assert_close(scales, weight.abs().amax(dim=(1, 2, 3)) / MAX_WEIGHT)
    # so quantised weights are rounded to themselves
    again, same, _ = round_weights(rounded * scales.view(-1, 1, 1, 1))
    assert again.equal(rounded)
    torch.testing.assert_close(same, scales)


def test_without_statistics_every_weight_is_rounded_to_the_nearest():
    weight = weights()
    rounded, scales, correction = round_weights(weight)
    assert (rounded * scales.view(-1, 1, 1, 1) - weight).abs().amax() <= 0.5001 * scales.max()
    assert not correction.any()


def test_errors_cancel_where_inputs_correlate():
    weight, unseen = weights(), smooth_maps(seed=5)

    def error(inputs):
        rounded, scales, correction = round_weights(weight, inputs)
        ours = F.conv2d(unseen, rounded * scales.view(-1, 1, 1, 1), correction, padding=1)
        return (ours - F.conv2d(unseen, weight, padding=1)).norm().item()

    assert error(statistics(weight, smooth_maps(16))) < 0.4 * error(None)


@pytest.mark.parametrize("inputs", [4, MAX_CORRELATED // 9 + 1])
def test_the_mean_of_each_output_is_kept(inputs):
    weight, x = weights(inputs=inputs), smooth_maps(channels=inputs, size=24)
    rounded, scales, correction = round_weights(weight, statistics(weight, x, padding=0))
    ours = F.conv2d(x, rounded * scales.view(-1, 1, 1, 1), correction)
    torch.testing.assert_close(ours.mean(dim=(0, 2, 3)), F.conv2d(x, weight).mean(dim=(0, 2, 3)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (1, 0)])
def test_statistics_are_those_of_the_patches(stride, padding):
    weight, x = weights(), smooth_maps(size=16)
    patches = F.unfold(x, 3, padding=padding, stride=stride).transpose(0, 1).flatten(1).double()
    found = statistics(weight, x[:1], x[1:], stride=stride, padding=padding)
    torch.testing.assert_close(found.mean, patches.mean(dim=1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.covariance, patches.cov(correction=0), atol=1e-5, rtol=1e-4)


def test_zero_weights_and_zero_inputs_work():
    weight = weights()
    weight[3] = 0
    rounded, scales, correction = round_weights(weight, statistics(weight, torch.zeros(1, 4, 8, 8)))
    assert not rounded[3].any()
    assert scales.isfinite().all()
    assert not correction.any()
