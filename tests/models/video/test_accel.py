import pytest
import torch
from video_methods import make_frames

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.fanet import fanet18
from streamseg.models.layers import resize
from streamseg.models.video.accel import Accel, accel
from streamseg.models.video.flownet import flownet_slim
from streamseg.models.video.scheme import warp


def shift(current, previous):
    """A flow of one pixel of the features to the right."""
    flow = torch.zeros(current.shape[0], 2, -(-current.shape[2] // 4), -(-current.shape[3] // 4))
    flow[:, 0] = 1
    return flow


@torch.inference_mode()
def test_features_are_warped_from_frame_to_frame():
    method = Accel(swiftnet18(4), swiftnet18(4), shift).eval()
    frames = make_frames(3)
    _, key = method.step(frames[0])
    _, first = method.step(frames[1], key)
    _, second = method.step(frames[2], first)
    assert second.image.equal(frames[2])
    assert second.features[..., :-2].equal(key.features[..., 2:])


@torch.inference_mode()
def test_the_fusion_starts_as_the_mean_of_both_branches():
    torch.manual_seed(0)
    method = Accel(swiftnet18(4), swiftnet18(4), shift).eval()
    key, frame = make_frames(2)
    _, state = method.step(key)
    logits, _ = method.step(frame, state)
    reference = resize(method.backbone.head(warp(state.features, shift(frame, key))), frame)
    half = torch.nn.functional.avg_pool2d(frame.float(), 2)
    update = resize(method.update.network(half), frame)
    # the update's logits are resized once, from 1/8 of the frame
    update = resize(method.update.head(method.update.features(half)), update)
    torch.testing.assert_close(logits, (reference + update) / 2)


def test_the_fusion_is_one_1x1_convolution_with_a_bias():
    method = accel(swiftnet18(19))
    assert sum(parameter.numel() for parameter in method.fuse.parameters()) == 38 * 19 + 19


def test_branches_with_different_classes_are_refused():
    with pytest.raises(ValueError, match="update branch has 5 classes; expected the 4 of the reference"):
        Accel(swiftnet18(4), swiftnet18(5), flownet_slim())


def test_an_update_branch_of_another_kind_than_the_reference_is_trained():
    assert accel(swiftnet18(4)).trained == ("fuse",)
    assert accel(fanet18(4)).trained == ("fuse", "update")
