import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from make_datasets import (
    make_camvid,
    make_changing_camvid,
    make_cityscapes,
    make_folder,
    make_snippets,
    save_frame,
    save_ids,
)

import streamseg
from streamseg.data.datasets import ade20k, camvid, cityscapes, folder
from streamseg.evaluate.images import evaluate, evaluation_to_json
from streamseg.evaluate.lag import Lag, LagTally
from streamseg.evaluate.metrics import confusion_matrix
from streamseg.evaluate.video import (
    VideoEvaluation,
    evaluate_video,
    format_video_evaluation,
    video_evaluation_to_json,
    write_video_plots,
)
from streamseg.io.images import read_image
from streamseg.models.baselines import BASELINES
from streamseg.models.video.copying import copying
from streamseg.stream.label_frames import label_frame, label_frames
from streamseg.stream.state import FadingInTime, LastFrames

SMALL = (32, 48)


def make_val(data, *lengths):
    """Return a val split of CamVid with sequences at 15 Hz, a second apart."""
    names = []
    for length in lengths:
        start = 7959 + 30 * len(names)
        names += [f"0016E5_{start + 2 * i:05}" for i in range(length)]
    return camvid(make_camvid(data, "val", names, size=SMALL), "val")


def labels_in_order(model, dataset, indices, window):
    """Return true and predicted labels of some frames of a data set, predicted as a stream."""
    frames, labels = zip(*(dataset[i] for i in indices), strict=True)
    times = [int(dataset.pairs[i].image.stem[-5:]) / 30 for i in indices]
    return labels, [found for _, found in label_frames(model, frames, window, times=times)]


@pytest.mark.parametrize("window", [1, 3, FadingInTime(0.2)])
def test_sequences_are_predicted_in_order_each_without_a_past(model, tmp_path, window):
    dataset = make_val(tmp_path, 9, 3)
    found = evaluate_video(model, dataset, window)
    confusion, flips = torch.zeros(11, 11, dtype=torch.long), []
    for indices in (range(9), range(9, 12)):
        labels, predicted = labels_in_order(model, dataset, indices, window)
        confusion += sum(confusion_matrix(*maps, 11) for maps in zip(labels, predicted, strict=True))
        flips += [(a != b).double().mean() for a, b in pairwise(predicted)]
        if len(indices) == 9:
            # all frames have the same true labels
            has_class = labels[0] != 255
            windows = [torch.stack(predicted[start : start + 8]) for start in range(2)]
            steady = [(maps == maps[0]).all(dim=0)[has_class].double().mean() for maps in windows]
            right = [(maps == labels[0]).all(dim=0)[has_class].double().mean() for maps in windows]
    assert found.confusion.equal(confusion)
    assert found.flip_rate == pytest.approx(100 * torch.stack(flips).mean().item())
    assert found.mvc8 == pytest.approx(100 * torch.stack(steady).mean().item())
    assert found.strict_mvc8 == pytest.approx(100 * torch.stack(right).mean().item())
    assert math.isnan(found.mvc16)
    assert math.isnan(found.strict_mvc16)
    assert (found.images, found.sequences, found.device) == (12, 2, "cpu")
    assert 0 < found.avg_rt_ms <= found.max_latency_ms


def test_a_window_of_one_has_the_scores_of_single_frames(model, tmp_path):
    dataset = make_val(tmp_path, 4)
    alone, in_order = evaluate(model, dataset), evaluate_video(model, dataset, 1)
    assert in_order.confusion.equal(alone.confusion)
    assert in_order.worst == alone.worst
    assert in_order.boundary_f1 == alone.boundary_f1
    # with a larger window the past does change the labels
    assert not evaluate_video(model, dataset, 2).confusion.equal(alone.confusion)


def test_frames_without_labels_are_predicted_before_the_labelled_one(tmp_path):
    torch.manual_seed(0)
    model = streamseg.fanet18().eval()
    dataset = cityscapes(make_snippets(make_cityscapes(tmp_path, SMALL), SMALL), "val")
    told = []
    found = evaluate_video(model, dataset, 3, progress=lambda *counts: told.append(counts))
    video = tmp_path / "leftImg8bit_sequence/val/frankfurt"
    confusion, flips = torch.zeros(19, 19, dtype=torch.long), []
    for index, number in enumerate((294, 576)):
        frame, labels = dataset[index]
        before = [read_image(video / f"frankfurt_000000_{number - i:06}_leftImg8bit.png") for i in (3, 2, 1)]
        (_, one), (_, other) = list(label_frames(model, [*before, frame], 3))[-2:]
        confusion += confusion_matrix(labels, other, 19)
        flips.append((one != other).double().mean())
    assert found.confusion.equal(confusion)
    assert found.flip_rate == pytest.approx(100 * torch.stack(flips).mean().item())
    assert math.isnan(found.flip_rate_still)
    assert math.isnan(found.mvc8)
    assert told == [(i + 1, 8) for i in range(8)]
    assert (found.images, found.sequences) == (2, 2)
    # without a past, labelled frames are still compared with those before
    assert 0 < evaluate_video(model, dataset, 1).flip_rate < 100


