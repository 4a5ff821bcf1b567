import math

import pytest
import torch
from exports import exported as exported
from painted import InMemory, Painted, halves, painted

import streamseg
from streamseg.classes import Classes
from streamseg.engine.engine import EagerEngine
from streamseg.engine.fast import FastEngine
from streamseg.engine.runtime import ExportedEngine, open_exported
from streamseg.evaluate.engines import average_scores, averaging_engine, open_evaluation_engine, sample_frames
from streamseg.evaluate.images import evaluate
from streamseg.stream.label_frames import label_frame


def test_sampled_frames_are_spread_over_the_data_set():
    maps = tuple(painted(torch.zeros(1, 1), torch.full((1, 1), i)) for i in range(10))
    assert [int(frame[0]) for frame in sample_frames(InMemory(maps), 4)] == [0, 3, 6, 9]
    assert [int(frame[0]) for frame in sample_frames(InMemory(maps[:2]), 4)] == [0, 1]
    assert sample_frames(InMemory(()), 4) == []


def test_weights_are_opened_eager_or_fast_or_averaged(model, image, tmp_path):
    cpu, frame = torch.device("cpu"), image[0]
    dataset = InMemory((painted(torch.zeros(64, 96), torch.zeros(64, 96)),), streamseg.CAMVID)
    weights = tmp_path / "weights.safetensors"
    streamseg.save(model, streamseg.CAMVID, weights)
    assert isinstance(open_evaluation_engine(weights, cpu, dataset)[0], EagerEngine)
    assert isinstance(open_evaluation_engine(weights, cpu, dataset, precision="fp32")[0], FastEngine)
    for options in ({"flip": True}, {"scales": (0.5, 1.0)}):
        engine, classes = open_evaluation_engine(weights, cpu, dataset, **options)
        assert classes == streamseg.CAMVID
        labels, _ = label_frame(engine, frame)
        with torch.inference_mode():
            expected = average_scores(model, image, **options)[0].argmax(dim=0)
        assert (labels == expected).float().mean() > 0.999
        with pytest.raises(ValueError, match="^--precision works with one scale and no flip"):
            open_evaluation_engine(weights, cpu, dataset, precision="fp32", **options)


def test_an_exported_file_is_opened_but_not_averaged(exported):
    cpu, file = torch.device("cpu"), exported("still.onnx")
    classes = open_exported(file).manifest.classes
    dataset = InMemory((painted(torch.zeros(64, 96), torch.zeros(64, 96)),), classes)
    engine, found = open_evaluation_engine(file, cpu, dataset)
    assert isinstance(engine, ExportedEngine)
    assert found == classes
    for options in ({"flip": True}, {"scales": (0.5, 1.0)}):
        with pytest.raises(ValueError, match="still.onnx returns labels, not scores to average: leave out --scales"):
            open_evaluation_engine(file, cpu, dataset, **options)


def test_one_scale_and_no_flip_give_the_networks_own_logits(model, image):
    with torch.inference_mode():
        assert average_scores(model, image).equal(model(image))


@pytest.mark.parametrize("scales", [(1.0,), (0.75, 1.0, 1.5)])
def test_with_flips_a_mirrored_frame_gives_mirrored_probabilities(model, image, scales):
    with torch.inference_mode():
        plain = average_scores(model, image, scales, flip=True)
        mirrored = average_scores(model, image.flip(-1), scales, flip=True)
        assert (average_scores(model, image.flip(-1)) - average_scores(model, image).flip(-1)).abs().max() > 0.1
    torch.testing.assert_close(mirrored.flip(-1), plain, rtol=0, atol=1e-4)


def test_a_flip_changes_nothing_for_a_network_of_single_pixels():
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
def test_impossible_scales_are_refused(model, image, scales):
    with pytest.raises(ValueError, match="^The scales are .* expected one or more numbers above 0, such as 1.0.$"):
        average_scores(model, image, scales)


def test_impossible_scales_are_refused_before_the_first_frame(model):
    with pytest.raises(ValueError, match="^The scales are"):
        averaging_engine(model, (0.0,))


def test_a_mirrored_data_set_has_the_same_scores_with_flips(model, image):
    labels = torch.randint(0, 11, (64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    names = Classes(tuple(f"class {i}" for i in range(11)), ((0, 0, 0),) * 11)
    data, mirrored = (InMemory(((x, y),), names) for x, y in ((image[0], labels), (image[0].flip(-1), labels.flip(-1))))
    scores = [evaluate(averaging_engine(model, (0.75, 1.0), flip=True), frames).miou for frames in (data, mirrored)]
    assert scores[0] == pytest.approx(scores[1], abs=0.01)
    assert scores[0] != pytest.approx(evaluate(model, data).miou, abs=0.01)


def test_a_scale_that_makes_frames_too_small_is_refused(model, image):
    with pytest.raises(ValueError, match="the least is 32 x 32"):
        average_scores(model, image, (0.001,))
