import json
import math
import subprocess
import sys

import pytest
import torch
from PIL import Image
from streams import POLICIES, context_of, differing, random_frames, run, same
from torch.nn import functional as F

import streamseg
from streamseg.io.images import write_image
from streamseg.io.tensors import write_tensors
from streamseg.models import checkpoint
from streamseg.stream.label_frames import (
    label_frame,
    label_frames,
    segment,
)
from streamseg.stream.state import (
    Fading,
    FadingInTime,
    LastFrames,
    advance,
    context_distance,
    decay,
    load_state,
    save_state,
    sum_past,
)


def past_of(state, seconds, policy):
    """Return the past of a frame at a time."""
    past, _ = sum_past(state and decay(state, seconds, policy), policy)
    return past


def advanced(state, context, seconds, policy):
    """Return the state after one more frame, at a time."""
    return advance(state and decay(state, seconds, policy), context, seconds, policy)


def test_a_fading_past_is_a_share_of_the_past_and_the_last_context():
    contexts = [context_of(*torch.rand(5, generator=torch.Generator().manual_seed(i)).tolist()) for i in range(20)]
    state, past = None, torch.zeros(1, 1, 5)
    for i, context in enumerate(contexts):
        state = advanced(state, context, i / 25, Fading(0.8))
        past = 0.8 * (past + context)
        torch.testing.assert_close(past_of(state, (i + 1) / 25, Fading(0.8)), past)
    assert len(state.contexts) == 1


def test_a_dropped_frame_changes_no_other_s_weight():
    policy = FadingInTime(half_life=0.3)
    marks = torch.eye(12).tolist()  # so that the past tells what each frame weighs
    weights = []
    for step in (1, 2, 3):
        state = None
        for i in range(0, 12, step):
            state = advanced(state, context_of(*marks[i]), i / 10, policy)
        weights.append(past_of(state, 1.2, policy).flatten())
        expected = torch.tensor([0.5 ** ((1.2 - i / 10) / 0.3) if i % step == 0 else 0.0 for i in range(12)])
        torch.testing.assert_close(weights[-1], expected)
    torch.testing.assert_close(weights[0][::2], weights[1][::2])
    torch.testing.assert_close(weights[0][::3], weights[2][::3])


def test_at_a_steady_rate_fading_in_time_is_fading(model, frames):
    times = [i / 10 for i in range(6)]
    by_time = [x for _, x in label_frames(model, frames, FadingInTime(half_life=0.2), times=times)]
    by_frame = [x for _, x in label_frames(model, frames, Fading(0.5**0.5), times=times)]
    assert differing(by_time, by_frame) < 10


def test_after_a_long_time_nothing_of_the_past_is_left(model, frames):
    _, state = run(model, frames[:3], FadingInTime(0.1))
    labels, after = label_frame(model, frames[3], state, FadingInTime(0.1), seconds=1e6)
    assert labels.equal(segment(frames[3], model))
    assert after.weights == (1.0,)


def test_a_clock_that_goes_back_changes_no_weight():
    state = advanced(None, context_of(1.0), 100.0, FadingInTime(1.0))
    assert past_of(state, 50.0, FadingInTime(1.0)).item() == 1.0


def test_frames_without_times_come_25_a_second(model, frames):
    timed = label_frames(model, frames, FadingInTime(0.05), times=(i / 25 for i in range(100)))
    untimed = label_frames(model, frames, FadingInTime(0.05))
    assert differing([x for _, x in timed], [x for _, x in untimed]) < 10
    assert run(model, frames, 2)[1].seconds == pytest.approx(5 / 25)


@pytest.mark.parametrize("policy", [LastFrames(5, limit=1.5), Fading(0.9, limit=1.5), FadingInTime(1.0, limit=1.5)])
def test_the_past_weighs_no_more_than_the_limit_and_keeps_its_proportions(policy):
    free = type(policy)(*list(vars(policy).values())[:1])
    state = None
    for i in range(10):
        before = past_of(state, i / 10, policy)
        assert before is None or before.sum() < 1.5 + 1e-5
        state = advanced(state, context_of(*torch.eye(10)[i].tolist()), i / 10, policy)
    limited, whole = (past_of(state, 1.0, x) for x in (policy, free))
    assert limited.sum().item() == pytest.approx(1.5)
    torch.testing.assert_close(limited / limited.sum(), whole / whole.sum())


@pytest.mark.parametrize("window", POLICIES)
def test_a_stream_that_is_saved_and_loaded_goes_on_bit_for_bit(model, frames, window, tmp_path):
    whole, end = run(model, frames, window)
    first, state = run(model, frames[:3], window)
    save_state(state, tmp_path / "a.safetensors")
    loaded = load_state(tmp_path / "a.safetensors")
    assert same(loaded, state)
    assert loaded.seconds == state.seconds
    rest, after = run(model, frames[3:], window, loaded)
    assert differing(whole, first + rest) == 0
    assert same(after, end)


