import copy
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from exports import exported as exported
from torch import nn
from torch.nn import functional as F

from streamseg.classes import Classes
from streamseg.data.datasets import Pair
from streamseg.engine.engine import EagerEngine, ImageEngine
from streamseg.engine.fast import FastEngine, accelerate
from streamseg.engine.runtime import open_exported
from streamseg.evaluate.images import (
    Evaluation,
    Score,
    average_scores,
    averaging,
    evaluate,
    format_evaluation,
    make_evaluation_engine,
    sample_frames,
    to_json,
    validate,
    write_plots,
)
from streamseg.io.images import read_image
from streamseg.models.baselines import BASELINES
from streamseg.stream.label_frames import label_frame

THREE = Classes(("Road", "Sky", "Car"), ((128, 64, 128), (128, 128, 128), (64, 0, 128)))


@dataclass(frozen=True)
class InMemory:
    """A data set whose frames and labels are at hand."""

    maps: tuple
    classes: Classes = THREE
    name: str = "toy"
    split: str = "val"

    @property
    def pairs(self):
        return [Pair(Path(f"{i}.png"), Path(f"{i}_labels.png")) for i in range(len(self.maps))]

    def __len__(self):
        return len(self.maps)

    def __getitem__(self, index):
        return self.maps[index]


class Painted(nn.Module):
    """A network that predicts what is painted into a frame's red channel."""

    def __init__(self, classes=3):
        super().__init__()
        self.classes = classes
        self.norm = nn.BatchNorm2d(3)

    def forward(self, frames):
        return 20 * F.one_hot(frames[:, 0].long(), self.classes).permute(0, 3, 1, 2).float()


def painter(classes=3):
    """An engine of it."""
    network = Painted(classes).eval()
    return ImageEngine(network, network)


def painted(labels, predicted):
    """A frame for which Painted predicts what is wanted, and its labels."""
    return predicted.to(torch.uint8).expand(3, -1, -1), labels.to(torch.uint8)


def halves(left, right):
    labels = torch.full((32, 48), left)
    labels[:, 24:] = right
    return labels


def test_a_network_that_is_always_right_scores_100():
    labels = halves(0, 1)
    labels[:4] = 255
    found = evaluate(painter(), InMemory((painted(labels, halves(0, 1)),) * 2))
    assert (found.miou, found.pixel_accuracy, found.boundary_f1, found.images) == (100, 100, 100, 2)
    assert found.iou == {"Road": 100, "Sky": 100, "Car": None}
    assert found.confusion.tolist() == [[2 * 28 * 24, 0, 0], [0, 2 * 28 * 24, 0], [0, 0, 0]]


def test_scores_are_of_all_pixels_together_not_a_mean_over_frames():
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
    # class 1 is not there, so its IoU is 0
    assert [index for index, _ in found.worst] == [6, 1, 4, 7, 3, 5]
    assert found.worst[0][1] == pytest.approx((30 + 0) / 2)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_frame_without_any_label_is_never_among_the_worst(place):
    right, wrong = painted(torch.zeros(32, 48), torch.zeros(32, 48)), painted(torch.zeros(32, 48), halves(0, 1))
    maps = [right, wrong]
    maps.insert(place, painted(torch.full((32, 48), 255), torch.zeros(32, 48)))
    found = evaluate(painter(), InMemory(tuple(maps)))
    assert [maps[index] is wrong for index, _ in found.worst] == [True, False]
    assert [share for _, share in found.worst] == [pytest.approx(25), pytest.approx(100)]


def test_a_network_that_frames_would_change_is_refused():
    with pytest.raises(ValueError, match=r"^The network is in training mode, .*: call model\.eval\(\) first\.$"):
        evaluate(BASELINES["enet"](3), InMemory((painted(halves(0, 1), halves(0, 1)),)))


