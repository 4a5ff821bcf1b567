import pytest
import torch
from torch import nn

import streamseg
from streamseg.classes import IGNORE
from streamseg.data.augment import augment, sample_params
from streamseg.data.datasets import folder
from streamseg.models.baselines import BASELINES, swiftnet18
from streamseg.models.video.copying import copying
from streamseg.train.label_sets import make_label_sets
from streamseg.train.loss_module import LossModule, move_camera_back, sum_contexts
from streamseg.train.losses import iou_loss, soft_iou_counts


@pytest.fixture(scope="module")
def crops(toy):
    """Two augmented frames and their labels."""
    dataset = folder(toy, "train")
    images, labels = (torch.stack(part) for part in zip(*(dataset[i] for i in range(2)), strict=True))
    images, labels = augment(images, labels, sample_params(2, (1.0, 1.0), 0.0, 0.0, seed=0), (64, 96))
    labels[:, :5] = IGNORE
    return images, labels


def test_the_default_loss_is_the_cross_entropy_of_the_network(crops):
    network = streamseg.fanet18(classes=3).eval()
    textbook = nn.functional.cross_entropy(network(crops[0]), crops[1], ignore_index=IGNORE).item()
    assert LossModule(network, torch.ones(3)).eval()(*crops).item() == pytest.approx(textbook, rel=1e-4)


def test_each_part_of_the_loss_counts_by_its_weight(crops):
    network = streamseg.fanet18(classes=3).eval()

    def loss(**parts):
        torch.manual_seed(0)  # of the auxiliary heads
        return LossModule(network, torch.ones(3), **parts).eval()(*crops).item()

    plain = loss()
    for part in ("auxiliary_loss", "iou_loss"):
        half, whole = (loss(**{part: share}) for share in (0.5, 1.0))
        assert whole > plain
        assert half == pytest.approx((plain + whole) / 2, rel=1e-5)
    with torch.no_grad():
        soft_iou = iou_loss(soft_iou_counts(network(crops[0]), crops[1])).item()
    assert loss(iou_loss=1.0) == pytest.approx(plain + soft_iou, rel=1e-4)
    assert loss(ohem_threshold=0.3) > plain


@pytest.mark.parametrize("ohem_threshold", [0.0, 0.7])
def test_label_sets_of_one_class_each_give_the_loss_of_the_classes(crops, ohem_threshold):
    network = streamseg.fanet18(classes=3).eval()
    losses = []
    for label_sets in (None, make_label_sets([(0, 1, 2)])):
        torch.manual_seed(0)  # of the auxiliary heads
        options = {"auxiliary_loss": 0.4, "iou_loss": 1.0, "ohem_threshold": ohem_threshold}
        module = LossModule(network, torch.tensor([0.5, 1.0, 2.0]), label_sets=label_sets, **options).eval()
        losses.append(module(*crops))
    torch.testing.assert_close(*losses)


def test_the_loss_on_a_grid_is_that_of_its_pixels(crops):
    images, labels = crops
    network = streamseg.fanet18(classes=3).eval()
    for place in ([0, 0], [1, 6]):
        kept = torch.full_like(labels, IGNORE)
        row, column = (number % 4 for number in place)
        kept[:, row::4, column::4] = labels[:, row::4, column::4]
        expected = LossModule(network, torch.ones(3), iou_loss=1.0).eval()(images, kept)
        module = LossModule(network, torch.ones(3), iou_loss=1.0, loss_stride=4).eval()
        torch.testing.assert_close(module(images, labels, place=torch.tensor(place)), expected, rtol=1e-4, atol=1e-5)


def test_auxiliary_heads_exist_only_where_they_are_used():
    network = streamseg.fanet18(classes=3)
    assert len(LossModule(network, torch.ones(3)).heads) == 0
    assert len(LossModule(network, torch.ones(3), auxiliary_loss=0.4).heads) == 2


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_is_trained_with_heads_on_its_own_deep_maps(name):
    with torch.device("meta"):  # shapes only: other tests train them
        network = BASELINES[name](3)
        loss_module = LossModule(network, torch.ones(3), auxiliary_loss=0.4, ohem_threshold=0.7, iou_loss=1.0)
        images, labels = torch.empty(2, 3, 64, 64), torch.zeros(2, 64, 64, dtype=torch.int64)
        loss_module(images, labels).backward()
    assert len(loss_module.heads) == len(network.deep_channels)
    assert all(parameter.grad is not None for parameter in loss_module.parameters() if parameter.requires_grad)


