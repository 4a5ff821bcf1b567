"""Laws that hold for every video method."""

import math
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional as F
from video_methods import build, make_frames, run

from streamseg.models.baselines.swiftnet import swiftnet18
from streamseg.models.fanet import fanet18
from streamseg.models.video.accel import Accel, accel
from streamseg.models.video.clockwork import AdaptiveClockwork, clockwork, clockwork_pipelined
from streamseg.models.video.copying import copying
from streamseg.models.video.dff import dff
from streamseg.models.video.dvsnet import DVSNet
from streamseg.models.video.flownet import FlowNetS
from streamseg.models.video.grfp import grfp
from streamseg.models.video.low_latency import LowLatency
from streamseg.models.video.netwarp import FlowCNN, netwarp
from streamseg.models.video.pearl import pearl
from streamseg.models.video.schedule import chosen_entries
from streamseg.models.video.scheme import VideoMethod, is_part_of, load_state, save_state, warp


def adaptive_clockwork(network, interval=None):
    """The adaptive clock, whose schedule never fires: key frames come at the interval."""
    return AdaptiveClockwork(network, threshold=math.inf, interval=interval)


def low_latency(network, interval=None):
    """Low-Latency, likewise."""
    return LowLatency(network, threshold=math.inf, interval=interval, channels=8, kernel=3)


def dvsnet(network, interval=None):
    """DVSNet, likewise, with one cell: a key frame of several is the backbone on each of them."""
    return DVSNet(network, FlowNetS((4, 8, 8, 8, 8, 8)), target=0, interval=interval, grid=(1, 1))


BY_ITS_STEPS = [dff, accel, netwarp, grfp, pearl]
"""Methods that are trained by the loss of what step() returns alone."""

METHODS = [*BY_ITS_STEPS, copying, clockwork, clockwork_pipelined, adaptive_clockwork, low_latency, dvsnet]


@pytest.fixture(params=METHODS, ids=lambda method: method.__name__)
def method(request):
    return request.param


@torch.inference_mode()
@pytest.mark.parametrize("network", [swiftnet18, fanet18], ids=lambda network: network.__name__)
def test_with_an_interval_of_1_it_is_exactly_its_backbone(method, network):
    built = build(method, network, interval=1)
    logits, _ = run(built, make_frames(3))
    assert all(map(torch.equal, logits, map(built.backbone.network, make_frames(3))))


@torch.inference_mode()
def test_the_past_changes_the_frames_after_a_key_frame(method):
    built = build(method, interval=3)
    frames = make_frames()
    for i, logits in enumerate(run(built, frames)[0]):
        assert logits.shape == (1, 4, 64, 96)
        assert logits.isfinite().all()
        assert logits.equal(built.backbone(frames[i])) == (i % 3 == 0)


@torch.inference_mode()
def test_a_saved_stream_goes_on_as_if_nothing_had_happened(method, tmp_path):
    built = build(method, interval=4)
    frames = make_frames()
    _, state = run(built, frames[:2])
    save_state(state, tmp_path / "state.safetensors")
    expected, _ = run(built, frames[2:], state)
    found, _ = run(built, frames[2:], load_state(built, tmp_path / "state.safetensors"))
    assert all(map(torch.equal, found, expected))


@torch.inference_mode()
def test_two_streams_in_turn_are_as_each_alone(method):
    built = build(method, interval=3)
    streams = [make_frames(4, seed=seed) for seed in (0, 1)]
    alone = [run(built, frames)[0] for frames in streams]
    states = [None, None]
    for i in range(4):
        for stream in (0, 1):
            logits, states[stream] = built.step(streams[stream][i], states[stream])
            assert logits.equal(alone[stream][i])


@torch.inference_mode()
def test_a_batch_of_streams_is_as_each_alone(method):
    built = build(method, interval=3)
    streams = [make_frames(4, seed=seed) for seed in (0, 1)]
    together, _ = run(built, torch.cat(streams, dim=1))
    for stream, frames in enumerate(streams):
        for logits, alone in zip(together, run(built, frames)[0], strict=True):
            torch.testing.assert_close(logits[stream : stream + 1], alone, atol=1e-3, rtol=1e-3)


