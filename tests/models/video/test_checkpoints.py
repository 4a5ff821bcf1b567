"""Checkpoints of video methods."""

import pytest
import torch

import streamseg
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import Description
from streamseg.models.video import VIDEO_METHODS
from streamseg.models.video.clockwork import AdaptiveClockwork
from streamseg.models.video.dff import dff


@pytest.mark.parametrize("name", ["clockwork-swiftnet18", "netwarp-fanet18"])
def test_a_video_method_is_saved_and_loaded_with_its_key_interval(name, tmp_path):
    torch.manual_seed(0)
    method, path = VIDEO_METHODS[name](11).eval(), tmp_path / "method.safetensors"
    if method.interval is not None:
        method.interval = 7
    streamseg.save(method, streamseg.CAMVID, path)
    loaded, _ = streamseg.load(path)
    assert (loaded.name, loaded.interval) == (name, method.interval)
    assert streamseg.describe(path).window == (method.interval or 0)
    frames = torch.randint(0, 256, (2, 1, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        ours, theirs = ([network.step(frames[1], network.step(frames[0])[1])[0]] for network in (method, loaded))
    assert ours[0].equal(theirs[0])


def test_every_video_method_bears_its_name():
    for name, build in VIDEO_METHODS.items():
        with torch.device("meta"):
            assert build(2).name == name


def test_a_video_method_that_was_built_in_python_is_saved_by_its_name(tmp_path):
    path = tmp_path / "method.safetensors"
    streamseg.save(dff(BASELINES["swiftnet18"](11), interval=3), streamseg.CAMVID, path)
    loaded, _ = streamseg.load(path)
    assert (loaded.name, loaded.interval) == ("dff-swiftnet18", 3)


def test_options_of_a_video_method_that_a_checkpoint_does_not_hold_are_refused(tmp_path):
    method = AdaptiveClockwork(BASELINES["swiftnet18"](11), threshold=0.5)
    with pytest.raises(ValueError, match="^threshold of this clockwork-adaptive-swiftnet18 is 0.5, .* default, 0.25"):
        streamseg.save(method, streamseg.CAMVID, tmp_path / "method.safetensors")


def test_only_a_video_method_has_no_window():
    assert Description("copy-swiftnet18", None, streamseg.CAMVID, 0, "").window == 0
    with pytest.raises(ValueError, match="window is 0"):
        Description("swiftnet18", None, streamseg.CAMVID, 0, "")
