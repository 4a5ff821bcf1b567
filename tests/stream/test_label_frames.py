import math
from dataclasses import replace
from itertools import pairwise

import plain
import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image
from streams import POLICIES, contexts, differing, random_frames, run, same
from torch.nn import functional as F

import streamseg
from streamseg import NoAttention
from streamseg.engine.labels import labels_from_scores
from streamseg.engine.steadying import STEADY_HIGH
from streamseg.io.images import write_image
from streamseg.models import bundled, checkpoint
from streamseg.models.baselines import BASELINES
from streamseg.models.video import VIDEO_METHODS
from streamseg.stream.label_frames import (
    bundled_model,
    label_batch,
    label_frame,
    label_frames,
    network_size,
    segment,
    step_batch,
)
from streamseg.stream.state import (
    Fading,
    FadingInTime,
    LastFrames,
    context_distance,
    load_state,
    save_state,
)

UNMIRRORED = replace(STEADY_HIGH, mirror=False)


def test_an_image_is_a_stream_of_one_frame(model, frames, tmp_path):
    write_image(tmp_path / "a.png", frames[0])
    labels = segment(frames[0], model)
    assert labels.shape == (64, 96)
    assert labels.dtype == torch.uint8
    assert labels.equal(model(frames[0][None])[0].argmax(dim=0))
    for window in POLICIES:
        ((frame, found),) = label_frames(model, frames[:1], window)
        assert frame is frames[0]
        assert found.equal(labels)
    for picture in (tmp_path / "a.png", str(tmp_path / "a.png"), frames[0].permute(1, 2, 0).numpy()):
        assert segment(picture, model).equal(labels)
    with Image.open(tmp_path / "a.png") as picture:
        assert segment(picture, model).equal(labels)


def test_without_a_model_the_bundled_weights_are_loaded_once(model, frames, tmp_path, monkeypatch):
    checkpoint.save(model, streamseg.CAMVID, tmp_path / "a.safetensors")
    about = replace(bundled.BUNDLED_WEIGHTS[bundled.DEFAULT], file=tmp_path / "a.safetensors")
    monkeypatch.setitem(bundled.BUNDLED_WEIGHTS, bundled.DEFAULT, about)
    bundled_model.cache_clear()
    try:
        assert segment(frames[0]).equal(segment(frames[0], model))
        (tmp_path / "a.safetensors").unlink()
        assert segment(frames[1]).equal(segment(frames[1], model))
    finally:
        bundled_model.cache_clear()


def test_callers_may_modify_the_labels(model, frames):
    labels = segment(frames[0], model)
    labels[labels == 3] = 255


@pytest.mark.parametrize("size", [(1, 1), (5, 200), (31, 31), (200, 7)])
def test_frames_that_are_too_small_for_the_network_are_labelled_at_their_own_size(model, size):
    assert segment(torch.full((3, *size), 90, dtype=torch.uint8), model).shape == size


def test_a_given_size_is_that_of_the_network_input_and_labels_have_the_frame_s_size(model):
    frame = random_frames(1, 150, 210)[0]
    labels, _ = label_frame(model, frame, size=(64, 96))
    small = F.interpolate(frame[None], (64, 96), mode="bilinear", antialias=True)
    with torch.inference_mode():
        maps, _ = model.features(small)
        assert labels.equal(labels_from_scores(model.score(maps)[0], (150, 210)))
    assert label_frame(model, frame, size=(150, 210))[0].equal(segment(frame, model))


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(4096, 10_000_000))
def test_the_network_input_keeps_the_proportions_up_to_a_number_of_pixels(height, width, pixels):
    tall, wide = network_size(height, width, pixels)
    assert min(tall, wide) >= 32
    assert tall * wide <= max(pixels, 32 * max(tall, wide))
    if min(height, width) >= 32 and height * width <= pixels:
        assert (tall, wide) == (height, width)
    elif min(tall, wide) > 32:
        assert tall * wide > 0.9 * pixels or (tall, wide) == (height, width)
        assert tall / height == pytest.approx(wide / width, abs=2 / min(height, width))


