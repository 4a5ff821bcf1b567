"""The accuracy of video methods by the distance to the last key frame."""

import json
import math
from dataclasses import replace

import pytest
import torch
from commands import run
from make_datasets import make_camvid, make_cityscapes, make_snippets

import streamseg
from streamseg.data.datasets import camvid, cityscapes
from streamseg.evaluate.images import evaluate, validate
from streamseg.evaluate.metrics import confusion_matrix, miou
from streamseg.evaluate.paper import Row, Table
from streamseg.evaluate.reproduce import RunEvaluator, find_runs, reproduce
from streamseg.evaluate.video import evaluate_video
from streamseg.evaluate.video_methods import evaluate_distances, format_distances, validate_method
from streamseg.io.images import write_image
from streamseg.io.masks import Mask
from streamseg.models.video import VIDEO_METHODS

SIZE = (40, 56)


@pytest.fixture(scope="module")
def val(tmp_path_factory):
    names = [f"0016E5_{7959 + 2 * number:05}" for number in range(7)]
    return make_camvid(tmp_path_factory.mktemp("camvid"), "val", names, size=SIZE)


@pytest.fixture(scope="module")
def method():
    torch.manual_seed(0)
    method = VIDEO_METHODS["clockwork-swiftnet18"](11).eval()
    method.interval = 3
    return method


@torch.no_grad()
def by_definition(method, dataset, distance, first=2):
    """Return the mIoU of streams that start `distance` frames before each labelled frame, from the first on."""
    confusion = torch.zeros(11, 11, dtype=torch.int64)
    for end in range(first, len(dataset)):
        state = None
        for number in range(end - distance, end + 1):
            frame, labels = dataset[number]
            logits, state = method.step(frame[None], state)
        confusion += confusion_matrix(labels, logits[0].argmax(dim=0), 11)
    return 100 * miou(confusion)


def test_each_labelled_frame_is_seen_at_each_distance(method, val):
    dataset = camvid(val, "val")
    found = evaluate_distances(method, dataset, 3)
    assert found.mious == pytest.approx([by_definition(method, dataset, distance) for distance in range(3)])
    assert found.mean == pytest.approx(sum(found.mious) / 3)
    assert format_distances(found).startswith("mIoU by distance to the key frame  0: ")


def test_distance_0_is_the_backbone(method, val):
    dataset = camvid(val, "val")
    assert evaluate_distances(method, dataset, 1).mious[0] == pytest.approx(
        validate(method.backbone.network, dataset).miou
    )


def test_what_a_mask_hides_counts_at_no_distance(method, val):
    dataset, seen = camvid(val, "val"), torch.ones(SIZE, dtype=torch.bool)
    seen[-16:] = False
    mask, noise = Mask(seen), torch.randint(0, 256, (3, *SIZE), generator=torch.Generator().manual_seed(0)).byte()
    other = replace(
        dataset,
        read_image=lambda path: torch.where(seen, dataset.read_image(path), noise),
        read_labels=lambda path: torch.where(seen, dataset.read_labels(path), 3),
    )
    found = evaluate_distances(method, dataset, 3, mask=mask)
    assert evaluate_distances(method, other, 3, mask=mask) == found
    assert evaluate_distances(method, other, 3) != evaluate_distances(method, dataset, 3)
    alone = evaluate_distances(method, dataset, 1, mask=mask).mious[0]
    assert alone == pytest.approx(evaluate(method.backbone.network, dataset, mask=mask).miou)


def test_a_snippet_of_cityscapes_is_started_at_each_distance(tmp_path):
    torch.manual_seed(0)
    method = VIDEO_METHODS["copy-swiftnet18"](19).eval()
    make_cityscapes(tmp_path, SIZE)
    found = evaluate_distances(method, cityscapes(make_snippets(tmp_path, SIZE), "val"), 3)
    assert len(found.mious) == 3
    assert not any(map(math.isnan, found.mious))


def test_distances_need_a_labelled_frame_that_is_far_enough(method, val):
    found = evaluate_distances(method, camvid(val, "val"), 9)
    assert found.mious == ()
    assert math.isnan(found.mean)
    assert "no labelled frame has enough frames before it" in format_distances(found)
    with pytest.raises(ValueError, match="The key interval is 33; expected 1 to 32"):
        evaluate_distances(method, camvid(val, "val"), 33)


def test_validation_is_at_the_largest_distance_of_a_clip(method, val):
    dataset = camvid(val, "val")
    assert validate_method(method, dataset, 3).miou == pytest.approx(by_definition(method, dataset, 2))


