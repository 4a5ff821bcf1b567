"""Training runs from start to end, of a few iterations."""

import json
import math
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from runs import CPU, FANET, TINY, entries, run
from torch import nn

import streamseg
import streamseg.cli
from streamseg.data.datasets import folder
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import Description
from streamseg.models.video import VIDEO_METHODS
from streamseg.train import loop, runlog
from streamseg.train.feed import Batch, build_clip_index, cache_on_device
from streamseg.train.loop import float_tensors, set_learning_rate, update_ema
from streamseg.train.setup import load_backbone

pytestmark = pytest.mark.usefixtures("frequent_entries", "no_plots")


def test_a_run_writes_weights_that_load_and_a_record_of_itself(toy, alone):
    model, classes = streamseg.load(alone / "weights.safetensors")
    assert classes.names == ("ground", "box", "disc")
    assert classes.colours[2] == (0, 0, 255)
    average = torch.load(alone / "state.pt", weights_only=True)["average"]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, average[name].to(tensor.dtype), rtol=1e-3, atol=1e-6)
    assert "folder train, 6 iterations" in streamseg.describe(alone / "weights.safetensors").source
    told = json.loads((alone / "run.json").read_text())
    assert told["config"] == json.loads(json.dumps(asdict(TINY)))
    assert told["sessions"][0]["command"] == sys.argv
    assert (told["frames"], told["data"], told["initial"]) == (7, str(toy), "nothing")
    assert told["sessions"][0]["torch"] == torch.__version__
    assert [entry["step"] for entry in entries(alone)] == [3, 4, 6, 6]
    assert all(share > 0 for share in (entry["val_miou"] for entry in entries(alone, "val_miou")[::3]))
    assert streamseg.read_image(alone / "curves.png").shape[0] == 3


@pytest.mark.slow
def test_a_network_learns(toy, tmp_path):
    run(toy, tmp_path, replace(FANET, iterations=32, validate_every=100, batch=4, ema_decay=0.8, class_weighting=0.0))
    assert isinstance(streamseg.load(tmp_path / "weights.safetensors")[0], streamseg.FANet)
    told = entries(tmp_path, "loss", "val_miou")
    assert told[-2]["loss"] < 0.6 * told[0]["loss"]
    assert told[-1]["val_miou"] > 60


def test_frames_of_different_sizes_are_streamed_and_trained_on(paint, tmp_path):
    data = paint(tmp_path / "data", [(64, 96), (80, 72), (40, 120), (64, 64), (96, 96)])
    dataset = folder(data, "train")
    assert cache_on_device(dataset, build_clip_index(dataset, 1), CPU, 2) is None
    run(data, tmp_path / "out", replace(TINY, iterations=2))
    assert [entry["step"] for entry in entries(tmp_path / "out")] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["fanet18", "fanetplus18"])
def test_a_network_trains_on_clips_from_image_weights(drive, tmp_path, network):
    image = replace(FANET, network=network, dataset="camvid", iterations=2, validate="", crop=(64, 64))
    first = run(drive, tmp_path / "image", image)
    config = replace(image, window=3, averages=True, iterations=3)
    second = run(drive, tmp_path / "video", config, initial=str(first))
    described = streamseg.describe(second)
    assert (described.window, described.variant.averages) == (3, True)
    assert not streamseg.describe(first).variant.averages
    model, _ = streamseg.load(second)
    assert model.averages
    assert model.name == described.network == network


def test_progress_is_shown_after_the_first_iteration_even_if_the_first_entry_is_far(toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runlog, "EVERY", 50)
    monkeypatch.setattr(runlog, "MAX_SILENCE", math.inf)
    run(toy, tmp_path, replace(TINY, network="enet", iterations=2, validate=""))
    lines = [line.partition("  rate")[0] for line in capsys.readouterr().err.splitlines() if "  loss " in line]
    assert [line.split()[0] for line in lines] == ["1/2", "2/2"]
    first, mean = (float(line.split()[-1]) for line in lines)
    assert entries(tmp_path, "loss") == [{"step": 2, "loss": pytest.approx(mean, abs=1e-3)}]
    assert first > 0
    assert first != mean


def test_a_baseline_trains_like_a_fanet_and_the_log_says_what_it_starts_from(toy, tmp_path, capsys):
    config = replace(TINY, iterations=3)
    weights = run(toy, tmp_path / "out", config, initial="imagenet")
    assert "There are no ImageNet weights for enet: it starts from random weights." in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "run.json").read_text())["initial"] == "nothing"
    assert entries(tmp_path / "out", "val_miou")[-1]["val_miou"] > 0
    assert streamseg.load(weights)[0].name == "enet"
    with pytest.raises(ValueError, match="^enet has no ResNet to fill with a.pth: leave out --encoder-weights.$"):
        run(toy, tmp_path / "other", config, initial="imagenet", encoder_weights=Path("a.pth"))