def test_usual_frames_keep_their_size_and_large_ones_are_scaled_down():
    assert network_size(720, 1280) == (720, 1280)
    assert network_size(1024, 2048) == (1024, 2048)
    assert network_size(2160, 3840) == (1086, 1930)
    assert network_size(10, 1_000_000) == (32, 65536)


def test_frames_may_change_their_size_within_a_stream(model):
    frames = random_frames(2) + random_frames(2, 48, 130)
    labels = [labels for _, labels in label_frames(model, frames, window=3)]
    assert [tuple(x.shape) for x in labels] == [(64, 96), (64, 96), (48, 130), (48, 130)]


def test_a_window_of_one_ignores_the_past(model, frames):
    labels, state = run(model, frames, 1)
    assert len(state.contexts) == 0
    assert all(a.equal(segment(frame, model)) for a, frame in zip(labels, frames, strict=True))
    _, state = run(model, frames, 4)
    assert label_frame(model, frames[0], state)[0].equal(segment(frames[0], model))


@pytest.mark.parametrize("window", [2, 3, 5])
def test_a_frame_forgets_what_is_older_than_the_window(model, frames, window):
    others = random_frames(6, seed=1)
    labels, state = run(model, [*others, *frames[:window]], window)
    again, shorter = run(model, frames[:window], window)
    assert labels[-1].equal(again[-1])
    assert same(state, shorter)
    before, _ = run(model, [*others, *frames[: window - 1]], window)
    assert not before[-1].equal(again[-2])  # which others are still in the window of


@pytest.mark.parametrize("window", [2, 3])
def test_the_past_is_the_sum_of_the_contexts_in_the_window(model, frames, window):
    labels, _ = run(model, frames, window)
    contexts = []
    with torch.inference_mode():
        for frame, found in zip(frames, labels, strict=True):
            seen = contexts[-(window - 1) :]
            past = [torch.stack(stage).sum(dim=0) for stage in zip(*seen, strict=True)] if seen else None
            logits, context = model.step(frame[None], past)
            contexts.append(context)
            assert (found != logits[0].argmax(dim=0)).float().mean() < 0.001


@pytest.mark.parametrize("window", POLICIES[1:])
def test_the_past_changes_the_labels(model, frames, window):
    labels, _ = run(model, [*random_frames(3, seed=1), frames[0]], window)
    assert not labels[-1].equal(segment(frames[0], model))


def test_a_number_means_the_last_frames(model, frames):
    assert differing(run(model, frames, 3)[0], run(model, frames, LastFrames(3))[0]) == 0


def test_the_state_of_a_network_in_half_precision_is_fp32(model, frames):
    half = streamseg.fanet18(classes=11).eval()
    half.load_state_dict(model.state_dict())
    labels, state = run(half.bfloat16(), frames, 2)
    assert state.contexts.dtype == torch.float32
    assert differing(labels, run(model, frames, 2)[0]) < 0.1 * 6 * 64 * 96


def test_a_network_without_a_past_makes_streams_too(frames, tmp_path):
    network = streamseg.fanet18(classes=3, attention=NoAttention).eval()
    labels, state = run(network, frames[:3], 2, cut=0.5)
    assert all(a.equal(segment(frame, network)) for a, frame in zip(labels, frames[:3], strict=True))
    save_state(state, tmp_path / "a.safetensors")
    assert same(load_state(tmp_path / "a.safetensors"), state)


@pytest.mark.parametrize("name", ["enet", "swiftnet18"])
def test_a_baseline_labels_each_frame_alone(frames, name):
    network = BASELINES[name](3).eval()
    (frame, labels), _ = label_frames(network, frames[:2])
    with torch.no_grad():
        expected = network(frame[None])[0].argmax(dim=0)
    assert (labels != expected).sum() <= 3  # ties of scores that are resized row by row
    with pytest.raises(ValueError, match="^The network labels each frame alone: leave out the window, or give"):
        label_frame(network, frame, window=2)


