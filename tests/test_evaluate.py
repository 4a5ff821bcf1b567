import copy
import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from test_layouts import make_camvid, make_cityscapes, make_folder, make_snippets, save_frame, save_ids
from torch import nn
from torch.nn import functional as F

import streamseg
from streamseg.classes import Classes
from streamseg.datasets import Pair, ade20k, camvid, cityscapes, folder
from streamseg.evaluate import (
    Evaluation,
    Score,
    VideoEvaluation,
    evaluate,
    evaluate_video,
    predict,
    render,
    render_video,
    to_json,
    validate,
    video_to_json,
    write_plots,
    write_video_plots,
)
from streamseg.images import read_image
from streamseg.metrics import confusion_matrix
from streamseg.stream import FadingInTime, label_frame, label_frames

CPU = torch.device("cpu")
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
    found = evaluate(Painted(), InMemory((painted(labels, halves(0, 1)),) * 2), CPU)
    assert (found.miou, found.pixel_accuracy, found.boundary_f1, found.images) == (100, 100, 100, 2)
    assert found.iou == {"Road": 100, "Sky": 100, "Car": None}
    assert found.confusion.tolist() == [[2 * 28 * 24, 0, 0], [0, 2 * 28 * 24, 0], [0, 0, 0]]


def test_scores_are_of_all_pixels_together_not_a_mean_over_frames():
    right = painted(torch.zeros(32, 48), torch.zeros(32, 48))
    wrong = painted(torch.ones(32, 16), torch.zeros(32, 16))
    found = evaluate(Painted(), InMemory((right, wrong)), CPU)
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
    found = evaluate(Painted(), InMemory((*map(frame, errors), nothing)), CPU)
    # class 1 is not there, so its IoU is 0
    assert [index for index, _ in found.worst] == [6, 1, 4, 7, 3, 5]
    assert found.worst[0][1] == pytest.approx((30 + 0) / 2)


def test_an_evaluation_leaves_the_network_as_it_was():
    network = Painted().train()
    network.add_module("frozen", nn.BatchNorm2d(3).eval())
    seen = []
    network.register_forward_pre_hook(lambda module, _: seen.extend([module.training, module.norm.training]))
    evaluate(network, InMemory((painted(halves(0, 1), halves(0, 1)),)), CPU)
    assert seen == [False, False]
    assert (network.training, network.norm.training, network.frozen.training) == (True, True, False)

    with pytest.raises(ValueError, match="classes"):
        evaluate(network, InMemory((painted(halves(0, 1), halves(0, 1)),), Classes(("one",), ((0, 0, 0),))), CPU)
    assert network.training


