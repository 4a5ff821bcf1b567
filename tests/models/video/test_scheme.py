from typing import NamedTuple

import pytest
import torch

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.video.copying import Copying, CopyState
from streamseg.models.video.scheme import load_state, resize_flow, save_state, warp


@pytest.fixture
def frames():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (7, 1, 3, 64, 96), dtype=torch.uint8, generator=generator)


@pytest.fixture
def copy():
    torch.manual_seed(0)
    return Copying(swiftnet18(4), 3).eval()


def run(method, frames, state=None):
    results = []
    for frame in frames:
        logits, state = method.step(frame, state)
        results.append(logits)
    return results, state


def features(*size):
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))


def test_warping_by_zero_flow_is_exactly_the_identity():
    x = features(17, 23)
    assert warp(x, torch.zeros(2, 2, 17, 23)).equal(x)


@pytest.mark.parametrize(("dx", "dy"), [(1, 0), (0, -2), (3, 5), (-4, 1)])
def test_warping_by_whole_pixels_is_exactly_a_shift(dx, dy):
    x = features(17, 2053)
    flow = torch.tensor([float(dx), float(dy)]).view(1, 2, 1, 1).expand(2, 2, 17, 2053)
    inside = warp(x, flow)[..., 5:-5, 5:-5]
    assert inside.equal(x[..., 5 + dy : 12 + dy, 5 + dx : 2048 + dx])


def test_warping_is_bilinear_between_pixels():
    x = features(6, 8)
    flow = torch.tensor([0.25, 0.5]).view(1, 2, 1, 1).expand(2, 2, 6, 8)
    row = 0.75 * x[..., :-1] + 0.25 * x[..., 1:]
    expected = 0.5 * row[..., :-1, :] + 0.5 * row[..., 1:, :]
    torch.testing.assert_close(warp(x, flow)[..., :-1, :-1], expected)


def test_warping_from_outside_repeats_the_border():
    x = features(4, 5)
    assert warp(x, torch.full((2, 2, 4, 5), -100.0)).equal(x[..., :1, :1].expand_as(x))
    assert warp(x, torch.full((2, 2, 4, 5), 100.0)).equal(x[..., -1:, -1:].expand_as(x))
    assert warp(x, torch.full((2, 2, 4, 5), torch.nan)).shape == x.shape  # no index outside, on a GPU a crash


