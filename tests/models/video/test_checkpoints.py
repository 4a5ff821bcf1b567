"""Checkpoints of video methods."""

import math

import pytest
import torch

import streamseg
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import Description, build_network
from streamseg.models.video import VIDEO_METHODS
from streamseg.models.video.dff import dff
from streamseg.models.video.dvsnet import DVSNet
from streamseg.models.video.flownet import flownet_slim


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


@pytest.mark.parametrize(
    ("name", "value"),
    [("clockwork-adaptive-swiftnet18", 0.5), ("low-latency-fanet18", math.inf), ("dvsnet-swiftnet18", 77.5)],
)
def test_a_checkpoint_holds_the_threshold_or_the_target_of_a_schedule(name, value, tmp_path):
    method, path = VIDEO_METHODS[name](11), tmp_path / "method.safetensors"
    streamseg.save(method, streamseg.CAMVID, path)
    assert streamseg.describe(path).schedule is None  # the default, as in older files
    assert '"schedule"' not in path.read_bytes()[:4000].decode(errors="ignore").replace("\\", "")
    method.set_schedule(value)
    streamseg.save(method, streamseg.CAMVID, path)
    loaded, _ = streamseg.load(path)
    assert loaded.schedule_value == value == streamseg.describe(path).schedule


def test_a_schedule_that_a_method_does_not_have_or_take_is_refused():
    with pytest.raises(ValueError, match="dff-swiftnet18 has no schedule"):
        build_network(Description("dff-swiftnet18", None, streamseg.CAMVID, 5, "", 0.5))
    with pytest.raises(ValueError, match="target is 101; expected 0 to 100"):
        build_network(Description("dvsnet-swiftnet18", None, streamseg.CAMVID, 0, "", 101))
    for network, value in (("swiftnet18", 0.5), ("dvsnet-swiftnet18", "90"), ("dvsnet-swiftnet18", True)):
        with pytest.raises(ValueError, match="schedule is .*; expected a number, for a video method"):
            Description(network, None, streamseg.CAMVID, 1, "", value)


def test_options_of_a_video_method_that_a_checkpoint_does_not_hold_are_refused(tmp_path):
    method = DVSNet(BASELINES["swiftnet18"](11), flownet_slim(), overlap=32)
    with pytest.raises(ValueError, match="^overlap of this dvsnet-swiftnet18 is 32, .* default, 64"):
        streamseg.save(method, streamseg.CAMVID, tmp_path / "method.safetensors")


def test_only_a_video_method_has_no_window():
    assert Description("copy-swiftnet18", None, streamseg.CAMVID, 0, "").window == 0
    with pytest.raises(ValueError, match="window is 0"):
        Description("swiftnet18", None, streamseg.CAMVID, 0, "")
