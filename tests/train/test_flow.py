import pytest
import torch
from torch.nn import functional as F
from video_methods import make_frames

from streamseg.models.video.flownet import FlowNetS
from streamseg.models.video.scheme import warp
from streamseg.train.flow import (
    SHIFT,
    ZOOM,
    FlowErrors,
    affine_flow,
    elapsed_shares,
    end_point_error,
    is_visible,
    make_synthetic_pairs,
    multiscale_error,
    photometric_error,
    photometric_loss,
    random_crops,
    roughness,
    train_flow,
)


def tiny():
    torch.manual_seed(0)
    return FlowNetS((8, 16, 16, 16, 16, 16), shrink=1)


def zero(current, previous):
    return torch.zeros(len(current), 2, *current.shape[2:])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def pictures():
    """Smooth random pictures (8, 3, 64, 96), in bytes."""
    coarse = torch.rand(8, 3, 8, 12, generator=generator())
    return (255 * F.interpolate(coarse, size=(64, 96), mode="bicubic").clamp(0, 1)).to(torch.uint8)


def test_the_current_frame_of_a_synthetic_pair_is_the_previous_one_warped_by_the_flow(pictures):
    current, previous, flow = make_synthetic_pairs(pictures.float(), generator())
    assert previous.equal(pictures.float())
    assert flow.shape == (8, 2, 64, 96)
    warped = warp(previous, flow)
    for now, expected in zip(current, warped, strict=True):
        # up to the light: contrast and brightness
        inner = (now > 1) & (now < 254)
        assert torch.corrcoef(torch.stack([now[inner], expected[inner]]))[0, 1] > 0.999


def test_synthetic_motions_are_small_and_large(pictures):
    *_, flow = make_synthetic_pairs(pictures.float().repeat(8, 1, 1, 1), generator())
    lengths = flow.norm(dim=1).flatten(1).mean(1)
    assert lengths.min() < 0.5
    assert lengths.max() > 3


def test_the_same_seed_makes_the_same_pairs(pictures):
    a, b = (make_synthetic_pairs(pictures.float(), generator(3)) for _ in range(2))
    assert all(map(torch.equal, a, b))


def test_a_flow_that_points_outside_is_not_visible():
    flow = torch.zeros(1, 2, 4, 5)
    flow[0, 0] = 1
    flow[0, 1, 0] = -1
    visible = is_visible(flow)[0, 0]
    assert not visible[:, -1].any()
    assert not visible[0].any()
    assert visible[1:, :-1].all()


def test_crops_are_parts_of_the_pictures_and_small_pictures_stay_whole(pictures):
    crops = random_crops(pictures, (32, 200), generator())
    assert crops.shape == (8, 3, 32, 96)
    columns = [picture.flatten(0, 1).sum(0) for picture in crops.float()]
    assert len({tuple(column.tolist()) for column in columns}) == 8


@pytest.mark.parametrize("shrink", [1, 2])
def test_only_the_true_flow_has_no_loss(pictures, shrink):
    current, previous, flow = make_synthetic_pairs(pictures.float(), generator())

    class Known(FlowNetS):
        def outputs(self, current, previous):
            outputs = super().outputs(current, previous)
            # in units of 20 pixels of the frames that the layers see
            pyramid = (F.adaptive_avg_pool2d(flow / shrink / 20, level.shape[2:]) for level in outputs.pyramid)
            return outputs._replace(pyramid=tuple(pyramid))

    widths = (8, 16, 16, 16, 16, 16)
    assert multiscale_error(Known(widths, shrink), current, previous, flow) < 1e-6
    # zero flow until it is trained
    assert multiscale_error(FlowNetS(widths, shrink), current, previous, flow) > 0.01


def test_affine_motions_are_shifts_zooms_and_turns():
    def motion(**given):
        names = ("shift_x", "shift_y", "zoom", "turn")
        return affine_flow(torch.tensor([given.get(name, 0.5) for name in names]).view(4, 1, 1, 1), (5, 9))[0]

    x, y = torch.arange(9.0) - 4, (torch.arange(5.0) - 2)[:, None]
    assert not motion().any()
    torch.testing.assert_close(motion(shift_x=1)[0], torch.full((5, 9), SHIFT * 9))
    torch.testing.assert_close(motion(shift_y=0)[1], torch.full((5, 9), -SHIFT * 5))
    torch.testing.assert_close(motion(zoom=1), ZOOM * torch.stack([x.expand(5, 9), y.expand(5, 9)]))
    turned = motion(turn=1)
    assert turned.abs().max() > 0
    torch.testing.assert_close(turned[0] * x + turned[1] * y, torch.zeros(5, 9))  # at right angles to the radius


