import pytest
import torch
from video_methods import build, make_frames

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.video.netwarp import FlowCNN, NetWarp, netwarp


def test_the_flow_cnn_has_the_published_parameters():
    assert sum(parameter.numel() for parameter in FlowCNN().parameters()) == 6_396


def test_the_flow_cnn_starts_as_the_identity():
    flow = torch.randn(2, 2, 9, 12)
    frames = torch.rand(2, 2, 3, 9, 12)
    assert FlowCNN()(flow, *frames).equal(flow)


@torch.inference_mode()
def test_untrained_it_is_its_backbone():
    torch.manual_seed(0)
    method = netwarp(swiftnet18(4)).eval()
    before, now = make_frames(2)
    _, state = method.step(before)
    torch.testing.assert_close(method.step(now, state)[0], method.backbone(now))


@torch.inference_mode()
def test_with_all_weight_on_a_past_that_does_not_move_it_repeats_the_frame_before():
    method = NetWarp(swiftnet18(4), lambda now, before: torch.zeros(1, 2, 16, 24)).eval()
    torch.nn.init.zeros_(method.w0)
    torch.nn.init.ones_(method.w1)
    before, now = make_frames(2)
    expected, state = method.step(before)
    torch.testing.assert_close(method.step(now, state)[0], expected)


@torch.inference_mode()
def test_a_frame_sees_only_the_one_before_it():
    method = build(netwarp)
    frames = make_frames(3)
    _, state = method.step(frames[0])
    _, state = method.step(frames[1], state)
    _, short = method.step(frames[1])
    assert method.step(frames[2], state)[0].equal(method.step(frames[2], short)[0])


@pytest.mark.parametrize("part", ["w0", "w1"])
def test_there_is_a_weight_for_every_channel(part):
    assert getattr(netwarp(swiftnet18(4)), part).shape == (128,)
