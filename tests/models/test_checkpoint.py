import json
import shutil
import struct
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import streamseg
from streamseg import ChannelAttention, DotAttention, FastAttention, NoAttention, SelfAttention
from streamseg.class_table import STREET_TABLE
from streamseg.models.baselines import BASELINES
from streamseg.models.baselines.bisenet import BiSeNet
from streamseg.models.checkpoint import Variant, require_fanet
from streamseg.models.encoder import ResNet, resnet18, resnet34


@pytest.fixture(scope="module")
def original(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    streamseg.save(model, streamseg.CAMVID, path, window=4, source="a test")
    return path


@pytest.fixture
def saved(original, tmp_path):
    """A checkpoint that a test may change."""
    return shutil.copyfile(original, tmp_path / "model.safetensors")


CAMVID = asdict(streamseg.CAMVID)


def rewrite(path, metadata=None, weights=None, **changes):
    """Replace parts of a checkpoint, without a checksum, as a broken or hostile program would."""
    with safe_open(path, "pt") as file:
        entry = json.loads(file.metadata()["streamseg"])
    entry.pop("checksum", None)
    metadata = {"streamseg": json.dumps({**entry, **changes})} if metadata is None else metadata
    save_file(load_file(path) if weights is None else weights, path, metadata)


def test_a_loaded_network_is_the_saved_one(model, saved, image):
    loaded, classes = streamseg.load(saved)
    assert classes == streamseg.CAMVID
    assert not loaded.training
    assert loaded(image).equal(model(image))


def test_loading_leaves_the_random_numbers_alone(saved):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    streamseg.load(saved)
    assert torch.rand(3).equal(expected)


def test_a_checkpoint_describes_itself(saved):
    description = streamseg.describe(saved)
    assert description.network == "fanet18"
    assert description.classes == streamseg.CAMVID
    assert description.window == 4
    assert description.source == "a test"


@pytest.mark.parametrize(
    "options",
    [
        {"attention": DotAttention, "key_channels": 8},
        {"attention": SelfAttention, "reduction": "None"},
        {"attention": ChannelAttention, "reduction": "Res-3"},
        {"attention": NoAttention, "reduction": "Conv-0", "reduce_by": "average"},
        {"reduction": "Res-1", "reduce_by": "max"},
    ],
)
def test_every_variant_is_built_again(options, tmp_path, image):
    network = streamseg.fanet18(classes=11, **options).eval()
    streamseg.save(network, streamseg.CAMVID, tmp_path / "variant.safetensors")
    assert streamseg.load(tmp_path / "variant.safetensors")[0](image).equal(network(image))


@pytest.mark.parametrize("name", ["fanet34", "fanetplus18", "fanetplus34"])
def test_every_fanet_is_built_again(name, tmp_path, image):
    network = getattr(streamseg, name)(classes=11).eval()
    streamseg.save(network, streamseg.CAMVID, tmp_path / "again.safetensors")
    loaded, _ = streamseg.load(str(tmp_path / "again.safetensors"))
    assert type(loaded) is type(network)
    assert loaded.name == network.name == name == streamseg.describe(tmp_path / "again.safetensors").network
    assert loaded(image).equal(network(image))


def test_a_fanet_plus_keeps_its_options_and_states_its_reduction(tmp_path, image):
    path = tmp_path / "plus.safetensors"
    network = streamseg.fanetplus18(classes=11, attention=DotAttention, key_channels=8, averages=True).eval()
    streamseg.save(network, streamseg.CAMVID, path, window=4)
    assert streamseg.describe(path).variant == Variant("DotAttention", 8, "Res-4", "average", averages=True)
    assert streamseg.load(path)[0].averages
    assert streamseg.load(path)[0](image).equal(network(image))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reduction": "Res-1"}, "The reduction of this fanetplus18 is Res-1 by average; expected Res-4 by average"),
        ({"reduce_by": "stride"}, "The reduction of this fanetplus18 is Res-4 by stride; expected Res-4 by average"),
    ],
)
def test_a_fanet_plus_with_another_reduction_is_neither_loaded_nor_saved(plus, changes, sentence, tmp_path):
    path = tmp_path / "plus.safetensors"
    streamseg.save(plus, streamseg.CAMVID, path)
    rewrite(path, **changes)
    with pytest.raises(ValueError, match=sentence):
        streamseg.load(path)
    reduction = {"reduction": "Res-4", "reduce_by": "average"} | changes
    other = streamseg.FANetPlus(resnet18(**reduction), 11)
    with pytest.raises(ValueError, match=sentence):
        streamseg.save(other, streamseg.CAMVID, tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["enet", "icnet", "bisenet18"])