def test_real_pairs_are_taken_as_earlier_and_later(monkeypatch, pictures):
    seen = []

    def no_loss(network, *frames):
        seen.append(frames)
        return torch.zeros(())

    monkeypatch.setattr("streamseg.train.flow.photometric_loss", no_loss)
    pairs = torch.stack([torch.zeros_like(pictures), torch.ones_like(pictures)], dim=1)
    next(train_flow(tiny(), pictures, pairs, iter([0.9]), batch=2))
    current, previous = seen[0]
    assert current.eq(1).all()
    assert previous.eq(0).all()


def test_the_photometric_loss_is_least_for_the_true_flow():
    frames = make_frames(2)
    earlier, later = frames.float()  # later(p) = earlier(p + 2)

    class Shift(FlowNetS):
        def forward(self, current, previous):
            flow = torch.zeros(1, 2, 16, 24)
            flow[:, 0] = self.pixels / 4  # in pixels of its map
            return flow

    network = Shift((8, 16, 16, 16, 16, 16), shrink=1)
    losses = {}
    for network.pixels in (-2, 0, 2, 4):
        losses[network.pixels] = photometric_loss(network, later, earlier).item()
    assert min(losses, key=losses.get) == 2
    assert losses[2] < 0.2 * losses[0]


def test_errors_of_zero_flow_are_those_of_zero(pictures):
    errors = end_point_error(zero, pictures)
    assert errors.ours == errors.zero > 0
    pairs = torch.stack([pictures[:4], pictures[4:]], dim=1)
    errors = photometric_error(zero, pairs)
    assert errors.ours == errors.zero == pytest.approx((pictures[:4].float() - pictures[4:].float()).abs().mean())


def test_the_photometric_error_of_the_true_flow_is_small():
    frames = make_frames(3)[:, 0]
    pairs = torch.stack([frames[:2], frames[1:]], dim=1)  # later(p) = earlier(p + 2)

    def shift(current, previous):
        flow = zero(current, previous)
        flow[:, 0] = 2
        return flow

    errors = photometric_error(shift, pairs)
    assert errors.ours < 0.2 * errors.zero


def test_a_flow_may_change_where_the_picture_does():
    flow = torch.zeros(1, 2, 4, 6)
    flow[..., 3:] = 1
    picture = torch.zeros(1, 3, 4, 6)
    assert roughness(torch.zeros(1, 2, 4, 6), picture) == 0
    flat = roughness(flow, picture)
    picture[..., 3:] = 1
    assert roughness(flow, picture) < 0.01 * flat


def test_training_brings_the_error_below_that_of_zero_flow(pictures):
    network = tiny()
    pairs = torch.stack([pictures[:4], pictures[:4].roll(1, -1)], dim=1)
    shares = (step / 160 for step in range(160))
    progress = [*train_flow(network, pictures, pairs, shares, crop=(64, 96), batch=4, rate=2e-3)]
    assert len(progress) == 160
    assert progress[0].photometric_loss == 0
    assert progress[-1].photometric_loss > 0
    assert not network.training
    errors = end_point_error(network, pictures, seed=5)
    assert isinstance(errors, FlowErrors)
    assert errors.ours < errors.zero


def test_without_real_pairs_only_synthetic_ones_are_used(pictures):
    pairs = torch.empty(0, 2, 3, 64, 96, dtype=torch.uint8)
    progress = [*train_flow(tiny(), pictures, pairs, iter([0.0, 0.9]), batch=2)]
    assert [step.photometric_loss for step in progress] == [0, 0]


def test_shares_of_a_time_rise_from_0_to_1(monkeypatch):
    clock = iter([10.0, 10.0, 40.0, 69.9, 70.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    assert [*elapsed_shares(1)] == pytest.approx([0, 0.5, 0.998333], abs=1e-6)
