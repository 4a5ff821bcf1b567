import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from streamseg.evaluate.metrics import (
    boundary_counts,
    boundary_f1,
    confusion_matrix,
    consistency,
    extend_runs,
    flip_counts,
    flip_rates,
    iou,
    match_nearby,
    miou,
    mvc,
    pixel_accuracy,
)

HAND_MADE = torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]])


def random_maps(seed, classes=5, size=(40, 60)):
    """True labels with ignored pixels, and predictions that are right in half of the pixels; the last class is in
    neither."""
    generator = torch.Generator().manual_seed(seed)
    labels, other = torch.randint(0, classes - 1, (2, *size), generator=generator)
    predicted = torch.where(torch.rand(size, generator=generator) < 0.5, labels, other)
    labels[torch.rand(size, generator=generator) < 0.2] = 255
    return labels.to(torch.uint8), predicted


def test_the_scores_of_a_hand_made_confusion_matrix():
    assert iou(HAND_MADE)[:2].tolist() == [3 / 4, 2 / 3]
    assert iou(HAND_MADE)[2].isnan()
    assert miou(HAND_MADE) == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert pixel_accuracy(HAND_MADE) == pytest.approx(5 / 6)


def test_a_class_that_is_only_predicted_has_an_iou_of_zero():
    assert iou(torch.tensor([[2, 1], [0, 0]])).tolist() == [2 / 3, 0]


def test_a_prediction_of_none_of_the_classes_stays_in_the_union_of_the_true_class():
    labels, predicted = torch.tensor([0, 0, 1, 1, 255, 0]), torch.tensor([0, 2, 1, 2, 2, 1])
    confusion = confusion_matrix(labels, predicted, 2, 3)
    assert confusion.tolist() == [[1, 1, 1], [0, 1, 1]]
    assert iou(confusion).tolist() == [1 / 3, 1 / 3]
    assert pixel_accuracy(confusion) == 2 / 5


def test_a_confusion_matrix_has_true_classes_in_rows_and_leaves_ignored_pixels_out():
    labels = torch.tensor([[0, 0, 1], [255, 2, 255]], dtype=torch.uint8)
    predicted = torch.tensor([[0, 1, 1], [2, 0, 1]])
    assert confusion_matrix(labels, predicted, 3).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_confusion_matrices_add_up_over_images():
    a, b = random_maps(0), random_maps(1)
    together = confusion_matrix(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]]), 5)
    assert together.equal(confusion_matrix(*a, 5) + confusion_matrix(*b, 5))


def test_a_completely_ignored_image_does_not_count():
    labels, predicted = torch.full((8, 8), 255, dtype=torch.uint8), torch.zeros(8, 8, dtype=torch.long)
    assert confusion_matrix(labels, predicted, 3).equal(torch.zeros(3, 3, dtype=torch.long))
    assert boundary_counts(labels, predicted, 3).equal(torch.zeros(4, 3, dtype=torch.long))


@pytest.mark.parametrize("unknown", [3, 30, 254])
def test_labels_of_no_class_are_named(unknown):
    labels, predicted = torch.tensor([[0, unknown, 255]], dtype=torch.uint8), torch.tensor([[0, 0, 0]])
    with pytest.raises(ValueError, match=f"^The labels hold {unknown}; with 3 classes, expected 0–2, or 255 for no"):
        confusion_matrix(labels, predicted, 3)


@pytest.mark.parametrize("seed", range(3))
def test_iou_agrees_with_torchmetrics(seed):
    classification = pytest.importorskip("torchmetrics.classification", reason="torchmetrics is not installed")
    labels, predicted = random_maps(seed)
    confusion = confusion_matrix(labels, predicted, 5)
    target = labels.long()
    theirs = classification.MulticlassJaccardIndex(5, average="none", ignore_index=255)(predicted, target)
    assert iou(confusion).nan_to_num(0).tolist() == pytest.approx(theirs.tolist(), abs=1e-6)
    theirs = classification.MulticlassJaccardIndex(5, average="macro", ignore_index=255)(predicted, target)
    assert miou(confusion) == pytest.approx(theirs.item(), abs=1e-6)
    theirs = classification.MulticlassConfusionMatrix(5, ignore_index=255)(predicted, target)
    assert confusion.equal(theirs)
    theirs = classification.MulticlassAccuracy(5, average="micro", ignore_index=255)(predicted, target)
    assert pixel_accuracy(confusion) == pytest.approx(theirs.item(), abs=1e-6)


