"""Weights of the Hugging Face Hub on the command line, and the verb push, with a local server."""

import json

import pytest
from commands import complaint, run

import streamseg


@pytest.fixture
def hub(here, monkeypatch):
    """A local Hub, and a client with its token."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'streamseg[hub]'")
    from hub_server import local_hub

    with local_hub(here, monkeypatch) as hub:
        yield hub


def test_pushed_weights_are_those_of_the_file(hub, weights, toy, here, monkeypatch, capsys):
    assert run(monkeypatch, "push", weights, "hf:me/streets", "--licence", "mit") == 0
    assert capsys.readouterr().out == f"{hub.address}/me/streets  use it with: --weights hf:me/streets\n"
    picture = toy / "images" / "0.png"
    for name in (weights, "hf:me/streets", "hf:me/streets@main"):
        out = here / f"labels-{len(list(here.iterdir()))}"
        asked = (picture, "-o", out, "--labels", "--no-overlay", "--device", "cpu", "--weights", name)
        assert run(monkeypatch, "segment", *asked) == 0
    assert len({path.read_bytes() for path in here.rglob("*labels.png")}) == 1
    assert len(list(here.rglob("*labels.png"))) == 3
    given = ("benchmark", "hf:me/streets", "--size", "64x64", "--seconds", "0.01", "--device", "cpu")
    assert run(monkeypatch, *given) == 0
    assert "fast path: " in capsys.readouterr().out


def test_training_starts_from_weights_of_the_hub(hub, weights, toy, monkeypatch):
    hub.add("me/streets", {"model.safetensors": weights.read_bytes()})
    short = ("--iterations", "1", "--batch", "2", "--crop", "64", "64", "--network", "fanet18", "--device", "cpu")
    given = ("train", "folder-18", "--data", toy, "--out", "run", "--initial", "hf:me/streets", *short)
    assert run(monkeypatch, *given) == 0
    assert any(request.startswith("GET /me/streets/resolve") for request in hub.requests)


@pytest.mark.parametrize(
    "command",
    [
        "segment DIR/images/0.png out.png --weights hf:me/none",
        "evaluate hf:me/none --dataset folder --data DIR",
        "export hf:me/none model.onnx",
        "serve hf:me/none --port 0",
        "benchmark hf:me/none --size 64x64",
        "train folder-18 --data DIR --out run --initial hf:me/none",
        "prelabel DIR/images drafts --weights hf:me/none",
        "warm hf:me/none",
        "push hf:me/none hf:me/copy",
    ],
)
def test_a_missing_repository_is_answered_with_a_sentence(command, hub, toy, here, monkeypatch, capsys):
    if command.startswith("serve"):
        pytest.importorskip("fastapi", reason="fastapi is not installed: pip install 'streamseg[serve]'")
    said = complaint(monkeypatch, capsys, *command.replace("DIR", str(toy)).split())
    assert " has no model me/none, or it is private: check the name, or log in with: hf auth login" in said
    assert [path.name for path in here.iterdir() if path.suffix != ".json"] in ([], ["hub-cache"])


def test_a_wrong_name_and_a_missing_package_are_told_before_anything_is_loaded(here, monkeypatch, capsys):
    said = complaint(monkeypatch, capsys, "segment", "nothing.jpg", "--weights", "hf:streets")
    assert said.startswith("streamseg: 'hf:streets' is no name of a repository: expected hf:USER/NAME")
    monkeypatch.setattr("streamseg.io.hub.find_spec", lambda name: None)
    for command in (("segment", "nothing.jpg", "--weights", "hf:me/x"), ("push", "road", "hf:me/x")):
        said = complaint(monkeypatch, capsys, *command)
        assert said == "streamseg: hf:me/x needs huggingface_hub: pip install 'streamseg[hub]'\n"


def test_pickles_on_the_hub_are_one_sentence(hub, here, monkeypatch, capsys):
    hub.add("me/old", {"pytorch_model.bin": b"\x80\x04."})
    said = complaint(monkeypatch, capsys, "export", "hf:me/old", "model.onnx")
    assert "hf:me/old holds only pickles (pytorch_model.bin), which can run any code and were not downloaded: " in said
    assert not any("resolve" in request for request in hub.requests)


def test_the_figures_of_evaluate_go_into_the_card(weights, drive, here, monkeypatch, capsys):
    given = ("evaluate", weights, "--dataset", "camvid", "--data", drive, "--device", "cpu", "--json", "figures.json")
    assert run(monkeypatch, *given) == 0
    measured = json.loads((here / "figures.json").read_text())
    assert (measured["dataset"], measured["split"]) == ("camvid", "val")
    monkeypatch.setattr("streamseg.io.hub.find_spec", lambda name: None)  # to look at, nothing is needed
    assert run(monkeypatch, "push", weights, "hf:me/x", "--folder", "look", "--metrics", "figures.json") == 0
    card = (here / "look" / "README.md").read_text()
    assert f"Mean IoU {measured['miou']:.1f} % on camvid val, {measured['images']} frame" in card
    assert (here / "look" / "model.safetensors").read_bytes() == weights.read_bytes()
    assert streamseg.describe(here / "look" / "model.safetensors") == streamseg.describe(weights)
    assert capsys.readouterr().out.endswith("look/model.safetensors  look/config.json  look/README.md\n")
    said = complaint(monkeypatch, capsys, "push", weights, "hf:me/x", "--folder", "look")
    assert "look is not empty: give a new folder." in said


@pytest.mark.parametrize("given", ["me/streets", "https://huggingface.co/me/streets"])
def test_a_name_without_hf_gets_a_hint(given, here, monkeypatch, capsys):
    said = complaint(monkeypatch, capsys, "export", given, "model.onnx")
    assert said.endswith(": check the path, or give hf:me/streets for a repository of the Hugging Face Hub.\n")
    said = complaint(monkeypatch, capsys, "export", "run/weights.safetensors", "model.onnx")
    assert said == "streamseg: No weights at run/weights.safetensors: check the path.\n"


def test_push_takes_a_name_without_hf_too(hub, weights, monkeypatch, capsys):
    assert run(monkeypatch, "push", weights, "me/streets") == 0
    assert "hf:me/streets" in capsys.readouterr().out
    assert "me/streets" in hub.repositories


def test_push_writes_its_result_as_json(hub, weights, monkeypatch, capsys):
    assert run(monkeypatch, "push", weights, "hf:me/streets", "--private", "--json", "-", "--quiet") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "address": f"{hub.address}/me/streets",
        "name": "hf:me/streets",
        "files": ["model.safetensors", "config.json", "README.md"],
    }
    assert not shown.err
    assert hub.repositories["me/streets"].private


def test_on_a_cluster_weights_of_the_hub_are_named_by_their_commit(hub, weights):
    from pathlib import Path

    from streamseg.cli.options import weights_on_cluster

    repository = hub.add("me/streets", {"model.safetensors": weights.read_bytes()})
    named = weights_on_cluster(Path("hf:me/streets"))
    assert str(named) == f"hf:me/streets/model.safetensors@{repository.names['main']}"
    assert streamseg.describe(named) == streamseg.describe(weights)
