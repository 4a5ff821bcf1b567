"""Weights on the Hugging Face Hub, by the real client and a local server."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as to_safetensors

import streamseg
from streamseg.io import hub as hubs
from streamseg.io.hub import HubAddress, check_hub_address, is_hub_address, parse_hub_address, pick_file


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A local Hub, and a client without a token."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'streamseg[hub]'")
    from hub_server import local_hub

    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path, monkeypatch, token=None) as hub:
        yield hub


@pytest.fixture(scope="session")
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "weights.safetensors"
    streamseg.save(model, streamseg.CAMVID, path, source="a test")
    return path


class Poison:
    """Unpickled, it writes a file."""

    def __reduce__(self):
        return Path.touch, (Path("poisoned"),)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("hf:me/streets", HubAddress("me/streets")),
        ("hf://me/streets", HubAddress("me/streets")),
        ("hf:me/streets@v1.0", HubAddress("me/streets", revision="v1.0")),
        ("hf:me/streets@refs/pr/1", HubAddress("me/streets", revision="refs/pr/1")),
        ("hf:me/a-b_c.d/big.safetensors@main", HubAddress("me/a-b_c.d", "big.safetensors", "main")),
        (r"hf:me\streets", HubAddress("me/streets")),  # a Path of Windows
        (Path("hf://me/streets"), HubAddress("me/streets")),
    ],
)
def test_an_address_has_a_repository_a_file_and_a_revision(given, expected):
    assert is_hub_address(given)
    assert parse_hub_address(given) == expected
    assert parse_hub_address(str(expected)) == expected


@pytest.mark.parametrize(
    "given",
    ["hf:", "hf:streets", "hf:me/", "hf:me/streets@", "hf:me/s/model.bin", "hf:me/../x/y", "hf:me/straße", "hf:a b/c"],
)
def test_what_is_no_address_is_refused_with_a_sentence(given):
    with pytest.raises(ValueError, match=r" is no name of a repository: expected hf:USER/NAME, with @REVISION after"):
        parse_hub_address(given)


def test_paths_and_names_are_no_addresses():
    assert not any(map(is_hub_address, ("street", "run/weights.safetensors", Path("hf/me"), None, "HF:me/x")))


def test_without_the_package_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(hubs, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^hf:me/streets needs huggingface_hub: pip install 'streamseg\[hub\]'$"):
        streamseg.load("hf:me/streets")


def test_weights_of_the_hub_are_those_that_were_saved(hub, checkpoint, model):
    hub.add("me/streets", {"model.safetensors": checkpoint.read_bytes(), "README.md": b"", "config.json": b"{}"})
    loaded, classes = streamseg.load("hf:me/streets")
    assert classes == streamseg.CAMVID
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor)
    assert streamseg.describe("hf:me/streets") == streamseg.describe(checkpoint)
    fetched = [request for request in hub.requests if request.startswith("GET /me/streets/resolve")]
    assert fetched == ["GET /me/streets/resolve/main/model.safetensors"] * 2  # its header, then the file; once


def test_a_revision_names_other_weights(hub, checkpoint, tmp_path):
    repository = hub.add("me/streets", {"model.safetensors": checkpoint.read_bytes()})
    old = repository.names["v1"] = repository.names["main"]
    streamseg.save(streamseg.fanet18(5), streamseg.COMMA10K, tmp_path / "new.safetensors")
    repository.commit({"model.safetensors": (tmp_path / "new.safetensors").read_bytes()})
    assert streamseg.describe("hf:me/streets").classes == streamseg.COMMA10K
    for revision in ("v1", old):
        assert streamseg.describe(f"hf:me/streets@{revision}").classes == streamseg.CAMVID
    assert streamseg.describe("hf:me/streets@main").classes == streamseg.COMMA10K
    with pytest.raises(FileNotFoundError, match=r"^hf:me/streets has no revision 'v3': expected a branch, a tag or a"):
        streamseg.load("hf:me/streets@v3")


def test_a_new_commit_is_loaded_without_a_new_process(hub, checkpoint, tmp_path):
    repository = hub.add("me/streets", {"model.safetensors": checkpoint.read_bytes()})
    assert streamseg.describe("hf:me/streets").classes == streamseg.CAMVID
    streamseg.save(streamseg.fanet18(5), streamseg.COMMA10K, tmp_path / "new.safetensors")
    repository.commit({"model.safetensors": (tmp_path / "new.safetensors").read_bytes()})
    assert streamseg.describe("hf:me/streets").classes == streamseg.COMMA10K


@pytest.mark.parametrize("present", [["pytorch_model.bin"], ["a.pt", "b.ckpt", "sub/c.PKL"], ["w.pth", "README.md"]])
def test_a_repository_of_pickles_is_refused_and_none_is_requested(hub, present):
    hub.add("me/old", {name: pickle.dumps(Poison()) for name in present})
    with pytest.raises(ValueError, match=r"^hf:me/old holds only pickles \(.*\), which can run any code and were"):
        streamseg.load("hf:me/old")
    assert hub.requests == ["GET /api/models/me/old"]
    assert not Path("poisoned").exists()


def test_a_pickle_under_the_name_of_safetensors_is_not_opened(hub):
    hub.add("me/fake", {"model.safetensors": pickle.dumps(Poison()) + bytes(1000), "pytorch_model.bin": b""})
    with pytest.raises(ValueError, match=r"^model.safetensors of hf:me/fake is no safetensors file, whatever its name"):
        streamseg.load("hf:me/fake")
    assert not Path("poisoned").exists()
    assert not list(Path("hub-cache").rglob("*.safetensors"))


def test_pickles_beside_safetensors_are_not_requested(hub, checkpoint):
    hub.add("me/both", {"model.safetensors": checkpoint.read_bytes(), "pytorch_model.bin": pickle.dumps(Poison())})
    streamseg.load("hf:me/both")
    assert not any("bin" in request for request in hub.requests)
    assert not Path("poisoned").exists()


def test_weights_of_another_library_are_not_downloaded(hub):
    data = to_safetensors({"embedding": torch.zeros(1000, 100)}, {"format": "pt"})
    hub.add("them/bert", {"model.safetensors": data})
    with pytest.raises(ValueError, match=r"^model.safetensors of hf:them/bert was not written by streamseg, and was"):
        streamseg.load("hf:them/bert")
    assert not list(Path("hub-cache").rglob("*.safetensors"))


def test_one_of_several_files_must_be_named(hub, checkpoint):
    hub.add("me/two", {"a.safetensors": checkpoint.read_bytes(), "b.safetensors": b"", "sub/c.safetensors": b""})
    with pytest.raises(
        ValueError, match=r"^hf:me/two holds 2 \.safetensors files: name one of them, such as hf:me/two/a"
    ):
        streamseg.load("hf:me/two")
    assert streamseg.describe("hf:me/two/a.safetensors") == streamseg.describe(checkpoint)
    with pytest.raises(FileNotFoundError, match=r"^hf:me/two/x.safetensors does not exist: it has a.safetensors, b\.s"):
        streamseg.load("hf:me/two/x.safetensors")


def test_the_only_file_needs_no_name():
    assert pick_file(HubAddress("me/x"), ["README.md", "street.safetensors"]) == "street.safetensors"
    assert pick_file(HubAddress("me/x"), ["a.safetensors", "model.safetensors"]) == "model.safetensors"
    with pytest.raises(ValueError, match=r"^hf:me/x holds no \.safetensors file: expected a repository that"):
        pick_file(HubAddress("me/x"), ["README.md", "sub/model.safetensors"])


def test_a_missing_and_a_private_repository_get_the_same_sentence(hub, checkpoint):
    hub.add("me/secret", {"model.safetensors": checkpoint.read_bytes()}, private=True)
    for name in ("me/secret", "me/none"):
        with pytest.raises(FileNotFoundError) as error:
            streamseg.load(f"hf:{name}")
        host = hub.address.removeprefix("http://")
        assert str(error.value) == (
            f"{host} has no model {name}, or it is private: check the name, or log in with: hf auth login"
        )


def test_a_private_repository_opens_with_the_token(hub, checkpoint, monkeypatch):
    hub.add("me/secret", {"model.safetensors": checkpoint.read_bytes()}, private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert streamseg.describe("hf:me/secret").source == "a test"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(PermissionError, match=r" does not accept the access token: log in with: hf auth login$"):
        streamseg.load("hf:me/secret")


def test_a_restricted_repository_says_where_to_ask(hub):
    hub.add("me/gated", {"model.safetensors": b""}, gated=True)
    with pytest.raises(PermissionError, match=rf"is restricted: ask for access at {hub.address}/me/gated, and log in"):
        streamseg.load("hf:me/gated")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_hub_that_is_down_leaves_what_was_downloaded(hub, checkpoint, status):
    hub.failure = status
    with pytest.raises(OSError, match=rf" answered {status} [\w ]+ for hf:me/streets: try again later\.$"):
        streamseg.load("hf:me/streets")
    hub.failure = 0
    hub.add("me/streets", {"model.safetensors": checkpoint.read_bytes()})
    streamseg.load("hf:me/streets")
    hub.failure = status
    assert streamseg.describe("hf:me/streets").source == "a test"


def test_without_a_network_what_was_downloaded_is_used_with_a_warning(hub, checkpoint, monkeypatch):
    from hub_server import point_to

    said = []
    monkeypatch.setattr(hubs.LOG, "warning", lambda text, *parts: said.append(text % parts))
    hub.add("me/streets", {"only.safetensors": checkpoint.read_bytes()})
    streamseg.load("hf:me/streets")
    assert not said
    point_to("http://127.0.0.1:9", monkeypatch)  # nothing listens there
    assert streamseg.describe("hf:me/streets").source == "a test"
    assert len(said) == 1
    assert said[0].startswith("127.0.0.1:9 cannot be reached (")
    assert said[0].endswith("): the downloaded copy of hf:me/streets is used.")
    with pytest.raises(OSError, match="cannot be reached") as error:
        streamseg.load("hf:me/other")
    assert str(error.value).startswith("127.0.0.1:9 cannot be reached (")
    assert str(error.value).endswith("hub-cache: connect to the Internet once, or give a file.")
    assert "\n" not in str(error.value)


def test_offline_only_what_was_downloaded_can_be_loaded(hub, checkpoint, monkeypatch):
    from huggingface_hub import constants

    hub.add("me/streets", {"model.safetensors": checkpoint.read_bytes()})
    path = hubs.download_weights("hf:me/streets")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(hub.requests)
    assert hubs.download_weights("hf:me/streets") == path
    with pytest.raises(OSError, match=r"^HF_HUB_OFFLINE is set, and hf:me/other is not in .*hub-cache: unset it"):
        streamseg.load("hf:me/other")
    assert len(hub.requests) == before


def test_a_damaged_file_is_refused(hub, checkpoint):
    data = bytearray(checkpoint.read_bytes())
    data[-1] ^= 1
    hub.add("me/damaged", {"model.safetensors": bytes(data)})
    with pytest.raises(ValueError, match="model.safetensors"):
        streamseg.load("hf:me/damaged")


def test_checking_an_address_requests_nothing(hub):
    check_hub_address("hf:me/streets")
    assert not hub.requests


def test_a_process_of_its_own_reads_the_settings_of_the_environment(hub, checkpoint):
    hub.add("me/streets", {"model.safetensors": checkpoint.read_bytes()})
    code = "import json, streamseg; print(json.dumps(streamseg.describe('hf:me/streets').classes.names))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)) == streamseg.CAMVID.names
    assert not done.stderr
