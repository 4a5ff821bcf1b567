import json
import math
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from runs import CPU, FANET, TINY, run
from torch import nn

import streamseg
from streamseg.data.datasets import folder
from streamseg.evaluate import plot
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import Variant, build_network, variant_of
from streamseg.models.encoder import resnet18
from streamseg.train import loop as training, runlog
from streamseg.train.feed import Batch, batch_indices, build_clip_index, cache_on_device
from streamseg.train.loop import float_tensors, make_optimiser, set_learning_rate, update_ema
from streamseg.train.loss_module import LossModule

# an entry after 4 iterations and at the end, so that a stop after 3 or 5 comes between two
EVERY = 4

# as the tests run it, but in a process of its own, which is killed with half of a state written
KILLED = """
import json, os, signal, sys
from pathlib import Path
import torch
from streamseg.train import runlog
from streamseg.train.config import TrainConfig
from streamseg.train.loop import train

torch.set_num_threads(1)
runlog.EVERY = int(sys.argv[4])
save = torch.save

def save_and_die(state, path):
    save(state, path)
    if state["step"] == 3:
        path.write_bytes(path.read_bytes()[:1_000_000])
        os.kill(os.getpid(), signal.SIGKILL)

torch.save = save_and_die
config = TrainConfig(**{name: tuple(x) if type(x) is list else x for name, x in json.loads(sys.argv[3]).items()})
train(config, Path(sys.argv[1]), Path(sys.argv[2]), device=torch.device("cpu"), initial="nothing", save_seconds=0)
"""


@pytest.fixture(autouse=True)
def entries_often(monkeypatch):
    monkeypatch.setattr(runlog, "EVERY", EVERY)


@pytest.fixture(autouse=True)
def no_ink(monkeypatch):
    """Curves are drawn, but become pixels in the run `alone` only: that takes as long as to train."""
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: None)


@pytest.fixture(scope="module")
def alone(toy, tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "alone"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runlog, "EVERY", EVERY)
        run(toy, out)
    return out


def entries(out, *names):
    found = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [{name: entry.get(name) for name in ("step", *names)} for entry in found]


def assert_same_run(out, alone):
    ours, theirs = (torch.load(path / "state.pt", weights_only=True) for path in (out, alone))
    assert ours.pop("settings") == theirs.pop("settings")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    (network, classes), (same, same_classes) = (streamseg.load(path / "weights.safetensors") for path in (out, alone))
    torch.testing.assert_close(network.state_dict(), same.state_dict(), rtol=0, atol=0)
    assert classes == same_classes
    told = ("loss", "rate", "val_miou", "val_iou")
    assert entries(out, *told) == entries(alone, *told)


def interrupt(monkeypatch, at, act):
    """Let something happen in the middle of an iteration."""

    def follow_and_act(average, current, memory, step):
        update_ema(average, current, memory, step)
        if step + 1 == at:
            act()

    monkeypatch.setattr(training, "update_ema", follow_and_act)