@torch.inference_mode()
def test_a_state_is_never_modified(method):
    built = build(method, interval=4)
    frames = make_frames(3)
    _, state = run(built, frames[:2])
    first, _ = built.step(frames[2], state)
    again, _ = built.step(frames[2], state)
    assert again.equal(first)


@torch.inference_mode()
def test_a_change_of_size_in_mid_stream_starts_anew(method):
    built = build(method, interval=4)
    _, state = run(built, make_frames(2))
    other = make_frames(2, size=(48, 64))
    logits, state = built.step(other[0], state)
    assert logits.equal(built.backbone(other[0]))
    assert run(built, other)[0][1].equal(built.step(other[1], state)[0])


@torch.inference_mode()
def test_a_cut_is_forgotten_at_the_next_key_frame_and_at_once_without_a_state(method):
    built = build(method, interval=3)
    before, after = make_frames(2, seed=0), make_frames(3, seed=1)
    logits, state = run(built, [*before, *after])
    # the past of the other scene is still used by the frame before the key frame
    assert not logits[2].equal(built.backbone(after[0]))
    assert logits[3].equal(built.backbone(after[1]))
    assert logits[4].equal(run(built, after[1:])[0][1])
    assert built.step(after[0])[0].equal(built.backbone(after[0]))
    assert state.position == 1


@torch.inference_mode()
def test_if_the_key_frame_is_dropped_the_next_one_takes_its_place(method):
    built = build(method, interval=3)
    frames = make_frames()
    logits, state = run(built, [frames[i] for i in (0, 1, 2, 4, 5)])
    assert logits[3].equal(built.backbone(frames[4]))
    assert state.position == 1


@torch.inference_mode()
@pytest.mark.parametrize("size", [(32, 32), (33, 47), (65, 101)])
def test_frames_of_any_size_from_32_x_32_are_taken(method, size):
    built = build(method, interval=3)
    frames = torch.randint(0, 256, (3, 2, 3, *size), dtype=torch.uint8)
    assert all(logits.shape == (2, 4, *size) for logits in run(built, frames)[0])


@torch.inference_mode()
def test_bytes_and_floats_are_the_same(method):
    built = build(method, interval=3)
    frames = make_frames(3)
    for a, b in zip(run(built, frames)[0], run(built, frames.float())[0], strict=True):
        assert a.equal(b)


@torch.inference_mode()
def test_half_precision_is_nearly_the_same(method):
    built = build(method, interval=3)
    frames = make_frames(3)
    expected, _ = run(built, frames)
    found, _ = run(built.to(torch.bfloat16), frames)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.float() - b).norm() < 0.3 * b.norm()


@pytest.mark.parametrize("method", BY_ITS_STEPS, ids=lambda method: method.__name__)
def test_the_gradient_reaches_the_parts_that_train_and_no_others(method):
    built = build(method, interval=None)
    built.freeze()
    built.train()
    before = {name: buffer.clone() for name, buffer in built.named_buffers()}
    frames = torch.cat([make_frames(3, seed=0), make_frames(3, seed=1)], dim=1)
    logits, _ = run(built, frames)
    F.cross_entropy(logits[2], torch.randint(0, 4, (2, 64, 96))).backward()
    for name, parameter in built.named_parameters():
        trains = is_part_of(name, built.trained)
        assert parameter.requires_grad == trains, name
        # batch norm cancels a bias in front of it
        if trains and not name.endswith("bias"):
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name
    for name, buffer in built.named_buffers():
        assert is_part_of(name, built.trained) or buffer.equal(before[name]), name


@torch.inference_mode()
@pytest.mark.parametrize("method", BY_ITS_STEPS, ids=lambda method: method.__name__)
@pytest.mark.parametrize("length", [2, 3, 6])
def test_training_computes_the_logits_that_the_whole_clip_gives(method, length):
    built = build(method, interval=None)
    clip = [*make_frames(length)]
    found, regression = built.clip_outputs(clip)
    expected, _ = VideoMethod.clip_outputs(built, clip)
    torch.testing.assert_close(found, expected)
    assert regression is None


READS = {"adaptive_clockwork": (1, 0), "dvsnet": (1, 0), "low_latency": (0, 1)}
"""How often a method waits for the device on a frame after a key frame: before its labels, and after them."""


