import pytest
import torch
from torch.nn import functional as F

from streamseg.engine.labels import bands, count_labels, labels_and_confidence_from_scores, labels_from_scores

SIZES = [(90, 120), (720, 960), (721, 963), (46, 61), (45, 60), (20, 31), (1, 1), (7, 2000), (3000, 5)]


def random_scores(classes=19, height=45, width=60):
    return torch.randn(classes, height, width, generator=torch.Generator().manual_seed(0))


def share_of_equal(a, b):
    return (a == b).float().mean().item()


@pytest.mark.parametrize("size", SIZES)
def test_bands_together_are_the_bilinear_resize(size):
    scores = random_scores()
    parts = list(bands(scores, size))
    assert [i for part in parts for i in range(part.rows.start, part.rows.stop)] == list(range(size[0]))
    assert all(part.logits().numel() <= max(2**20, 19 * size[1]) for part in parts)
    expected = F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(torch.cat([part.logits() for part in parts], dim=1), expected, atol=1e-4, rtol=1e-4)
    rows, columns = torch.arange(2) % (parts[0].rows.stop), torch.arange(2) % size[1]
    torch.testing.assert_close(parts[0].logits_at(rows, columns), parts[0].logits()[:, rows, columns])


@pytest.mark.parametrize("size", SIZES)
def test_labels_are_the_highest_scores(size):
    scores = random_scores()
    labels = labels_from_scores(scores, size)
    assert labels.dtype == torch.uint8
    expected = F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0].argmax(dim=0)
    assert share_of_equal(labels, expected) > 0.9999


def test_a_row_s_label_does_not_depend_on_the_band_that_it_is_in():
    scores = random_scores(150, 20, 30)
    labels = labels_from_scores(scores, (160, 240))  # in bands of 29 rows
    few = labels_from_scores(scores[:, :10], (80, 240))
    assert labels[:72].equal(few[:72])  # below comes the row that was cut off


def test_confidence_is_the_probability_of_the_label():
    scores = 3 * random_scores()
    labels, confidence = labels_and_confidence_from_scores(scores, (720, 961))
    assert labels.equal(labels_from_scores(scores, (720, 961)))
    expected = F.interpolate(scores[None], (720, 961), mode="bilinear", align_corners=False)[0].softmax(dim=0)
    assert confidence.dtype == torch.uint8
    assert (confidence / 255 - expected.amax(dim=0)).abs().max() < 0.51 / 255
    assert confidence.max() > 250 > 60 > confidence.min()


def test_scores_in_half_precision_become_labels_too():
    scores = random_scores().half()
    assert labels_from_scores(scores, (90, 120)).equal(labels_from_scores(scores.float(), (90, 120)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_label_is_counted_and_none_beyond_the_classes(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    labels = torch.tensor([[0, 0, 2], [12, 255, 2]], dtype=torch.uint8, device=device)
    assert count_labels(labels, 13).tolist() == [2, 0, 2, *[0] * 9, 1]
    many = torch.full((1080, 1920), 1, dtype=torch.uint8, device=device)
    assert count_labels(many, 3).tolist() == [0, 1080 * 1920, 0]