def halves(edge, size=(60, 80)):
    """Class 0 left of a column, class 1 from there on. At this size, the tolerance is one pixel."""
    labels = torch.zeros(size, dtype=torch.uint8)
    labels[:, edge:] = 1
    return labels


def test_equal_maps_have_a_boundary_f1_of_one():
    labels = random_maps(0)[1]
    f1 = boundary_f1(boundary_counts(labels, labels, 5))
    assert f1[:4].tolist() == [1, 1, 1, 1]
    assert f1[4].isnan()


def test_a_boundary_moved_within_the_tolerance_is_right_and_beyond_it_wrong():
    assert boundary_f1(boundary_counts(halves(40), halves(41), 2)).tolist() == [1, 1]
    assert boundary_f1(boundary_counts(halves(40), halves(42), 2)).tolist() == [0, 0]


def test_the_tolerance_grows_with_the_image():
    # 0.75 % of a diagonal of 300 pixels: 2.25, rounded up
    small, large = (60, 80), (180, 240)
    for size, tolerance in ((small, 1), (large, 3)):
        for shift, right in ((tolerance, 1), (tolerance + 1, 0)):
            counts = boundary_counts(halves(40, size), halves(40 + shift, size), 2)
            assert boundary_f1(counts).tolist() == [right, right]


def test_a_far_shift_lowers_boundary_f1_step_by_step():
    labels = F.interpolate(torch.rand(1, 1, 6, 8).mul(5).floor(), size=(60, 80))[0, 0].to(torch.uint8)
    shares = [boundary_f1(boundary_counts(labels, labels.roll(shift, 1), 5)).nanmean() for shift in (0, 2, 4)]
    assert 1 == shares[0] > shares[1] >= shares[2]


def test_a_class_whose_boundary_is_missed_has_a_boundary_f1_of_zero():
    assert boundary_f1(boundary_counts(halves(40), halves(80), 2)).tolist() == [0, 0]


def test_maps_without_boundaries_have_no_boundary_f1():
    assert boundary_f1(boundary_counts(halves(80), halves(80), 2)).isnan().all()


def test_the_border_of_an_ignored_region_is_no_boundary():
    labels = halves(80)
    labels[20:40, 20:40] = 255
    predicted = halves(80)
    predicted[22:38, 22:38] = 1
    assert boundary_counts(labels, predicted, 2).equal(torch.zeros(4, 2, dtype=torch.long))


def test_near_is_dilation_by_max_pooling():
    labels, others = random_maps(0)
    others = others.to(torch.uint8)
    others[torch.rand(others.shape, generator=torch.Generator().manual_seed(9)) < 0.97] = 255
    for tolerance in (1, 2, 5):
        expected = torch.full_like(labels, 255)
        for label in range(5):
            widened = F.max_pool2d((others == label).float()[None], 2 * tolerance + 1, 1, tolerance)[0] > 0
            expected[(labels == label) & widened] = label
        assert match_nearby(labels, others, tolerance).equal(expected)


def brute_force_f1(labels, predicted, label):
    """The definition of boundary F1, pixel by pixel."""
    height, width = len(labels), len(labels[0])
    everywhere = [(y, x) for y in range(height) for x in range(width)]
    tolerance = math.ceil(0.0075 * math.hypot(height, width))

    def boundary(kind):
        def touches(y, x):
            around = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
            inside = [(v, u) for v, u in around if 0 <= v < height and 0 <= u < width and labels[v][u] != 255]
            return any(kind[v][u] != label for v, u in inside)

        return {(y, x) for y, x in everywhere if labels[y][x] != 255 and kind[y][x] == label and touches(y, x)}

    def share(points, others):
        close = [any(max(abs(y - v), abs(x - u)) <= tolerance for v, u in others) for y, x in points]
        return sum(close) / len(close) if close else 0

    true, ours = boundary(labels), boundary(predicted)
    if not true | ours:
        return None
    precision, recall = share(ours, true), share(true, ours)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0