def test_the_loss_of_a_baseline_is_that_of_its_logits_at_full_size(crops):
    for name in ("enet", "icnet"):  # whose outputs have the image's size, and a quarter of it
        network = BASELINES[name](3).eval()
        textbook = nn.functional.cross_entropy(network(crops[0]), crops[1], ignore_index=IGNORE).item()
        assert LossModule(network, torch.ones(3)).eval()(*crops).item() == pytest.approx(textbook, rel=1e-4)


@pytest.mark.parametrize("averages", [False, True])
def test_the_loss_of_a_clip_is_that_of_its_last_frame_with_the_past(crops, averages):
    images, labels = crops
    network = streamseg.fanet18(classes=3, averages=averages).eval()
    past = torch.stack([images.flip(0), images.flip(-1)], dim=1)
    used = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    with torch.no_grad():
        newer, older = (network.step(past[:, i])[1] for i in range(2))
        both = [a + b * torch.tensor([1.0, 0.0]).view(2, 1, 1) for a, b in zip(newer, older, strict=True)]
        logits, _ = network.step(images, both, torch.tensor([2.0, 1.0]).view(2, 1, 1))
        expected = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE).item()
    assert LossModule(network, torch.ones(3)).eval()(images, labels, past, used).item() == pytest.approx(
        expected, rel=1e-4
    )


def test_the_consistency_loss_is_the_change_under_a_camera_motion(crops):
    network = streamseg.fanet18(classes=3).eval()
    still, moved = torch.tensor([[1.0, 0.0, 0.0], [1.03, 0.04, -0.04]]).unsqueeze(1).expand(2, 2, 3)

    def loss(motion, weight):
        return LossModule(network, torch.ones(3), consistency_loss=weight).eval()(*crops, motion=motion).item()

    plain = loss(None, 1.0)
    assert loss(moved, 0.0) == plain
    assert loss(still, 1.0) == pytest.approx(plain, abs=1e-5)
    once, twice = loss(moved, 1.0), loss(moved, 2.0)
    assert once > plain + 1e-5
    assert twice - plain == pytest.approx(2 * (once - plain), rel=1e-3)


def test_moved_clips_show_the_frame_from_where_a_steady_camera_was():
    images = torch.rand(2, 3, 32, 48)
    still = torch.tensor([[1.0, 0.0, 0.0]]).expand(2, 3)
    frames = move_camera_back(images, still, 3)
    assert frames.shape == (2, 3, 3, 32, 48)
    torch.testing.assert_close(frames, images[:, None].expand_as(frames))
    # a shift of two pixels a frame, in halves of a side
    moving = torch.tensor([[1.0, 4 / 48, 0.0]]).expand(2, 3)
    frames = move_camera_back(images, moving, 2)
    torch.testing.assert_close(frames[:, 0, :, :, :-2], images[..., 2:], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(frames[:, 1, :, :, :-4], images[..., 4:], rtol=1e-3, atol=1e-3)


def test_a_video_method_is_trained_at_all_distances_and_at_0_on_the_frame_itself():
    method = copying(swiftnet18(4))
    images, labels = torch.rand(2, 3, 64, 96), torch.zeros(2, 64, 96, dtype=torch.int64)
    module = LossModule(method, torch.ones(4))
    past = torch.stack([images + step for step in (1, 2, 3)], dim=1)
    clips = []

    def outputs(clip):
        clips.append(clip)
        return torch.zeros(2, 4, 64, 96), None

    method.clip_outputs = outputs
    for seed in range(40):
        torch.manual_seed(seed)
        module(images, labels, past)
    module(images, labels)
    steps_back = [[round((frame - images).mean().item()) for frame in clip] for clip in clips]
    assert sorted(set(map(tuple, steps_back))) == [(0, 0), (1, 0), (2, 1, 0), (3, 2, 1, 0)]
    assert steps_back[-1] == [0, 0]


def test_a_mask_leaves_pixels_out_of_the_contexts_of_training(crops):
    network = streamseg.fanet18(classes=3).eval()
    module, (images, labels) = LossModule(network, torch.ones(3), consistency_loss=1.0).eval(), crops
    motion = torch.tensor([[1.0, 0.0, 0.0]]).expand(2, -1)
    past, used = images[:, None], torch.ones(2, 1)
    ones = module(images, labels, past, used, motion, None, torch.ones(2, 64, 96))
    torch.testing.assert_close(ones, module(images, labels, past, used, motion))
    mask = torch.ones(2, 64, 96)
    mask[:, 32:] = 0
    assert not torch.isclose(module(images, labels, None, None, None, None, mask), module(images, labels))
    pixels = network.weigh_pixels(mask, network.encode(images))
    for found, expected in zip(
        sum_contexts(network, past, used, mask), network.compute_context(network.encode(images), pixels), strict=True
    ):
        torch.testing.assert_close(found, expected)
