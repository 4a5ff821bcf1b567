from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from runs import FANET, TINY, run

import streamseg
from streamseg.data.datasets import folder
from streamseg.models.baselines import BASELINES
from streamseg.models.checkpoint import Variant, build_network, variant_of
from streamseg.models.encoder import resnet18
from streamseg.train import setup
from streamseg.train.loop import set_learning_rate
from streamseg.train.loss_module import LossModule
from streamseg.train.setup import make_optimiser


def test_a_baseline_with_a_resnet_starts_from_imagenet_with_the_encoder_s_learning_rate(toy, tmp_path):
    imagenet = resnet18("None")
    torch.save(imagenet.state_dict(), tmp_path / "resnet18.pth")
    network = BASELINES["bisenet18"](3)
    description = setup.describe_checkpoint(replace(TINY, network="bisenet18"), folder(toy, "train").classes)
    setup.load_initial_weights(network, description, "imagenet", tmp_path / "resnet18.pth")
    assert network.encoder.conv1.weight.equal(imagenet.conv1.weight)
    optimiser = make_optimiser(
        LossModule(network, torch.ones(3)), network.encoder, replace(TINY, encoder_rate_factor=0.1)
    )
    assert {group["share"] for group in optimiser.param_groups} == {0.1, 1.0}
    alone = make_optimiser(
        LossModule(BASELINES["enet"](3), torch.ones(3)), None, replace(TINY, encoder_rate_factor=0.1)
    )
    assert {group["share"] for group in alone.param_groups} == {1.0}


def test_identity_init_changes_the_shortcut_of_res_1_and_the_gain_of_attention_only(tmp_path):
    torch.save(resnet18("None").state_dict(), tmp_path / "resnet18.pth")
    states = []
    for identity_init in (False, True):
        torch.manual_seed(0)
        network = streamseg.fanet18(3)
        setup.load_initial_weights(network, None, "imagenet", tmp_path / "resnet18.pth", identity_init)
        states.append(network.state_dict())
    default, identity = states
    shortcut = "encoder.layer1.0.downsample.0.weight"
    gains = [f"attend{stage}.out.1.weight" for stage in (1, 2, 3, 4)]
    assert {name for name in default if not default[name].equal(identity[name])} == {shortcut, *gains}
    assert identity[shortcut].flatten(1).equal(torch.eye(64))
    assert all((identity[name] == 0.1).all() for name in gains)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("initial", "identity_init", "expected"), [("imagenet", True, 1), ("imagenet", False, 0), ("nothing", True, 0)]
)
def test_only_a_run_from_imagenet_uses_identity_init(toy, tmp_path, monkeypatch, initial, identity_init, expected):
    torch.save(resnet18("None").state_dict(), tmp_path / "resnet18.pth")
    calls = []
    monkeypatch.setattr(setup, "init_as_identity", calls.append)
    config = replace(FANET, iterations=1, validate="", identity_init=identity_init)
    weights = tmp_path / "resnet18.pth" if initial == "imagenet" else None
    run(toy, tmp_path / "out", config, initial=initial, encoder_weights=weights)
    assert len(calls) == expected


@pytest.mark.parametrize("name", ["fanet18", "fanetplus18", *BASELINES])
def test_only_the_last_layers_depend_on_the_number_of_classes(name):
    layers = setup.class_layers(setup.describe_checkpoint(replace(TINY, network=name), streamseg.CAMVID))
    assert all(layer.startswith(("classify.", "score.", "joins.", "up.", "branches.")) for layer in layers)
    assert len(layers) == {"fanet18": 1, "bisenet18": 1, "shelfnet18": 1, "fcn16s": 6, "fcn8s": 9, "deeplab": 8}.get(
        name, 2
    )


def test_a_variant_of_the_ablations_is_built_as_its_config_says():
    config = replace(FANET, attention="dot", key_channels=8, reduction="Conv-0", reduce_by="average")
    description = setup.describe_checkpoint(config, streamseg.CAMVID)
    assert description.variant == Variant("DotAttention", 8, "Conv-0", "average", False)
    with torch.device("meta"):
        assert variant_of(build_network(description)) == description.variant


def test_the_checkpoint_of_a_fanet_plus_states_its_reduction():
    config = replace(FANET, network="fanetplus18", key_channels=8, averages=True)
    description = setup.describe_checkpoint(config, streamseg.CAMVID)
    assert description.variant == Variant("FastAttention", 8, "Res-4", "average", True)
    with torch.device("meta"):
        assert variant_of(build_network(description)) == description.variant


def test_clips_of_a_data_set_without_recordings_are_refused(toy, tmp_path):
    with pytest.raises(ValueError, match="folder train has no clips of 2 frames: a window needs"):
        run(toy, tmp_path, replace(FANET, window=2))