def test_gradient_clipping_limits_a_step(toy, tmp_path):
    moved = {}
    for clip in (0.0, 0.01):
        config = replace(
            TINY, optimiser="sgd", learning_rate=1.0, warm_up=0.0, grad_clip=clip, iterations=1, validate=""
        )
        config = replace(config, ema_decay=0.0, weight_decay=0.0, class_weighting=0.0)
        run(toy, tmp_path / str(clip), config)
        torch.manual_seed(config.seed)
        start = BASELINES["enet"](3).state_dict()
        end = torch.load(tmp_path / str(clip) / "state.pt", weights_only=True)["average"]
        moved[clip] = sum((end[name] - start[name]).square().sum() for name in start if name.endswith("weight")) ** 0.5
    assert moved[0.01] <= 0.011
    assert moved[0.0] > 0.1


@pytest.mark.slow
def test_a_batch_in_equal_parts_trains_like_one_batch(toy, tmp_path, monkeypatch):
    def twice(*arguments):
        for batch in original(*arguments):
            yield Batch(*(part if part is None else torch.cat([part[:1], part[:1]]) for part in batch))

    original = loop.batches
    monkeypatch.setattr(loop, "batches", twice)
    config = replace(FANET, iterations=1, optimiser="sgd", crop=(96, 96), grad_clip=0.0, validate="", ema_decay=0.0)
    torch.manual_seed(config.seed)
    start = streamseg.fanet18(classes=3).encoder.conv1.weight.detach()
    moved = []
    for parts in (1, 2):
        run(toy, tmp_path / str(parts), replace(config, accumulate=parts))
        state = torch.load(tmp_path / str(parts) / "state.pt", weights_only=True)
        moved.append(state["average"]["encoder.conv1.weight"] - start)
    assert (moved[1] - moved[0]).norm() < 0.01 * moved[0].norm()
    assert entries(tmp_path / "1", "loss")[0] == pytest.approx(entries(tmp_path / "2", "loss")[0], rel=1e-4)


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_state(toy, tmp_path, monkeypatch):
    original = loop.set_learning_rate

    def explode(optimiser, config, step):
        original(optimiser, config if step < 3 else replace(config, learning_rate=1e30), step)

    monkeypatch.setattr(loop, "set_learning_rate", explode)
    hot = replace(TINY, optimiser="sgd", warm_up=0.0, grad_clip=0.0, iterations=20, validate="", validate_every=100)
    with pytest.raises(ValueError, match="not finite at iteration [45678]: start again with a lower --learning-rate.$"):
        run(toy, tmp_path, hot, save_seconds=0)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["trainee"]["losses"].isfinite()


def test_a_run_succeeds_without_matplotlib(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    weights = run(toy, tmp_path, replace(TINY, iterations=1, validate=""))
    assert streamseg.load(weights)
    assert "Plots need matplotlib: pip install 'streamseg[train]'" in capsys.readouterr().err
    assert not (tmp_path / "curves.png").exists()


def rates(config, share=1.0):
    optimiser = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "share": share}], lr=1)
    for step in range(config.iterations):
        set_learning_rate(optimiser, config, step)
        yield optimiser.param_groups[0]["lr"]


def test_the_learning_rate_decays_as_in_the_paper_and_ends_near_0():
    config = replace(TINY, iterations=1000, warm_up=0.0, learning_rate=0.01)
    found = list(rates(config))
    assert found[0] == 0.01
    assert found[500] == pytest.approx(0.01 * 0.5**0.9)
    assert 0 < found[-1] < 1e-4
    assert all(after < before for before, after in pairwise(found))


def test_the_learning_rate_rises_in_the_warm_up_and_is_then_the_same_as_without():
    config = replace(TINY, iterations=100, warm_up=0.09)
    found, without = list(rates(config)), list(rates(replace(config, warm_up=0.0)))
    assert found[0] == pytest.approx(without[0] / 10)
    assert all(after > before for before, after in pairwise(found[:10]))
    assert found[9:] == without[9:]


def test_an_ema_without_decay_is_the_weights_and_one_with_decay_follows_them(model):
    average = streamseg.fanet18(classes=11)
    start = average.encoder.conv1.weight.clone()
    update_ema(float_tensors(average), float_tensors(model), 0.75, step=1000)
    torch.testing.assert_close(average.encoder.conv1.weight, 0.75 * start + 0.25 * model.encoder.conv1.weight)
    update_ema(float_tensors(average), float_tensors(model), 0.0, step=1000)
    for ours, theirs in zip(float_tensors(average), float_tensors(model), strict=True):
        assert ours.equal(theirs)