@pytest.mark.slow
def test_a_run_killed_while_it_saves_goes_on_to_the_same_weights_and_log(toy, alone, tmp_path):
    command = [sys.executable, "-c", KILLED, toy, tmp_path, json.dumps(asdict(TINY)), str(EVERY)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(".*.pt"))) == 1
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 2
    run(toy, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(("number", "at"), [(signal.SIGTERM, 5), (signal.SIGINT, 3)])
def test_a_signal_lets_the_iteration_end_and_the_run_can_go_on(toy, alone, tmp_path, monkeypatch, capsys, number, at):
    before = signal.getsignal(number)
    interrupt(monkeypatch, at, lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as stop:
        run(toy, tmp_path)
    assert stop.value.code == 128 + number
    assert f"Stopped at iteration {at} of 6: go on with --resume." in capsys.readouterr().err
    assert signal.getsignal(number) is before
    assert not (tmp_path / "weights.safetensors").exists()
    run(toy, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)
    assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 2


def test_a_second_signal_is_obeyed_at_once(toy, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    interrupt(monkeypatch, 1, twice)
    with pytest.raises(KeyboardInterrupt):
        run(toy, tmp_path)


def test_a_run_leaves_weights_that_load_and_tells_all_about_itself(toy, alone):
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


def test_a_run_that_is_done_can_be_resumed_and_stays_as_it_is(toy, alone, tmp_path):
    for path in alone.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    run(toy, tmp_path, resume=True)
    assert_same_run(tmp_path, alone)


@pytest.mark.slow
def test_a_network_learns(toy, tmp_path):
    run(toy, tmp_path, replace(FANET, iterations=32, validate_every=100, batch=4, ema=0.8, class_weighting=0.0))
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
def test_a_network_trains_on_clips_from_image_weights(drive, tmp_path):
    image = replace(FANET, dataset="camvid", iterations=2, validate="", crop=(64, 64))
    first = run(drive, tmp_path / "image", image)
    config = replace(image, window=3, averages=True, iterations=3)
    second = run(drive, tmp_path / "video", config, initial=str(first))
    described = streamseg.describe(second)
    assert (described.window, described.variant.averages) == (3, True)
    assert not streamseg.describe(first).variant.averages
    model, _ = streamseg.load(second)
    assert model.averages


def test_the_first_iteration_is_told_of_though_the_first_entry_is_far(toy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runlog, "EVERY", 50)
    monkeypatch.setattr(runlog, "SILENCE", math.inf)
    run(toy, tmp_path, replace(TINY, network="enet", iterations=2, validate=""))
    lines = [line.partition("  rate")[0] for line in capsys.readouterr().err.splitlines() if "  loss " in line]
    assert [line.split()[0] for line in lines] == ["1/2", "2/2"]
    first, mean = (float(line.split()[-1]) for line in lines)
    assert entries(tmp_path, "loss") == [{"step": 2, "loss": pytest.approx(mean, abs=1e-3)}]
    assert first > 0
    assert first != mean


def test_a_rival_trains_as_a_fanet_does_and_is_told_where_it_starts(toy, tmp_path, capsys):
    config = replace(TINY, iterations=3)
    weights = run(toy, tmp_path / "out", config, initial="imagenet")
    assert "There are no ImageNet weights for enet: it starts from nothing." in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "run.json").read_text())["initial"] == "nothing"
    assert entries(tmp_path / "out", "val_miou")[-1]["val_miou"] > 0
    assert streamseg.load(weights)[0].name == "enet"
    with pytest.raises(ValueError, match="^enet has no ResNet to fill with a.pth: leave out --encoder-weights.$"):
        run(toy, tmp_path / "other", config, initial="imagenet", encoder_weights=Path("a.pth"))


def test_a_rival_with_a_resnet_starts_from_imagenet_and_gives_it_the_encoder_s_rate(toy, tmp_path):
    imagenet = resnet18("None")
    torch.save(imagenet.state_dict(), tmp_path / "resnet18.pth")
    network = BASELINES["bisenet18"](3)
    description = training.describe_checkpoint(replace(TINY, network="bisenet18"), folder(toy, "train").classes)
    training.load_initial_weights(network, description, "imagenet", tmp_path / "resnet18.pth")
    assert network.encoder.conv1.weight.equal(imagenet.conv1.weight)
    optimiser = make_optimiser(LossModule(network, torch.ones(3)), replace(TINY, encoder_rate=0.1))
    assert {group["share"] for group in optimiser.param_groups} == {0.1, 1.0}
    alone = make_optimiser(LossModule(BASELINES["enet"](3), torch.ones(3)), replace(TINY, encoder_rate=0.1))
    assert {group["share"] for group in alone.param_groups} == {1.0}


def test_a_gentle_start_passes_res_1_on_and_adds_little_attention_and_changes_nothing_else(tmp_path):
    torch.save(resnet18("None").state_dict(), tmp_path / "resnet18.pth")
    states = []
    for gentle in (False, True):
        torch.manual_seed(0)
        network = streamseg.fanet18(3)
        training.load_initial_weights(network, None, "imagenet", tmp_path / "resnet18.pth")
        if gentle:
            streamseg.models.fanet.init_as_identity(network)
        states.append(network.state_dict())
    plain, gentle = states
    shortcut = "encoder.layer1.0.downsample.0.weight"
    gains = [f"attend{stage}.out.1.weight" for stage in (1, 2, 3, 4)]
    assert {name for name in plain if not plain[name].equal(gentle[name])} == {shortcut, *gains}
    assert gentle[shortcut].flatten(1).equal(torch.eye(64))
    assert all((gentle[name] == 0.1).all() for name in gains)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("initial", "gentle", "begun"), [("imagenet", True, 1), ("imagenet", False, 0), ("nothing", True, 0)]
)
def test_a_run_from_imagenet_begins_gently_if_told_so(toy, tmp_path, monkeypatch, initial, gentle, begun):
    torch.save(resnet18("None").state_dict(), tmp_path / "resnet18.pth")
    calls = []
    monkeypatch.setattr(training, "init_as_identity", calls.append)
    config = replace(FANET, iterations=1, validate="", gentle=gentle)
    weights = tmp_path / "resnet18.pth" if initial == "imagenet" else None
    run(toy, tmp_path / "out", config, initial=initial, encoder_weights=weights)
    assert len(calls) == begun


