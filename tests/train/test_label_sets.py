import math

import pytest
import torch

from streamseg.class_table import STREET_TABLE
from streamseg.classes import CAMVID, COMMA10K, IGNORE
from streamseg.train.label_sets import (
    LabelSets,
    label_probabilities,
    make_label_sets,
    overlap_in_own_pixels,
    set_cross_entropy,
)
from streamseg.train.losses import cross_entropy, hard_cross_entropy, iou_loss, soft_iou_counts

# one data set whose labels are four classes, and one that has two labels for three of them
FOUR = (0, 1, 2, 3)
TWO = (0, 1, 1, IGNORE)
SETS = make_label_sets([FOUR, TWO])
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 4.0, 0.75, 1.5])


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 4, 12, 16, generator=generator)
    labels = torch.stack([torch.randint(0, 4, (12, 16), generator=generator), torch.randint(4, 6, (12, 16))])
    labels[:, :2] = IGNORE
    return logits, labels


def set_loss(logits, labels, sets=SETS, weights=WEIGHTS, threshold=0.0):
    return set_cross_entropy(label_probabilities(logits, sets.members), labels, weights, threshold)


def test_the_labels_of_all_data_sets_are_numbered_in_sequence():
    assert SETS.members.tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
        [0, 1, 1, 0],
    ]
    assert SETS.owners.tolist() == [0, 0, 0, 0, 1, 1]


def test_the_street_table_is_eleven_labels_of_camvid_and_five_of_comma10k():
    columns = [STREET_TABLE.label_of("camvid", CAMVID), STREET_TABLE.label_of("comma10k", COMMA10K)]
    members, owners = make_label_sets(columns)
    assert members.shape == (16, 13)
    assert owners.bincount().tolist() == [11, 5]
    meant = [members[label].nonzero().flatten().tolist() for label in range(16)]
    road = CAMVID.names.index("Road")
    assert meant[road] == [3, 11]
    assert meant[11:] == [[3], [11], [0, 1, 2, 4, 5, 6, 7], [8, 9, 10], [12]]


@pytest.mark.parametrize("threshold", [0.0, 0.7])
def test_labels_that_mean_one_class_each_have_the_ordinary_cross_entropy(pair, threshold):
    logits, labels = pair[0][:1], pair[1][:1]
    weights = WEIGHTS[:4]
    found = set_loss(logits, labels, make_label_sets([FOUR]), weights, threshold)
    ordinary = hard_cross_entropy(logits, labels, weights, threshold) if threshold else None
    torch.testing.assert_close(found, ordinary or cross_entropy(logits, labels, weights))


def test_a_label_that_means_two_classes_has_the_logarithm_of_their_sum(pair):
    logits, _ = pair
    labels = torch.full((2, 12, 16), 5)
    loss, weight = set_loss(logits, labels)
    probabilities = logits.softmax(dim=1)
    expected = -(probabilities[:, 1] + probabilities[:, 2]).log().sum() * WEIGHTS[5]
    torch.testing.assert_close(loss, expected)
    assert weight.item() == pytest.approx(2 * 12 * 16 * WEIGHTS[5].item())


def test_the_gradient_is_that_of_logsumexp_in_double_precision(pair):
    logits, labels = pair
    ours = logits.clone().requires_grad_()
    set_loss(ours, labels)[0].backward()
    exact = logits.double().requires_grad_()
    inside = SETS.members[labels.where(labels != IGNORE, 0)].permute(0, 3, 1, 2).bool()
    losses = exact.logsumexp(dim=1) - exact.masked_fill(~inside, -math.inf).logsumexp(dim=1)
    weights = WEIGHTS.double()[labels.where(labels != IGNORE, 0)] * (labels != IGNORE)
    (losses * weights).sum().backward()
    torch.testing.assert_close(ours.grad, exact.grad.float(), rtol=1e-4, atol=1e-6)


def test_a_confident_error_has_a_finite_loss_and_gradient():
    logits = torch.tensor([200.0, -200.0, -200.0, 0.0]).view(1, 4, 1, 1).requires_grad_()
    loss, _ = set_loss(logits, torch.full((1, 1, 1), 5))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_ignored_pixels_have_no_loss_and_no_gradient(pair):
    logits = pair[0].clone().requires_grad_()
    loss, weight = set_loss(logits, torch.full((2, 12, 16), IGNORE))
    loss.backward()
    assert loss == weight == 0
    assert not logits.grad.any()


def test_a_table_that_permutes_the_classes_permutes_the_gradient(pair):
    logits, labels = pair
    order = torch.tensor([2, 0, 3, 1])
    gradients = []
    for x, sets in ((logits, SETS), (logits[:, order], LabelSets(SETS.members[:, order], SETS.owners))):
        x = x.clone().requires_grad_()
        probabilities = label_probabilities(x, sets.members)
        loss, weight = set_cross_entropy(probabilities, labels, WEIGHTS)
        (loss / weight + iou_loss(overlap_in_own_pixels(probabilities, labels, sets.owners))).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0][:, order], gradients[1])


def test_the_iou_of_a_label_counts_only_pixels_of_its_own_data_set(pair):
    logits, labels = pair
    counts = overlap_in_own_pixels(label_probabilities(logits, SETS.members), labels, SETS.owners)
    torch.testing.assert_close(counts[:, :4], soft_iou_counts(logits[:1], labels[:1]))
    probabilities = logits[1:].softmax(dim=1)
    joined = torch.stack([probabilities[:, 0], probabilities[:, 1] + probabilities[:, 2]], dim=1)
    valid = labels[1] != IGNORE
    for label in (0, 1):
        truth, ours = (labels[1] == 4 + label).float(), joined[0, label] * valid
        both = (truth * ours).sum()
        expected = torch.stack([both, truth.sum() + ours.sum() - both, truth.sum()])
        torch.testing.assert_close(counts[:, 4 + label], expected)


def test_the_sums_of_a_label_stay_exact_under_autocast(pair):
    logits, _ = pair
    with torch.autocast("cpu", torch.bfloat16):
        found = label_probabilities(logits, SETS.members)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, label_probabilities(logits, SETS.members), rtol=0, atol=0)