def test_progress_is_told_after_each_frame():
    told = []
    dataset = InMemory((painted(halves(0, 1), halves(0, 1)),) * 3)
    evaluate(painter(), dataset, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_network_for_other_classes_is_refused():
    with pytest.raises(ValueError, match="^The network tells 5 classes apart, but toy has 3.$"):
        evaluate(painter(5), InMemory((painted(halves(0, 1), halves(0, 1)),)))


@pytest.mark.parametrize("measure", [evaluate, validate])
def test_an_empty_data_set_is_refused(measure):
    with pytest.raises(ValueError, match="^toy val holds no frames to evaluate on.$"):
        measure(painter(), InMemory(()))


@pytest.mark.parametrize("measure", [evaluate, validate])
def test_a_data_set_without_any_label_is_refused(measure):
    nothing = painted(torch.full((32, 32), 255), torch.zeros(32, 32))
    with pytest.raises(ValueError, match="^No pixel of toy val has a class: there is nothing to evaluate on.$"):
        measure(painter(), InMemory((nothing,)))


@pytest.mark.parametrize("measure", [evaluate, validate])
def test_a_frame_that_the_network_refuses_is_named(model, measure):
    maps = tuple(painted(torch.zeros(size), torch.zeros(size)) for size in ((32, 48), (31, 48)))
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    with pytest.raises(ValueError, match=r"^1\.png: The size is \(31, 48\); expected .* 32 pixels or more each\.$"):
        measure(model, InMemory(maps, names))


def test_validation_gives_the_scores_of_an_evaluation_without_looking_at_boundaries(monkeypatch):
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


def test_whatever_labels_frames_is_evaluated(model, image):
    labels = model(image)[0].argmax(dim=0).to(torch.uint8)
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    dataset = InMemory(((image[0], labels),) * 3, names)
    bytes_ = accelerate(model, "int8", sample_frames(dataset, 2))
    for engine, least in ((accelerate(model), 99.9), (copy.deepcopy(model).bfloat16(), 90), (bytes_, 80)):
        assert least < evaluate(engine, dataset).pixel_accuracy <= 100
    other = InMemory(dataset.maps)
    for engine in (model, accelerate(model), averaging(model)):
        with pytest.raises(ValueError, match=r"^The network tells 11 classes apart, but toy has 3\.$"):
            evaluate(engine, other)


def test_frames_are_sampled_from_all_over_a_data_set():
    maps = tuple(painted(torch.zeros(1, 1), torch.full((1, 1), i)) for i in range(10))
    assert [int(frame[0]) for frame in sample_frames(InMemory(maps), 4)] == [0, 3, 6, 9]
    assert [int(frame[0]) for frame in sample_frames(InMemory(maps[:2]), 4)] == [0, 1]
    assert sample_frames(InMemory(()), 4) == []


def test_what_labels_frames_is_the_network_or_its_fast_form_or_the_mean_of_several_looks(model, exported, image):
    cpu, dataset = torch.device("cpu"), InMemory((painted(torch.zeros(64, 96), torch.zeros(64, 96)),))
    model = copy.deepcopy(model)  # whose memory is put in another order
    assert isinstance(make_evaluation_engine(model, cpu, dataset), EagerEngine)
    assert isinstance(make_evaluation_engine(model, cpu, dataset, precision="fp32"), FastEngine)
    frame = image[0]
    for options in ({"flip": True}, {"scales": (0.5, 1.0)}):
        labels, _ = label_frame(make_evaluation_engine(model, cpu, dataset, **options), frame)
        with torch.inference_mode():
            expected = average_scores(model, image, **options)[0].argmax(dim=0)
        assert (labels == expected).float().mean() > 0.999
        with pytest.raises(ValueError, match="^--precision is for frames seen once"):
            make_evaluation_engine(model, cpu, dataset, precision="fp32", **options)
        with pytest.raises(ValueError, match="still.onnx gives labels, and no shares to average: leave out --scales"):
            make_evaluation_engine(open_exported(exported("still.onnx")), cpu, dataset, **options)
    file = open_exported(exported("still.onnx"))
    assert make_evaluation_engine(file, cpu, dataset) is file


def test_one_size_and_no_flip_give_the_networks_own_logits(model, image):
    with torch.inference_mode():
        assert average_scores(model, image).equal(model(image))


@pytest.mark.parametrize("scales", [(1.0,), (0.75, 1.0, 1.5)])
def test_with_flips_a_mirrored_frame_gives_mirrored_probabilities(model, image, scales):
    with torch.inference_mode():
        plain = average_scores(model, image, scales, flip=True)
        mirrored = average_scores(model, image.flip(-1), scales, flip=True)
        assert (average_scores(model, image.flip(-1)) - average_scores(model, image).flip(-1)).abs().max() > 0.1
    torch.testing.assert_close(mirrored.flip(-1), plain, rtol=0, atol=1e-4)


def test_a_flip_changes_nothing_for_a_network_that_sees_pixels_alone():
    frames, _ = painted(halves(0, 1), halves(0, 2))
    probability = average_scores(Painted(), frames[None]).softmax(dim=1)
    torch.testing.assert_close(average_scores(Painted(), frames[None], flip=True), probability)


def test_several_scales_give_the_mean_of_their_probabilities(model, image):
    with torch.inference_mode():
        one, other = (average_scores(model, image, (scale,)) for scale in (0.75, 1.5))
        both = average_scores(model, image, (0.75, 1.5))
    assert both.shape == (1, 11, 64, 96)
    torch.testing.assert_close(both, (one + other) / 2)
    torch.testing.assert_close(both.sum(dim=1), torch.ones(1, 64, 96))


@pytest.mark.parametrize("scales", [(), (0.0,), (1.0, -1.0), (math.nan,), (math.inf,)])
def test_scales_that_are_no_sizes_are_refused(model, image, scales):
    with pytest.raises(ValueError, match="^The scales are .* expected one or more numbers above 0, such as 1.0.$"):
        average_scores(model, image, scales)


def test_scales_that_are_no_sizes_are_no_fault_of_a_frame(model):
    with pytest.raises(ValueError, match="^The scales are"):
        averaging(model, (0.0,))


def test_a_mirrored_data_set_has_the_same_scores_with_flips(model, image):
    labels = torch.randint(0, 11, (64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    data, mirrored = (InMemory(((x, y),), names) for x, y in ((image[0], labels), (image[0].flip(-1), labels.flip(-1))))
    scores = [evaluate(averaging(model, (0.75, 1.0), flip=True), frames).miou for frames in (data, mirrored)]
    assert scores[0] == pytest.approx(scores[1], abs=0.01)
    assert scores[0] != pytest.approx(evaluate(model, data).miou, abs=0.01)


def test_a_scale_that_makes_frames_too_small_is_refused(model, image):
    with pytest.raises(ValueError, match="the least is 32 x 32"):
        average_scores(model, image, (0.001,))


def test_an_evaluation_is_written_as_strict_json_in_percent():
    found = evaluate(painter(), InMemory((painted(torch.zeros(32, 48), torch.zeros(32, 48)),)))
    assert math.isnan(found.boundary_f1)
    assert json.loads(json.dumps(to_json(found), allow_nan=False)) == {
        "miou": 100,
        "iou": {"Road": 100, "Sky": None, "Car": None},
        "pixel_accuracy": 100,
        "boundary_f1": None,
        "images": 1,
        "confusion": [[32 * 48, 0, 0], [0, 0, 0], [0, 0, 0]],
    }


def test_a_rendered_evaluation_has_a_bar_for_each_class_and_the_mean_last():
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