def test_progress_is_told_after_each_frame():
    told = []
    dataset = InMemory((painted(halves(0, 1), halves(0, 1)),) * 3)
    evaluate(Painted(), dataset, CPU, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_network_for_other_classes_is_refused():
    with pytest.raises(ValueError, match="^The network tells 5 classes apart, but toy has 3.$"):
        evaluate(Painted(5), InMemory((painted(halves(0, 1), halves(0, 1)),)), CPU)


@pytest.mark.parametrize("measure", [evaluate, validate])
def test_an_empty_data_set_is_refused(measure):
    with pytest.raises(ValueError, match="^toy val holds no frames to evaluate on.$"):
        measure(Painted(), InMemory(()), CPU)


@pytest.mark.parametrize("measure", [evaluate, validate])
def test_a_data_set_without_any_label_is_refused(measure):
    nothing = painted(torch.full((32, 32), 255), torch.zeros(32, 32))
    with pytest.raises(ValueError, match="^No pixel of toy val has a class: there is nothing to evaluate on.$"):
        measure(Painted(), InMemory((nothing,)), CPU)


@pytest.mark.parametrize("measure", [evaluate, validate])
def test_a_frame_that_the_network_refuses_is_named(model, measure):
    maps = tuple(painted(torch.zeros(size), torch.zeros(size)) for size in ((32, 48), (31, 48)))
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    with pytest.raises(ValueError, match=r"^1\.png: The image is 31 x 48 pixels; the least is 32 x 32\.$"):
        measure(model, InMemory(maps, names), CPU)


def test_validation_gives_the_scores_of_an_evaluation_without_looking_at_boundaries(monkeypatch):
    network = Painted().train()
    maps = (painted(halves(0, 1), halves(0, 1)), painted(halves(0, 255), halves(1, 1)))
    found = evaluate(network, InMemory(maps), CPU)
    monkeypatch.delattr("streamseg.metrics.boundary_counts")
    assert validate(network, InMemory(maps), CPU) == Score(found.miou, found.iou)
    assert network.training


def test_frames_of_different_sizes_are_each_evaluated_at_their_own(model, image):
    labels = model(image)[0].argmax(dim=0)
    small = image[..., :40, :56]
    maps = ((image[0], labels.to(torch.uint8)), (small[0], model(small)[0].argmax(dim=0).to(torch.uint8)))
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    assert evaluate(model, InMemory(maps, names), CPU).miou == 100


def test_half_precision_is_close_to_full(model, image):
    labels = model(image)[0].argmax(dim=0).to(torch.uint8)
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    found = evaluate(model, InMemory(((image[0], labels),), names), CPU, precision=torch.bfloat16)
    assert 90 < found.pixel_accuracy < 100


def test_one_size_and_no_flip_give_the_networks_own_logits(model, image):
    with torch.inference_mode():
        assert predict(model, image).equal(model(image))


@pytest.mark.parametrize("scales", [(1.0,), (0.75, 1.0, 1.5)])
def test_with_flips_a_mirrored_frame_gives_mirrored_probabilities(model, image, scales):
    with torch.inference_mode():
        plain = predict(model, image, scales, flip=True)
        mirrored = predict(model, image.flip(-1), scales, flip=True)
        assert (predict(model, image.flip(-1)) - predict(model, image).flip(-1)).abs().max() > 0.1
    torch.testing.assert_close(mirrored.flip(-1), plain, rtol=0, atol=1e-4)


def test_a_flip_changes_nothing_for_a_network_that_sees_pixels_alone():
    frames, _ = painted(halves(0, 1), halves(0, 2))
    probability = predict(Painted(), frames[None]).softmax(dim=1)
    torch.testing.assert_close(predict(Painted(), frames[None], flip=True), probability)


def test_several_scales_give_the_mean_of_their_probabilities(model, image):
    with torch.inference_mode():
        one, other = (predict(model, image, (scale,)) for scale in (0.75, 1.5))
        both = predict(model, image, (0.75, 1.5))
    assert both.shape == (1, 11, 64, 96)
    torch.testing.assert_close(both, (one + other) / 2)
    torch.testing.assert_close(both.sum(dim=1), torch.ones(1, 64, 96))


@pytest.mark.parametrize("scales", [(), (0.0,), (1.0, -1.0), (math.nan,), (math.inf,)])
def test_scales_that_are_no_sizes_are_refused(model, image, scales):
    with pytest.raises(ValueError, match="^The scales are .* expected one or more numbers above 0, such as 1.0.$"):
        predict(model, image, scales)


def test_scales_that_are_no_sizes_are_no_fault_of_a_frame(model):
    with pytest.raises(ValueError, match="^The scales are"):
        evaluate(model, InMemory((painted(halves(0, 1), halves(0, 1)),)), CPU, scales=(0.0,))


def test_a_scale_that_makes_frames_too_small_is_refused(model, image):
    with pytest.raises(ValueError, match="the least is 32 x 32"):
        predict(model, image, (0.001,))


def test_an_evaluation_is_written_as_strict_json_in_percent():
    found = evaluate(Painted(), InMemory((painted(torch.zeros(32, 48), torch.zeros(32, 48)),)), CPU)
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
    text = render(Evaluation(50.0, iou, 91.25, math.nan, torch.zeros(3, 3), 7, ()))
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
    network = Painted().train()
    right, wrong = painted(halves(0, 1), halves(0, 1)), painted(halves(0, 1), halves(2, 1))
    heights = []
    for maps in ((right,), (right, wrong)):
        dataset = InMemory(maps)
        write_plots(tmp_path / "plots", evaluate(network, dataset, CPU), network, dataset, CPU)
        assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["confusion.png", "worst.png"]
        heights.append(read_image(tmp_path / "plots" / "worst.png").shape[1])
    assert heights[1] > 1.7 * heights[0]
    assert network.training


SMALL = (32, 48)


def make_val(data, *lengths):
    """CamVid's val of some sequences at 15 Hz, a second apart."""
    names = []
    for length in lengths:
        start = 7959 + 30 * len(names)
        names += [f"0016E5_{start + 2 * i:05}" for i in range(length)]
    return camvid(make_camvid(data, "val", names, size=SMALL), "val")


def labels_in_order(model, dataset, indices, window):
    """True and predicted labels of some frames of a data set, seen as a stream."""
    frames, labels = zip(*(dataset[i] for i in indices), strict=True)
    times = [int(dataset.pairs[i].image.stem[-5:]) / 30 for i in indices]
    return labels, [found for _, found in label_frames(model, frames, window, times=times)]


@pytest.mark.parametrize("window", [1, 3, FadingInTime(0.2)])
def test_sequences_are_seen_in_order_each_from_its_beginning(model, tmp_path, window):
    dataset = make_val(tmp_path, 9, 3)
    found = evaluate_video(model, dataset, CPU, window)
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
    alone, in_order = evaluate(model, dataset, CPU), evaluate_video(model, dataset, CPU, 1)
    assert in_order.confusion.equal(alone.confusion)
    assert in_order.worst == alone.worst
    assert in_order.boundary_f1 == alone.boundary_f1
    # the network remembers nothing of the frames before, and of the others it would
    assert not evaluate_video(model, dataset, CPU, 2).confusion.equal(alone.confusion)


def test_frames_without_labels_are_seen_before_the_labelled_one(tmp_path):
    torch.manual_seed(0)
    model = streamseg.fanet18().eval()
    dataset = cityscapes(make_snippets(make_cityscapes(tmp_path, SMALL), SMALL), "val")
    told = []
    found = evaluate_video(model, dataset, CPU, 3, progress=lambda *counts: told.append(counts))
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
    # no frame looks back, but labelled ones are still compared with those before
    assert 0 < evaluate_video(model, dataset, CPU, 1).flip_rate < 100


def test_a_sequence_is_measured_the_same_whatever_else_is(model, tmp_path):
    dataset = make_val(tmp_path, 4, 9)
    second = replace(dataset, pairs=dataset.pairs[4:])
    both, alone = (evaluate_video(model, chosen, CPU, 2) for chosen in (dataset, second))
    assert both.mvc8 == alone.mvc8
    assert both.images - alone.images == 4
    first = evaluate_video(model, replace(dataset, pairs=dataset.pairs[:4]), CPU, 2)
    assert both.confusion.equal(first.confusion + alone.confusion)


def test_an_evaluation_of_sequences_leaves_the_network_as_it_was(model, tmp_path):
    dataset = make_val(tmp_path, 2)
    network = copy.deepcopy(model).train()
    found = evaluate_video(network, dataset, CPU, 2)
    assert network.training
    assert found.confusion.equal(evaluate_video(model, dataset, CPU, 2).confusion)


def test_frames_that_differ_in_size_are_no_sequence(model, tmp_path):
    dataset = make_val(tmp_path, 2)
    save_frame(tmp_path / "val/0016E5_07961.png", size=(40, 48))
    save_ids(tmp_path / "valannot/0016E5_07961.png", [0], size=(40, 48))
    with pytest.raises(
        ValueError, match=r"07959\.png is 48 x 32 pixels but .*07961\.png is 48 x 40; make them the same"
    ):
        evaluate_video(model, dataset, CPU, 2)


def test_a_frame_of_a_sequence_that_the_network_refuses_is_named(model, tmp_path):
    dataset = camvid(make_camvid(tmp_path, "val", ["0016E5_07959", "0016E5_07961"]), "val")
    with pytest.raises(ValueError, match=r"0016E5_07959\.png: .*8, 12.* 32 pixels or more"):
        evaluate_video(model, dataset, CPU, 2)


def test_a_window_needs_a_frame(model, tmp_path):
    with pytest.raises(ValueError, match=r"^window is 0; expected a whole number, 1 or more\.$"):
        evaluate_video(model, make_val(tmp_path, 2), CPU, 0)


def test_data_sets_without_sequences_say_what_a_window_needs(tmp_path):
    three, many = streamseg.fanet18(3), streamseg.fanet18(150)
    with pytest.raises(
        ValueError,
        match="^folder all has no sequences of frames to look at in order: a window needs a folder of numbered frames "
        "for each video, images/SPLIT/VIDEO/, and its labels in labels/SPLIT/VIDEO/.$",
    ):
        evaluate_video(three, folder(make_folder(tmp_path / "a", ["1", "2"]), "all"), CPU, 2)
    mixed = folder(make_folder(tmp_path / "b", ["val/v/1", "val/v/2", "val/x"]), "val")
    with pytest.raises(ValueError, match=r"val/x\.jpg is in no sequence of frames: a window needs a folder"):
        evaluate_video(three, mixed, CPU, 2)
    with pytest.raises(ValueError, match="^cityscapes val .* a window needs the frames .* in leftImg8bit_sequence/"):
        evaluate_video(streamseg.fanet18(19), cityscapes(make_cityscapes(tmp_path / "c"), "val"), CPU, 2)
    save_frame(tmp_path / "d/images/validation/1.jpg")
    save_ids(tmp_path / "d/annotations/validation/1.png", [1])
    with pytest.raises(ValueError, match=r"^ade20k val .* a window needs a data set of videos\.$"):
        evaluate_video(many, ade20k(tmp_path / "d", "val"), CPU, 2)
    with pytest.raises(ValueError, match=r"^camvid val .* a window needs neighbouring frames, by their numbers\.$"):
        evaluate_video(streamseg.fanet18(11), make_val(tmp_path / "e", 1), CPU, 2)


def test_a_network_for_other_classes_and_an_empty_data_set_are_refused_in_order_too(model, tmp_path):
    dataset = make_val(tmp_path, 2)
    with pytest.raises(ValueError, match=r"^The network tells 3 classes apart, but camvid has 11\.$"):
        evaluate_video(streamseg.fanet18(3), dataset, CPU, 2)
    with pytest.raises(ValueError, match=r"^camvid val holds no frames to evaluate on\.$"):
        evaluate_video(model, replace(dataset, pairs=()), CPU, 2)


def test_nothing_is_decoded_while_a_frame_is_timed(model, tmp_path, monkeypatch):
    busy, seen = [], []

    def read(path):
        busy.append(path)
        picture = read_image(path)
        busy.remove(path)
        return picture

    def label(*arguments, **options):
        seen.append(len(busy))
        return label_frame(*arguments, **options)

    dataset = make_val(tmp_path, 20)
    monkeypatch.setattr("streamseg.datasets.read_image", read)
    monkeypatch.setattr("streamseg.evaluate.label_frame", label)
    evaluate_video(model, dataset, CPU, 2, threads=2)
    # three before the first, which are not timed
    assert seen == [0] * (20 + 3)


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
    told = json.loads(json.dumps(video_to_json(VIDEO), allow_nan=False))
    assert told == {
        **to_json(VIDEO),
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


def test_a_rendered_evaluation_of_sequences_ends_in_its_times():
    assert render_video(VIDEO).splitlines() == [
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
        "Avg RT 14.0 ms, MaxLatency 17.2 ms a frame on an abacus",
    ]


def test_the_plots_of_sequences_show_what_was_measured(model, tmp_path, monkeypatch):
    dataset = make_val(tmp_path, 5)
    found = evaluate_video(model, dataset, CPU, 3)
    rows = []
    monkeypatch.setattr("streamseg.plot.confusion_plot", lambda *_: None)
    monkeypatch.setattr("streamseg.plot.write_worst", lambda _, frames, __: rows.extend(frames))
    write_video_plots(tmp_path / "plots", found, model, dataset, CPU, 3)
    assert len(rows) == 5
    assert found.confusion.equal(sum(confusion_matrix(labels, predicted, 11) for _, labels, predicted, _ in rows))