@pytest.mark.parametrize("seed", range(8))
def test_boundary_f1_is_its_definition(seed):
    labels, predicted = random_maps(seed, classes=4, size=(9, 13))
    # blocks, so that not every pixel is boundary
    predicted[: seed + 1] = 1
    labels[:3, :8] = 0
    f1 = boundary_f1(boundary_counts(labels, predicted, 4)).tolist()
    expected = [brute_force_f1(labels.tolist(), predicted.tolist(), label) for label in range(4)]
    assert [None if math.isnan(share) else share for share in f1] == pytest.approx(expected)


def random_video(seed, frames=12, classes=3, size=(6, 8), ignored=0.02):
    """True and predicted labels of each frame, which change sometimes."""
    generator = torch.Generator().manual_seed(seed)
    labels, predicted = torch.randint(0, classes, (2, *size), generator=generator)
    video = []
    for _ in range(frames):
        draws = torch.rand((4, *size), generator=generator)
        fresh, noise = torch.randint(0, classes, (2, *size), generator=generator)
        labels = torch.where(draws[0] < 0.05, fresh, labels)
        predicted = torch.where(draws[1] < 0.08, noise, torch.where(draws[2] < 0.3, labels, predicted))
        video.append((torch.where(draws[3] < ignored, 255, labels).to(torch.uint8), predicted))
    return video


def runs_of(video):
    """The runs after each frame of a video."""
    runs = None
    for labels, predicted in video:
        runs = extend_runs(runs, labels, predicted)
        yield runs


def consistency_of(videos, window):
    """mVC of whole videos, plain and strict."""
    return mvc([[consistency(runs, window) for runs in runs_of(video)] for video in videos]).tolist()


def flip_rates_of(videos):
    return flip_rates(sum(flip_counts(runs) for video in videos for runs in runs_of(video))).tolist()


def published_mvc(videos, n):
    """The definition of VSPW's paper, window by window and pixel by pixel, plain and strict."""
    of_videos = []
    for video in videos:
        of_windows = []
        for start in range(len(video) - n + 1):
            window = [(labels.flatten().tolist(), predicted.flatten().tolist()) for labels, predicted in video[start:]][
                :n
            ]
            common = [i for i, label in enumerate(window[0][0]) if all(true[i] == label for true, _ in window)]
            common = [i for i in common if window[0][0][i] != 255]
            if common:
                steady = [i for i in common if all(ours[i] == window[0][1][i] for _, ours in window)]
                right = [i for i in steady if window[0][1][i] == window[0][0][i]]
                of_windows.append((len(steady) / len(common), len(right) / len(common)))
        if of_windows:
            of_videos.append([sum(shares) / len(of_windows) for shares in zip(*of_windows, strict=True)])
    return [sum(shares) / len(of_videos) for shares in zip(*of_videos, strict=True)]


@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_video_consistency_is_its_published_definition(window):
    videos = [random_video(0), random_video(1, frames=9), random_video(2, frames=5, ignored=0.3)]
    assert consistency_of(videos, window) == pytest.approx(published_mvc(videos, window))


@pytest.mark.parametrize("window", [2, 8])
def test_the_published_script_gives_the_same_of_a_video_of_one_more_frame_without_ignored_pixels(window):
    # of C frames it takes C - n windows, not C - n + 1
    video = random_video(3, frames=13, ignored=0)
    accuracies = []
    for start in range(len(video) - window):
        true, ours = (torch.stack(maps) for maps in zip(*video[start : start + window], strict=True))
        common, steady = ((maps == maps[0]).all(dim=0) for maps in (true, ours))
        accuracies.append(((common & steady).sum() / common.sum()).item())
    assert consistency_of([video[:-1]], window)[0] == pytest.approx(sum(accuracies) / len(accuracies))


