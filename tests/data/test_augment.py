import pytest
import torch
from torch.nn import functional as F

from streamseg.data.augment import SHIFT, ZOOM, AugmentParams, augment, augment_past, mix, sample_params, shift_camera
from streamseg.data.light import DRAWS


def make_params(batch=1, scale=1.0, flip=1.0, position=(0.0, 0.0), brightness=1.0, contrast=1.0, saturation=1.0):
    return AugmentParams(
        scale=torch.full((batch,), scale),
        flip=torch.full((batch,), flip),
        position=torch.tensor(position).expand(batch, 2),
        brightness=torch.full((batch,), brightness),
        contrast=torch.full((batch,), contrast),
        saturation=torch.full((batch,), saturation),
        pasted=torch.zeros(batch, 256, dtype=torch.bool),
        window_share=torch.zeros(batch),
        motion=torch.tensor([1.0, 0.0, 0.0]).expand(batch, 3),
        light=torch.zeros(batch, DRAWS),
    )


@pytest.fixture
def batch():
    """Images whose red channel is the label, times 20."""
    labels = torch.randint(0, 11, (3, 24, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return torch.stack([labels * 20, 255 - labels * 20, labels], dim=1), labels


def test_neutral_parameters_change_nothing(batch):
    images, labels = batch
    crops, cut = augment(images, labels, make_params(3), (24, 40))
    torch.testing.assert_close(crops, images.float(), atol=0.01, rtol=0)
    assert cut.equal(labels.long())


def test_a_flip_flips_labels_with_the_image(batch):
    images, labels = batch
    crops, cut = augment(images, labels, make_params(3, flip=-1.0), (24, 40))
    torch.testing.assert_close(crops, images.flip(-1).float(), atol=0.01, rtol=0)
    assert cut.equal(labels.flip(-1).long())


@pytest.mark.parametrize("position", [(0.0, 0.0), (1.0, 1.0), (0.5, 0.25)])
def test_a_crop_without_scaling_copies_pixels(batch, position):
    images, labels = batch
    left, top = round(position[0] * 20), round(position[1] * 8)
    crops, cut = augment(images, labels, make_params(3, position=position), (16, 20))
    torch.testing.assert_close(crops, images[..., top : top + 16, left : left + 20].float(), atol=0.01, rtol=0)
    assert cut.equal(labels[:, top : top + 16, left : left + 20].long())


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.7, 2.0])
@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_labels_stay_with_their_pixels_at_any_scale(scale, flip):
    # a picture of large squares: away from their borders, the red channel gives the label
    labels = torch.randint(0, 11, (2, 6, 8), dtype=torch.uint8).repeat_interleave(32, 1).repeat_interleave(32, 2)
    images = (labels * 20)[:, None].expand(-1, 3, -1, -1).contiguous()
    crops, cut = augment(images, labels, make_params(2, scale, flip, (0.3, 0.6)), (96, 128))
    red = crops[:, 0] / 20
    whole = (red - red.round()).abs() < 0.02
    inside = (
        whole
        & (cut != 255)
        & (F.max_pool2d(red[:, None], 3, 1, 1)[:, 0] == -F.max_pool2d(-red[:, None], 3, 1, 1)[:, 0])
    )
    assert inside.float().mean() > 0.2
    assert red[inside].round().long().equal(cut[inside])


def test_pixels_outside_the_image_are_ignored(batch):
    images, labels = batch
    _, cut = augment(images, labels, make_params(3, scale=0.5, position=(0.0, 0.0)), (24, 40))
    assert (cut[:, :12, :20] != 255).all()
    assert (cut[:, 13:] == 255).all()
    assert (cut[:, :, 21:] == 255).all()


def test_colours_change_and_labels_do_not(batch):
    images, labels = batch
    crops, cut = augment(images, labels, make_params(3, brightness=0.5), (24, 40))
    torch.testing.assert_close(crops, images.float() * 0.5, atol=0.01, rtol=0)
    assert cut.equal(labels.long())
    grey, _ = augment(images, labels, make_params(3, saturation=0.0), (24, 40))
    torch.testing.assert_close(grey[:, 0], grey[:, 1])
    flat, _ = augment(images, labels, make_params(3, contrast=0.0), (24, 40))
    assert flat.std(dim=(1, 2, 3)).max() < 0.01


