import copy
import sys
import types

import pytest
import torch
from video_methods import make_frames

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.video.dis import DISFlow, to_grey
from streamseg.models.video.netwarp import NetWarp


@pytest.fixture
def calls(monkeypatch):
    """A stand-in for OpenCV that remembers its frames, and whose flow is 2 to the right and 1 down."""
    found = []

    class Search:
        def calc(self, first, second, start):
            found.append((first, second))
            return torch.tensor([2.0, 1.0]).expand(*first.shape, 2).contiguous().numpy()

    module = types.ModuleType("cv2")
    module.DISOPTICAL_FLOW_PRESET_MEDIUM = 2
    module.DISOpticalFlow_create = lambda preset: Search()
    monkeypatch.setitem(sys.modules, "cv2", module)
    return found


def test_without_opencv_the_error_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError, match=r"needs OpenCV, .*: pip install 'streamseg\[flow\]', or use flownet_slim"):
        DISFlow()


def test_the_flow_is_from_the_current_to_the_previous_frame_x_then_y(calls):
    frames = torch.cat([make_frames(2, seed=0), make_frames(2, seed=1)], dim=1)
    flow = DISFlow()(frames[1], frames[0])
    assert flow.shape == (2, 2, 64, 96)
    assert flow[:, 0].eq(2).all()
    assert flow[:, 1].eq(1).all()
    for entry, (first, second) in enumerate(calls):
        assert torch.from_numpy(first).equal(to_grey(frames[1])[entry])
        assert torch.from_numpy(second).equal(to_grey(frames[0])[entry])


@pytest.mark.usefixtures("calls")
def test_a_method_with_it_can_be_copied_and_run():
    method = copy.deepcopy(NetWarp(swiftnet18(4), DISFlow())).eval()
    now, before = make_frames(2)
    _, state = method.step(before)
    assert method.step(now, state)[0].shape == (1, 4, 64, 96)


def test_the_real_search_finds_a_shift():
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'streamseg[flow]'")
    before, now = make_frames(2)  # now(p) = before(p + 2)
    flow = DISFlow()(now, before)[0, 0, 16:-16, 16:-16]
    assert (flow - 2).abs().median() < 0.5