@pytest.mark.parametrize("name", ["fanet18", *BASELINES])
def test_only_the_last_layers_of_a_network_follow_from_its_classes(name):
    layers = training.class_layers(training.describe_checkpoint(replace(TINY, network=name), streamseg.CAMVID))
    assert all(layer.startswith(("classify.", "score.", "joins.", "up.", "branches.")) for layer in layers)
    assert len(layers) == {"fanet18": 1, "bisenet18": 1, "shelfnet18": 1, "fcn16s": 6, "fcn8s": 9, "deeplab": 8}.get(
        name, 2
    )


def test_a_variant_of_the_ablations_is_built_as_its_config_says():
    config = replace(FANET, attention="dot", key_channels=8, reduction="Conv-0", reduce_by="average")
    description = training.describe_checkpoint(config, streamseg.CAMVID)
    assert description.variant == Variant("DotAttention", 8, "Conv-0", "average", False)
    with torch.device("meta"):
        assert variant_of(build_network(description)) == description.variant


def test_clips_of_a_data_set_without_recordings_are_refused(toy, tmp_path):
    with pytest.raises(ValueError, match="folder train has no clips of 2 frames: a window needs"):
        run(toy, tmp_path, replace(FANET, window=2))


def rates(config, share=1.0):
    optimiser = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "share": share}], lr=1)
    for step in range(config.iterations):
        set_learning_rate(optimiser, config, step)
        yield optimiser.param_groups[0]["lr"]


def test_the_rate_falls_as_the_paper_says_and_ends_near_0():
    config = replace(TINY, iterations=1000, warm_up=0.0, rate=0.01)
    found = list(rates(config))
    assert found[0] == 0.01
    assert found[500] == pytest.approx(0.01 * 0.5**0.9)
    assert 0 < found[-1] < 1e-4
    assert all(after < before for before, after in pairwise(found))


def test_the_rate_rises_in_the_warm_up_and_is_then_as_without_one():
    config = replace(TINY, iterations=100, warm_up=0.09)
    found, without = list(rates(config)), list(rates(replace(config, warm_up=0.0)))
    assert found[0] == pytest.approx(without[0] / 10)
    assert all(after > before for before, after in pairwise(found[:10]))
    assert found[9:] == without[9:]


