"""Motion that is estimated from pixels, and labels that are carried along it."""

import pytest
import torch
from textures import texture

from streamseg.classes import IGNORE
from streamseg.evaluate.motion import Motion, block_flow, carry_labels, estimate_motion, median


def shifted_pair(x, y, size=(160, 224)):
    """Two views of one picture: what is at p in the second was at p + (x, y) in the first."""
    picture = texture(size[0] + 64, size[1] + 64)
    previous = picture[:, 32 : 32 + size[0], 32 : 32 + size[1]]
    current = picture[:, 32 + y : 32 + y + size[0], 32 + x : 32 + x + size[1]]
    return current, previous


@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, -1), (3, 2), (-7, 5), (12, -9)])
def test_a_shift_by_whole_pixels_is_found_exactly(shift):
    current, previous = shifted_pair(*shift)
    motion = estimate_motion(current, previous)
    inner = (slice(32, -32), slice(32, -32))
    assert (motion.flow[0][inner] == shift[0]).all()
    assert (motion.flow[1][inner] == shift[1]).all()
    assert motion.visible[inner].all()


def test_what_leaves_the_frame_is_not_visible_in_both():
    motion = estimate_motion(*shifted_pair(12, 0))
    assert not motion.visible[:, -12:].any()
    assert motion.visible.float().mean() > 0.8


def test_a_still_picture_does_not_move_even_where_it_is_flat():
    for frame in (texture(96, 128), torch.full((3, 40, 56), 90, dtype=torch.uint8)):
        motion = estimate_motion(frame, frame)
        assert not motion.flow.any()
        assert motion.visible.all()


def test_what_an_object_uncovers_is_not_visible_in_the_frame_before():
    ground, box = texture(160, 224), 255 - texture(160, 224, seed=5)
    previous, current = ground.clone(), ground.clone()
    previous[:, 48:112, 48:144] = box[:, 48:112, 48:144]
    current[:, 48:112, 60:156] = box[:, 48:112, 48:144]
    motion = estimate_motion(current, previous)
    inner = (slice(60, 100), slice(72, 144))
    assert (motion.flow[0][inner] == -12).float().mean() > 0.95
    assert motion.visible[inner].float().mean() > 0.95
    # columns 48 to 60 were behind the box
    assert motion.visible[52:108, 49:59].float().mean() < 0.3
    assert motion.visible[:36].all()


def test_two_pictures_of_different_places_have_little_in_common():
    motion = estimate_motion(texture(96, 128, seed=1), texture(96, 128, seed=2))
    assert motion.visible.float().mean() < 0.5


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 200), (50, 47)])
def test_frames_of_any_size_have_a_flow_of_their_size(size):
    frame = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)
    assert block_flow(frame, frame).shape == (2, 2, *size)


def test_labels_are_carried_to_where_their_pixels_are():
    labels = torch.tensor([[0, 1, 2, 3]], dtype=torch.uint8)
    flow = torch.tensor([[[1.0, 1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]])
    visible = torch.tensor([[True, True, False, False]])
    assert carry_labels(labels, Motion(flow, visible)).tolist() == [[1, 2, IGNORE, IGNORE]]


def test_another_flow_can_be_used_also_one_at_a_quarter_of_the_size():
    frame = texture(32, 48)

    def quarter(current, previous):
        direction = 1 if current is not previous and current.float().mean() > previous.float().mean() else -1
        return direction * torch.ones(1, 2, 8, 12) * torch.tensor([0.5, 0.0]).view(1, 2, 1, 1)

    motion = estimate_motion(frame // 8 + 20, frame // 8, quarter)
    assert motion.flow[0].unique().tolist() == [2.0]
    # the flow of the one direction is the opposite of the other's, so all returns to its place
    assert motion.visible[:, :46].all()
    assert not motion.visible[:, 46:].any()


def test_the_median_removes_one_wrong_block():
    flow = torch.zeros(2, 5, 6, dtype=torch.long)
    flow[0, 2, 3] = 9
    assert not median(flow).any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_finds_the_motion_that_the_cpu_finds():
    current, previous = shifted_pair(3, 2)
    on_gpu = estimate_motion(current.cuda(), previous.cuda())
    assert torch.equal(on_gpu.flow.cpu(), estimate_motion(current, previous).flow)
