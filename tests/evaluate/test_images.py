import copy
import json
import math

import pytest
import torch
from painted import InMemory, halves, painted, painter

from streamseg.classes import Classes
from streamseg.engine.pick import accelerate
from streamseg.evaluate.engines import averaging_engine, sample_frames
from streamseg.evaluate.images import (
    Evaluation,
    Score,
    evaluate,
    evaluation_to_json,
    format_evaluation,
    validate,
    write_plots,
)
from streamseg.io.images import read_image
from streamseg.models.baselines import BASELINES


def test_a_perfect_network_scores_100():
    labels = halves(0, 1)
    labels[:4] = 255
    found = evaluate(painter(), InMemory((painted(labels, halves(0, 1)),) * 2))
    assert (found.miou, found.pixel_accuracy, found.boundary_f1, found.images) == (100, 100, 100, 2)
    assert found.iou == {"Road": 100, "Sky": 100, "Car": None}
    assert found.confusion.tolist() == [[2 * 28 * 24, 0, 0], [0, 2 * 28 * 24, 0], [0, 0, 0]]


def test_scores_are_over_all_pixels_not_a_mean_over_frames():
    right = painted(torch.zeros(32, 96), torch.zeros(32, 96))
    wrong = painted(torch.ones(32, 32), torch.zeros(32, 32))
    found = evaluate(painter(), InMemory((right, wrong)))
    assert found.iou == {"Road": pytest.approx(75), "Sky": 0, "Car": None}
    assert found.miou == pytest.approx(37.5)
    assert found.pixel_accuracy == pytest.approx(75)


def test_the_worst_frames_come_worst_first():
    zeros = torch.zeros(32, 100)

    def frame(errors):
        predicted = zeros.clone()
        predicted[:, :errors] = 1
        return painted(zeros, predicted)

    errors = [5, 60, 0, 20, 40, 10, 70, 30]
    nothing = painted(torch.full((32, 32), 255), torch.zeros(32, 32))
    found = evaluate(painter(), InMemory((*map(frame, errors), nothing)))
    # class 1 does not occur, so its IoU is 0
    assert [index for index, _ in found.worst] == [6, 1, 4, 7, 3, 5]
    assert found.worst[0][1] == pytest.approx((30 + 0) / 2)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_frame_without_any_label_is_never_among_the_worst(index):
    right, wrong = painted(torch.zeros(32, 48), torch.zeros(32, 48)), painted(torch.zeros(32, 48), halves(0, 1))
    maps = [right, wrong]
    maps.insert(index, painted(torch.full((32, 48), 255), torch.zeros(32, 48)))
    found = evaluate(painter(), InMemory(tuple(maps)))
    assert [maps[i] is wrong for i, _ in found.worst] == [True, False]
    assert [share for _, share in found.worst] == [pytest.approx(25), pytest.approx(100)]


def test_a_network_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"^The network is in training mode, .*: call model\.eval\(\) first\.$"):
        evaluate(BASELINES["enet"](3), InMemory((painted(halves(0, 1), halves(0, 1)),)))