def test_a_stream_goes_on_in_another_process_bit_for_bit(model, frames, tmp_path):
    whole, _ = run(model, frames, 3)
    _, state = run(model, frames[:4], 3)
    save_state(state, tmp_path / "state.safetensors")
    checkpoint.save(model, streamseg.CAMVID, tmp_path / "weights.safetensors")
    for i in (4, 5):
        write_image(tmp_path / f"{i}.png", frames[i])
    program = """if True:
        import sys, torch, streamseg
        from pathlib import Path
        from streamseg.io.images import read_image, write_labels
        from streamseg import label_frames, load_state
        torch.set_num_threads(1)
        folder = Path(sys.argv[1])
        model, classes = streamseg.load(folder / "weights.safetensors")
        frames = [read_image(folder / f"{i}.png") for i in (4, 5)]
        for i, (_, labels) in enumerate(label_frames(model, frames, 3, load_state(folder / "state.safetensors"))):
            write_labels(folder / f"labels{i}.png", labels, classes)
    """
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120)
    for i in (0, 1):
        with Image.open(tmp_path / f"labels{i}.png") as picture:
            assert bytes(picture.tobytes()) == whole[4 + i].numpy().tobytes()


def test_a_stream_can_return_to_an_earlier_state(model, frames):
    _, state = run(model, frames[:3], 3)
    copy = state.contexts.clone()
    first, _ = run(model, frames[3:], 3, state)
    run(model, random_frames(2, seed=1), Fading(0.5), state)
    again, _ = run(model, frames[3:], 3, state)
    assert differing(first, again) == 0
    assert state.contexts.equal(copy)


def test_neither_the_network_nor_the_frame_is_changed(model, frames):
    things = [*model.state_dict().values(), *frames]
    copies = [tensor.clone() for tensor in things]
    run(model, frames, 2)
    assert all(tensor.equal(copy) for tensor, copy in zip(things, copies, strict=True))


@pytest.mark.parametrize("window", [3, Fading(0.5)])
def test_a_state_does_not_grow(model, frames, window):
    sizes = []
    state = None
    for frame in frames:
        _, state = label_frame(model, frame, state, window)
        sizes.append(state.contexts.untyped_storage().nbytes())
    assert sizes[-1] == sizes[-2] <= 2 * 30_720 * 4


@pytest.mark.parametrize("window", [3, Fading(0.5)])
def test_a_fanet_plus_streams_as_a_fanet_does(plus, frames, window, tmp_path):
    *_, last = frames
    _, state = run(plus, frames, window)
    assert state.contexts.shape[1:] == (32, 256 + 512)
    streamseg.save_state(state, tmp_path / "state.safetensors")
    again = streamseg.load_state(tmp_path / "state.safetensors")
    assert label_frame(plus, last, again, window)[0].equal(label_frame(plus, last, state, window)[0])
    assert not label_frame(plus, last, state, window)[0].equal(label_frame(plus, last)[0])
    # a new scene drops the past
    assert label_frame(plus, last, state, window, cut=0)[0].equal(label_frame(plus, last)[0])


def test_a_state_of_another_network_is_refused(model, frames):
    _, state = run(streamseg.fanet18(classes=11, key_channels=8).eval(), frames[:1], 2)
    with pytest.raises(ValueError, match="another network: its contexts are 8 x 960, but those of this network 32 x"):
        label_frame(model, frames[1], state, 2)


def matrices(frames=1):
    return {"contexts": torch.ones(frames, 2, 3)}


def evidence(**others):
    tensors = {"luma": torch.ones(2, 3), "scores": torch.ones(4, 2, 3), "labels": torch.ones(8, 12).byte()} | others
    return matrices() | {f"evidence.{name}": tensor for name, tensor in tensors.items() if tensor is not None}


GOOD = {"weights": [1.0], "seconds": 0.0}