@pytest.mark.parametrize(
    "window", [2, Fading(0.5), FadingInTime(0.1), LastFrames(2, steady=0.1), LastFrames(2, steady=STEADY_HIGH)]
)
def test_streams_in_a_batch_are_as_each_alone(model, window):
    streams = [random_frames(4, seed=seed) for seed in range(3)]
    alone = [run(model, frames, window)[0] for frames in streams]
    for order in ([0, 1, 2], [2, 0, 1]):
        states, together = [None] * 3, []
        for i in range(4):
            labels, states = label_batch(model, [streams[j][i] for j in order], states, window)
            together.append(labels)
        for place, j in enumerate(order):
            assert differing([labels[place] for labels in together], alone[j]) < 0.002 * 4 * 64 * 96


@pytest.mark.parametrize("window", POLICIES)
def test_two_streams_that_take_turns_are_as_each_alone(model, window):
    streams = [random_frames(4, seed=seed) for seed in range(2)]
    alone = [run(model, frames, window)[0] for frames in streams]
    states, turns = [None, None], [[], []]
    for i in range(4):
        for j, frames in enumerate(streams):
            labels, states[j] = label_frame(model, frames[i], states[j], window)
            turns[j].append(labels)
    assert [differing(*pair) for pair in zip(turns, alone, strict=True)] == [0, 0]


def see(model, images, states, window=1, **options):
    """Labels and confidence of images in one tensor each, and the states after them."""
    sizes = [tuple(images.shape[2:])] * len(images)
    looks, after = step_batch(model, images, states, window, sizes=sizes, with_confidence=True, **options)
    return [torch.stack(look[:2]) for look in looks], after


def test_one_stream_s_state_never_reaches_another(model, frames):
    states = [run(model, random_frames(2, seed=seed), 3)[1] for seed in (1, 2, 3)]
    images = torch.stack(frames[:2])
    found, after = see(model, images, states[:2], 3)
    other, changed = see(model, images, [states[2], states[1]], 3)
    assert not found[0].equal(other[0])
    assert found[1].equal(other[1])
    assert same(after[1], changed[1])
    fresh, _ = see(model, images, [None, states[1]], 3)
    assert fresh[1].equal(found[1])
    assert fresh[0].equal(see(model, images, [None, None], 3)[0][0])


def test_streams_of_several_sizes_share_a_batch_at_a_given_size(model):
    frames = [random_frames(1)[0], random_frames(1, 80, 120)[0]]
    labels, _ = label_batch(model, frames, [None, None], size=(64, 64))
    for found, frame in zip(labels, frames, strict=True):
        alone, _ = label_frame(model, frame, size=(64, 64))
        assert (found != alone).float().mean() < 0.002
    with pytest.raises(ValueError, match="The frames of the batch have 2 sizes, expected one: give size"):
        label_batch(model, frames, [None, None])


def test_a_batch_needs_a_state_and_a_time_for_each_image(model, frames):
    with pytest.raises(ValueError, match="2 images, 1 states, 1 times and 2 sizes do not form a batch"):
        see(model, torch.stack(frames[:2]), [None])
    with pytest.raises(ValueError, match="1 images, 1 states, 2 times and 1 sizes do not form a batch"):
        see(model, torch.stack(frames[:1]), [None], times=[0.0, 1.0])


