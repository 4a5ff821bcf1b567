"""The graph of steady labels, run on the CPU step by step, and on a GPU as it is."""

import copy
import dataclasses
import pickle
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.engine import fast, steadying
from streamseg.engine.engine import FrameBatch, find_mirrored, predict_steadily
from streamseg.engine.evidence import Evidence, PackedEvidence
from streamseg.engine.graphs import capture_graph
from streamseg.engine.mirroring import mirror
from streamseg.engine.steady_graph import SteadyBuffers, label_on_gpu
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW
from streamseg.stream.label_frames import label_frame, step_batch
from streamseg.stream.state import LastFrames, find_longest_gap, load_state, save_state
from tests import plain

H, W, SIZE = 16, 32, (64, 128)
CUDA = torch.cuda.is_available()
TOLERANCE = {"cpu": {}, "cuda": {"rtol": 0, "atol": 1e-3}}
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])]


def picture(seed=0, height=SIZE[0], width=SIZE[1]):
    coarse = torch.rand(1, 3, height // 16, width // 16, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(255 * coarse, (height, width), mode="bicubic", align_corners=False).clamp(0, 255).byte()


def random_scores(seed=0, classes=5):
    return 3 * torch.randn(1, classes, H, W, generator=torch.Generator().manual_seed(seed))


class Replay:
    """A graph that the CPU runs step by step."""

    def __init__(self, run, device):
        self.replay = run


def capture(run, device):
    return (capture_graph if torch.device(device).type == "cuda" else Replay)(run, torch.device(device))


class Steady:
    """Buffers of steady labels with a graph of their own, for scores that a test writes, none of them mirrored."""

    def __init__(self, images, scores, with_confidence=False, mask=None):
        self.buffers = SteadyBuffers(images, tuple(scores.shape[1:]), SIZE, STEADY_HIGH, with_confidence, mask)
        self.scores = scores  # before the capture, which runs
        self.graph = capture(self.run, images.device)

    def run(self):
        self.buffers.start()
        self.buffers.compare()
        self.buffers.finish(mirror(self.scores, self.buffers.mirrored))  # as those of mirrored frames are

    def predict(self, batch):
        self.buffers.set_evidence(batch)
        self.graph.replay()
        return self.buffers.read()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("with_confidence", [False, True])
def test_the_graph_of_a_gpu_computes_what_the_other_engines_do(device, with_confidence):
    label = partial(label_on_gpu, with_confidence=with_confidence)
    images = torch.cat([picture(0), picture(1)]).to(device)
    scores = torch.cat([random_scores(0), random_scores(1)]).to(device)
    graph = Steady(images, scores, with_confidence)
    graph.buffers.class_shares.fill_(torch.nan)
    batch = FrameBatch(images, None, [0.0] * 2, [SIZE] * 2, with_confidence, STEADY_HIGH)
    evidence = [None, None]
    lower = torch.tensor([0.0, 0.0, 0.0, 4.0, 6.0], device=device).view(-1, 1, 1)  # two classes are rare
    for step in range(4):
        images.copy_(torch.cat([picture(0).roll(2 * step, 3), picture(1).roll(step, 2)]))  # as the network's graph does
        scores.copy_(torch.cat([random_scores(step), random_scores(step + 9)])).sub_(lower)
        if step == 1:
            evidence[1] = None  # another stream begins
        # the second is too slow to be mirrored
        now = batch._replace(evidence=evidence, gaps=[0.04, 0.2], longest_gaps=[0.04, 0.2])
        ours, mirrored = graph.predict(now), find_mirrored(now, torch.device(device))
        theirs = predict_steadily(mirror(scores, mirrored), now, STEADY_HIGH, label, mirrored)
        for a, b in zip(ours, theirs, strict=True):
            # the kernels add up in another order than the definitions: in Triton's interpreter scores differ by 2e-5
            torch.testing.assert_close(a.evidence.scores, b.evidence.scores, **TOLERANCE[device])
            assert (a.labels != b.labels).float().mean() < 0.001
            assert with_confidence is (a.confidence is not None)
            if with_confidence:
                assert (a.confidence.int() - b.confidence.int()).abs().float().mean() < 0.1
            assert a.evidence.mirror_next.item() == b.evidence.mirror_next.item()
        assert (graph.buffers.class_shares < steadying.RARE_NEW).any()
        evidence = [prediction.evidence for prediction in theirs]
        assert [entry.mirror_next.item() for entry in evidence] == [(step + 1) % 2, 1]


@pytest.mark.parametrize("device", DEVICES)
def test_a_cut_is_seen_beside_a_mask(device):
    mask = torch.ones(1, *SIZE, device=device)
    mask[:, SIZE[0] // 16 :] = 0
    first = torch.where(mask[:, None] > 0, picture(0).to(device), 127).byte()
    second = torch.where(mask[:, None] > 0, 255 - first, 127).byte()
    found = []
    for seen in (None, mask):
        images, scores = first.clone(), random_scores(0).to(device)
        graph = Steady(images, scores, mask=seen)
        batch = FrameBatch(images, None, [0.0], [SIZE], False, STEADY_HIGH, gaps=[0.04], longest_gaps=[0.2])
        (before,) = graph.predict(batch)
        images.copy_(second)
        scores.copy_(random_scores(1))
        graph.predict(batch._replace(evidence=[before.evidence]))
        found.append(graph.buffers.scores.clone())
    without, beside = found
    assert not without.equal(scores)  # what is hidden looks alike
    assert beside.equal(scores)


def test_a_stream_without_a_past_gets_nothing_of_the_one_before_it():
    images, scores = picture(0), random_scores(0)
    graph = Steady(images, scores)
    batch = FrameBatch(images, None, [0.0], [SIZE], False, STEADY_HIGH, gaps=[0.04])
    (first,) = graph.predict(batch)
    broken = Evidence(*first.evidence)._replace(scores=torch.full_like(first.evidence.scores, torch.nan))
    graph.predict(batch._replace(evidence=[broken]))
    (again,) = graph.predict(batch)
    assert again.labels.equal(first.labels)
    assert again.evidence.scores.equal(first.evidence.scores)


def unpack(evidence):
    return Evidence(*(tensor.clone() for tensor in evidence))


def test_evidence_is_one_piece_of_memory_for_each_stream_and_counts_as_its_parts_do():
    images, scores = torch.cat([picture(0), picture(1)]), torch.cat([random_scores(0), random_scores(1)])
    graph = Steady(images, scores)
    layout = graph.buffers.layout
    batch = FrameBatch(images, None, [0.0] * 2, [SIZE] * 2, False, STEADY_HIGH, gaps=[0.04] * 2)
    before = [prediction.evidence for prediction in graph.predict(batch)]
    assert all("parts" not in vars(entry) for entry in before)  # no views, until they are asked for
    scores.copy_(torch.cat([random_scores(2), random_scores(3)]))
    results = []
    for given in (before, [unpack(entry) for entry in before], [before[0], unpack(before[1])]):
        graph.buffers.packed.fill_(torch.nan)
        graph.buffers.held = [None, None]
        results.append(graph.predict(batch._replace(evidence=given)))
    for one in results[0]:
        assert one.evidence.luma.untyped_storage().nbytes() == 4 * layout.length
        assert one.labels.untyped_storage().nbytes() == one.labels.numel()  # no part of the evidence
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.labels.equal(b.labels)
            assert all(x.equal(y) for x, y in zip(a.evidence, b.evidence, strict=True))


def test_packed_evidence_of_another_size_is_resized_part_by_part():
    images, scores = picture(0), random_scores(0)
    graph, other = Steady(images, scores), SteadyBuffers(images, (5, H // 2, W // 2), SIZE, STEADY_HIGH, False)
    batch = FrameBatch(images, None, [0.0], [SIZE], False, STEADY_HIGH, gaps=[0.04])
    (first,) = graph.predict(batch)
    assert isinstance(first.evidence, PackedEvidence)
    other.set_evidence(batch._replace(evidence=[first.evidence]))
    mean = F.avg_pool2d(first.evidence.scores[None], 2)[0]
    assert (other.carried[0] - mean).abs().mean() < 1  # with anti-aliasing
    assert other.labels[0].equal(first.evidence.labels)
    parts = Evidence(*first.evidence)
    graph.predict(batch._replace(evidence=[parts._replace(scores=parts.scores + 1)]))
    assert graph.buffers.earlier[0].equal(parts.scores + 1)


def test_evidence_that_is_in_the_buffers_is_not_copied_and_other_evidence_is():
    images, scores = picture(0), random_scores(0)
    graph = Steady(images, scores)
    batch = FrameBatch(images, None, [0.0], [SIZE], False, STEADY_HIGH, gaps=[0.04])
    (first,) = graph.predict(batch)
    scores.copy_(random_scores(1))
    copied = []
    graph.buffers.copy_evidence = lambda i, evidence: (
        copied.append(i) or SteadyBuffers.copy_evidence(graph.buffers, i, evidence)
    )
    after = batch._replace(evidence=[first.evidence])
    (second,) = graph.predict(after)
    assert not copied
    for given in (after, batch._replace(evidence=[copy.deepcopy(first.evidence)])):  # back to the first frame
        (again,) = graph.predict(given)
        assert again.labels.equal(second.labels)
        assert again.evidence.scores.equal(second.evidence.scores)
    assert copied == [0, 0]
    other = first.evidence
    del first, after, given
    (third,) = graph.predict(batch)  # another stream begins
    assert not third.evidence.scores.equal(second.evidence.scores)
    graph.predict(batch._replace(evidence=[other]))
    assert copied == [0, 0, 0]


def test_packed_evidence_is_saved_and_copied_like_any_other(tmp_path):
    graph = Steady(picture(0), random_scores(0))
    (found,) = graph.predict(FrameBatch(picture(0), None, [0.0], [SIZE], False, STEADY_HIGH))
    _, state = label_frame(fast_engine("cpu"), picture(0)[0], None, STEADY)
    state = dataclasses.replace(state, evidence=found.evidence)
    save_state(state, tmp_path / "state.safetensors")
    for other in (load_state(tmp_path / "state.safetensors"), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert all(a.equal(b) for a, b in zip(other.evidence, found.evidence, strict=True))
        assert other.evidence.scores.data_ptr() != found.evidence.scores.data_ptr()


# the whole fast engine as on a GPU: one graph of the network and of what keeps labels steady

STEADY = LastFrames(1, steady=STEADY_HIGH)


@pytest.fixture(autouse=True)
def _graphs(monkeypatch):
    monkeypatch.setattr(fast, "capture_graph", capture)


def fast_engine(device, seed=0):
    torch.manual_seed(seed)
    model = plain.randomise(streamseg.fanet18(classes=5, key_channels=8)).eval()
    engine = streamseg.accelerate(model.to(device))
    engine.predict = engine.predict_on_gpu if device == "cpu" else engine.predict  # also there
    return engine


def drive(seed, device, frames=5):
    return [picture(seed).roll(2 * t, 3)[0].to(device) for t in range(frames)]


def label_all(engine, frames, policy=STEADY):
    for _ in range(2):  # the first batch of a size runs without a graph, and on a GPU by other algorithms
        label_frame(engine, frames[0], None, policy)
    found, state = [], None
    for t, frame in enumerate(frames):
        labels, state = label_frame(engine, frame, state, policy, seconds=t / 15)
        found.append(labels)
    return torch.stack(found).cpu()


@pytest.mark.parametrize("device", DEVICES)
def test_streams_that_take_turns_are_labelled_as_if_alone(device):
    engine, drives = fast_engine(device), [drive(0, device), drive(1, device)]
    alone = [label_all(engine, frames) for frames in drives]
    assert alone[0].unique().numel() > 1
    states, found = [None, None], [[], []]
    for t in range(len(drives[0])):
        for one in (0, 1):
            labels, states[one] = label_frame(engine, drives[one][t], states[one], STEADY, seconds=t / 15)
            found[one].append(labels)
    for one in (0, 1):
        assert torch.stack(found[one]).cpu().equal(alone[one])


@pytest.mark.parametrize("device", DEVICES)
def test_policies_that_take_turns_label_as_if_alone(device):
    engine, frames = fast_engine(device), drive(0, device)
    policies = [STEADY, LastFrames(1, steady=STEADY_LOW), LastFrames(1)]
    alone = [label_all(engine, frames, policy) for policy in policies]
    states, found = [None] * 3, [[], [], []]
    for t, frame in enumerate(frames):
        for one, policy in enumerate(policies):
            labels, states[one] = label_frame(engine, frame, states[one], policy, seconds=t / 15)
            found[one].append(labels)
    for one in range(3):
        assert torch.stack(found[one]).cpu().equal(alone[one])


@pytest.mark.parametrize("device", DEVICES)
def test_first_frames_and_frames_after_a_cut_are_labelled_by_themselves(device):
    engine, frames = fast_engine(device), [*drive(0, device, 3), *drive(7, device, 1)]
    found = label_all(engine, frames)
    mirrored = engine(frames[3].flip(2)).flip(1)  # each second frame is labelled so
    for ours, theirs in ((found[0], engine(frames[0])), (found[3], mirrored)):
        assert (ours != theirs.cpu()).float().mean() < 0.001


@pytest.mark.parametrize("device", DEVICES)
def test_streams_of_one_batch_are_labelled_as_if_alone(device):
    engine, drives = fast_engine(device), [drive(0, device), drive(1, device), drive(2, device)]
    alone = [label_all(engine, frames) for frames in drives]
    states = [None] * 3
    for t, images in enumerate(map(torch.stack, zip(*drives, strict=True))):
        if t == 2:  # the last stream begins again
            states[2], alone[2] = None, torch.cat([alone[2][:2], label_all(engine, drives[2][2:])])
        predictions, states = step_batch(engine, images, states, STEADY, sizes=[SIZE] * 3, times=[t / 15] * 3)
        for one, prediction in enumerate(predictions):
            # a batch may run by other algorithms of convolutions
            assert (prediction.labels.cpu() != alone[one][t]).float().mean() < 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_calls_in_several_cuda_streams_wait_for_each_other():
    engine, drives = fast_engine("cuda"), [drive(seed, "cuda", 12) for seed in (0, 1, 2)]
    alone = [label_all(engine, frames) for frames in drives]
    torch.cuda.synchronize()
    queues, states, found = [torch.cuda.Stream() for _ in drives], [None] * 3, [[], [], []]
    for t in range(12):
        for one, queue in enumerate(queues):
            with torch.cuda.stream(queue):  # the host never waits
                labels, states[one] = label_frame(engine, drives[one][t], states[one], STEADY, seconds=t / 15)
                found[one].append(labels)
    torch.cuda.synchronize()
    for one in range(3):
        assert torch.stack(found[one]).cpu().equal(alone[one])


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_the_fast_engine_of_a_gpu_keeps_labels_as_steady_as_that_of_the_cpu():
    frames = drive(0, "cpu", 6)
    ours, theirs = label_all(fast_engine("cuda"), [x.cuda() for x in frames]), label_all(fast_engine("cpu"), frames)
    assert (ours != theirs).float().mean() < 0.03  # half precision


# two streams by turns of their places in a batch, alone, after a cut, after a gap, and from the first frame again
SCHEDULE = [(0, 1), (0, 1), (1, 0), (1, 0), (0,), (1,), (0, 1), (1, 0), (0, 1), (0,), (0,), (1, 0), (0, 1)]
CUTS, GAPS, RESTARTS = {(0, 7), (1, 8)}, {(1, 3): 0.5, (0, 9): 0.25}, {(1, 12)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("steadiness", "with_confidence"), [(STEADY_LOW, True), (STEADY_HIGH, False)])
def test_each_frame_of_streams_is_labelled_as_the_definition_does(device, steadiness, with_confidence):
    engine, policy = fast_engine(device), LastFrames(1, steady=steadiness)
    states, evidence, clocks, scenes, changed = [None, None], [None, None], [0.0, 0.0], [0, 1], 0
    turns = []
    for t, order in enumerate(SCHEDULE):
        gaps = {one: GAPS.get((one, t), 1 / 15) for one in order}
        for one in order:
            clocks[one] += gaps[one]
            scenes[one] += 5 * ((one, t) in CUTS)
            if (one, t) in RESTARTS:
                states[one] = evidence[one] = None
        images = torch.cat([picture(scenes[one]).roll((t, 2 * t), (2, 3)) for one in order])
        predictions, after = step_batch(
            engine,
            images.to(device),
            [states[one] for one in order],
            policy,
            sizes=[SIZE] * len(order),
            times=[clocks[one] for one in order],
            with_confidence=with_confidence,
        )
        (buffers,) = (entry for key, entry in engine.buffers.items() if key[0][0] == len(order))
        assert (buffers.graph is None) is (t == 0 or t == 4)  # the first batch of a size runs without a graph
        given = images if device == "cpu" else images.float()  # the CPU rounds the brightness of bytes
        batch = FrameBatch(given, None, [0.0] * len(order), [SIZE] * len(order), with_confidence, steadiness)
        longest = [find_longest_gap(states[one], clocks[one]) for one in order]
        seconds = [gaps[one] for one in order]
        batch = batch._replace(evidence=[evidence[one] for one in order], gaps=seconds, longest_gaps=longest)
        label = partial(label_on_gpu, with_confidence=with_confidence)
        mirrored = find_mirrored(batch, torch.device("cpu"))
        turns.append([0.0] * len(order) if mirrored is None else mirrored.tolist())
        scores = buffers.scores.float().cpu()
        expected = predict_steadily(scores, batch, steadiness, label, mirrored)
        scores = mirror(scores, mirrored)
        for i, one in enumerate(order):
            ours, theirs = predictions[i], expected[i]
            assert (ours.labels.cpu() != theirs.labels).float().mean() < 0.005, (t, one)
            assert ours.evidence.labels.equal(ours.labels)
            assert ((ours.evidence.luma.cpu() - theirs.evidence.luma).abs() < 0.01).all()
            assert ((ours.evidence.scores.cpu() - theirs.evidence.scores).abs() > 0.02).float().mean() < 0.02, (t, one)
            if with_confidence:
                assert ((ours.confidence.cpu().int() - theirs.confidence.int()).abs() > 2).float().mean() < 0.02
            states[one], evidence[one] = after[i], theirs.evidence
            # after a gap earlier frames decide labels, but too little of them is left to be carried on
            carries_none = t == 0 or (one, t) in CUTS | RESTARTS | GAPS.keys()
            assert ours.evidence.scores.cpu().equal(scores[i]) is carries_none, (t, one)
            changed += not ours.evidence.scores.cpu().equal(scores[i])
    assert changed > 10
    assert turns[1] == [1.0, 1.0]
    assert turns[3] == [0.0, 1.0]  # frames of one batch, one of them after a gap
    assert turns[-1] == [0.0, 0.0]  # one of them soon after a gap, one at its first frame