def test_the_encoder_has_its_share_of_the_rate_and_only_convolutions_decay():
    config = replace(TINY, encoder_rate=0.1, weight_decay=0.5)
    trainee = LossModule(streamseg.fanet18(classes=3), torch.ones(3), auxiliary=0.4)
    optimiser = make_optimiser(trainee, config)
    set_learning_rate(optimiser, config, 3)
    seen = {id(x): group for group in optimiser.param_groups for x in group["params"]}
    assert len(seen) == len(list(trainee.parameters()))
    for name, parameter in trainee.named_parameters():
        group = seen[id(parameter)]
        assert group["share"] == (0.1 if name.startswith("network.encoder.") else 1.0)
        assert group["weight_decay"] == (0.5 if parameter.ndim == 4 else 0)
    assert {round(group["lr"] / optimiser.param_groups[-1]["lr"], 6) for group in optimiser.param_groups} == {0.1, 1}


def test_an_average_without_memory_is_the_weights_and_one_with_memory_follows(model):
    average = streamseg.fanet18(classes=11)
    start = average.encoder.conv1.weight.clone()
    update_ema(float_tensors(average), float_tensors(model), 0.75, step=1000)
    torch.testing.assert_close(average.encoder.conv1.weight, 0.75 * start + 0.25 * model.encoder.conv1.weight)
    update_ema(float_tensors(average), float_tensors(model), 0.0, step=1000)
    for ours, theirs in zip(float_tensors(average), float_tensors(model), strict=True):
        assert ours.equal(theirs)


def test_a_young_average_forgets_faster(model):
    average = streamseg.fanet18(classes=11)
    start = average.encoder.conv1.weight.clone()
    update_ema(float_tensors(average), float_tensors(model), 0.999, step=0)
    torch.testing.assert_close(average.encoder.conv1.weight, 0.1 * start + 0.9 * model.encoder.conv1.weight)


def test_clipping_bounds_a_step(toy, tmp_path):
    moved = {}
    for clip in (0.0, 0.01):
        config = replace(
            TINY, optimiser="sgd", rate=1.0, warm_up=0.0, clip=clip, iterations=1, ema=0.0, weight_decay=0.0
        )
        run(toy, tmp_path / str(clip), replace(config, validate="", class_weighting=0.0))
        torch.manual_seed(config.seed)
        start = BASELINES["enet"](3).state_dict()
        end = torch.load(tmp_path / str(clip) / "state.pt", weights_only=True)["average"]
        moved[clip] = sum((end[name] - start[name]).square().sum() for name in start if name.endswith("weight")) ** 0.5
    assert moved[0.01] <= 0.011
    assert moved[0.0] > 0.1


def test_a_picture_that_breaks_in_the_middle_costs_nothing(paint, tmp_path):
    data = paint(tmp_path / "data", [(64, 96), (80, 72), (40, 120), (64, 64), (96, 96)])  # streamed
    broken, whole = data / "images" / "1.png", (data / "images" / "1.png").read_bytes()
    config = replace(TINY, iterations=8, class_weighting=0.0, validate="")
    first = next(step for step in range(8) if 1 in batch_indices(step, 4, config))
    broken.write_bytes(whole[:200])
    with pytest.raises(ValueError, match="1.png is damaged or cut short"):
        run(data, tmp_path / "out", config, threads=1)
    broken.write_bytes(whole)
    assert first == 0 or (tmp_path / "out" / "state.pt").exists()
    run(data, tmp_path / "out", config, resume=first > 0)
    run(data, tmp_path / "alone", config)
    assert_same_run(tmp_path / "out", tmp_path / "alone")


@pytest.mark.slow
def test_a_validation_that_fails_loses_nothing(paint, tmp_path):
    data = paint(tmp_path / "data", [(64, 96)] * 5)
    validation = data / "images" / "4.png"
    whole = validation.read_bytes()
    validation.write_bytes(whole[:200])
    with pytest.raises(ValueError, match="4.png is damaged or cut short"):
        run(data, tmp_path / "out")
    validation.write_bytes(whole)
    run(data, tmp_path / "out", resume=True)
    run(data, tmp_path / "alone")
    assert_same_run(tmp_path / "out", tmp_path / "alone")