def test_warping_in_half_precision_keeps_whole_pixels():
    x = features(4, 1500).half()
    flow = torch.zeros(2, 2, 4, 1500, dtype=torch.half)
    flow[:, 0] = 1
    assert warp(x, flow)[..., :-1].equal(x[..., 1:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_warping_wide_maps_in_half_precision_is_as_accurate_as_their_numbers(dtype):
    """Positions and shares of a pixel are fp32: at 2048 pixels, fp16 has no fractions of a pixel left."""
    exact = features(3, 2048).to(dtype).float()
    generator = torch.Generator().manual_seed(1)
    flow = (6 * torch.rand(2, 2, 3, 2048, generator=generator) - 3).to(dtype)
    difference = (warp(exact.to(dtype), flow).float() - warp(exact, flow.float())).abs()
    # a few roundings of numbers up to 4
    assert difference.max() < 4 * 4 * torch.finfo(dtype).eps
    # far less than with coordinates of half precision
    x = torch.arange(2048, dtype=torch.float32)
    coarse = (x + flow[:, 0].float()).to(dtype).float() - x
    rounded = warp(exact, torch.stack([coarse, flow[:, 1].float()], dim=1))
    assert difference.mean() < 0.05 * (rounded - warp(exact, flow.float())).abs().mean()


def test_the_gradient_of_warping_reaches_features_and_flow():
    x = features(5, 6).double().requires_grad_()
    generator = torch.Generator().manual_seed(1)
    flow = (torch.rand(2, 2, 5, 6, dtype=torch.float32, generator=generator) * 2 - 1).requires_grad_()
    warp(x, flow).square().sum().backward()
    assert x.grad.any()
    assert flow.grad.any()


def test_a_resized_flow_is_in_pixels_of_the_other_map():
    flow = torch.tensor([2.0, 3.0]).view(1, 2, 1, 1).expand(1, 2, 4, 8)
    resized = resize_flow(flow, torch.zeros(1, 9, 8, 32))
    assert resized.shape == (1, 2, 8, 32)
    torch.testing.assert_close(resized[:, 0], torch.full((1, 8, 32), 8.0))
    torch.testing.assert_close(resized[:, 1], torch.full((1, 8, 32), 6.0))


@torch.inference_mode()
def test_every_interval_th_frame_is_a_key_frame(copy, frames):
    logits, state = run(copy, frames)
    keys = [copy.backbone(frames[i]) for i in (0, 0, 0, 3, 3, 3, 6)]
    assert all(map(torch.equal, logits, keys))
    assert state.position == 0


@torch.inference_mode()
def test_without_an_interval_only_the_first_frame_is_a_key_frame(frames):
    method = Copying(swiftnet18(4), None).eval()
    logits, state = run(method, frames)
    assert all(later.equal(logits[0]) for later in logits)
    assert state.position == 6


@torch.inference_mode()
def test_a_frame_of_another_size_is_a_first_frame(copy, frames):
    _, state = run(copy, frames[:2])
    other = frames[2][..., :80]
    logits, state = copy.step(other, state)
    assert logits.equal(copy.backbone(other))
    assert state.position == 0


@torch.inference_mode()
def test_if_a_key_frame_is_dropped_the_next_frame_is_the_key_frame(copy, frames):
    kept = [frames[i] for i in (0, 1, 2, 4, 5)]
    logits, _ = run(copy, kept)
    assert logits[3].equal(copy.backbone(frames[4]))
    assert logits[4].equal(logits[3])


@torch.inference_mode()
def test_after_a_cut_no_state_starts_anew(copy, frames):
    logits, _ = copy.step(frames[1], None)
    assert logits.equal(copy.backbone(frames[1]))


def test_the_forward_pass_segments_each_image_on_its_own(copy, frames):
    assert copy(frames[0]).equal(copy.backbone(frames[0]))


@torch.inference_mode()
def test_a_saved_state_resumes_bit_for_bit(copy, frames, tmp_path):
    _, state = run(copy, frames[:2])
    save_state(state, tmp_path / "state.safetensors")
    loaded = load_state(copy, tmp_path / "state.safetensors")
    assert isinstance(loaded, CopyState)
    assert loaded[1:] == state[1:]
    assert loaded.logits.equal(state.logits)
    assert all(map(torch.equal, run(copy, frames[2:], loaded)[0], run(copy, frames[2:], state)[0]))


def test_a_file_of_another_state_is_refused(copy, tmp_path):
    class Other(NamedTuple):
        position: int

    save_state(Other(3), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds no CopyState: give a file that save_state wrote for this method"):
        load_state(copy, tmp_path / "other.safetensors")


def test_a_state_that_does_not_fit_is_refused(copy, frames):
    with pytest.raises(ValueError, match="The state is a tuple; expected the CopyState that step"):
        copy.step(frames[0], (1, 2))
    _, state = copy.step(frames[0])
    with pytest.raises(ValueError, match="state is of 1 streams and the batch has 2 frames; expected one frame a"):
        copy.step(frames[:2, 0], state)


@pytest.mark.parametrize("interval", [0, 1.5, True])
def test_an_interval_is_a_whole_number(interval):
    with pytest.raises(ValueError, match="interval is .*; expected a whole number, 1 or more"):
        Copying(swiftnet18(4), interval)


def test_frozen_parts_get_no_gradient_and_keep_their_statistics(frames):
    class Frozen(Copying):
        trained = ()

    method = Frozen(swiftnet18(4), 3)
    method.freeze()
    method.train()
    assert not any(parameter.requires_grad for parameter in method.parameters())
    assert not method.backbone.network.pool.training
    assert method.training
