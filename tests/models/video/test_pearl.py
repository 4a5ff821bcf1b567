import torch
from video_methods import build, make_frames, run

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.video.pearl import Predictor, pearl


@torch.inference_mode()
def test_the_state_holds_the_last_four_frames_oldest_first():
    frames = make_frames(6)
    _, state = run(build(pearl), frames)
    assert state.frames.equal(torch.cat([*frames[2:]], dim=1))


@torch.inference_mode()
def test_a_short_past_is_filled_with_its_first_frame():
    frames = make_frames(2)
    _, state = run(build(pearl), frames)
    assert state.frames.equal(torch.cat([frames[0], frames[0], frames[0], frames[1]], dim=1))


@torch.inference_mode()
def test_untrained_it_is_its_backbone():
    torch.manual_seed(0)
    method = pearl(swiftnet18(4)).eval()
    before, now = make_frames(2)
    _, state = method.step(before)
    torch.testing.assert_close(method.step(now, state)[0], method.backbone(now), atol=1e-4, rtol=1e-4)


def test_the_parameters_are_those_of_a_resnet_18_with_four_times_the_input():
    found = sum(parameter.numel() for parameter in Predictor(19).parameters())
    trunk = 11_176_512 + 9 * 64 * 49
    assert found == trunk + 512 * 128 * 9 + 2 * 128