def test_a_baseline_is_saved_and_loaded_as_any_network(name, tmp_path, image):
    network = BASELINES[name](11).eval()
    path = tmp_path / "baseline.safetensors"
    streamseg.save(network, streamseg.CAMVID, path, source="a test")
    loaded, classes = streamseg.load(path)
    assert classes == streamseg.CAMVID
    assert loaded(image).equal(network(image))
    described = streamseg.describe(path)
    assert (described.network, described.variant, described.source) == (name, None, "a test")


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_s_name_is_that_of_the_function_that_builds_it(name):
    with torch.device("meta"):
        assert BASELINES[name](2).name == name


@pytest.mark.parametrize("changes", [{"network": "enet"}, {"attention": None, "network": "enet"}])
def test_a_baseline_with_options_of_a_fanet_is_refused(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match="has invalid metadata"):
        streamseg.load(saved)


def test_a_fanet_without_its_options_is_refused(tmp_path):
    path = tmp_path / "baseline.safetensors"
    streamseg.save(BASELINES["enet"](11), streamseg.CAMVID, path)
    rewrite(path, network="fanet18")
    with pytest.raises(ValueError, match="network is fanet18; expected options for a FANet, and none for a baseline"):
        streamseg.load(path)


def test_a_baseline_that_load_would_build_differently_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="A bisenet18 has no extra spatial reduction"):
        streamseg.save(BiSeNet(resnet18("Res-2"), 11), streamseg.CAMVID, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="network is 'bisenet34'; choose one of"):
        streamseg.save(BiSeNet(resnet34("None"), 11), streamseg.CAMVID, tmp_path / "a.safetensors")


def test_what_needs_a_fanet_refuses_a_baseline(model):
    assert require_fanet(model, "export") is model
    with pytest.raises(ValueError, match="^export needs a FANet, but these weights are of enet: give weights of a FAN"):
        require_fanet(BASELINES["enet"](3), "export")


def test_half_precision_is_saved_small_and_loaded_in_fp32(model, saved, tmp_path):
    half = streamseg.load(saved)[0].half().to(memory_format=torch.channels_last)
    streamseg.save(half, streamseg.CAMVID, tmp_path / "half.safetensors")
    assert (tmp_path / "half.safetensors").stat().st_size < 0.51 * saved.stat().st_size
    loaded, _ = streamseg.load(tmp_path / "half.safetensors")
    for name, tensor in loaded.state_dict().items():
        expected = model.state_dict()[name]
        assert tensor.dtype == expected.dtype
        torch.testing.assert_close(tensor, expected, atol=1e-3, rtol=1e-3)


def test_without_a_path_the_bundled_weights_are_loaded():
    model, classes = streamseg.load()
    assert classes == STREET_TABLE.classes
    assert model.name == "fanetplus18"
    frame = streamseg.read_image(Path(__file__).parents[2] / "samples" / "suburb-1.jpg")[None, :, ::2, ::2]
    with torch.inference_mode():
        labels = model(frame)[0].argmax(dim=0)
    # the network is trained: sky at the top, road at the bottom
    top, bottom = labels[100, 300:700], labels[-60, 400:900]
    assert (top == classes.names.index("Sky")).float().mean() > 0.9
    assert (bottom == classes.names.index("Road")).float().mean() > 0.9


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No weights at .*nowhere\.safetensors"):
        streamseg.load(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 100, 30_000, -1])