@torch.no_grad()
def test_no_frame_waits_for_the_device_but_where_a_schedule_decides(method):
    """On the meta device nothing has a value: whoever reads one gets an error, and schedules read by chosen_entries."""
    built = build(method, interval=None).to("meta")
    reads = []

    def read(decisions, default):
        reads.append(decisions)
        return chosen_entries(decisions, default)

    image = torch.empty(1, 3, 64, 96, device="meta", dtype=torch.uint8)
    with (
        patch("streamseg.models.video.clockwork.chosen_entries", read),
        patch("streamseg.models.video.dvsnet.chosen_entries", read),
        patch("streamseg.models.video.low_latency.chosen_entries", read),
    ):
        _, state = built.step(image)
        assert not reads
        _, state = built.step(image, built.finish(state))
        before = len(reads)
        built.finish(state)
    assert (before, len(reads) - before) == READS.get(method.__name__, (0, 0))


@torch.inference_mode()
@pytest.mark.parametrize(("method", "from_key"), [(dff, True), (accel, False), (netwarp, False), (grfp, False)])
def test_flow_is_from_the_current_frame_to_the_key_frame_or_the_frame_before(method, from_key):
    built = build(method, interval=None)
    asked = []
    built.flow.register_forward_pre_hook(lambda _, frames: asked.append(frames))
    outputs = built.flow.outputs
    built.flow.outputs = lambda *frames: asked.append(frames) or outputs(*frames)
    frames = make_frames(3)
    run(built, frames)
    current, previous = asked[-1]
    assert current.equal(frames[2])
    assert previous.equal(frames[0 if from_key else 1])


@torch.inference_mode()
@pytest.mark.parametrize("method", [dff, accel, netwarp, grfp, dvsnet], ids=lambda method: method.__name__)
@pytest.mark.parametrize("pixels", [0, 1], ids=["zero flow", "whole pixels"])
def test_what_a_method_takes_from_the_past_is_moved_exactly_by_the_flow(method, pixels):
    """Zero flow is the identity, and whole pixels are a shift, of the very maps that each method warps."""
    built = build(method, interval=None)
    outputs = built.flow.outputs

    def constant(*frames):
        found = outputs(*frames)
        flow = torch.zeros_like(found.flow)
        flow[:, 0] = pixels
        return found._replace(flow=flow)

    built.flow.outputs = constant
    moved = []

    def recording(features, flow):
        moved.append((features, flow, warp(features, flow)))
        return moved[-1][2]

    frames = make_frames(2)
    with patch(f"streamseg.models.video.{method.__name__}.warp", recording):
        _, state = built.step(frames[0])
        if method is netwarp:  # its Λ corrects the flow, and starts as the identity
            built.correct = FlowCNN()
        built.step(frames[1], state)
    assert moved
    for features, flow, result in moved:
        (columns,) = flow[:, 0].unique().tolist()
        assert columns == pixels * features.shape[-1] // 12  # the flow is at 1/8 of 96 columns
        shift = int(columns)
        assert result[..., : features.shape[-1] - shift].equal(features[..., shift:])


@torch.inference_mode()
def test_a_picture_that_moves_as_the_flow_says_keeps_its_labels():
    """Features of a shifted frame are nearly the shifted features, so warping by the true flow recovers them."""
    torch.manual_seed(0)
    network = swiftnet18(4)
    frames = make_frames(5, size=(128, 192))  # frame 4 is frame 0, eight pixels to the right
    flow = torch.zeros(1, 2, 32, 48)
    flow[:, 0] = 2  # pixels of the features, at 1/4
    built = Accel(network, swiftnet18(4), lambda current, previous: flow, interval=None).eval()
    _, state = built.step(frames[0])
    _, moved = built.step(frames[4], state)
    expected = built.backbone.features(frames[4])[..., 4:-8]

    def distance(features):
        return (features[..., 4:-8] - expected).norm()

    assert distance(moved.features) < 0.7 * distance(state.features)


def test_an_image_alone_is_that_of_the_backbone(method):
    built = build(method)
    image = make_frames(1)[0]
    assert built(image).equal(built.backbone(image))


def test_another_network_is_refused(method):
    with pytest.raises(ValueError, match="expected a network that video methods can split"):
        method(torch.nn.Identity())
