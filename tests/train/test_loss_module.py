import pytest
import torch
from torch import nn

import streamseg
from streamseg.classes import IGNORE
from streamseg.data.augment import augment, sample_params
from streamseg.data.datasets import folder
from streamseg.models.baselines import BASELINES
from streamseg.train.loss_module import LossModule
from streamseg.train.losses import iou_loss, soft_iou_counts


@pytest.fixture(scope="module")
def views(toy):
    """Two frames and their labels, as training sees them."""
    dataset = folder(toy, "train")
    images, labels = (torch.stack(part) for part in zip(*(dataset[i] for i in range(2)), strict=True))
    images, labels = augment(images, labels, sample_params(2, (1.0, 1.0), 0.0, 0.0, seed=0), (64, 96))
    labels[:, :5] = IGNORE
    return images, labels


def test_the_plain_loss_is_the_cross_entropy_of_the_network(views):
    network = streamseg.fanet18(classes=3).eval()
    textbook = nn.functional.cross_entropy(network(views[0]), views[1], ignore_index=IGNORE).item()
    assert LossModule(network, torch.ones(3)).eval()(*views).item() == pytest.approx(textbook, rel=1e-4)


def test_each_part_of_the_loss_counts_as_much_as_it_is_told(views):
    network = streamseg.fanet18(classes=3).eval()

    def loss(**parts):
        torch.manual_seed(0)  # of the auxiliary heads
        return LossModule(network, torch.ones(3), **parts).eval()(*views).item()

    plain = loss()
    for part in ("auxiliary", "overlap"):
        half, whole = (loss(**{part: share}) for share in (0.5, 1.0))
        assert whole > plain
        assert half == pytest.approx((plain + whole) / 2, rel=1e-5)
    with torch.no_grad():
        overlap = iou_loss(soft_iou_counts(network(views[0]), views[1])).item()
    assert loss(overlap=1.0) == pytest.approx(plain + overlap, rel=1e-4)
    assert loss(hard_pixels=0.3) > plain


def test_auxiliary_heads_exist_only_where_they_are_used():
    network = streamseg.fanet18(classes=3)
    assert len(LossModule(network, torch.ones(3)).heads) == 0
    assert len(LossModule(network, torch.ones(3), auxiliary=0.4).heads) == 2


@pytest.mark.parametrize("name", BASELINES)
def test_every_rival_is_trained_with_heads_on_its_own_deep_maps(name):
    with torch.device("meta"):  # shapes alone: what they learn is tested where they are
        network = BASELINES[name](3)
        trainee = LossModule(network, torch.ones(3), auxiliary=0.4, hard_pixels=0.7, overlap=1.0)
        images, labels = torch.empty(2, 3, 64, 64), torch.zeros(2, 64, 64, dtype=torch.int64)
        trainee(images, labels).backward()
    assert len(trainee.heads) == len(network.deep_channels)
    assert all(parameter.grad is not None for parameter in trainee.parameters() if parameter.requires_grad)


def test_the_loss_of_a_rival_is_that_of_its_logits_at_full_size(views):
    for name in ("enet", "icnet"):  # whose outputs have the image's size, and a quarter of it
        network = BASELINES[name](3).eval()
        textbook = nn.functional.cross_entropy(network(views[0]), views[1], ignore_index=IGNORE).item()
        assert LossModule(network, torch.ones(3)).eval()(*views).item() == pytest.approx(textbook, rel=1e-4)


@pytest.mark.parametrize("averages", [False, True])
def test_the_loss_of_a_clip_is_that_of_its_last_frame_with_the_past_in_view(views, averages):
    images, labels = views
    network = streamseg.fanet18(classes=3, averages=averages).eval()
    past = torch.stack([images.flip(0), images.flip(-1)], dim=1)
    seen = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    with torch.no_grad():
        newer, older = (network.step(past[:, i])[1] for i in range(2))
        both = [a + b * torch.tensor([1.0, 0.0]).view(2, 1, 1) for a, b in zip(newer, older, strict=True)]
        logits, _ = network.step(images, both, torch.tensor([2.0, 1.0]).view(2, 1, 1))
        expected = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE).item()
    assert LossModule(network, torch.ones(3)).eval()(images, labels, past, seen).item() == pytest.approx(
        expected, rel=1e-4
    )


def test_steadiness_is_how_far_a_moved_camera_says_otherwise(views):
    network = streamseg.fanet18(classes=3).eval()
    still, moved = torch.tensor([[1.0, 0.0, 0.0], [1.03, 0.04, -0.04]]).unsqueeze(1).expand(2, 2, 3)

    def loss(motion, steadiness):
        return LossModule(network, torch.ones(3), steadiness=steadiness).eval()(*views, motion=motion).item()

    plain = loss(None, 1.0)
    assert loss(moved, 0.0) == plain
    assert loss(still, 1.0) == pytest.approx(plain, abs=1e-5)
    once, twice = loss(moved, 1.0), loss(moved, 2.0)
    assert once > plain + 1e-5
    assert twice - plain == pytest.approx(2 * (once - plain), rel=1e-3)
