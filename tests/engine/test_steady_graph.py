"""The graph of steady labels, run on the CPU step by step, and on a GPU as it is."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from streamseg.engine.engine import FrameBatch, predict_steadily
from streamseg.engine.steady_graph import SteadyGraph, label_on_gpu
from streamseg.engine.steadying import STEADY_HIGH

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