def test_a_video_evaluation_counts_key_frames(method, val):
    assert evaluate_video(method, camvid(val, "val"), 1).key_share == pytest.approx(100 * 3 / 7)


def test_the_verb_evaluate_takes_the_window_as_key_interval(method, val, tmp_path, monkeypatch, capsys):
    streamseg.save(method, streamseg.CAMVID, tmp_path / "w.safetensors")
    options = ("--dataset", "camvid", "--data", str(val), "--device", "cpu", "--json", str(tmp_path / "found.json"))
    assert run(monkeypatch, "evaluate", tmp_path / "w.safetensors", *options, "--window", "2") == 0
    assert "mIoU by distance to the key frame  0: " in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["miou_by_distance"]) == 2
    assert found["key_share"] == pytest.approx(100 * 4 / 7)
    mask = torch.full((3, *SIZE), 255, dtype=torch.uint8)
    mask[:, -16:] = 0
    write_image(tmp_path / "mask.png", mask)
    masked = ("--window", "2", "--mask", str(tmp_path / "mask.png"))
    assert run(monkeypatch, "evaluate", tmp_path / "w.safetensors", *options, *masked) == 0
    expected = evaluate_distances(method, camvid(val, "val"), 2, mask=Mask(mask[0] > 0)).mious
    assert json.loads((tmp_path / "found.json").read_text())["miou_by_distance"] == pytest.approx(expected)
    assert found["miou_by_distance"] != pytest.approx(expected)


def test_table_vi_has_accuracy_flips_and_consistency_of_a_method(method, val, tmp_path):
    (tmp_path / "one").mkdir()
    streamseg.save(method, streamseg.CAMVID, tmp_path / "one" / "weights.safetensors")
    dataset = camvid(val, "val")
    evaluator = RunEvaluator(find_runs(tmp_path), dataset, torch.device("cpu"), 1)
    row = Row("Clockwork", {"fps": 5.6}, "clockwork-swiftnet18", window=2, in_order=True, size=(64, 96))
    (result,) = reproduce(Table("VI", "", (row,), 11), torch.device("cpu"), timed=True, evaluator=evaluator)
    assert result.found["miou"] == pytest.approx(evaluate_distances(method, dataset, 2).mean)
    assert {"flip_rate", "mvc8", "avg_ms", "max_ms", "fps"} <= set(result.found)
    assert result.found["avg_ms"] <= result.found["max_ms"]


def test_a_sparse_label_is_of_the_frame_farthest_from_its_key_frame(tmp_path, monkeypatch):
    torch.manual_seed(0)
    method = VIDEO_METHODS["copy-swiftnet18"](19).eval()
    make_cityscapes(tmp_path, SIZE)
    dataset = cityscapes(make_snippets(tmp_path, SIZE), "val")
    for interval, distance in ((3, 2), (2, 1), (1, 0)):
        method.interval, positions = interval, []
        monkeypatch.setattr(method, "key_share", lambda state, found=positions: found.append(state.position) or 0.0)
        evaluate_video(method, dataset, 1)
        assert positions == 2 * [*range(distance + 1)] if interval > 1 else positions == [0] * 4


def test_without_a_window_a_method_is_evaluated_at_the_interval_of_its_weights(
    method, val, tmp_path, monkeypatch, capsys
):
    streamseg.save(method, streamseg.CAMVID, tmp_path / "w.safetensors")
    options = ("--dataset", "camvid", "--data", str(val), "--device", "cpu", "--json", str(tmp_path / "found.json"))
    assert run(monkeypatch, "evaluate", tmp_path / "w.safetensors", *options) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["miou_by_distance"]) == 3
    assert found["key_share"] == pytest.approx(100 * 3 / 7)


def test_single_frames_are_enough_for_a_row_without_a_window(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    torch.manual_seed(0)
    network = streamseg.fanet18(19).eval()
    streamseg.save(network, streamseg.CITYSCAPES, tmp_path / "runs" / "one" / "weights.safetensors")
    dataset = cityscapes(make_cityscapes(tmp_path / "data", SIZE), "val")
    evaluator = RunEvaluator(find_runs(tmp_path / "runs"), dataset, torch.device("cpu"), 1)
    found = evaluator.evaluate_row(Row("FANet-18", network="fanet18", window=1, in_order=True))
    assert found == {"miou": pytest.approx(validate(network, dataset).miou)}