@pytest.mark.parametrize(
    "window", [2, 3, Fading(0.5), FadingInTime(0.5), LastFrames(2, steady=0.1), LastFrames(2, steady=UNMIRRORED)]
)
def test_after_a_cut_a_stream_begins_anew(model, frames, window):
    scenes = [*(frame // 4 for frame in random_frames(3, seed=1)), *frames[:3]]  # from dusk to daylight
    distances = [context_distance(*pair).item() for pair in pairwise(contexts(model, scenes))]
    assert [distance > 0.3 for distance in distances] == [False, False, True, False, False]
    labels, state = run(model, scenes, window, cut=0.3)
    again, fresh = run(model, frames[:3], window)
    assert differing(labels[3:], again) == 0
    assert same(state, fresh)
    assert differing(labels, run(model, scenes, window)[0]) > 0
    assert differing(run(model, scenes, window, cut=1.9)[0], run(model, scenes, window)[0]) == 0


def test_a_cut_in_one_stream_is_none_in_another(model, frames):
    states = [run(model, x, 2)[1] for x in ([frames[0] // 4], frames[:1])]
    images = torch.stack([frames[1], frames[1]])
    found, after = see(model, images, states, 2, cut=0.3)
    assert found[0].equal(see(model, images[:1], [None], 2)[0][0])
    assert found[1].equal(see(model, images, states, 2)[0][1])
    assert [len(state.contexts) for state in after] == [1, 1]


@pytest.mark.parametrize("window", [0, -1, 2.0, "2", None, True])
def test_a_window_is_a_number_of_frames_or_a_policy(model, frames, window):
    with pytest.raises(ValueError, match=f"window is {window!r}; expected a whole number, 1 or more"):
        label_frame(model, frames[0], window=window)


def test_a_time_is_a_number_and_each_frame_has_one(model, frames):
    with pytest.raises(ValueError, match="The time of a frame is nan; expected seconds"):
        label_frame(model, frames[0], seconds=math.nan)
    with pytest.raises(ValueError, match="There are 2 times, but more frames"):
        list(label_frames(model, frames, times=[0.0, 1.0]))


@pytest.mark.parametrize("size", [(31, 64), (64,), (64.0, 64), (64, "64")])
def test_a_size_below_the_smallest_network_input_is_refused(model, frames, size):
    with pytest.raises(ValueError, match="The size is .*; expected height and width, 32 pixels or more each"):
        label_frame(model, frames[0], size=size)


def test_what_is_no_frame_or_no_network_is_refused(model, frames):
    with pytest.raises(ValueError, match="The frame is a tuple; expected RGB bytes"):
        label_frame(model, (frames[0], 0.0))
    with pytest.raises(ValueError, match="The model is a tuple; expected the network"):
        label_frame((model, streamseg.CAMVID), frames[0])
    with pytest.raises(ValueError, match="in training mode"):
        segment(frames[0], streamseg.fanet18())
    with pytest.raises(FileNotFoundError, match="No picture at nowhere"):
        segment("nowhere.png", model)


def test_a_stream_equals_the_plain_definition():
    network = plain.randomise(streamseg.fanet18(classes=5, key_channels=8))
    frames = random_frames(4)
    labels, _ = run(network, frames, 3)
    seen = []
    for frame, found in zip(frames, labels, strict=True):
        past = [sum(stage) for stage in zip(*seen[-2:], strict=True)] if seen else [None] * 4
        logits, context = plain.fanet(network.state_dict(), frame[None], (2, 2, 2, 2), past)
        seen.append(context)
        assert (found != logits[0].argmax(dim=0)).float().mean() < 0.001


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_stream_that_began_on_the_cpu_goes_on_on_the_gpu(model, frames, tmp_path):
    gpu = streamseg.fanet18(classes=11).eval()
    gpu.load_state_dict(model.state_dict())
    gpu = gpu.cuda()
    for window in (3, Fading(0.5)):
        whole, _ = run(model, frames, window)
        _, state = run(model, frames[:3], window)
        rest, after = run(gpu, frames[3:], window, state, cut=1.9)
        assert after.contexts.device.type == "cuda"
        assert all(labels.device.type == "cpu" for labels in rest)
        assert differing(rest, whole[3:]) < 0.02 * 3 * 64 * 96
        save_state(after, tmp_path / "a.safetensors")
        assert label_frame(gpu, frames[0].cuda(), load_state(tmp_path / "a.safetensors"), window)[0].is_cuda
    assert segment(random_frames(1, 150, 210)[0], gpu).shape == (150, 210)
    assert label_frame(gpu, random_frames(1, 150, 210)[0], size=(64, 96))[0].shape == (150, 210)


@pytest.fixture(scope="module")
def averaging(model):
    """The network of the other tests, but one that attends to the mean of the window."""
    twin = streamseg.fanet18(classes=11, averages=True)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


@pytest.mark.parametrize("window", POLICIES[:7])
def test_a_still_scene_has_the_same_labels_with_any_window(averaging, frames, window):
    (first, *others), _ = run(averaging, [frames[0]] * 4, window)
    assert all((labels != first).float().mean() < 0.01 for labels in others)


def test_the_mean_of_a_window_is_that_of_the_frames_in_it(averaging, frames):
    with torch.inference_mode():
        contexts = [averaging.step(frame[None])[1] for frame in frames[:2]]
        past = [sum(stage) for stage in zip(*contexts, strict=True)]
        expected = averaging.step(frames[2][None], past, 2)[0][0].argmax(dim=0)
    assert run(averaging, frames[:3], 3)[0][-1].equal(expected.byte())


def test_streams_of_different_age_in_one_batch_are_averaged_each_by_its_own(averaging, frames):
    _, old = run(averaging, frames[:3], 4)
    (young, older), _ = label_batch(averaging, [frames[3], frames[3]], [None, old], 4)
    assert young.equal(label_frame(averaging, frames[3], None, 4)[0])
    assert differing([older], [label_frame(averaging, frames[3], old, 4)[0]]) < 10
    assert not young.equal(older)


@pytest.mark.parametrize("name", ["clockwork-swiftnet18", "clockwork-pipelined-swiftnet18"])
def test_a_video_method_labels_a_stream_with_its_own_state(name):
    torch.manual_seed(0)
    method = VIDEO_METHODS[name](5).eval()
    frames, state, expected = [*torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)], None, []
    with torch.no_grad():
        for frame in frames:
            logits, state = method.step(frame[None], state)
            expected.append(logits[0].argmax(dim=0))
    assert all(labels.equal(wanted) for (_, labels), wanted in zip(label_frames(method, frames), expected, strict=True))


@pytest.mark.parametrize("name", ["dff-swiftnet18", "netwarp-swiftnet18"])
def test_a_caller_may_overwrite_a_frame_that_a_video_method_has_labelled(name):
    torch.manual_seed(0)
    method = VIDEO_METHODS[name](5).eval()
    camera = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)
    _, state = label_frame(method, camera)
    before = state.method_state.image.clone()
    camera.zero_()
    assert state.method_state.image.equal(before)


def test_streams_of_a_video_method_do_not_mix():
    torch.manual_seed(0)
    method = VIDEO_METHODS["clockwork-swiftnet18"](5).eval()
    frames = torch.randint(0, 256, (2, 3, 3, 64, 64), dtype=torch.uint8)
    states, last = [None, None], []
    # the second stream begins a frame later, so that their key frames differ
    _, states[0] = label_frame(method, frames[0, 0])
    for number in range(2):
        pair = [frames[0, number + 1], frames[1, number]]
        last, states = label_batch(method, pair, states)
    assert last[0].equal([*label_frames(method, frames[0])][-1][1])
    assert last[1].equal([*label_frames(method, frames[1, :2])][-1][1])


def test_the_state_of_a_video_method_is_not_written_as_one_of_a_fanet(tmp_path):
    method = VIDEO_METHODS["copy-swiftnet18"](5).eval()
    _, state = label_frame(method, torch.zeros(3, 64, 64, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"that of a video method \(CopyState\), and only those of FANets"):
        streamseg.save_state(state, tmp_path / "state.safetensors")