def test_a_truncated_file_is_refused(saved, keep):
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(ValueError, match="is no safetensors file, or is cut short"):
        streamseg.load(saved)


@pytest.mark.parametrize(
    "content",
    [b"hello, world", b"\x80\x04K\x01.", struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 2) + b"{}"],
)
def test_a_foreign_file_is_refused(content, tmp_path):
    file = tmp_path / "foreign.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is no safetensors file|was not written by streamseg"):
        streamseg.load(file)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        streamseg.load(tmp_path)


def test_a_file_that_may_not_be_read_says_so(saved, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)  # permissions do not stop tests that run as root
    with pytest.raises(PermissionError, match=r"model\.safetensors cannot be read"):
        streamseg.load(saved)


def test_the_weights_of_another_program_are_refused(tmp_path):
    save_file({"weight": torch.rand(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="was not written by streamseg"):
        streamseg.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "__import__('os')"},
        {"network": 18},
        {"attention": "os.system"},
        {"attention": "Attention" * 10},
        {"attention": 3},
        {"key_channels": 10**12},
        {"key_channels": "32"},
        {"reduction": "Res-9"},
        {"reduce_by": None},
        {"key_channels": 1025},
        {"key_channels": True},
        {"classes": None},
        {"classes": [1]},
        {"classes": {"names": CAMVID["names"]}},
        {"classes": {**CAMVID, "more": 1}},
        {"classes": {**CAMVID, "names": ["Sky"]}},
        {"classes": {**CAMVID, "names": "abcdefghijk"}},
        {"classes": {**CAMVID, "names": dict.fromkeys(CAMVID["names"], 1)}},
        {"classes": {**CAMVID, "names": [*CAMVID["names"][:-1], "\x1b[2J" * 1000]}},
        {"classes": {**CAMVID, "names": 11}},
        {"classes": {**CAMVID, "colours": [[0, 0, 300]] * 11}},
        {"classes": {**CAMVID, "colours": [[0, 0]] * 11}},
        {"classes": {**CAMVID, "colours": [5] * 11}},
        {"classes": {**CAMVID, "colours": ["abc"] * 11}},
        {"window": 0},
        {"window": 1.5},
        {"window": 10**1000},
        {"source": ["a list"]},
        {"source": "\x1b[2J"},
        {"source": "two\nlines"},
        {"network": "\x1b[2J\n" * 1000},
        {"\x1b[2J\n" * 1000: 1},
    ],
)
def test_a_wrong_description_is_refused_in_a_short_printable_line(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match="has invalid metadata") as caught:
        streamseg.load(saved)
    sentence = str(caught.value).replace(str(saved), "")
    assert sentence.isprintable()
    assert len(sentence) < 300


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000])
def test_metadata_that_is_no_description_is_refused(saved, text):
    rewrite(saved, metadata={"streamseg": text})
    with pytest.raises(ValueError, match="has invalid metadata"):
        streamseg.load(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "fanet34"},
        {"key_channels": 1024},
        {"attention": "NoAttention"},
        {"classes": asdict(streamseg.CITYSCAPES)},
    ],
)
def test_weights_that_differ_from_their_description_are_refused(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match="does not hold the fanet.. that it describes"):
        streamseg.load(saved)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x / 0, "not finite"),
        (lambda x: x.double() + 1e300, "not finite"),
        (lambda x: -x, "variances below zero"),
        (lambda x: x.to(torch.float8_e4m3fn), "is no dense tensor"),
        (lambda x: x.to(torch.int64), "is no dense tensor"),
        (lambda x: x.to(torch.complex64), "is no dense tensor"),
        (lambda x: x > 0, "is no dense tensor"),
        (lambda x: x[:-1], "has shape"),
    ],
)
def test_weights_that_are_no_usable_numbers_are_refused(saved, change, sentence):
    weights = load_file(saved)
    weights["encoder.bn1.running_var"] = change(weights["encoder.bn1.running_var"])
    rewrite(saved, weights=weights)
    with pytest.raises(ValueError, match=rf"'encoder\.bn1\.running_var' .*{sentence}"):
        streamseg.load(saved)