def test_progress_is_called_after_each_frame():
    calls = []
    dataset = InMemory((painted(halves(0, 1), halves(0, 1)),) * 3)
    evaluate(painter(), dataset, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_a_network_for_other_classes_is_refused():
    with pytest.raises(ValueError, match="^The network has 5 classes, but toy has 3.$"):
        evaluate(painter(5), InMemory((painted(halves(0, 1), halves(0, 1)),)))


def test_classes_that_are_merged_count_as_one_label():
    labels, predicted = halves(0, 1), halves(0, 1)
    predicted[:16, :24] = 3
    maps = (painted(labels, predicted),)
    found = evaluate(painter(5), InMemory(maps), label_of=(0, 1, 2, 0, 2))
    assert (found.miou, found.pixel_accuracy, found.boundary_f1, found.without_label) == (100, 100, 100, None)
    assert found.confusion.tolist() == [[32 * 24, 0, 0], [0, 32 * 24, 0], [0, 0, 0]]
    assert validate(painter(5), InMemory(maps), label_of=(0, 1, 2, 0, 2)) == Score(100, found.iou)


def test_a_class_without_a_label_is_wrong_wherever_it_is_predicted():
    labels, predicted = halves(0, 1), halves(0, 1)
    labels[:8] = 255
    predicted[:16, :24] = 3
    maps = (painted(labels, predicted),)
    found = evaluate(painter(4), InMemory(maps), label_of=(0, 1, 2, 255))
    assert found.iou == {"Road": pytest.approx(100 * 16 / 24), "Sky": 100, "Car": None}
    assert found.confusion.tolist() == [[16 * 24, 0, 0], [0, 24 * 24, 0], [0, 0, 0]]
    assert found.without_label.tolist() == [8 * 24, 0, 0]
    assert found.pixel_accuracy == pytest.approx(100 * (16 + 24) / 48)
    assert evaluation_to_json(found)["without_label"] == [8 * 24, 0, 0]
    # as if another of the labels had been predicted, which does not occur
    other = evaluate(painter(4), InMemory(maps), label_of=(0, 1, 2, 2))
    assert found.boundary_f1 == pytest.approx(1.5 * other.boundary_f1)
    assert found.worst == ((0, pytest.approx(100 * (16 / 24 + 1) / 2)),)
    assert validate(painter(4), InMemory(maps), label_of=(0, 1, 2, 255)) == Score(found.miou, found.iou)


@pytest.mark.parametrize("function", [evaluate, validate])
def test_label_of_must_have_a_label_for_each_class(function):
    with pytest.raises(ValueError, match=r"^The network has 5 classes, but label_of has labels for 3\.$"):
        function(painter(5), InMemory((painted(halves(0, 1), halves(0, 1)),)), label_of=(0, 1, 2))


@pytest.mark.parametrize("function", [evaluate, validate])
def test_an_empty_data_set_is_refused(function):
    with pytest.raises(ValueError, match="^toy val has no frames to evaluate on.$"):
        function(painter(), InMemory(()))


@pytest.mark.parametrize("function", [evaluate, validate])
def test_a_data_set_without_any_label_is_refused(function):
    nothing = painted(torch.full((32, 32), 255), torch.zeros(32, 32))
    with pytest.raises(ValueError, match="^No pixel of toy val has a class: there is nothing to evaluate on.$"):
        function(painter(), InMemory((nothing,)))


@pytest.mark.parametrize("function", [evaluate, validate])
def test_a_frame_that_the_network_refuses_is_named(model, function):
    maps = tuple(painted(torch.zeros(size), torch.zeros(size)) for size in ((32, 48), (31, 48)))
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    with pytest.raises(ValueError, match=r"^1\.png: The size is \(31, 48\); expected .* 32 pixels or more each\.$"):
        function(model, InMemory(maps, names))


def test_validation_gives_the_scores_of_an_evaluation_without_boundaries(monkeypatch):
    network = painter()
    maps = (painted(halves(0, 1), halves(0, 1)), painted(halves(0, 255), halves(1, 1)))
    found = evaluate(network, InMemory(maps))
    monkeypatch.delattr("streamseg.evaluate.metrics.boundary_counts")
    assert validate(network, InMemory(maps)) == Score(found.miou, found.iou)


def test_frames_of_different_sizes_are_each_evaluated_at_their_own(model, image):
    labels = model(image)[0].argmax(dim=0)
    small = image[..., :40, :56]
    maps = ((image[0], labels.to(torch.uint8)), (small[0], model(small)[0].argmax(dim=0).to(torch.uint8)))
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    assert evaluate(model, InMemory(maps, names)).miou == 100


def test_networks_and_engines_are_evaluated(model, image):
    labels = model(image)[0].argmax(dim=0).to(torch.uint8)
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    dataset = InMemory(((image[0], labels),) * 3, names)
    int8 = accelerate(model, "int8", sample_frames(dataset, 2))
    for engine, least in ((accelerate(model), 99.9), (copy.deepcopy(model).bfloat16(), 90), (int8, 80)):
        assert least < evaluate(engine, dataset).pixel_accuracy <= 100
    other = InMemory(dataset.maps)
    for engine in (model, accelerate(model), averaging_engine(model)):
        with pytest.raises(ValueError, match=r"^The network has 11 classes, but toy has 3\.$"):
            evaluate(engine, other)


def test_an_evaluation_is_written_as_strict_json_in_percent():
    found = evaluate(painter(), InMemory((painted(torch.zeros(32, 48), torch.zeros(32, 48)),)))
    assert math.isnan(found.boundary_f1)
    assert json.loads(json.dumps(evaluation_to_json(found), allow_nan=False)) == {
        "miou": 100,
        "iou": {"Road": 100, "Sky": None, "Car": None},
        "pixel_accuracy": 100,
        "boundary_f1": None,
        "images": 1,
        "confusion": [[32 * 48, 0, 0], [0, 0, 0], [0, 0, 0]],
    }


def test_a_formatted_evaluation_has_a_bar_for_each_class_and_the_mean_last():
    iou = {"Road": 95.0, "Sky": 5.0, "a class with a long name": None}
    text = format_evaluation(Evaluation(50.0, iou, 91.25, math.nan, torch.zeros(3, 3), 7, ()))
    assert text.splitlines() == [
        "IoU by class                  %",
        "Road                       95.0  ██████████████████████████████████████",
        "Sky                         5.0  ██",
        "a class with a long name      -  does not occur",
        "",
        "pixel accuracy             91.2",
        "boundary F1                   -",
        "mean IoU                   50.0",
    ]


def test_plots_show_the_confusion_matrix_and_the_worst_frames(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    network = painter()
    right, wrong = painted(halves(0, 1), halves(0, 1)), painted(halves(0, 1), halves(2, 1))
    heights = []
    for maps in ((right,), (right, wrong)):
        dataset = InMemory(maps)
        write_plots(tmp_path / "plots", evaluate(network, dataset), network, dataset)
        assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["confusion.png", "worst.png"]
        heights.append(read_image(tmp_path / "plots" / "worst.png").shape[1])
    assert heights[1] > 1.7 * heights[0]


def test_plots_have_a_column_for_predictions_without_a_label(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    network, widths = painter(4), []
    dataset = InMemory((painted(halves(0, 1), halves(3, 1)),))
    for label_of in ((0, 1, 2, 2), (0, 1, 2, 255)):
        write_plots(tmp_path, evaluate(network, dataset, label_of=label_of), network, dataset, label_of)
        widths.append(read_image(tmp_path / "confusion.png").shape[2])
    assert widths[1] > widths[0]
