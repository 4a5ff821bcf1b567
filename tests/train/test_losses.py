import math

import pytest
import torch
from torch.nn import functional as F

from streamseg.models.layers import resize_to
from streamseg.train.losses import (
    class_weights,
    cross_entropy,
    hard_cross_entropy,
    iou_loss,
    kl_divergence,
    soft_iou_counts,
    take_grid,
)

ONES = torch.ones(4)


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 12, 16, generator=generator)
    labels = torch.randint(0, 4, (2, 12, 16), generator=generator)
    labels[:, :2] = 255
    return logits, labels


def test_cross_entropy_is_pytorchs(pair):
    weights = torch.tensor([0.5, 1.0, 2.0, 4.0])
    for weight in (ONES, weights):
        loss, count = cross_entropy(*pair, weight)
        torch.testing.assert_close(loss / count, F.cross_entropy(*pair, weight, ignore_index=255))


def test_parts_of_a_batch_add_up_to_its_loss(pair):
    logits, labels = pair
    whole = cross_entropy(logits, labels, ONES)
    parts = [cross_entropy(logits[i : i + 1], labels[i : i + 1], ONES) for i in range(2)]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
    torch.testing.assert_close(parts[0][1] + parts[1][1], whole[1])


def test_hard_pixels_are_those_below_the_threshold(pair):
    logits, labels = pair
    losses = F.cross_entropy(logits, labels, ignore_index=255, reduction="none")
    hard = losses[losses >= -math.log(0.7)]
    assert hard.numel() > losses.numel() // 16
    loss, count = hard_cross_entropy(logits, labels, ONES, 0.7)
    torch.testing.assert_close(loss / count, hard.mean())


def test_with_few_hard_pixels_the_hardest_sixteenth_counts(pair):
    _, labels = pair
    sure = 6 * F.one_hot(labels.where(labels != 255, 0), 4).permute(0, 3, 1, 2).float()
    sure = sure + torch.rand(2, 4, 12, 16, generator=torch.Generator().manual_seed(1))
    losses = F.cross_entropy(sure, labels, ignore_index=255, reduction="none").flatten()
    loss, count = hard_cross_entropy(sure, labels, ONES, 0.7)
    assert count == losses.numel() // 16
    torch.testing.assert_close(loss / count, losses.topk(losses.numel() // 16).values.mean())


@pytest.mark.parametrize("left", [1, 5, 23])
def test_with_less_than_a_sixteenth_labelled_only_labelled_pixels_count(pair, left):
    logits, labels = pair
    labels = labels.clone().flatten()
    labels[labels != 255] = torch.where(torch.arange((labels != 255).sum()) < left, labels[labels != 255], 255)
    labels = labels.view(2, 12, 16)
    weights = torch.tensor([0.5, 1.0, 2.0, 4.0])
    loss, count = hard_cross_entropy(logits, labels, weights, 0.7)
    expected = F.cross_entropy(logits, labels, weights, ignore_index=255, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(count, weights[labels[labels != 255]].sum())


def test_the_iou_loss_is_0_for_the_truth_and_1_for_its_contrary(pair):
    _, labels = pair
    truth = 100 * F.one_hot(labels.where(labels != 255, 0), 4).permute(0, 3, 1, 2).float()
    assert iou_loss(soft_iou_counts(truth, labels)) == pytest.approx(0, abs=1e-6)
    assert iou_loss(soft_iou_counts(truth.roll(1, dims=1), labels)) == pytest.approx(1, abs=1e-6)


def test_the_iou_loss_counts_only_classes_that_occur():
    labels = torch.zeros(1, 8, 8, dtype=torch.long)
    right = torch.tensor([100.0, 0, 0, 0]).view(1, 4, 1, 1).expand(1, 4, 8, 8)
    assert iou_loss(soft_iou_counts(right, labels)) == pytest.approx(0, abs=1e-6)


def test_the_iou_counts_of_parts_of_a_batch_add_up(pair):
    logits, labels = pair
    parts = sum(soft_iou_counts(logits[i : i + 1], labels[i : i + 1]) for i in range(2))
    torch.testing.assert_close(parts, soft_iou_counts(logits, labels))


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_the_losses_at_all_places_of_a_grid_add_up_to_the_loss_of_all_pixels(pair, stride):
    logits, labels = pair[0][:, :, :3, :4], pair[1]  # as small as a quarter of the labels
    whole = cross_entropy(resize_to(logits.clone().requires_grad_(), 12, 16), labels, ONES)
    places = [torch.tensor([row, column]) for row in range(stride) for column in range(stride)]
    grids = [take_grid(logits, labels, place, stride) for place in places]
    assert all(labels.shape == (2, 12 // stride, 16 // stride) for _, labels in grids)
    parts = [cross_entropy(*grid, ONES) for grid in grids]
    torch.testing.assert_close(sum(loss for loss, _ in parts), whole[0])
    torch.testing.assert_close(sum(weight for _, weight in parts), whole[1])


def test_a_grid_has_the_pixels_from_its_place_on(pair):
    logits, labels = pair
    taken, truth = take_grid(logits, labels, torch.tensor([5, 2]), 4)
    torch.testing.assert_close(taken, logits[:, :, 1::4, 2::4])
    assert truth.equal(labels[:, 1::4, 2::4])


def test_class_weights_are_larger_for_rare_classes_and_1_for_the_mean_pixel():
    pixels = torch.tensor([900.0, 90.0, 10.0])
    assert class_weights(pixels, 0.0).equal(torch.ones(3))
    weights = class_weights(pixels, 0.5)
    assert weights[0] < weights[1] < weights[2]
    assert (weights * pixels).sum() / pixels.sum() == pytest.approx(1)


def test_class_weights_stop_growing_at_a_ten_thousandth_of_the_pixels():
    pixels = torch.tensor([1e6, 1.0, 100.0, 0.0])
    weights = class_weights(pixels, 1.0)
    torch.testing.assert_close(weights[1] / weights[0], torch.tensor(1e4), rtol=1e-3, atol=0)
    assert weights[1] == weights[3]
    torch.testing.assert_close(weights[2] / weights[0], torch.tensor(1e4), rtol=1e-3, atol=0)


def test_the_kl_divergence_is_pytorchs():
    a, b = torch.randn(2, 2, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    expected = F.kl_div(a.log_softmax(dim=1), b.softmax(dim=1), reduction="none").sum(dim=1).mean()
    torch.testing.assert_close(kl_divergence(a, b), expected)
    assert kl_divergence(a, a).item() == pytest.approx(0, abs=1e-6)
