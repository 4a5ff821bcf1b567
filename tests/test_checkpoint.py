import json
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import streamseg
from streamseg import ChannelAttention, DotAttention, NoAttention, SelfAttention


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "model.safetensors"
    streamseg.save(model, streamseg.CAMVID, path, window=4, source="a test")
    return path


def rewrite(path, metadata=None, weights=None, **changes):
    """The same checkpoint with parts of it exchanged, as a broken program or a hostile person would."""
    with safe_open(path, "pt") as file:
        entry = json.loads(file.metadata()["streamseg"])
    metadata = {"streamseg": json.dumps({**entry, **changes})} if metadata is None else metadata
    save_file(load_file(path) if weights is None else weights, path, metadata)


def test_a_loaded_network_is_the_saved_one(model, saved, image):
    loaded, classes = streamseg.load(saved)
    assert classes == streamseg.CAMVID
    assert not loaded.training
    assert loaded(image).equal(model(image))


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


def test_fanet34_is_built_again(tmp_path, image):
    network = streamseg.fanet34(classes=11).eval()
    streamseg.save(network, streamseg.CAMVID, tmp_path / "34.safetensors")
    assert streamseg.load(str(tmp_path / "34.safetensors"))[0](image).equal(network(image))


def test_half_precision_is_saved_small_and_loaded_in_fp32(model, saved, tmp_path):
    half = streamseg.load(saved)[0].half().to(memory_format=torch.channels_last)
    streamseg.save(half, streamseg.CAMVID, tmp_path / "half.safetensors")
    assert (tmp_path / "half.safetensors").stat().st_size < 0.51 * saved.stat().st_size
    loaded, _ = streamseg.load(tmp_path / "half.safetensors")
    for name, tensor in loaded.state_dict().items():
        expected = model.state_dict()[name]
        assert tensor.dtype == expected.dtype
        torch.testing.assert_close(tensor, expected, atol=1e-3, rtol=1e-3)


def test_without_a_path_it_says_that_no_weights_ship():
    with pytest.raises(FileNotFoundError, match="No trained weights ship with streamseg yet"):
        streamseg.load()


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
    with pytest.raises(ValueError, match="is no safetensors file"):
        streamseg.load(tmp_path)


def test_the_weights_of_another_program_are_refused(tmp_path):
    save_file({"weight": torch.rand(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="was not written by streamseg"):
        streamseg.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "__import__('os')"},
        {"network": 18},
        {"attention": "Module"},
        {"key_channels": 10**12},
        {"key_channels": "32"},
        {"reduction": "Res-9"},
        {"reduce_by": None},
        {"names": ["Sky"]},
        {"names": [*streamseg.CAMVID.names[:-1], "\x1b[2J"]},
        {"names": 11},
        {"colours": [[0, 0, 300]] * 11},
        {"colours": [[0, 0]] * 11},
        {"window": 0},
        {"window": 1.5},
        {"source": ["a list"]},
    ],
)
def test_a_wrong_description_is_refused(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match="describes itself wrongly"):
        streamseg.load(saved)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000])
def test_metadata_that_is_no_description_is_refused(saved, text):
    rewrite(saved, metadata={"streamseg": text})
    with pytest.raises(ValueError, match="describes itself wrongly"):
        streamseg.load(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "fanet34"},
        {"key_channels": 1024},
        {"attention": "NoAttention"},
        {"names": streamseg.CITYSCAPES.names, "colours": streamseg.CITYSCAPES.colours},
    ],
)
def test_weights_that_differ_from_their_description_are_refused(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match="does not hold the fanet.. that it describes"):
        streamseg.load(saved)


def test_weights_that_are_not_finite_are_refused(saved):
    weights = load_file(saved)
    weights["classify.1.weight"][0, 0] = float("nan")
    rewrite(saved, weights=weights)
    with pytest.raises(ValueError, match="not finite numbers"):
        streamseg.load(saved)


def test_what_cannot_be_loaded_again_is_not_saved(model, tmp_path):
    path = tmp_path / "wrong.safetensors"
    with pytest.raises(ValueError, match="tells 11 classes apart, but 19 are named"):
        streamseg.save(model, streamseg.CITYSCAPES, path)
    with pytest.raises(ValueError, match="window is 0"):
        streamseg.save(model, streamseg.CAMVID, path, window=0)
    with pytest.raises(ValueError, match="takes a FANet itself"):
        streamseg.save(torch.nn.DataParallel(model), streamseg.CAMVID, path)
    with pytest.raises(FileNotFoundError, match="create it first"):
        streamseg.save(model, streamseg.CAMVID, tmp_path / "no folder" / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
