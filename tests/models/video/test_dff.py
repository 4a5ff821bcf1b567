import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from video_methods import make_frames

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.layers import resize
from streamseg.models.video.dff import DFF, dff
from streamseg.models.video.flownet import flownet


@pytest.fixture
def method():
    torch.manual_seed(0)
    return dff(swiftnet18(4)).eval()


@torch.inference_mode()
def test_with_zero_flow_a_frame_has_the_key_frame_s_logits(method):
    torch.nn.init.zeros_(method.flow.flow2.weight)
    key, frame = make_frames(2)
    expected, state = method.step(key)
    torch.testing.assert_close(method.step(frame, state)[0], expected)


@torch.inference_mode()
def test_frames_are_warped_from_the_key_frame_and_not_from_one_another(method):
    frames = make_frames(3)
    _, key = method.step(frames[0])
    _, state = method.step(frames[1], key)
    assert state.image.equal(key.image)
    assert state.features.equal(key.features)
    assert method.step(frames[2], state)[0].equal(method.step(frames[2], key)[0])


@torch.inference_mode()
def test_the_scale_multiplies_the_warped_features(method):
    torch.nn.init.zeros_(method.flow.flow2.weight)
    torch.nn.init.constant_(method.scale.bias, 3.0)
    key, frame = make_frames(2)
    _, state = method.step(key)
    expected = resize(method.backbone.head(3 * state.features), key)
    torch.testing.assert_close(method.step(frame, state)[0], expected)


def test_the_flow_network_with_1024_scales_costs_what_is_published():
    with torch.device("meta"):
        flow = flownet()
        scale = torch.nn.Conv2d(flow.detail_channels, 1024, 1)
    parameters = sum(parameter.numel() for part in (flow, scale) for parameter in part.parameters())
    assert parameters == pytest.approx(38_876_194, rel=0.01)
    # ours: 128 channels of SwiftNet instead of 1024
    with torch.device("meta"):
        method = DFF(swiftnet18(), flownet()).eval()
        frame = torch.empty(1, 3, 1024, 2048)
    with torch.no_grad():
        _, state = method.step(frame)
        with FlopCounterMode(display=False) as counter:
            method.step(frame, state)
    head = 128 * 19 * 256 * 512
    extra = (1024 - 128) * flow.detail_channels * 64 * 128
    assert counter.get_total_flops() / 2 - head + extra == pytest.approx(43.642e9, rel=0.01)


def test_a_frame_between_keys_costs_a_fraction_of_a_key_frame():
    with torch.device("meta"):
        method = dff(swiftnet18()).eval()
        frame = torch.empty(1, 3, 1024, 2048)
    with torch.no_grad():
        with FlopCounterMode(display=False) as key:
            _, state = method.step(frame)
        with FlopCounterMode(display=False) as other:
            method.step(frame, state)
    assert key.get_total_flops() / 2e9 == pytest.approx(103.566, rel=0.001)
    assert other.get_total_flops() / 2e9 == pytest.approx(6.556 + 0.32 + 0.08, rel=0.01)
