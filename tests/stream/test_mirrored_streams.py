"""Every second frame of a stream with steady labels is labelled mirrored."""

import json
import math
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from plain import randomise
from streams import differing, random_frames, run

import streamseg
from streamseg.engine import fast
from streamseg.engine.engine import EagerEngine, ImageEngine, VideoEngine
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW, Steadiness
from streamseg.io.masks import Mask
from streamseg.io.tensors import write_tensors
from streamseg.models.video import VIDEO_METHODS
from streamseg.stream.label_frames import label_frame, label_frames, step_batch
from streamseg.stream.state import LastFrames, load_state, save_state

POLICY = LastFrames(1, steady=STEADY_HIGH)
AS_THEY_ARE = LastFrames(1, steady=replace(STEADY_HIGH, mirror=False))


class Pixelwise(torch.nn.Module):
    """Scores of each pixel by its colour: for it a mirrored frame is the same frame, mirrored."""

    classes = 3

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)) / 10)

    def score(self, images):
        return torch.einsum("kc,bchw->bkhw", self.weight, images.float())


def watch(model):
    """Return an engine of a network, and the list of all frames that the network sees."""
    seen = []
    return ImageEngine(model, lambda images: seen.append(images.clone()) or model.score(images)), seen


def test_the_network_sees_every_second_frame_mirrored(frames):
    engine, seen = watch(Pixelwise().eval())
    run(engine, frames[:5], POLICY)
    for number, (image, frame) in enumerate(zip(seen, frames[:5], strict=True)):
        assert image[0].equal(frame.flip(2) if number % 2 else frame)


@pytest.mark.parametrize("policy", [AS_THEY_ARE, LastFrames(1, steady=0.5), LastFrames(1)])
def test_without_it_the_network_sees_all_frames_as_they_are(frames, policy):
    engine, seen = watch(Pixelwise().eval())
    run(engine, frames[:5], policy)
    assert all(image[0].equal(frame) for image, frame in zip(seen, frames[:5], strict=True))


def times_of(gaps):
    return [*accumulate(gaps, initial=0.0)]


def find_mirrored_frames(frames, gaps, policy=POLICY):
    """Return the numbers of the frames that the network sees mirrored, and the last state."""
    engine, seen = watch(Pixelwise().eval())
    state, times = None, times_of(gaps)
    given = [frames[number % len(frames)] for number in range(len(times))]
    for frame, seconds in zip(given, times, strict=True):
        _, state = label_frame(engine, frame, state, policy, seconds=seconds)
    return [number for number, frame in enumerate(given) if seen[number][0].equal(frame.flip(2))], state


def test_frames_that_are_far_apart_are_not_mirrored(frames):
    mirrored, state = find_mirrored_frames(frames, [0.04, 0.2, 1.0, 1.0])
    assert mirrored == [1]
    assert state.evidence.mirror_next.item() == 1


def test_after_a_long_time_between_frames_they_are_not_mirrored_for_a_while(frames):
    mirrored, state = find_mirrored_frames(frames, [0.04] * 4 + [0.4] + [0.04] * 40)
    assert mirrored[:2] == [1, 3]
    # 0.04 s and what is left of the rest, times 0.95 with each frame, are 0.163 s
    assert mirrored[2] == 5 + math.ceil(math.log((0.163 - 0.04) / 0.36, 0.95))
    assert 0.04 < state.longest_gap < 0.1


@pytest.mark.parametrize("steady", [STEADY_LOW, STEADY_HIGH])
def test_the_rounding_of_times_does_not_decide_what_is_mirrored(frames, steady):
    policy = LastFrames(1, steady=steady)
    for gap in (1 / 30, 1 / 15, 0.1, 1 / 8, 0.15, 1 / 6, 0.2):
        rounded = [b - a for a, b in pairwise(number * gap for number in range(12))]
        mirrored, _ = find_mirrored_frames(frames, rounded, policy)
        assert mirrored == ([1, 3, 5, 7, 9, 11] if gap <= 0.15 else [])


