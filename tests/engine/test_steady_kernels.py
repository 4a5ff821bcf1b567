"""The Triton kernels of steady labels, which must equal the definitions in PyTorch.

Without a GPU they run in Triton's interpreter, if Triton is installed.
"""

import importlib.util
import itertools
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from streamseg.engine import kernels, motion, steadying
from streamseg.engine.engine import FrameBatch, find_mirrored, predict_steadily
from streamseg.engine.kernels import averaging, backend, brightness
from streamseg.engine.mirroring import mirror
from streamseg.engine.steady_graph import SteadyBuffers, label_on_gpu
from streamseg.engine.steadying import STEADY_HIGH, STEADY_LOW, Steadiness

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = [((64, 128), (32, 64)), ((67, 130), (33, 50)), ((45, 37), (11, 9)), ((19, 90), (7, 45)), ((50, 20), (4, 3))]
"""Sizes of frames, and of the brightness: some with several sizes of motion, some with one."""


@pytest.fixture(autouse=True)
def _triton():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install triton")


@pytest.fixture
def use_triton(monkeypatch):
    """Choose between the kernels and the definitions."""
    return lambda use: monkeypatch.setattr(backend, "use_triton", lambda _: use)


def picture(seed, size):
    coarse = torch.rand(1, 3, size[0] // 8 + 2, size[1] // 8 + 2, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(255 * coarse, size, mode="bicubic", align_corners=False).clamp(0, 255).byte().to(DEVICE)


def two_streams(size, small):
    """Frames of two streams, one that moves and one that was cut, and the brightness of the frames before."""
    first, second = picture(0, size), picture(1, size)
    images = torch.cat([first.roll((1, 3), (2, 3)), second])
    before = steadying.shrink_to_luma(torch.cat([first, 255 - second]).float(), small)[:, 0]
    return images, torch.stack([torch.full_like(before, -1.0), before])


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "small"), CASES)
def test_triton_makes_the_brightness_of_frames_in_all_sizes(use_triton, size, small):
    images, pair = two_streams(size, small)
    expected = steadying.shrink_to_luma(images.float(), small)  # the CPU rounds bytes
    use_triton(True)
    for given in (images, images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)):
        pair[0] = -1
        levels = kernels.make_pyramids(given, pair)
        torch.testing.assert_close(pair[0][:, None], expected, rtol=1e-5, atol=1e-3)
        assert [tuple(level.shape[2:]) for level in levels] == motion.level_sizes(small)
        for finer, level in itertools.pairwise(levels):
            torch.testing.assert_close(level, motion.halve(finer), rtol=1e-5, atol=1e-3)


def test_a_program_of_brightness_holds_a_pixel_of_the_smallest_size():
    assert brightness.SIDE % 2 ** (len(motion.CORRECTIONS) - 1) == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "small"), CASES)
def test_triton_finds_the_motion_of_frames(use_triton, size, small):
    images, pair = two_streams(size, small)
    use_triton(False)
    levels = kernels.make_pyramids(images, pair)
    expected = kernels.estimate_motion(levels)
    use_triton(True)
    found = kernels.estimate_motion(levels)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize(("size", "small"), CASES)