def test_a_constant_prediction_is_consistent_and_never_flips():
    constant = torch.ones(6, 8, dtype=torch.long)
    video = [(labels, constant) for labels, _ in random_video(0)]
    plain, strict = consistency_of([video], 8)
    assert plain == 1
    assert 0 < strict < 1
    assert flip_rates_of([video]) == [0, 0]


def test_a_correct_prediction_is_strictly_consistent_too():
    video = [(labels, labels) for labels, _ in random_video(0)]
    assert consistency_of([video], 8) == [1, 1]
    overall, still = flip_rates_of([video])
    assert overall > 0
    assert still == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_strict_consistency_is_never_above_the_plain_one(seed):
    for window in (1, 2, 4, 8):
        plain, strict = consistency_of([random_video(seed)], window)
        assert strict <= plain


def test_the_consistency_and_the_flips_of_a_hand_made_video():
    # pixels: steady and right; steady and wrong; flips once; its true label changes; ignored once
    true = [[0, 1, 2, 0, 0], [0, 1, 2, 1, 255], [0, 1, 2, 1, 0]]
    ours = [[0, 2, 2, 0, 0], [0, 2, 2, 1, 1], [0, 2, 0, 1, 0]]
    video = [(torch.tensor([t], dtype=torch.uint8), torch.tensor([p])) for t, p in zip(true, ours, strict=True)]
    assert consistency_of([video], 3) == [2 / 3, 1 / 3]
    # the first two frames have pixels 0, 1, 2 in common, the last two have 0, 1, 2, 3
    assert consistency_of([video], 2) == pytest.approx([(3 / 3 + 3 / 4) / 2, (2 / 3 + 2 / 4) / 2])
    # 2 of 5 pixels flip, then 2; where the truth stays, none of 3, then 1 of 4
    assert flip_rates_of([video]) == [4 / 10, 1 / 7]


def test_a_new_video_has_new_runs():
    video = random_video(0)
    halves = [video[:6], video[6:]]
    assert consistency_of(halves, 3) == pytest.approx(published_mvc(halves, 3))
    assert consistency_of(halves, 3) != consistency_of([video], 3)
    flips, pixels, _, _ = sum(flip_counts(runs) for half in halves for runs in runs_of(half)).tolist()
    assert pixels == 10 * 6 * 8
    assert flips == sum((a != b).sum() for half in halves for (_, a), (_, b) in pairwise(half))


def test_videos_too_short_have_no_consistency_and_do_not_count():
    short, long = random_video(0, frames=7), random_video(1)
    assert all(map(math.isnan, consistency_of([short], 8)))
    assert all(map(math.isnan, consistency_of([], 8)))
    assert consistency_of([short, long], 8) == consistency_of([long], 8)
    assert all(map(math.isnan, flip_rates_of([short[:1]])))


def test_runs_keep_only_the_last_frame():
    *_, few = runs_of(random_video(0, frames=2))
    *_, many = runs_of(random_video(0, frames=50))
    assert [x.shape for x in vars(few).values() if isinstance(x, torch.Tensor)] == [(6, 8)] * 5
    assert [x.shape for x in vars(many).values() if isinstance(x, torch.Tensor)] == [(6, 8)] * 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_counts_as_the_cpu_does():
    labels, predicted = random_maps(0)
    for count in (confusion_matrix, boundary_counts):
        assert count(labels.cuda(), predicted.cuda(), 5).cpu().equal(count(labels, predicted, 5))
    video = random_video(0)
    moved = [(labels.cuda(), predicted.cuda()) for labels, predicted in video]
    assert consistency_of([moved], 3) == pytest.approx(consistency_of([video], 3))
    assert flip_rates_of([moved]) == pytest.approx(flip_rates_of([video]))