@pytest.mark.parametrize("gaps", [[0.04], [0.1], [0.15], [0.2], [1.0], [0.14, 0.16], [0.1, 0.1, 0.2], [0.05, 0.1]])
@pytest.mark.parametrize("steady", [STEADY_LOW, STEADY_HIGH])
def test_the_labels_of_a_still_scene_flicker_less_than_without_it_whenever_its_frames_come(steady, gaps):
    torch.manual_seed(0)
    engine = EagerEngine(randomise(streamseg.fanetplus18(5, key_channels=8)).float().eval())
    scene = random_frames(1)[0]
    noisy = [(scene + 4 * torch.randn(scene.shape)).round().clamp(0, 255).byte() for _ in range(12)]
    times, found = times_of([gaps[number % len(gaps)] for number in range(11)]), {}
    for policy in (LastFrames(1), LastFrames(1, steady=steady)):
        labels, state = [], None
        for seconds, frame in zip(times, noisy, strict=True):
            predicted, state = label_frame(engine, frame, state, policy, seconds=seconds)
            labels.append(predicted)
        found[policy] = sum((a != b).sum().item() for a, b in pairwise(labels[2:]))
    off, steadied = found.values()
    assert off > 0
    assert steadied < off


def test_a_network_that_knows_no_left_and_right_gives_the_same_labels(frames):
    engine, _ = watch(Pixelwise().eval())
    (mirrored, state), (as_they_are, other) = (run(engine, frames, policy) for policy in (POLICY, AS_THEY_ARE))
    assert differing(mirrored, as_they_are) == 0
    assert state.evidence.luma.equal(other.evidence.luma)
    torch.testing.assert_close(state.evidence.scores, other.evidence.scores)