def test_triton_compares_frames(use_triton, size, small, scale):
    images, pair = two_streams(size, (small[0] // scale * scale, small[1] // scale * scale))
    map_size = (small[0] // scale, small[1] // scale)
    use_triton(True)
    found = kernels.compare_frames(images, pair, map_size, STEADY_LOW)
    expected = steadying.compare(pair[0][:, None], pair[1][:, None], map_size, STEADY_LOW)
    torch.testing.assert_close(found.motion, expected.motion, rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(found.still, expected.still, rtol=1e-3, atol=1e-4)
    # a pixel that moves just over the edge of the frame may count on one side only
    assert ((found.alike - expected.alike).abs() > 2e-3).float().mean() < 0.02
    torch.testing.assert_close(found.found.sum(dim=1), expected.found[:, 0], rtol=0, atol=0.01)
    again = kernels.compare_frames(images, pair, map_size, STEADY_LOW)
    assert all(a.equal(b) for a, b in zip(found, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [1, 5, 11])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_triton_averages_scores(use_triton, classes, layout):
    h, w = 9, 31
    dice = torch.Generator().manual_seed(0)
    scores = torch.randn(3, classes, h, w, generator=dice).to(DEVICE, torch.float16).contiguous(memory_format=layout)
    earlier = torch.randn(3, classes, h, w, generator=dice).to(DEVICE)
    comparison = steadying.Comparison(
        (4 * torch.randn(3, 2, h, w, generator=dice)).to(DEVICE),
        torch.rand(3, 1, h, w, generator=dice).to(DEVICE),
        torch.rand(3, 1, h, w, generator=dice).to(DEVICE),
        torch.tensor([[0.2, 0.3, 0.2], [0.3, 0.5, 0.1], [0.3, 0.5, 0.1]], device=DEVICE),
    )
    comparison.motion[0, :, 0, 0], comparison.motion[0, :, 0, 1] = 1e9, -1e9
    weight = torch.tensor([1.0, 0.25, 0.0], device=DEVICE)
    carried, out = torch.full((2, 3, classes, h, w), torch.nan, device=DEVICE)
    trust = steadying.weigh(comparison, weight, STEADY_HIGH)
    moved = motion.move(earlier, comparison.motion, "bicubic")
    shares = STEADY_HIGH.share * trust.likeness
    expected = [torch.lerp(scores.float(), moved, part) for part in (shares, steadying.carried_share(shares))]
    change = steadying.mean_change(scores.float(), moved, trust.likeness).flatten()
    earlier[2] = torch.nan  # a stream without a past
    use_triton(True)
    changes = torch.full((3, 2), 7, device=DEVICE)
    likeness, margin = kernels.move_scores(earlier, comparison, weight, STEADY_HIGH, carried, changes)
    assert changes.eq(0).all()
    again, other, changes_again = carried.clone(), torch.full_like(out, torch.nan), changes.clone()
    kernels.average_scores(scores, likeness, STEADY_HIGH.share, carried, out, changes)
    torch.testing.assert_close(averaging.mean_change_of_sums(changes, classes), change, rtol=1e-3, atol=1e-3)
    for ours, theirs in zip((out, carried), expected, strict=True):
        torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-4, atol=1e-4)
    flags = torch.tensor([[5.0, 5.0, 5.0], [1.0, 0.0, 1.0]], device=DEVICE)
    given = mirror(scores, flags[1]), likeness, STEADY_HIGH.share
    kernels.average_scores(*given, again, other, changes_again, flags)
    assert again.equal(carried)
    assert other.equal(out)
    assert changes_again.equal(changes)
    assert flags.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    torch.testing.assert_close(margin, trust.margin, rtol=1e-5, atol=1e-6)
    assert out[2].equal(scores[2].float())
    assert carried[2].equal(scores[2].float())
    assert margin[2].eq(0).all()


@pytest.mark.gpu
def test_triton_drops_all_evidence_after_a_cut(use_triton):
    images, pair = two_streams((67, 130), (32, 64))
    scores, earlier = torch.randn(2, 2, 5, 16, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    carried, out, weight = torch.empty_like(scores), torch.empty_like(scores), torch.ones(2, device=DEVICE)
    use_triton(True)
    sharp = Steadiness(share=0.8, tolerance=0.0, margin=1.0, still=0.0)  # no division by 0
    for steadiness in (STEADY_HIGH, sharp):
        comparison = kernels.compare_frames(images, pair, (16, 32), steadiness)
        changes = torch.zeros(2, 2, dtype=torch.int64, device=DEVICE)
        likeness, margin = kernels.move_scores(earlier, comparison, weight, steadiness, carried, changes)
        kernels.average_scores(scores, likeness, steadiness.share, carried, out, changes)
        assert margin[1].eq(0).all()
        for averaged in (out, carried):
            assert averaged[1].equal(scores[1])
            assert not averaged.isnan().any()
            assert averaged[0].equal(scores[0]) is (steadiness is sharp)


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "map_size"), [((64, 128), (8, 16)), ((65, 70), (9, 9))])
def test_streams_of_a_batch_are_kept_steady_by_the_kernels_as_by_their_definitions(use_triton, size, map_size):
    dice = torch.Generator().manual_seed(0)
    images, scores = picture(0, size).repeat(2, 1, 1, 1), torch.zeros(2, 5, *map_size, device=DEVICE)
    buffers, label = (
        SteadyBuffers(images, (5, *map_size), size, STEADY_HIGH, True),
        partial(label_on_gpu, with_confidence=True),
    )
    batch = FrameBatch(images, None, [0.0] * 2, [size] * 2, True, STEADY_HIGH)
    evidence = [None, None]
    for step in range(4):
        second = picture(2 if step == 3 else 1, size)  # it ends with a cut
        images.copy_(torch.cat([picture(0, size).roll(2 * step, 3), second.roll(step, 2)]))
        scores.copy_(3 * torch.randn(scores.shape, generator=dice))
        if step == 1:
            evidence[0] = None  # another stream begins, so that one of both frames is mirrored
        now = batch._replace(evidence=evidence, gaps=[0.04, 0.2], longest_gaps=[0.04, 0.2])
        use_triton(True)
        buffers.set_evidence(now)
        buffers.start()
        buffers.compare()
        buffers.finish(mirror(scores, buffers.mirrored))  # as those of mirrored frames are
        ours = buffers.read()
        use_triton(False)
        # as floats: the CPU rounds the brightness of bytes
        mirrored = find_mirrored(now, scores.device)
        now = now._replace(images=images.float())
        theirs = predict_steadily(mirror(scores, mirrored), now, STEADY_HIGH, label, mirrored)
        for a, b in zip(ours, theirs, strict=True):
            assert a.evidence.mirror_next.item() == b.evidence.mirror_next.item()
            torch.testing.assert_close(a.evidence.luma, b.evidence.luma, rtol=1e-5, atol=1e-3)
            assert ((a.evidence.scores - b.evidence.scores).abs() > 0.01).float().mean() < 0.01
            assert (a.labels != b.labels).float().mean() < 0.005
            assert ((a.confidence.int() - b.confidence.int()).abs() > 2).float().mean() < 0.01
            assert a.evidence.labels.equal(a.labels)
        evidence = [prediction.evidence for prediction in (ours if step == 1 else theirs)]  # packed, or in parts
