import pytest
import torch
from video_methods import make_frames

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.video.grfp import GRFP, STGRU, centred_softmax


def still(current, previous):
    return torch.zeros(current.shape[0], 2, *current.shape[2:])


def test_the_unit_has_the_published_parameters():
    assert sum(parameter.numel() for parameter in STGRU(19).parameters()) == 37_408


def test_the_candidate_starts_as_six_times_the_identity():
    unit = STGRU(4)
    for convolution in (unit.candidate_now, unit.candidate_before):
        identity = torch.zeros(4, 4, 7, 7)
        identity[:, :, 3, 3] = 6 * torch.eye(4)
        assert (convolution.weight - identity).abs().max() < 0.1
    assert unit.keep == 2


def test_centred_probabilities_sum_to_zero():
    centred = centred_softmax(torch.randn(2, 5, 3, 4))
    torch.testing.assert_close(centred.sum(1), torch.zeros(2, 3, 4), atol=1e-6, rtol=0)


@torch.inference_mode()
def test_where_the_flow_is_wrong_the_past_is_forgotten():
    unit = STGRU(4)
    torch.nn.init.constant_(unit.error.weight, 1.0)
    now, before, other = (centred_softmax(torch.randn(1, 4, 20, 20)) for _ in range(3))
    error = torch.full((1, 3, 20, 20), 100.0)
    assert unit(now, before, error).equal(unit(now, other, error))
    assert not unit(now, before, 0 * error).equal(unit(now, other, 0 * error))


@torch.inference_mode()
def test_at_the_start_two_equal_frames_have_the_labels_of_one():
    torch.manual_seed(0)
    method = GRFP(swiftnet18(4), still).eval()
    frame = make_frames(1)[0]
    first, state = method.step(frame)
    second, _ = method.step(frame, state)
    assert (first.argmax(1) == second.argmax(1)).float().mean() > 0.98


@torch.inference_mode()
@pytest.mark.parametrize("update", [-100.0, 100.0])
def test_the_update_gate_chooses_between_past_and_candidate(update):
    unit = STGRU(4)
    torch.nn.init.constant_(unit.update_bias, update)
    now, before = (centred_softmax(torch.randn(1, 4, 20, 20)) for _ in range(2))
    scores = unit(now, before, torch.zeros(1, 3, 20, 20))
    expected = 2 * before if update < 0 else unit.candidate_now(now) + unit.candidate_before(before)
    torch.testing.assert_close(scores, expected)