def test_a_sequence_does_not_affect_another(model, tmp_path):
    dataset = make_val(tmp_path, 4, 9)
    second = replace(dataset, pairs=dataset.pairs[4:])
    both, alone = (evaluate_video(model, chosen, 2) for chosen in (dataset, second))
    assert both.mvc8 == alone.mvc8
    assert both.images - alone.images == 4
    first = evaluate_video(model, replace(dataset, pairs=dataset.pairs[:4]), 2)
    assert both.confusion.equal(first.confusion + alone.confusion)


def test_a_baseline_is_evaluated_in_order_but_with_no_window(tmp_path):
    baseline, dataset = BASELINES["enet"](11).eval(), make_val(tmp_path, 4)
    found = evaluate_video(baseline, dataset, 1)
    assert found.confusion.equal(evaluate(baseline, dataset).confusion)
    assert found.flip_rate > 0
    for window in (2, FadingInTime(0.2)):
        with pytest.raises(ValueError, match="^The network labels each frame alone: leave out the window, or give"):
            evaluate_video(baseline, dataset, window)


def test_frames_of_a_sequence_that_differ_in_size_are_refused(model, tmp_path):
    dataset = make_val(tmp_path, 2)
    save_frame(tmp_path / "val/0016E5_07961.png", size=(40, 48))
    save_ids(tmp_path / "valannot/0016E5_07961.png", [0], size=(40, 48))
    with pytest.raises(
        ValueError, match=r"07959\.png is 32 x 48 pixels but .*07961\.png is 40 x 48; make them the same"
    ):
        evaluate_video(model, dataset, 2)


def test_a_frame_of_a_sequence_that_the_network_refuses_is_named(model, tmp_path):
    dataset = camvid(make_camvid(tmp_path, "val", ["0016E5_07959", "0016E5_07961"]), "val")
    with pytest.raises(ValueError, match=r"0016E5_07959\.png: .*8, 12.* 32 pixels or more"):
        evaluate_video(model, dataset, 2)


def test_a_window_has_at_least_one_frame(model, tmp_path):
    with pytest.raises(ValueError, match=r"^window is 0; expected a whole number, 1 or more\.$"):
        evaluate_video(model, make_val(tmp_path, 2), 0)


def test_data_sets_without_sequences_say_what_a_window_needs(tmp_path):
    three, many = streamseg.fanet18(3).eval(), streamseg.fanet18(150).eval()
    with pytest.raises(
        ValueError,
        match="^folder all has no sequences of frames: a window needs a folder of numbered frames "
        "for each video, images/SPLIT/VIDEO/, and its labels in labels/SPLIT/VIDEO/.$",
    ):
        evaluate_video(three, folder(make_folder(tmp_path / "a", ["1", "2"]), "all"), 2)
    mixed = folder(make_folder(tmp_path / "b", ["val/v/1", "val/v/2", "val/x"]), "val")
    with pytest.raises(ValueError, match=r"val/x\.jpg is in no sequence of frames: a window needs a folder"):
        evaluate_video(three, mixed, 2)
    with pytest.raises(ValueError, match="^cityscapes val .* a window needs the frames .* in leftImg8bit_sequence/"):
        evaluate_video(streamseg.fanet18(19).eval(), cityscapes(make_cityscapes(tmp_path / "c"), "val"), 2)
    save_frame(tmp_path / "d/images/validation/1.jpg")
    save_ids(tmp_path / "d/annotations/validation/1.png", [1])
    with pytest.raises(ValueError, match=r"^ade20k val .* a window needs a data set of videos\.$"):
        evaluate_video(many, ade20k(tmp_path / "d", "val"), 2)
    with pytest.raises(ValueError, match=r"^camvid val .* a window needs neighbouring frames, by their numbers\.$"):
        evaluate_video(streamseg.fanet18(11).eval(), make_val(tmp_path / "e", 1), 2)


def test_a_network_for_other_classes_and_an_empty_data_set_are_refused_in_order_too(model, tmp_path):
    dataset = make_val(tmp_path, 2)
    with pytest.raises(ValueError, match=r"^The network has 3 classes, but camvid has 11\.$"):
        evaluate_video(streamseg.fanet18(3).eval(), dataset, 2)
    with pytest.raises(ValueError, match=r"^camvid val has no frames to evaluate on\.$"):
        evaluate_video(model, replace(dataset, pairs=()), 2)


def test_nothing_is_decoded_while_a_frame_is_timed(model, tmp_path, monkeypatch):
    busy, counts = [], []

    def read(path):
        busy.append(path)
        picture = read_image(path)
        busy.remove(path)
        return picture

    def label(*arguments, **options):
        counts.append(len(busy))
        return label_frame(*arguments, **options)

    dataset = replace(make_val(tmp_path, 20), read_image=read)
    monkeypatch.setattr("streamseg.evaluate.video.label_frame", label)
    evaluate_video(model, dataset, 2, threads=2)
    # three before the first, and each frame alone after it, which are not timed
    assert counts == [0] * (3 + 2 * 20)