def test_a_checkpoint_is_started_from_with_its_classes_or_with_new_ones(model, tmp_path):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "start.safetensors")
    same, other = streamseg.fanet18(classes=11), streamseg.fanet18(classes=3)
    last = other.classify[1].weight.clone()
    renamed = streamseg.fanet18(classes=11)
    new_names = streamseg.Classes(tuple("abcdefghijk"), streamseg.CAMVID.colours)
    three = streamseg.Classes(("a", "b", "c"), streamseg.CAMVID.colours[:3])
    for network, classes in ((same, streamseg.CAMVID), (other, three), (renamed, new_names)):
        description = training.describe_checkpoint(FANET, classes)
        training.load_initial_weights(network, description, str(tmp_path / "start.safetensors"), None)
        assert network.encoder.conv1.weight.equal(model.encoder.conv1.weight)
    assert same.classify[1].weight.equal(model.classify[1].weight)
    assert other.classify[1].weight.equal(last)
    assert not renamed.classify[1].weight.equal(model.classify[1].weight)


@pytest.mark.parametrize("network", [streamseg.fanet34, lambda classes: streamseg.fanet18(classes, key_channels=8)])
def test_a_checkpoint_of_another_network_is_no_start(model, tmp_path, network):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "start.safetensors")
    with pytest.raises(ValueError, match="start.safetensors holds another kind of network"):
        description = training.describe_checkpoint(FANET, streamseg.CAMVID)
        training.load_initial_weights(network(classes=11), description, str(tmp_path / "start.safetensors"), None)


