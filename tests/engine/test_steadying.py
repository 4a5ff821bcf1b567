"""Laws of steady labels: what is averaged, what is not, and when a pixel keeps its class."""

import pytest
import torch
from torch.nn import functional as F

from streamseg.engine.labels import labels_from_scores
from streamseg.engine.looking_back import fuse_scores
from streamseg.engine.steadying import (
    STEADY_HIGH,
    STEADY_LOW,
    Evidence,
    Steadiness,
    class_shares,
    compare,
    interpolate_at,
    keep_labels,
    leave_out_hidden,
    lower_confidence,
    weigh,
)

H, W, SIZE = 16, 32, (64, 128)
PLAIN = Steadiness(share=0.8, tolerance=12.0, margin=0.0, still=25.0)


def picture(seed=0, height=SIZE[0], width=SIZE[1]):
    coarse = torch.rand(1, 3, height // 16, width // 16, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(255 * coarse, (height, width), mode="bicubic", align_corners=False).clamp(0, 255).byte()


def random_scores(seed=0, classes=5):
    return 3 * torch.randn(1, classes, H, W, generator=torch.Generator().manual_seed(seed))


def run(frames, scores, steadiness, gap=0.04):
    """The averaged scores of each frame of a stream, and its labels."""
    evidence, results = None, []
    for frame, x in zip(frames, scores, strict=True):
        fused = fuse_scores(x, frame, [evidence], [gap], steadiness)
        labels = labels_from_scores(fused.scores[0], SIZE)
        if evidence is not None:
            keep_labels(labels, evidence.labels, fused.scores[0], fused.margin[0])
        evidence = Evidence(fused.luma[0, 0], fused.carried[0], labels)
        results.append((fused, labels))
    return results


@pytest.mark.parametrize("steadiness", [STEADY_LOW, STEADY_HIGH])
def test_a_first_frame_is_a_picture(steadiness):
    scores = random_scores()
    ((fused, labels),) = run([picture()], [scores], steadiness)
    assert fused.scores.equal(scores)
    assert fused.margin.eq(0).all()
    assert labels.equal(labels_from_scores(scores[0], SIZE))


@pytest.mark.parametrize("steadiness", [STEADY_LOW, STEADY_HIGH])
def test_a_still_camera_with_constant_scores_keeps_them(steadiness):
    scores = random_scores()
    for fused, labels in run([picture()] * 6, [scores] * 6, steadiness):
        torch.testing.assert_close(fused.scores, scores)
        assert labels.equal(labels_from_scores(scores[0], SIZE))


def test_without_motion_it_is_a_plain_average():
    scores = [random_scores(seed) for seed in range(5)]
    carried = scores[0]
    for (fused, _), new in zip(run([picture()] * 5, scores, PLAIN), scores, strict=True):
        torch.testing.assert_close(fused.scores, torch.lerp(new, carried, 0.8), rtol=1e-4, atol=1e-4)
        carried = torch.lerp(new, carried, 0.6)
        torch.testing.assert_close(fused.carried, carried, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
def test_what_alternates_with_the_views_of_a_still_scene_decides_no_label(share):
    always, differing = random_scores(0), random_scores(1)
    scores = [always + differing * (-1) ** t for t in range(80)]
    results = run([picture()] * 80, scores, Steadiness(share, tolerance=12.0, margin=0.0, still=25.0))
    for fused, _ in results[-2:]:
        torch.testing.assert_close(fused.scores, always, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_with_a_small_share_the_scores_of_a_frame_are_carried_as_they_are(share):
    scores = [random_scores(0), random_scores(1)]
    (_, _), (fused, _) = run([picture()] * 2, scores, Steadiness(share, tolerance=12.0, margin=0.0, still=25.0))
    assert fused.carried.equal(scores[1])
    torch.testing.assert_close(fused.scores, torch.lerp(scores[1], scores[0], share), rtol=1e-4, atol=1e-4)


def test_scores_move_with_the_picture():
    wide, field = picture(3, 64, 160), random_scores(1).repeat(1, 1, 1, 2)
    frames = [wide[:, :, :, :128].contiguous(), wide[:, :, :, 8:136].contiguous()]  # 8 pixels: 2 of the scores
    smooth = F.avg_pool2d(field, 5, 1, 2)
    first, second = smooth[..., :W], smooth[..., 2 : W + 2]
    (_, _), (fused, _) = run(frames, [first, torch.zeros_like(first)], PLAIN)
    inner = (slice(None), slice(None), slice(4, -4), slice(6, -6))
    moved = fused.scores[inner] / 0.8
    error = (moved - second[inner]).abs().mean()
    unmoved = (first[inner] - second[inner]).abs().mean()
    assert error < 0.3 * unmoved


def test_a_cut_leaves_no_trace():
    scores = [random_scores(seed) for seed in range(3)]
    frames = [picture(0), 255 - picture(0), 255 - picture(0)]
    results = run(frames, scores, STEADY_HIGH)
    assert results[1][0].scores.equal(scores[1])
    assert results[1][0].margin.eq(0).all()
    assert results[1][1].equal(labels_from_scores(scores[1][0], SIZE))
    assert not results[2][0].scores.equal(scores[2])


def test_what_was_uncovered_has_no_past():
    before, now = picture(0), picture(0)
    before[:, :, 16:48, 40:80] = 255 - now[:, :, 16:48, 40:80]  # something stood there
    scores = [random_scores(0), random_scores(1)]
    _, (fused, _) = run([before, now], scores, PLAIN)
    change = (fused.scores - scores[1]).abs().mean(dim=1)[0]
    assert change[6:10, 12:18].mean() < 0.1 * change[:, 26:].mean()


def test_streams_of_a_batch_do_not_mix():
    frames, scores = [picture(seed) for seed in range(3)], [random_scores(seed) for seed in range(3)]
    alone = run(frames[:2], scores[:2], STEADY_HIGH)
    first = fuse_scores(scores[0], frames[0], [None], [0.0], STEADY_HIGH)
    evidence = Evidence(first.luma[0, 0], first.carried[0], labels_from_scores(first.scores[0], SIZE))
    together = fuse_scores(
        torch.cat([scores[1], scores[2]]), torch.cat([frames[1], frames[2]]), [evidence, None], [0.04, 0.0], STEADY_HIGH
    )
    torch.testing.assert_close(together.scores[:1], alone[1][0].scores)
    assert together.scores[1:].equal(scores[2])
    assert together.margin[1].eq(0).all()


@pytest.mark.parametrize("hidden", [0.3, 0.5, 0.7])
def test_after_a_cut_nothing_counts_however_much_of_the_frame_a_mask_hides(hidden):
    """What a mask hides is the same grey in all frames, and no part of a scene that is found again."""
    luma, before = (255 * torch.rand(1, 1, 192, 256, generator=torch.Generator().manual_seed(i)) for i in range(2))
    mask = torch.ones(1, 192, 256)
    mask[:, round(192 * (1 - hidden)) :] = 0
    luma, before = (torch.where(mask[:, None] > 0, one, 127.0) for one in (luma, before))
    comparison = compare(luma, before, (96, 128), STEADY_HIGH)
    visible = leave_out_hidden(comparison, mask)
    assert comparison.found.sum() > 0.9 * hidden
    assert visible.found.sum() < 0.05
    assert weigh(visible, torch.ones(1), STEADY_HIGH).likeness.eq(0).all()
    same = leave_out_hidden(compare(luma, luma, (96, 128), STEADY_HIGH), mask)
    assert same.found.sum().item() == pytest.approx(1.0, abs=1e-4)


def test_a_mask_reaches_the_comparison_of_a_stream():
    frame, scores = picture(), random_scores()
    first = fuse_scores(scores, frame, [None], [0.0], PLAIN)
    evidence = Evidence(first.luma[0, 0], first.carried[0], labels_from_scores(first.scores[0], SIZE))
    other, now = 255 - frame, random_scores(1)
    mask = torch.ones(1, *frame.shape[2:])
    mask[:, frame.shape[2] // 8 :] = 0
    hidden = torch.where(mask[:, None] > 0, other, frame)  # seven eighths are as before
    known = fuse_scores(now, hidden, [evidence], [0.04], PLAIN)
    masked = fuse_scores(now, hidden, [evidence], [0.04], PLAIN, mask)
    assert not known.scores.equal(now)
    assert masked.scores.equal(now)  # a cut, by what can be seen


def test_the_margin_falls_as_frames_are_further_apart():
    scores = [random_scores(0), random_scores(1)]
    margins = [run([picture()] * 2, scores, STEADY_HIGH, gap)[1][0].margin.max().item() for gap in (0.02, 0.1, 0.4)]
    change = (scores[0] - scores[1]).abs().mean().item()
    expected = [STEADY_HIGH.margin * change, STEADY_HIGH.margin * change, STEADY_HIGH.margin * change / 4]
    assert margins == pytest.approx(expected, rel=0.01)


def test_labels_do_not_depend_on_the_unit_of_the_scores():
    frames = [picture().roll(2 * i, dims=3) for i in range(4)]
    scores = [random_scores(i) for i in range(4)]
    for (_, one), (_, other) in zip(
        run(frames, scores, STEADY_HIGH), run(frames, [x / 8 for x in scores], STEADY_HIGH), strict=True
    ):
        assert one.equal(other)


def test_scores_that_change_where_a_mask_hides_the_frame_do_not_raise_the_margin():
    frame, scores = picture(), random_scores()
    first = fuse_scores(scores, frame, [None], [0.0], STEADY_HIGH)
    evidence = Evidence(first.luma[0, 0], first.carried[0], labels_from_scores(first.scores[0], SIZE))
    mask = torch.ones(1, *frame.shape[2:])
    mask[:, SIZE[0] // 2 :] = 0
    now = scores + 0.1
    other = now.clone()
    other[:, :, H // 2 + 1 :] += 5  # the pixels at the edge of the mask are partly visible
    one, two = (fuse_scores(x, frame, [evidence], [0.04], STEADY_HIGH, mask).margin for x in (now, other))
    torch.testing.assert_close(one, two)
    assert two.max() < fuse_scores(other, frame, [evidence], [0.04], STEADY_HIGH).margin.max() / 2


def test_another_network_size_keeps_the_evidence():
    frame, scores = picture(), random_scores()
    first = fuse_scores(scores, frame, [None], [0.0], PLAIN)
    evidence = Evidence(first.luma[0, 0], first.carried[0], labels_from_scores(first.scores[0], SIZE))
    larger = F.interpolate(random_scores(1), (24, 48), mode="bilinear")
    assert not fuse_scores(larger, frame, [evidence], [0.04], PLAIN).scores.equal(larger)


def test_values_at_pixels_are_those_of_the_resized_maps():
    maps = torch.randn(6, 9, 13)
    size = (50, 71)
    full = F.interpolate(maps[None], size, mode="bilinear", align_corners=False)[0].flatten(1)
    pixels = torch.randperm(50 * 71)[:300]
    levels = torch.randint(0, 6, (2, 300))
    torch.testing.assert_close(interpolate_at(maps, levels, pixels, size), full[levels, pixels], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (0.5, [0, 0, 1, 1]),
        (2 / 64, [0, 0, 1, 1]),
        (1 / 64, [0, 1, 1, 1]),
        (0.0, [1, 1, 1, 1]),
        (32 / 64, [0, 0, 1, 1]),
        (48 / 64, [0, 1, 1, 1]),
        (60 / 64, [1, 1, 1, 1]),
    ],
)
def test_a_label_changes_only_if_the_new_one_wins_by_the_margin_or_less_if_one_of_both_was_rare(share, kept):
    width = 6400  # of which every hundredth pixel is counted
    lead = torch.zeros(width)
    lead[1:5] = torch.tensor([0.2, 0.42, 0.7, 2.0])  # by which class 1 wins
    scores = torch.stack([torch.zeros(1, width), lead[None]])
    labels, previous = torch.ones(2, 1, width, dtype=torch.uint8).unbind()
    previous[:, : width - round(width * share)] = 0
    pixels, loss = keep_labels(labels, previous, scores, torch.full((1, 1, width), 0.5))
    assert labels[0, 1:5].tolist() == kept
    behind = torch.zeros(width).scatter(0, pixels, loss)
    torch.testing.assert_close(behind, torch.where(labels[0] == 0, lead, 0.0))
    confidence = torch.full((1, width), 200, dtype=torch.uint8)
    lower_confidence(confidence, pixels, loss)
    assert confidence.equal((200 * torch.exp(-behind)).round().to(torch.uint8)[None])


def test_where_both_classes_are_rare_their_shares_of_the_margin_are_multiplied():
    previous = torch.zeros(64, 64, dtype=torch.uint8)
    previous[0, :41], previous[1, :41] = 1, 2  # a hundredth each: a third of what is rare, and a fiftieth
    lead = torch.where(torch.arange(64) < 32, 0.03, 0.05).expand(64, 64)  # a twelfth of the margin lies between them
    scores = torch.stack([torch.zeros(64, 64), torch.zeros(64, 64), lead])
    kept = torch.full_like(previous, 2)
    keep_labels(kept, previous, scores, torch.full((1, 64, 64), 0.5))
    assert kept[0, :41].tolist() == [1] * 32 + [2] * 9
    assert kept[2].eq(0).all()  # the square root of a third of the margin


def test_classes_are_counted_at_some_pixels():
    previous = torch.zeros(2, 640, 1280, dtype=torch.uint8)
    previous[0, :10, :820], previous[1] = 2, 255  # at 41 of 64 x 64 pixels that are counted; no class of the network
    previous[0, 11:20] = 3  # between rows that are counted
    expected = [[4055 / 4096, 0.0, 41 / 4096, 0.0], [0.0] * 4]
    torch.testing.assert_close(class_shares(previous, 4), torch.tensor(expected))
    assert class_shares(previous[:1, :1, :1], 4).tolist() == [[0.0, 0.0, 1.0, 0.0]]


def test_labels_of_unknown_classes_do_not_fail():
    scores = random_scores()[0]
    labels = labels_from_scores(scores, SIZE)
    keep_labels(labels, torch.full_like(labels, 255), scores, torch.full((1, H, W), 0.5))
    assert labels.max() < 5


@pytest.mark.parametrize(
    "wrong", [{"share": 1.0}, {"share": -0.1}, {"margin": float("nan")}, {"tolerance": True}, {"still": "1"}]
)
def test_a_steadiness_takes_only_numbers_that_mean_something(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} is .*; expected "):
        Steadiness(**{"share": 0.5, "tolerance": 12.0, "margin": 0.5, "still": 25.0, **wrong})