def test_a_hostile_tensor_name_is_printed_short_and_plain(saved):
    rewrite(saved, weights={"\x1b[2J\n" * 1000: torch.rand(3), **load_file(saved)})
    with pytest.raises(ValueError, match="does not belong to it") as caught:
        streamseg.load(saved)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_dtype_that_torch_lacks_is_refused(saved):
    with safe_open(saved, "pt") as file:
        entry = json.loads(file.metadata()["streamseg"])
    entry.pop("checksum")
    header = {"__metadata__": {"streamseg": json.dumps(entry)}}
    header["a"] = {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}
    text = json.dumps(header).encode()
    saved.write_bytes(struct.pack("<Q", len(text)) + text + bytes(3))
    with pytest.raises(ValueError, match="holds tensors that cannot be read"):
        streamseg.load(saved)


def test_what_load_would_refuse_is_not_saved(model, tmp_path):
    path = tmp_path / "wrong.safetensors"
    with pytest.raises(ValueError, match="has 11 classes, but 19 are named"):
        streamseg.save(model, streamseg.CITYSCAPES, path)
    with pytest.raises(ValueError, match=r"The classes are a list; expected streamseg.Classes\(names, colours\)"):
        streamseg.save(model, ["a"] * 11, path)
    with pytest.raises(ValueError, match="window is 0"):
        streamseg.save(model, streamseg.CAMVID, path, window=0)
    with pytest.raises(ValueError, match="The model is a DataParallel; expected a FANet or a baseline itself"):
        streamseg.save(nn.DataParallel(model), streamseg.CAMVID, path)
    with pytest.raises(ValueError, match="source is 3; expected printable text"):
        streamseg.save(model, streamseg.CAMVID, path, source=3)
    with pytest.raises(FileNotFoundError, match="create it first"):
        streamseg.save(model, streamseg.CAMVID, tmp_path / "no folder" / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def mixed(network):
    network.attend2 = DotAttention(128)


def subclassed(network):
    network.attend1 = type("FastAttention", (FastAttention,), {})(64)


def not_finite(network):
    nn.init.constant_(network.classify[1].weight, float("nan"))


def of_another_depth(network):
    network.encoder = ResNet((1, 1, 1, 1), "Res-1", "stride")


def of_another_plan(network):
    network.encoder = ResNet((1, 3, 2, 2), "Res-1", "stride")  # as many layers as ResNet-18


def in_8_bits(network):
    network.to(torch.float8_e4m3fn)


def without_numbers(network):
    network.to("meta")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (mixed, "attentions are not all FastAttention"),
        (subclassed, "attentions are not all FastAttention"),
        (not_finite, r"'classify\.1\.weight' holds numbers that are not finite"),
        (of_another_depth, "network is 'fanet10'"),
        (of_another_plan, "cannot be saved as a fanet18: .* is missing"),
        (in_8_bits, "is no dense tensor of"),
        (without_numbers, "is no dense tensor of"),
    ],
)
def test_a_network_that_load_would_refuse_is_not_saved(change, sentence, tmp_path):
    network = streamseg.fanet18(classes=11)
    change(network)
    with pytest.raises(ValueError, match=sentence):
        streamseg.save(network, streamseg.CAMVID, tmp_path / "wrong.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_more_key_channels_than_load_takes_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="key_channels is 2048; a checkpoint may have up to 1024"):
        streamseg.save(streamseg.fanet18(11, key_channels=2048), streamseg.CAMVID, tmp_path / "wide.safetensors")


def test_a_saved_file_has_the_permissions_of_any_other(saved, tmp_path):
    (tmp_path / "other").touch()
    assert saved.stat().st_mode == (tmp_path / "other").stat().st_mode