@pytest.mark.parametrize("window", [1, 3, LastFrames(1, steady=2.0), FadingInTime(0.2)])
def test_the_lag_is_that_of_the_stream_less_that_of_single_frames(model, tmp_path, window):
    dataset = camvid(make_changing_camvid(tmp_path, SMALL), "val")
    found = evaluate_video(model, dataset, window)
    expected = LagTally(torch.device("cpu"))
    labels, predicted = labels_in_order(model, dataset, range(12), window)
    for i in range(12):
        alone, _ = label_frame(model, dataset[i][0])
        expected.add(labels[i], predicted[i], alone, first=i == 0)
    assert vars(found.lag) == pytest.approx(vars(expected.result()), nan_ok=True)
    assert found.lag.changes == SMALL[0] * SMALL[1] // 2
    if window == 1:
        assert not found.lag.added_p90 > 0  # it may be NaN, where random weights miss all


def test_a_video_method_is_compared_with_its_key_frames(tmp_path):
    torch.manual_seed(0)
    method = copying(BASELINES["swiftnet18"](11), 4).eval()
    dataset = camvid(make_changing_camvid(tmp_path, SMALL), "val")
    found = evaluate_video(method, dataset, 1)
    assert found.lag.changes == SMALL[0] * SMALL[1] // 2
    expected = LagTally(torch.device("cpu"))
    state = None
    for i in range(12):
        frame, labels = dataset[i]
        logits, state = method.step(frame[None], state)
        expected.add(labels, logits.argmax(1)[0], method(frame[None]).argmax(1)[0], first=i == 0)
    assert vars(found.lag) == pytest.approx(vars(expected.result()), nan_ok=True)


def test_sequences_too_short_or_with_few_labels_have_no_lag(model, tmp_path):
    assert evaluate_video(model, make_val(tmp_path / "a", 8), 1).lag is None
    assert evaluate_video(model, make_val(tmp_path / "b", 9), 1).lag.changes == 0
    dataset = cityscapes(make_snippets(make_cityscapes(tmp_path / "c", SMALL), SMALL), "val")
    assert evaluate_video(streamseg.fanet18().eval(), dataset, 10).lag is None


VIDEO = VideoEvaluation(
    miou=50.0,
    iou={"Road": 95.0},
    pixel_accuracy=91.25,
    boundary_f1=60.0,
    confusion=torch.zeros(1, 1),
    images=7,
    worst=(),
    mvc8=98.765,
    mvc16=math.nan,
    strict_mvc8=90.0,
    strict_mvc16=math.nan,
    flip_rate=1.234,
    flip_rate_still=0.5,
    avg_rt_ms=14.0,
    max_latency_ms=17.25,
    sequences=2,
    device="an abacus",
)


def test_an_evaluation_of_sequences_is_written_as_strict_json():
    told = json.loads(json.dumps(video_evaluation_to_json(VIDEO), allow_nan=False))
    assert told == {
        **evaluation_to_json(VIDEO),
        "mvc8": 98.765,
        "mvc16": None,
        "strict_mvc8": 90.0,
        "strict_mvc16": None,
        "flip_rate": 1.234,
        "flip_rate_still": 0.5,
        "avg_rt_ms": 14,
        "max_latency_ms": 17.25,
        "sequences": 2,
        "device": "an abacus",
    }


def test_a_formatted_evaluation_of_sequences_ends_with_its_times():
    assert format_video_evaluation(VIDEO).splitlines() == [
        "IoU by class          %",
        "Road               95.0  ██████████████████████████████████████",
        "",
        "pixel accuracy     91.2",
        "boundary F1        60.0",
        "mVC8              98.77",
        "mVC16                 -",
        "strict mVC8       90.00",
        "strict mVC16          -",
        "flip rate          1.23",
        "flip rate, still   0.50",
        "mean IoU           50.0",
        "",
        "a frame takes 14.0 ms, at most 17.2 ms, on an abacus",
    ]


def test_the_lag_is_told_below_the_times_and_in_json():
    late = replace(VIDEO, lag=Lag(1234, 1.0, 3.0, 1.5, 5.0, 0.0, 1.0, 0.25))
    assert format_video_evaluation(late).splitlines()[-2:] == [
        "Lag after 1,234 changes of a pixel's true label: median 1, p90 3, mean 1.50 frames (5.0 % not within 8)",
        "more than frame by frame: median 0, p90 1, mean 0.25 frames",
    ]
    assert video_evaluation_to_json(late)["lag"]["added_p90"] == 1


def test_the_plots_of_sequences_show_the_evaluated_labels(model, tmp_path, monkeypatch):
    dataset = make_val(tmp_path, 5)
    found = evaluate_video(model, dataset, 3)
    rows = []
    monkeypatch.setattr("streamseg.evaluate.plot.confusion_plot", lambda *_: None)
    monkeypatch.setattr("streamseg.evaluate.plot.write_worst", lambda _, frames, __: rows.extend(frames))
    write_video_plots(tmp_path / "plots", found, model, dataset, 3)
    assert len(rows) == 5
    assert found.confusion.equal(sum(confusion_matrix(labels, predicted, 11) for _, labels, predicted, _ in rows))
