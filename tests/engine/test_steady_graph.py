"""The graph of steady labels, run on the CPU step by step, and on a GPU as it is."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.engine.engine import FrameBatch, predict_steadily
from streamseg.engine.steady_graph import SteadyGraph, label_on_gpu
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW
from streamseg.stream.label_frames import label_frame, step_batch
from streamseg.stream.state import LastFrames
from tests import plain

H, W, SIZE = 16, 32, (64, 128)
CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])]


def picture(seed=0, height=SIZE[0], width=SIZE[1]):
    coarse = torch.rand(1, 3, height // 16, width // 16, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(255 * coarse, (height, width), mode="bicubic", align_corners=False).clamp(0, 255).byte()


def random_scores(seed=0, classes=5):
    return 3 * torch.randn(1, classes, H, W, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("with_confidence", [False, True])
def test_the_graph_of_a_gpu_computes_what_the_other_engines_do(device, with_confidence):
    label = partial(label_on_gpu, with_confidence=with_confidence)
    images = torch.cat([picture(0), picture(1)]).to(device)
    scores = torch.cat([random_scores(0), random_scores(1)]).to(device)
    graph = SteadyGraph(images, scores, SIZE, STEADY_HIGH, with_confidence)
    batch = FrameBatch(images, None, [0.0] * 2, [SIZE] * 2, with_confidence, STEADY_HIGH)
    evidence = [None, None]
    for step in range(4):
        images.copy_(torch.cat([picture(0).roll(2 * step, 3), picture(1).roll(step, 2)]))  # as the network's graph does
        scores.copy_(torch.cat([random_scores(step), random_scores(step + 9)]))
        if step == 2:
            evidence[1] = None  # another stream begins
        now = batch._replace(evidence=evidence, gaps=[0.04, 0.2])
        ours, theirs = graph.predict(now), predict_steadily(scores, now, STEADY_HIGH, label)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.evidence.scores, b.evidence.scores)
            assert (a.labels != b.labels).float().mean() < 0.001
            assert with_confidence is (a.confidence is not None)
            if with_confidence:
                assert (a.confidence.int() - b.confidence.int()).abs().float().mean() < 0.1
        evidence = [prediction.evidence for prediction in theirs]


def test_a_stream_without_a_past_gets_nothing_of_the_one_before_it():
    images, scores = picture(0), random_scores(0)
    graph = SteadyGraph(images, scores, SIZE, STEADY_HIGH, False)
    batch = FrameBatch(images, None, [0.0], [SIZE], False, STEADY_HIGH, gaps=[0.04])
    (first,) = graph.predict(batch)
    broken = first.evidence._replace(scores=torch.full_like(first.evidence.scores, torch.nan))
    graph.predict(batch._replace(evidence=[broken]))
    (again,) = graph.predict(batch)
    assert again.labels.equal(first.labels)
    assert again.evidence.scores.equal(first.evidence.scores)


# the whole fast engine: on a GPU the graph of the network, and the steady graph on its buffers

STEADY = LastFrames(1, steady=STEADY_HIGH)


def fast_engine(device, seed=0):
    torch.manual_seed(seed)
    model = plain.randomise(streamseg.fanet18(classes=5, key_channels=8)).eval()
    return streamseg.accelerate(model.to(device))


def drive(seed, device, frames=5):
    return [picture(seed).roll(2 * t, 3)[0].to(device) for t in range(frames)]


def label_all(engine, frames, policy=STEADY, state=None):
    found = []
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
    for t in (0, 3):
        assert (found[t] != engine(frames[t]).cpu()).float().mean() < 0.001


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