def test_random_parameters_are_repeatable_and_within_their_ranges():
    params = sample_params(2000, (0.5, 2.0), 0.4, 0.25, seed=3)
    assert params.scale.equal(sample_params(2000, (0.5, 2.0), 0.4, 0.25, seed=3).scale)
    assert not params.scale.equal(sample_params(2000, (0.5, 2.0), 0.4, 0.25, seed=4).scale)
    assert 0.5 <= params.scale.min() < 0.55 < 1.9 < params.scale.max() <= 2.0
    assert 0.45 < (params.flip == 1).float().mean() < 0.55
    assert 0.6 <= params.contrast.min() < 0.65 < 1.35 < params.contrast.max() <= 1.4
    assert 0.2 < params.pasted.any(dim=1).float().mean() < 0.3
    assert params[:5].position.shape == (5, 2)


def test_classmix_pastes_whole_classes_of_the_neighbour_with_their_labels(batch):
    images, labels = batch
    params = make_params(3)
    params.pasted[0, [2, 5]] = True
    labels = labels.clone()
    labels[1, 0] = 255
    mixed, ids = mix(images.float(), labels.long(), params)
    from_neighbour = (labels[1] == 2) | (labels[1] == 5)
    assert ids[0].equal(torch.where(from_neighbour, labels[1], labels[0]).long())
    assert mixed[0].equal(torch.where(from_neighbour, images[1], images[0]).float())
    assert ids[1:].equal(labels[1:].long())
    assert mixed[1:].equal(images[1:].float())


def test_without_classmix_nothing_is_pasted():
    assert not sample_params(100, (1.0, 1.0), 0.0, 0.0, seed=0).pasted.any()
    assert not sample_params(100, (1.0, 1.0), 0.0, 1.0, seed=0).pasted[:, 255].any()


def test_past_frames_are_augmented_like_the_last(batch):
    images, labels = batch
    params = sample_params(3, (0.5, 2.0), 0.5, 0.0, seed=1)
    crops, _ = augment(images, labels, params, (16, 24))
    past = augment_past(torch.stack([images, images.flip(0)], dim=1), params, (16, 24))
    assert past[:, 0].equal(crops)
    assert not past[:, 1].equal(crops)


def test_a_motion_moves_a_map_and_back():
    x = torch.arange(40.0).expand(1, 1, 24, 40)
    right = shift_camera(x, torch.tensor([[1.0, 0.1, 0.0]]))  # two pixels of forty
    torch.testing.assert_close(right[..., :38], x[..., 2:], atol=1e-3, rtol=0)
    smooth = F.interpolate(torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)), (48, 60), mode="bicubic")
    motion = torch.tensor([[1.03, 0.04, -0.02], [0.98, -0.04, 0.04]])
    back = shift_camera(shift_camera(smooth, motion), motion, back=True)
    torch.testing.assert_close(back[..., 4:-4, 4:-4], smooth[..., 4:-4, 4:-4], atol=0.02, rtol=0)
    torch.testing.assert_close(shift_camera(smooth, torch.tensor([1.0, 0.0, 0.0]).expand(2, 3)), smooth)


@pytest.mark.parametrize("motion", [(1.03, 0.04, -0.02), (1.5, 0.3, -0.2), (0.7, -0.2, 0.3), (2.0, 0.0, 0.5)])
def test_a_motion_and_its_inverse_move_coordinates_exactly(motion):
    # a map of its own coordinates, -1 to 1, which bilinear sampling follows exactly
    x, y = (((torch.arange(side) + 0.5) * 2 / side - 1) for side in (768, 512))
    coordinates = torch.stack([x.expand(512, -1), y[:, None].expand(-1, 768)])
    zoom, shift = motion[0], torch.tensor(motion[1:]).view(2, 1, 1)
    for back, expected in ((False, zoom * coordinates + shift), (True, (coordinates - shift) / zoom)):
        found = shift_camera(coordinates[None], torch.tensor([motion]), back)[0]
        inside = (expected.abs() < 1 - 2 / 512).all(dim=0)
        assert inside.float().mean() > 0.1
        # a tenth of a pixel
        torch.testing.assert_close(found[:, inside], expected[:, inside], atol=0.2 / 768, rtol=0)


def test_motions_are_small_and_vary():
    motion = sample_params(1000, (1.0, 1.0), 0.5, 0.0, seed=0).motion
    assert motion[:, 0].sub(1).abs().max() <= ZOOM
    assert motion[:, 1:].abs().max() <= SHIFT
    assert motion.std(dim=0).min() > 0.01