def test_the_decay_is_lower_in_the_first_steps(model):
    average = streamseg.fanet18(classes=11)
    start = average.encoder.conv1.weight.clone()
    update_ema(float_tensors(average), float_tensors(model), 0.999, step=0)
    torch.testing.assert_close(average.encoder.conv1.weight, 0.1 * start + 0.9 * model.encoder.conv1.weight)


@pytest.mark.parametrize("method", ["copy", "clockwork-adaptive"])
def test_a_video_method_trains_on_clips_from_the_weights_of_its_backbone(drive, tmp_path, method):
    torch.manual_seed(0)
    backbone = BASELINES["swiftnet18"](11)
    streamseg.save(backbone, streamseg.CAMVID, tmp_path / "backbone.safetensors")
    config = replace(TINY, network=f"{method}-swiftnet18", dataset="camvid", window=2, iterations=2, validate_every=2)
    weights = run(drive, tmp_path / "out", config, initial=str(tmp_path / "backbone.safetensors"))
    trained, _ = streamseg.load(weights)
    assert trained.interval == (2 if method == "copy" else None)
    assert entries(tmp_path / "out", "val_miou")[-1]["val_miou"] >= 0
    before, after = backbone.encoder.conv1.weight, trained.backbone.network.encoder.conv1.weight
    # the adaptive clock trains its classifier alone
    assert torch.allclose(before, after, atol=1e-3) == (method == "clockwork-adaptive")


def test_a_video_method_needs_the_weights_of_its_backbone(drive, tmp_path):
    config = replace(TINY, network="dff-swiftnet18", dataset="camvid", window=2)
    with pytest.raises(ValueError, match="^dff-swiftnet18 starts from a trained swiftnet18: give its weights, --init"):
        run(drive, tmp_path / "a", config, initial="imagenet")
    streamseg.save(BASELINES["enet"](11), streamseg.CAMVID, tmp_path / "enet.safetensors")
    with pytest.raises(ValueError, match="holds a enet, which lacks backbone.network.encoder.conv1.weight"):
        run(drive, tmp_path / "b", config, initial=str(tmp_path / "enet.safetensors"))
    with pytest.raises(ValueError, match="^copy-swiftnet18 has no flow network to fill with f: leave out"):
        run(drive, tmp_path / "c", replace(config, network="copy-swiftnet18"), flow_weights=Path("f"))


def test_accel_takes_the_parts_that_another_method_has(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "dff.safetensors"
    dff = VIDEO_METHODS["dff-swiftnet18"](11)
    streamseg.save(dff, streamseg.CAMVID, path)
    accel = VIDEO_METHODS["accel-swiftnet18"](11)
    load_backbone(accel, Description("accel-swiftnet18", None, streamseg.CAMVID, 5, ""), str(path))
    ours, theirs = accel.state_dict(), dff.state_dict()
    assert all(ours[name].equal(x) for name, x in theirs.items() if name.startswith(("backbone.", "flow.")))
    assert all(x.equal(theirs[f"backbone.{name}"]) for name, x in accel.update.state_dict().items())


def test_an_update_branch_of_another_kind_is_not_filled_in_part(model, tmp_path):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "fanet.safetensors")
    accel = VIDEO_METHODS["accel-fanet18"](11)
    before = {name: x.clone() for name, x in accel.update.state_dict().items()}
    description = Description("accel-fanet18", None, streamseg.CAMVID, 5, "")
    load_backbone(accel, description, str(tmp_path / "fanet.safetensors"))
    assert all(x.equal(before[name]) for name, x in accel.update.state_dict().items())


def test_a_flow_network_that_is_not_trained_must_be_given(drive, tmp_path):
    streamseg.save(BASELINES["swiftnet18"](11), streamseg.CAMVID, tmp_path / "backbone.safetensors")
    config = replace(TINY, network="grfp-swiftnet18", dataset="camvid", window=2)
    with pytest.raises(ValueError, match="^grfp-swiftnet18 does not train its flow network: give a trained one"):
        run(drive, tmp_path / "out", config, initial=str(tmp_path / "backbone.safetensors"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("eager", [False, True])
def test_a_network_is_compiled_on_a_gpu_unless_the_run_is_to_be_eager(eager, toy, tmp_path, monkeypatch):
    asked = []

    def train(*_, compiled, **__):
        asked.append(compiled)
        raise loop.TrainingStopped(15)

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr("streamseg.cli.training.pick_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr("streamseg.engine.kernels.VERSION", "any")
    command = ["train", "folder-18", "--data", str(toy), "--out", str(tmp_path / "run"), *(["--eager"] * eager)]
    assert streamseg.cli.run(command) == 128 + 15
    assert asked == [not eager]