def test_a_run_starts_from_a_checkpoint_with_the_same_or_other_classes(model, tmp_path):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "start.safetensors")
    same, other = streamseg.fanet18(classes=11), streamseg.fanet18(classes=3)
    last = other.classify[1].weight.clone()
    renamed = streamseg.fanet18(classes=11)
    new_names = streamseg.Classes(tuple("abcdefghijk"), streamseg.CAMVID.colours)
    three = streamseg.Classes(("a", "b", "c"), streamseg.CAMVID.colours[:3])
    for network, classes in ((same, streamseg.CAMVID), (other, three), (renamed, new_names)):
        description = setup.describe_checkpoint(FANET, classes)
        setup.load_initial_weights(network, description, str(tmp_path / "start.safetensors"), None)
        assert network.encoder.conv1.weight.equal(model.encoder.conv1.weight)
    assert same.classify[1].weight.equal(model.classify[1].weight)
    assert other.classify[1].weight.equal(last)
    assert not renamed.classify[1].weight.equal(model.classify[1].weight)


@pytest.mark.parametrize("network", [streamseg.fanet34, lambda classes: streamseg.fanet18(classes, key_channels=8)])
def test_a_checkpoint_of_another_network_is_refused(model, tmp_path, network):
    streamseg.save(model, streamseg.CAMVID, tmp_path / "start.safetensors")
    with pytest.raises(ValueError, match="start.safetensors holds another kind of network"):
        description = setup.describe_checkpoint(FANET, streamseg.CAMVID)
        setup.load_initial_weights(network(classes=11), description, str(tmp_path / "start.safetensors"), None)


def test_the_error_offline_says_how_to_get_the_imagenet_weights(toy, tmp_path, monkeypatch):
    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(OSError, match="Could not download ImageNet weights .*--encoder-weights FILE"):
        run(toy, tmp_path / "out", FANET, initial="imagenet")
    with pytest.raises(FileNotFoundError, match="No weights at nowhere.pth"):
        run(toy, tmp_path / "out", FANET, initial="imagenet", encoder_weights=Path("nowhere.pth"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {"resume": True}, "No state at .*state.pt to resume from: start the run without --resume.$"),
        ({"leave_out": "zebra"}, {}, "^Leaving out 'zebra' keeps 7 of 7 frames: give the start of"),
        ({"leave_out": ""}, {"initial": "nowhere.safetensors"}, "No weights at nowhere.safetensors"),
        ({"validate": "test"}, {}, "^No split 'test' in .* which has train, val, all"),
        ({"batch": 0}, {}, "^batch is 0; expected 1 or more.$"),
        ({"accumulate": 3}, {}, "^accumulate is 3; expected a divisor of the batch of 2.$"),
    ],
)
def test_an_impossible_run_is_refused_in_a_sentence_and_writes_nothing(toy, tmp_path, changes, options, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        run(toy, tmp_path / "out", replace(TINY, **changes), **options)
    assert not (tmp_path / "out").exists()


def test_a_batch_that_the_processes_cannot_share_is_refused(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("streamseg.parallel.distributed.join_process_group", lambda device: (0, 3))
    with pytest.raises(ValueError, match="^A batch of 2 cannot be shared by 3 processes: choose a multiple.$"):
        run(toy, tmp_path)


def test_the_encoder_has_its_own_learning_rate_and_only_convolutions_decay():
    config = replace(TINY, encoder_rate_factor=0.1, weight_decay=0.5)
    network = streamseg.fanet18(classes=3)
    loss_module = LossModule(network, torch.ones(3), auxiliary_loss=0.4)
    optimiser = make_optimiser(loss_module, network.encoder, config)
    set_learning_rate(optimiser, config, 3)
    group_of = {id(x): group for group in optimiser.param_groups for x in group["params"]}
    assert len(group_of) == len(list(loss_module.parameters()))
    for name, parameter in loss_module.named_parameters():
        group = group_of[id(parameter)]
        assert group["share"] == (0.1 if name.startswith("network.encoder.") else 1.0)
        assert group["weight_decay"] == (0.5 if parameter.ndim == 4 else 0)
    assert {round(group["lr"] / optimiser.param_groups[-1]["lr"], 6) for group in optimiser.param_groups} == {0.1, 1}


def test_a_run_with_a_mask_trains_and_validates_without_what_it_hides(toy, tmp_path, no_plots):
    mask = Image.new("L", (96, 64), 255)
    mask.paste(0, (0, 40, 96, 64))
    mask.save(tmp_path / "mask.png")
    config = replace(FANET, iterations=2, mask=str(tmp_path / "mask.png"))
    run(toy, tmp_path / "run", config)
    assert (tmp_path / "run" / "weights.safetensors").exists()
    wrong = Image.new("L", (64, 64), 255)
    wrong.paste(0, (0, 0, 9, 9))
    wrong.save(tmp_path / "wrong.png")
    with pytest.raises(ValueError, match="which are other proportions"):
        run(toy, tmp_path / "wrong", replace(config, mask=str(tmp_path / "wrong.png")))
