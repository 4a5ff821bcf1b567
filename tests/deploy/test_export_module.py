"""Exported files that keep the labels of a stream steady."""

from dataclasses import replace

import pytest
import torch
from commands import complaint
from exports import SIZE, moving, small, small_plus

import streamseg
from streamseg import STEADY_HIGH, STEADY_LOW, LastFrames, label_frames
from streamseg.cli.options import check_exported, parse_steady
from streamseg.deploy import export_module
from streamseg.deploy.export import export_model
from streamseg.deploy.export_module import ExportModule
from streamseg.engine.engine import FrameBatch, labels_without_confidence, predict_steadily
from streamseg.engine.runtime import open_exported
from streamseg.io.masks import Mask
from streamseg.stream.label_frames import step_batch


@pytest.fixture(scope="module")
def networks():
    return {"fanet.onnx": small(), "fanet.pt2": small(), "plus.onnx": small_plus()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("steady")


UNMIRRORED = replace(STEADY_HIGH, mirror=False)
both_steadinesses = pytest.mark.parametrize("steady", [STEADY_HIGH, UNMIRRORED], ids=["mirrored", "unmirrored"])


@pytest.fixture(scope="module")
def open_file(networks, folder):
    """Return a function that opens a network's file, which is written once."""

    def open_once(name):
        path = folder / name
        if not path.exists():
            options = {"size": SIZE, "video": True, "confidence": True, "steady": STEADY_HIGH, "window": 2}
            agreement = export_model(networks[name], streamseg.CAMVID, path, **options)
            assert agreement.clip > 0.999
        return open_exported(path, trust=True)

    return open_once


def labels_of(model, policy):
    return [labels for _, labels in label_frames(model, moving(6), policy)]


def differing(one, other):
    return sum((a != b).sum().item() for a, b in zip(one, other, strict=True))


@both_steadinesses
@pytest.mark.parametrize("name", ["fanet.onnx", "fanet.pt2", "plus.onnx"])
def test_a_file_keeps_labels_as_steady_as_the_network(networks, open_file, name, steady):
    policy = LastFrames(2, steady=steady)
    ours, theirs, plain = (
        labels_of(model, window)
        for model, window in ((open_file(name), policy), (networks[name], policy), (networks[name], 2))
    )
    assert differing(ours, theirs) < 0.001 * 6 * SIZE[0] * SIZE[1]
    assert differing(ours, plain) > 10 * differing(ours, theirs)


def test_a_file_gives_the_confidence_of_the_labels_that_it_kept(networks, open_file):
    def predict(model):
        state, found = None, []
        for frame in moving(4):
            policy = LastFrames(2, steady=STEADY_HIGH)
            (one,), (state,) = step_batch(model, frame[None], [state], policy, sizes=[SIZE], with_confidence=True)
            found.append(one.confidence.float())
        return torch.stack(found)

    difference = (predict(open_file("fanet.onnx")) - predict(networks["fanet.onnx"])).abs()
    assert difference.mean() < 0.1


def test_a_file_labels_each_frame_by_itself_if_told_so(networks, open_file):
    ours, theirs = labels_of(open_file("fanet.onnx"), LastFrames(2)), labels_of(networks["fanet.onnx"], LastFrames(2))
    assert differing(ours, theirs) < 0.001 * 6 * SIZE[0] * SIZE[1]


def test_a_state_of_the_network_goes_on_in_the_file(networks, open_file):
    policy, frames = LastFrames(2, steady=STEADY_HIGH), moving(6)
    state = None
    for frame in frames[:3]:
        _, state = streamseg.label_frame(networks["fanet.onnx"], frame, state, policy)
    ours, theirs = (
        [labels for _, labels in label_frames(model, frames[3:], policy, state)]
        for model in (open_file("fanet.onnx"), networks["fanet.onnx"])
    )
    assert differing(ours, theirs) < 0.001 * 3 * SIZE[0] * SIZE[1]


def test_a_file_that_mirrors_frames_need_not(open_file):
    file = open_file("fanet.onnx")
    mirrored, as_they_are = (labels_of(file, LastFrames(2, steady=steady)) for steady in (STEADY_HIGH, UNMIRRORED))
    assert differing(mirrored, as_they_are) > 0
    for steady in (STEADY_HIGH, UNMIRRORED):
        check_exported(file, None, steady=steady)
    with pytest.raises(ValueError, match="keeps labels steady in another way: leave out --steady, or export it again"):
        check_exported(file, None, steady=parse_steady("low"))


def test_a_file_exported_without_mirrored_frames_mirrors_none(networks, tmp_path):
    options = {"size": SIZE, "video": True, "steady": UNMIRRORED}
    assert export_model(networks["fanet.onnx"], streamseg.CAMVID, tmp_path / "a.onnx", **options).clip > 0.999
    file = open_exported(tmp_path / "a.onnx")
    assert "mirrored" not in file.manifest.inputs
    with pytest.raises(ValueError, match="keeps labels steady in another way"):
        labels_of(file, LastFrames(2, steady=STEADY_HIGH))


def test_of_frames_far_apart_a_file_mirrors_none(open_file):
    by_steadiness = []
    for steady in (STEADY_HIGH, UNMIRRORED):
        state, policy, found = None, LastFrames(2, steady=steady), []
        for frame, seconds in zip(moving(4), (0.0, 0.2, 0.4, 0.6), strict=True):
            labels, state = streamseg.label_frame(open_file("fanet.onnx"), frame, state, policy, seconds=seconds)
            found.append(labels)
        by_steadiness.append(found)
    assert differing(*by_steadiness) == 0


def test_the_steadiness_of_a_file_is_fixed(open_file):
    with pytest.raises(ValueError, match="keeps labels steady in another way: leave out steady, or export it again"):
        labels_of(open_file("fanet.onnx"), LastFrames(2, steady=STEADY_LOW))


def hide(rows, columns):
    """Return a mask that hides the first and the last rows, and columns, of a frame."""
    seen = torch.ones(SIZE, dtype=torch.bool)
    seen[: rows[0]], seen[rows[1] :], seen[:, : columns[0]], seen[:, columns[1] :] = False, False, False, False
    return Mask(seen)


@pytest.mark.parametrize("network", [small, small_plus])
@pytest.mark.parametrize("steady", [STEADY_LOW, STEADY_HIGH])
@pytest.mark.parametrize("mask", [None, hide((9, 48), (20, 90))], ids=["whole", "masked"])
def test_from_the_same_state_a_file_labels_a_frame_as_the_network_does(network, steady, mask):
    model = network()
    module = ExportModule(model, False, mask, SIZE, steady).eval()
    contexts = [torch.zeros(1, *attend.context_shape) for attend in model.attentions]
    count = [torch.zeros(1)] if model.averages else []
    state, kept = None, 0
    for frame in moving(6):
        before = state and state.evidence
        expected, state = streamseg.label_frame(model, frame, state, LastFrames(1, steady=steady), mask=mask)
        if before is None:
            continue
        evidence = [before.luma[None, None], before.scores[None], before.labels[None], torch.ones(1)]
        evidence.append(before.mirror_next[None])
        with torch.no_grad():
            labels, *_ = module(frame.permute(1, 2, 0)[None], *contexts, *count, *evidence)
        assert (labels[0] != expected).float().mean() < 0.001
        kept += (expected != streamseg.label_frame(model, frame, mask=mask)[0]).sum().item()
    assert kept > 0  # steadiness changes labels


@pytest.mark.parametrize("network", [small, small_plus])
@pytest.mark.parametrize("steady", [STEADY_LOW, STEADY_HIGH])
def test_what_a_mask_hides_counts_for_no_class_in_the_file_and_in_the_network(tmp_path, network, steady):
    # over many frames two views of a network that has learned nothing would make small differences large
    steady, mask = steady.unmirrored(), hide((SIZE[0] // 8, 2 * SIZE[0] // 3), (0, SIZE[1]))
    options = {"size": SIZE, "video": True, "steady": steady, "window": 2, "mask": mask}
    assert export_model(network(), streamseg.CAMVID, tmp_path / "a.onnx", **options).clip > 0.999


def test_rare_classes_come_into_a_file_as_soon_as_into_the_network(monkeypatch):
    model, frames = small(), torch.stack(moving(2))
    first, second = torch.randn(2, 1, model.classes, 16, 32, generator=torch.Generator().manual_seed(0))
    batch = FrameBatch(frames[:1], None, [0.0], [SIZE], False, STEADY_HIGH)
    (before,) = predict_steadily(first, batch, STEADY_HIGH, labels_without_confidence)
    evidence = before.evidence._replace(labels=before.labels.clamp(max=3))  # without the other classes
    now = batch._replace(images=frames[1:], evidence=[evidence], gaps=[0.04])
    (expected,) = predict_steadily(second, now, STEADY_HIGH, labels_without_confidence)
    module, parts = ExportModule(model, False, size=SIZE, steady=STEADY_HIGH), [part[None] for part in evidence]

    def differing_labels():
        luma, scores, labels, _ = parts
        labels, *_ = module.label_steadily(frames[1:].float(), second, luma[None], scores, labels, torch.ones(1))
        return (labels[0] != expected.labels).float().mean()

    assert differing_labels() < 0.001
    monkeypatch.setattr(export_module, "margin_share", lambda new, old: torch.ones_like(new))
    assert differing_labels() > 0.1


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("a.onnx", {"video": True}, "Steady labels need a file for video, of one size"),
        ("a.onnx", {"size": SIZE}, "Steady labels need a file for video, of one size"),
        ("a.xml", {"size": SIZE, "video": True}, "Steady labels need an ONNX or .pt2 file, but .* is for OpenVINO"),
    ],
)
def test_what_cannot_be_steady_is_said(networks, tmp_path, name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        export_model(networks["fanet.onnx"], streamseg.CAMVID, tmp_path / name, steady=STEADY_LOW, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("how", "sentence"), [("much", "--steady is 'much'"), ("low", "give --video and --size")])
def test_the_command_takes_low_and_high(monkeypatch, capsys, tmp_path, how, sentence):
    assert sentence in complaint(monkeypatch, capsys, "export", tmp_path / "a.onnx", "--steady", how)