def test_without_a_network_it_says_how_to_get_the_imagenet_weights(toy, tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(OSError, match="Could not download ImageNet weights .*--encoder-weights FILE"):
        run(toy, tmp_path / "out", FANET, initial="imagenet")
    with pytest.raises(FileNotFoundError, match="No weights at nowhere.pth"):
        run(toy, tmp_path / "out", FANET, initial="imagenet", encoder_weights=Path("nowhere.pth"))
    assert not (tmp_path / "out").exists()


class Hostile:
    def __reduce__(self):
        return Path.touch, (Path("hacked"),)


def pickled(state):
    state["settings"] = Hostile()


def of_another_network(state):
    state["trainee"] = {}


@pytest.mark.parametrize("spoil", [None, pickled, of_another_network, dict.clear])
def test_a_damaged_or_hostile_state_is_refused_and_its_code_never_runs(toy, alone, tmp_path, monkeypatch, spoil):
    monkeypatch.chdir(tmp_path)
    state = torch.load(alone / "state.pt", weights_only=True)
    if spoil:
        spoil(state)
    torch.save(state, "state.pt", pickle_module=pickle)
    if not spoil:
        Path("state.pt").write_bytes(Path("state.pt").read_bytes()[:1000])
    with pytest.raises(ValueError, match="^state.pt is not the state of a run, or is damaged: start again"):
        run(toy, Path(), resume=True)
    assert not Path("hacked").exists()


def test_a_run_goes_on_only_with_its_own_settings_and_data(toy, alone, paint, tmp_path):
    before = (alone / "state.pt").read_bytes()
    with pytest.raises(
        ValueError, match="was started with other settings: go on with --batch 2 --rate 0.002 --resume.$"
    ):
        run(toy, alone, replace(TINY, rate=1.0, batch=4), resume=True)
    other = paint(tmp_path / "other", [(64, 96)] * 9)
    with pytest.raises(ValueError, match="was started with other frames or classes: give the same --data to go on.$"):
        run(other, alone, resume=True)
    assert (alone / "state.pt").read_bytes() == before


def test_a_folder_with_a_run_is_not_trained_into_again(toy, alone, tmp_path):
    with pytest.raises(ValueError, match="alone already holds a run: go on with --resume, or give another --out.$"):
        run(toy, alone)
    (tmp_path / "weights.safetensors").write_text("of months of work")
    with pytest.raises(ValueError, match="already holds a run"):
        run(toy, tmp_path)


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {"resume": True}, "No state at .*state.pt to resume from: start the run without --resume.$"),
        ({"leave_out": "zebra"}, {}, "^Leaving out 'zebra' leaves 7 of 7 frames: give a file name's start.$"),
        ({"leave_out": ""}, {"initial": "nowhere.safetensors"}, "No weights at nowhere.safetensors"),
        ({"validate": "test"}, {}, "^No split 'test' in .* which has train, val, all"),
        ({"batch": 0}, {}, "^batch is 0; expected 1 or more.$"),
        ({"accumulate": 3}, {}, "^accumulate is 3; expected a part of the batch of 2.$"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_a_sentence_and_leaves_nothing(toy, tmp_path, changes, options, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        run(toy, tmp_path / "out", replace(TINY, **changes), **options)
    assert not (tmp_path / "out").exists()


def test_frames_of_a_name_can_be_left_out(toy):
    kept = training.select(folder(toy, "train"), "3")
    assert [pair.image.name for pair in kept.pairs] == ["0.png", "1.png", "2.png", "5.png", "6.png", "7.png"]


@pytest.mark.slow
def test_a_batch_in_parts_trains_as_one_where_the_parts_are_alike(toy, tmp_path, monkeypatch):
    def twice(*arguments):
        for batch in training_batches(*arguments):
            yield Batch(*(part if part is None else torch.cat([part[:1], part[:1]]) for part in batch))

    training_batches = training.batches
    monkeypatch.setattr(training, "batches", twice)
    config = replace(FANET, iterations=1, optimiser="sgd", crop=(96, 96), clip=0.0, validate="", ema=0.0)
    torch.manual_seed(config.seed)
    start = streamseg.fanet18(classes=3).encoder.conv1.weight.detach()
    moved = []
    for parts in (1, 2):
        run(toy, tmp_path / str(parts), replace(config, accumulate=parts))
        state = torch.load(tmp_path / str(parts) / "state.pt", weights_only=True)
        moved.append(state["average"]["encoder.conv1.weight"] - start)
    assert (moved[1] - moved[0]).norm() < 0.01 * moved[0].norm()
    assert entries(tmp_path / "1", "loss")[0] == pytest.approx(entries(tmp_path / "2", "loss")[0], rel=1e-4)


def test_parts_of_a_batch_are_the_batch(toy):
    dataset = folder(toy, "train")
    config = replace(TINY, batch=4, steadiness=1.0)
    batch = next(training.batches(dataset, build_clip_index(dataset, 1), None, config, 0, (0, 1), CPU, 2))
    parts = list(batch.parts(2))
    assert [len(part.images) for part in parts] == [2, 2]
    assert torch.cat([part.images for part in parts]).equal(batch.images)
    assert torch.cat([part.motion for part in parts]).equal(batch.motion)
    assert parts[0].past is None


def test_a_batch_that_the_processes_cannot_share_is_refused(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("streamseg.parallel.distributed.start", lambda device: (0, 3))
    with pytest.raises(ValueError, match="^A batch of 2 cannot be shared by 3 processes: choose a multiple.$"):
        run(toy, tmp_path)


def test_a_loss_that_is_no_number_ends_the_run_and_spares_the_last_good_state(toy, tmp_path, monkeypatch):
    steady = training.set_learning_rate

    def explode(optimiser, config, step):
        steady(optimiser, config if step < 3 else replace(config, rate=1e30), step)

    monkeypatch.setattr(training, "set_learning_rate", explode)
    hot = replace(TINY, optimiser="sgd", warm_up=0.0, clip=0.0, iterations=20, validate="", validate_every=100)
    with pytest.raises(ValueError, match="no longer a number at iteration [45678]: start again with a lower --rate.$"):
        run(toy, tmp_path, hot, save_seconds=0)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["trainee"]["losses"].isfinite()


def test_without_matplotlib_a_run_still_ends_well(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    weights = run(toy, tmp_path, replace(TINY, iterations=1, validate=""))
    assert streamseg.load(weights)
    assert "Plots need matplotlib: pip install 'streamseg[train]'" in capsys.readouterr().err
    assert not (tmp_path / "curves.png").exists()
