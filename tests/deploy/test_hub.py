"""Publishing weights on the Hugging Face Hub: the files, the model card, and the real client against a local server."""

import json
from pathlib import Path

import pytest

import streamseg
from streamseg.deploy import hub as deploy_hub
from streamseg.deploy.hub import GENERATED, make_card, make_files, parse_target, read_figures
from streamseg.io.hub import HubAddress
from streamseg.models.bundled import BUNDLED_WEIGHTS

ADDRESS = HubAddress("me/streets")
FIGURES = {"miou": 71.25, "iou": {"Sky": 93.04, "Pole": None}, "images": 2, "dataset": "camvid", "split": "val"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A local Hub, and a client with its token."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'streamseg[hub]'")
    from hub_server import local_hub

    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path, monkeypatch) as hub:
        yield hub


@pytest.fixture(scope="session")
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "weights.safetensors"
    streamseg.save(model, streamseg.CAMVID, path, window=2, source="trained on camvid train, by a test")
    return path


@pytest.fixture
def figures(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(FIGURES))
    return path


def metadata_of(card):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'streamseg[docs]'")
    empty, block, rest = card.split("---\n", 2)
    assert empty == ""
    assert rest.startswith(f"\n{GENERATED}\n")
    return yaml.safe_load(block)


def test_what_is_pushed_is_loaded_bit_for_bit(hub, checkpoint, model):
    page = streamseg.push_to_hub(checkpoint, "hf:me/streets", licence="mit")
    assert page == f"{hub.address}/me/streets"
    loaded, classes = streamseg.load("hf:me/streets")
    assert classes == streamseg.CAMVID
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor)
    repository = hub.repositories["me/streets"]
    files = repository.commits[repository.names["main"]]
    assert {*files} == {".gitattributes", "model.safetensors", "config.json", "README.md"}
    assert files["model.safetensors"] == checkpoint.read_bytes()
    assert repository.messages[-1] == f"fanet18, 11 classes, by streamseg {streamseg.__version__}"
    assert not repository.private


def test_a_second_push_replaces_the_card_but_not_one_that_a_person_wrote(hub, checkpoint, monkeypatch):
    said = []
    monkeypatch.setattr(deploy_hub.LOG, "warning", lambda text, *parts: said.append(text % parts))
    streamseg.push_to_hub(checkpoint, "me/streets", private=True, licence="mit")
    streamseg.push_to_hub(checkpoint, "me/streets", licence="apache-2.0", message="again")
    repository = hub.repositories["me/streets"]
    files = repository.commits[repository.names["main"]]
    assert b'license: "apache-2.0"' in files["README.md"]
    assert repository.messages[-1] == "again"
    assert repository.private  # as it was created
    assert not said
    repository.commit({"README.md": b"# Mine\n"})
    streamseg.push_to_hub("road", "me/streets")
    files = repository.commits[repository.names["main"]]
    assert files["README.md"] == b"# Mine\n"
    assert files["model.safetensors"] == BUNDLED_WEIGHTS["road"].file.read_bytes()
    assert said == ["The model card of hf:me/streets is not from streamseg, and is kept."]


def test_a_branch_gets_weights_of_its_own(hub, checkpoint):
    streamseg.push_to_hub("road", "hf:me/streets")
    repository = hub.repositories["me/streets"]
    repository.names["next"] = repository.names["main"]
    streamseg.push_to_hub(checkpoint, "hf:me/streets@next")
    assert streamseg.describe("hf:me/streets").classes == streamseg.describe("road").classes
    assert streamseg.describe("hf:me/streets@next").classes == streamseg.CAMVID
    with pytest.raises(FileNotFoundError, match=r"^hf:me/streets has no revision 'none': "):
        streamseg.push_to_hub(checkpoint, "hf:me/streets@none")


def test_without_a_token_or_the_right_to_write_nothing_is_written(hub, checkpoint, monkeypatch):
    with pytest.raises(PermissionError, match=r"^The access token may not do this with others/streets: create one"):
        streamseg.push_to_hub(checkpoint, "hf:others/streets")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(PermissionError, match=r" does not accept the access token: log in with: hf auth login$"):
        streamseg.push_to_hub(checkpoint, "hf:me/streets")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PermissionError, match=r"^Who writes to hf:me/streets\? Log in with: hf auth login, or"):
        streamseg.push_to_hub(checkpoint, "hf:me/streets")
    assert not hub.repositories


def test_a_hub_that_cannot_be_reached_is_one_sentence(hub, checkpoint, monkeypatch):
    from hub_server import point_to
    from huggingface_hub import constants

    hub.failure = 503
    with pytest.raises(OSError, match=r" answered 503 Service Unavailable, and nothing was written to hf:me/streets: "):
        streamseg.push_to_hub(checkpoint, "hf:me/streets")
    point_to("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(OSError, match=r"cannot be reached \(.*\), and nothing was written to hf:me/streets: try again"):
        streamseg.push_to_hub(checkpoint, "hf:me/streets")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"^HF_HUB_OFFLINE is set, and nothing was written to hf:me/streets: unset it\.$"):
        streamseg.push_to_hub(checkpoint, "hf:me/streets")