@pytest.mark.parametrize(
    ("tensors", "entry", "sentence"),
    [
        (matrices(), None, "holds no state of a stream: give a file that save_state wrote"),
        (matrices(), "nonsense", "has invalid metadata"),
        (matrices(), "[]", "has invalid metadata"),
        (matrices(), "[" * 100_000, "has invalid metadata"),
        (matrices(), {"weights": [1.0]}, "has invalid metadata"),
        ({}, GOOD, "has invalid metadata"),
        (matrices(), {"weights": [10**400], "seconds": 0}, "has invalid metadata"),
        (matrices(), {"weights": [], "seconds": 0}, "other tensors than the contexts"),
        (matrices() | {"more": torch.ones(1)}, GOOD, "other tensors than the contexts"),
        (matrices(frames=2), GOOD, "other tensors than the contexts"),
        ({"contexts": torch.ones(3)}, GOOD, "other tensors than the contexts"),
        (matrices() | {"coarse": torch.ones(2, 2)}, GOOD, "other tensors than the contexts"),
        (matrices() | {"coarse": torch.ones(2).byte()}, GOOD, "other tensors than the contexts"),
        (matrices(), {"weights": [-1.0], "seconds": 0}, "invalid numbers"),
        (matrices(), {"weights": [math.nan], "seconds": 0}, "invalid numbers"),
        (matrices(), {"weights": [1.0], "seconds": math.inf}, "invalid numbers"),
        ({"contexts": torch.ones(1, 2, 3).half()}, GOOD, "invalid numbers"),
        ({"contexts": torch.full((1, 2, 3), math.nan)}, GOOD, "invalid numbers"),
        (evidence(luma=None), GOOD, "has invalid metadata"),
        (evidence(luma=torch.ones(3, 2)), GOOD, "has invalid metadata"),
        (evidence(labels=torch.ones(8, 12)), GOOD, "has invalid metadata"),
        (evidence(scores=torch.ones(0, 2, 3)), GOOD, "has invalid metadata"),
        (evidence(scores=torch.full((4, 2, 3), math.inf)), GOOD, "invalid numbers"),
        (evidence(luma=torch.ones(2, 3).half()), GOOD, "invalid numbers"),
        (evidence(mirror_next=torch.tensor(0.5)), GOOD, "has invalid metadata"),
        (evidence(mirror_next=torch.ones(1)), GOOD, "has invalid metadata"),
        (evidence(mirror_next=torch.tensor(1.0).half()), GOOD, "invalid numbers"),
    ],
)
def test_a_file_that_is_no_state_is_refused_in_a_sentence(tmp_path, tensors, entry, sentence):
    path = tmp_path / "a.safetensors"
    text = entry if isinstance(entry, str) else json.dumps(entry)
    write_tensors(path, tensors, {} if entry is None else {"streamseg-state": text})
    with pytest.raises(ValueError, match=rf"a\.safetensors {sentence}|a\.safetensors holds {sentence}"):
        load_state(path)


def test_a_state_that_is_missing_or_cut_short_is_named(model, frames, tmp_path):
    with pytest.raises(FileNotFoundError, match="No state of a stream at .*nowhere"):
        load_state(tmp_path / "nowhere")
    save_state(run(model, frames[:1], 2)[1], tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a\.safetensors is no safetensors file, or is cut short"):
        load_state(tmp_path / "a.safetensors")


def test_a_context_is_at_no_distance_from_itself_and_farther_from_another_scene(model, frames):
    with torch.inference_mode():
        a, b, other = (model.step(x[None])[1] for x in (frames[0], frames[1], random_frames(1, seed=1)[0]))
    assert context_distance(a, a).item() == pytest.approx(0, abs=1e-6)
    assert context_distance(a, [3 * x for x in a]).item() == pytest.approx(0, abs=1e-6)
    assert context_distance(a, b).item() < context_distance(a, other).item()


def test_the_distance_of_contexts_is_that_of_res_2_alone(model, frames):
    with torch.inference_mode():
        scene, other = (model.step(x[None])[1] for x in (frames[0], random_frames(1, seed=1)[0] // 4))
    for stage in range(4):
        changed = [other[i] if i == stage else matrix for i, matrix in enumerate(scene)]
        expected = 1 - F.cosine_similarity(other[1].flatten(1), scene[1].flatten(1)).item() if stage == 1 else 0
        assert context_distance(scene, changed).item() == pytest.approx(expected, abs=1e-5)
    assert context_distance(scene, other).item() > 0.05


@pytest.mark.parametrize("state", [None, "state", ()])
def test_what_is_no_state_is_not_saved(tmp_path, state):
    with pytest.raises(ValueError, match=f"The state is a {type(state).__name__}; expected a State"):
        save_state(state, tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("policy", "options"),
    [(Fading, {"share": x}) for x in (0, 1, 1.5, -0.5, math.nan, "0.5", True)]
    + [(FadingInTime, {"half_life": x}) for x in (0, -1, math.nan, math.inf, None)]
    + [(LastFrames, {"frames": 2, "limit": x}) for x in (0, -1, math.nan, None)]
    + [(LastFrames, {"frames": 1, "steady": x}) for x in (-1, math.nan, math.inf, None, True)],
)
def test_a_policy_takes_sensible_numbers(policy, options):
    with pytest.raises(ValueError, match=f"{list(options)[-1]} is .*; expected"):
        policy(**options)