@pytest.mark.parametrize("fast", [False, True])
def test_each_frame_is_averaged_with_another_view_of_it(frames, fast):
    torch.manual_seed(0)
    model = randomise(streamseg.fanetplus18(5, key_channels=8)).float().eval()
    engine = streamseg.accelerate(model) if fast else EagerEngine(model)
    (first, state), turned = label_frame(engine, frames[0], None, POLICY), frames[0].flip(2)
    _, after = label_frame(engine, frames[0], state, POLICY, seconds=0.04)
    with torch.no_grad():
        one, other = model.outputs(frames[0][None])[0], model.outputs(turned[None])[0].flip(3)
    # nothing moves, so that the frame before has its whole share, but where brightness is measured differently
    torch.testing.assert_close(after.evidence.scores, torch.lerp(other[0], one[0], 0.6), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(one, other, atol=0.1)
    assert first.equal(model(frames[0][None])[0].argmax(dim=0).byte())


def test_streams_of_one_batch_have_their_own_turns(frames):
    engine, seen = watch(Pixelwise().eval())
    _, one = run(engine, frames[:1], POLICY)
    _, two = run(engine, frames[:2], POLICY)
    images = torch.stack(frames[2:5])
    _, after = step_batch(engine, images, [one, None, two], POLICY, sizes=[tuple(images.shape[2:])] * 3)
    assert seen[-1].equal(torch.stack([frames[2].flip(2), frames[3], frames[4]]))
    assert [state.evidence.mirror_next.item() for state in after] == [0, 1, 1]


def test_what_a_mask_hides_is_hidden_in_mirrored_frames(frames):
    torch.manual_seed(0)
    model = randomise(streamseg.fanet18(5, key_channels=8)).float().eval()
    seen, features = [], model.features
    model.features = lambda images, *rest: seen.append((images, rest[2])) or features(images, *rest)
    visible = torch.ones(frames[0].shape[1:], dtype=torch.bool)
    visible[:, :24] = False
    for _ in label_frames(EagerEngine(model), frames[:2], POLICY, mask=Mask(visible)):
        pass
    (image, mask), (turned, turned_mask) = seen
    assert mask[0].equal(visible.float())
    assert turned_mask.equal(mask.flip(2))
    hidden = image[0, :, ~visible]
    assert turned[0, :, ~visible.flip(1)].equal(hidden)


class Replay:
    """A graph that the CPU runs step by step."""

    def __init__(self, run, device):
        self.replay = run


@pytest.mark.parametrize("way", ["cpu", "gpu"])
@pytest.mark.parametrize("case", ["mask", "sizes", "together"])
@pytest.mark.parametrize("network", [streamseg.fanet18, streamseg.fanetplus18])
def test_the_fast_engine_mirrors_as_the_network_does(monkeypatch, frames, network, case, way):
    torch.manual_seed(0)
    model = randomise(network(5, key_channels=8)).float().eval()
    fast_engine = streamseg.accelerate(model)
    monkeypatch.setattr(fast, "capture_graph", Replay)
    if way == "gpu":  # its path, on the CPU
        monkeypatch.setattr(fast_engine, "predict", fast_engine.predict_on_gpu)
    visible = torch.ones(frames[0].shape[1:], dtype=torch.bool)
    visible[:, :24] = False
    sizes = [(64, 96), (64, 96) if case != "sizes" else (48, 72)]
    more = {
        "mask": {"masks": [Mask(visible), None]},
        "sizes": {},
        "together": {"shares": torch.tensor([0.5, 0.5])},
    }[case]
    found = {}
    for engine in (EagerEngine(model), fast_engine):
        _, late = run(engine, frames[:1], POLICY)  # the turns of both streams differ
        states, found[engine] = [None, late], []
        for t in range(1, 5):
            images = torch.stack([frames[t], frames[t - 1]])
            predictions, states = step_batch(engine, images, states, POLICY, sizes=sizes, times=[t / 25] * 2, **more)
            assert [state.evidence.mirror_next.item() for state in states] == [t % 2, 1 - t % 2]
            found[engine].append([prediction.labels for prediction in predictions])
    for ours, theirs in zip(*found.values(), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a != b).float().mean() < 0.005


def test_where_contexts_are_compared_to_find_cuts_no_frame_is_mirrored(frames):
    torch.manual_seed(0)
    model = randomise(streamseg.fanet18(5, key_channels=8)).float().eval()
    seen, features = [], model.features
    model.features = lambda images, *rest: seen.append(images) or features(images, *rest)
    run(EagerEngine(model), [frames[0]] * 4, LastFrames(2, steady=STEADY_HIGH), cut=0.001)
    assert len(seen) == 4  # once each: nothing changes, so that there is no cut
    assert all(image[0].equal(frames[0]) for image in seen)


def test_a_video_method_which_keeps_features_of_earlier_frames_sees_them_as_they_are(frames):
    method = VIDEO_METHODS["copy-swiftnet18"](5).eval()
    seen, step = [], method.step
    method.step = lambda image, state: seen.append(image.clone()) or step(image, state)
    _, state = run(VideoEngine(method), frames[:3], POLICY)
    assert all(image[0].equal(frame) for image, frame in zip(seen, frames[:3], strict=True))
    assert state.evidence.mirror_next.item() == 0


def test_whose_turn_it_is_is_part_of_the_state(model, frames, tmp_path):
    for count in (1, 2):
        _, state = run(model, frames[:count], POLICY)
        save_state(state, tmp_path / "state.safetensors")
        again = load_state(tmp_path / "state.safetensors")
        assert again.evidence.mirror_next.item() == count % 2
        assert label_frame(model, frames[2], again, POLICY)[0].equal(label_frame(model, frames[2], state, POLICY)[0])


def test_evidence_of_a_network_with_other_classes_does_not_count(frames):
    one, other = (EagerEngine(randomise(streamseg.fanetplus18(k, key_channels=8)).float().eval()) for k in (5, 7))
    _, state = run(one, frames[:1], POLICY)
    labels, after = label_frame(other, frames[1], state, POLICY)
    assert labels.equal(label_frame(other, frames[1], None, POLICY)[0])  # neither averaged nor mirrored
    assert after.evidence.mirror_next.item() == 1


def test_a_state_of_a_version_without_mirrored_frames_can_be_read(model, frames, tmp_path):
    _, state = run(model, frames[:2], AS_THEY_ARE)
    names = ("luma", "scores", "labels")
    tensors = {"contexts": state.contexts} | {f"evidence.{name}": getattr(state.evidence, name) for name in names}
    entry = json.dumps({"weights": [], "seconds": 0.04})
    write_tensors(tmp_path / "state.safetensors", tensors, {"format": "pt", "streamseg-state": entry})
    again = load_state(tmp_path / "state.safetensors")
    assert again.evidence.mirror_next.item() == 0
    assert all(getattr(again.evidence, name).equal(getattr(state.evidence, name)) for name in names)


@pytest.mark.parametrize("mirror_value", [1, "yes", None])
def test_mirror_is_true_or_false(mirror_value):
    with pytest.raises(ValueError, match="expected True or False"):
        Steadiness(0.5, 16.0, 0.6, 40.0, mirror=mirror_value)


def test_views_are_mirrored_only_where_they_can_cancel():
    assert not Steadiness(0.3, 16.0, 0.6, 40.0).mirror
    with pytest.raises(ValueError, match=r"share is 0\.3; expected 0\.5 or more"):
        Steadiness(0.3, 16.0, 0.6, 40.0, mirror=True)