def test_a_licence_that_the_hub_does_not_know_is_refused_before_the_upload(hub, checkpoint):
    with pytest.raises(ValueError, match="license"):
        streamseg.push_to_hub(checkpoint, "hf:me/streets", licence="no-such-licence")
    assert not hub.objects
    streamseg.push_to_hub(checkpoint, "hf:me/streets", licence="For research only.")


def test_a_file_that_is_no_checkpoint_is_not_pushed(hub, tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match="is no safetensors file"):
        streamseg.push_to_hub(tmp_path / "model.bin", "hf:me/streets")
    assert not hub.requests


def test_the_card_has_what_the_checkpoint_says_and_what_was_measured(checkpoint, figures):
    files = make_files(checkpoint, ADDRESS, "mit", figures)
    card = files["README.md"].decode()
    entries = metadata_of(card)
    assert (entries["license"], entries["library_name"], entries["pipeline_tag"]) == (
        "mit",
        "streamseg",
        "image-segmentation",
    )
    [result] = entries["model-index"][0]["results"]
    assert result["metrics"][0] == {"type": "mean_iou", "name": "mean IoU, %", "value": 71.25}
    assert result["dataset"] == {"type": "camvid", "name": "camvid val"}
    assert "| network | fanet18, 52 MB, trained on clips of 2 frames |" in card
    assert "| origin | trained on camvid train, by a test |" in card
    assert "Mean IoU 71.2 % on camvid val, 2 frames" in card
    assert "| Sky | 93.0 |\n| Pole | – |" in card
    for label, (name, colour) in enumerate(zip(streamseg.CAMVID.names, streamseg.CAMVID.colours, strict=True)):
        assert f"| {label} | {name} | `#{bytes(colour).hex()}` |" in card
    assert 'streamseg.load("hf:me/streets")' in card
    config = json.loads(files["config.json"])
    assert tuple(config["classes"]) == streamseg.CAMVID.names
    assert (config["network"], config["window"], len(config["colours"])) == ("fanet18", 2, 11)


def test_the_card_of_bundled_weights_has_their_licence_and_data():
    card = make_files("road", ADDRESS)["README.md"].decode()
    assert metadata_of(card)["license"] == "other"
    about = BUNDLED_WEIGHTS["road"]
    for text in (about.data, about.licence.partition(",")[0], about.about):
        assert text in card


def test_a_card_without_licence_or_figures_does_not_invent_them(checkpoint):
    card = make_files(checkpoint, ADDRESS)["README.md"].decode()
    assert not {"license", "model-index"} & {*metadata_of(card)}
    assert "| licence | none was given: ask the author |" in card
    assert "Accuracy" not in card


def test_names_cannot_change_the_card(tmp_path):
    classes = streamseg.Classes(("a | b", "<script>", "---"), ((0, 0, 0), (1, 1, 1), (2, 2, 2)))
    streamseg.save(streamseg.fanet18(3), classes, tmp_path / "odd.safetensors", source="[x](http://evil) `y`")
    card = make_card(streamseg.describe(tmp_path / "odd.safetensors"), ADDRESS, 1000, 'a "quoted": licence\\')
    metadata_of(card)
    assert r"a \| b" in card
    assert "<script>" not in card
    assert r"\[x\](http://evil) \`y\`" in card


def test_the_card_of_ones_own_attention_says_so(tmp_path):
    class MyAttention(streamseg.FastAttention):
        pass

    path = tmp_path / "own.safetensors"
    streamseg.save(streamseg.fanet18(11, attention=MyAttention), streamseg.CAMVID, path)
    card = make_files(path, ADDRESS)["README.md"].decode()
    assert 'streamseg.load("hf:me/streets", attention=MyAttention)' in card
    assert "streamseg segment" not in card


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"miou": "high", "iou": {}}', '{"miou": 300, "iou": {}}', '{"miou": 3, "iou": [1]}']
)
def test_figures_that_are_none_are_refused(tmp_path, content):
    path = tmp_path / "figures.json"
    with pytest.raises(FileNotFoundError, match=r"^No figures at .*figures.json \(No such file"):
        read_figures(path)
    path.write_text(content)
    with pytest.raises(ValueError, match=r"figures.json holds no figures of a network: expected the file that"):
        read_figures(path)


def test_a_target_is_a_repository():
    assert parse_target("me/streets") == parse_target("hf:me/streets") == ADDRESS
    with pytest.raises(ValueError, match=r"names a file, and a repository gets its weights as model.safetensors: "):
        parse_target("hf:me/streets/x.safetensors")
    with pytest.raises(ValueError, match="is no name of a repository"):
        parse_target("streets")
    with pytest.raises(ValueError, match="expected printable text in one line"):
        make_files(Path("x.safetensors"), ADDRESS, "two\nlines")
