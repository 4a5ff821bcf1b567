import hashlib
import http.client
import math
import pickle
import urllib.error
from pathlib import Path

import plain
import pytest
import torch
from safetensors.torch import save_file

from streamseg.models import encoder as module
from streamseg.models.encoder import ResNet, load_imagenet, resnet18, resnet34

PLACES = ["None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4"]
PROJECTION = {f"layer1.0.downsample.{name}" for name in ("0.weight", "1.weight", "1.bias")} | {
    f"layer1.0.downsample.1.{name}" for name in ("running_mean", "running_var")
}


def torchvision_file(blocks):
    """Random tensors under the names and in the shapes of torchvision's published ResNet files."""
    tensors = {"conv1.weight": torch.rand(64, 3, 7, 7), "fc.weight": torch.rand(1000, 512), "fc.bias": torch.rand(1000)}

    def batch_norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{name}.{part}"] = torch.rand(channels)

    batch_norm("bn1", 64)
    inputs = 64
    for stage, (count, channels) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=1):
        for block in range(count):
            name = f"layer{stage}.{block}"
            tensors[f"{name}.conv1.weight"] = torch.rand(channels, inputs, 3, 3)
            tensors[f"{name}.conv2.weight"] = torch.rand(channels, channels, 3, 3)
            batch_norm(f"{name}.bn1", channels)
            batch_norm(f"{name}.bn2", channels)
            if inputs != channels:
                tensors[f"{name}.downsample.0.weight"] = torch.rand(channels, inputs, 1, 1)
                batch_norm(f"{name}.downsample.1", channels)
            inputs = channels
    return tensors


@pytest.mark.parametrize(("encoder", "blocks"), [(resnet18, (2, 2, 2, 2)), (resnet34, (3, 4, 6, 3))])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_torchvisions_file_fills_everything_except_the_projection_of_res_1(encoder, blocks, suffix, tmp_path):
    weights = torchvision_file(blocks)
    file = tmp_path / f"resnet{suffix}"
    save_file(weights, file) if suffix == ".safetensors" else torch.save(weights, file)
    network = encoder()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    load_imagenet(network, file)
    for name, tensor in network.state_dict().items():
        if name in PROJECTION or name.endswith("num_batches_tracked"):
            assert tensor.equal(before[name]), name
        else:
            assert tensor.equal(weights[name]), name


@pytest.mark.parametrize(("encoder", "blocks"), [(resnet18, (2, 2, 2, 2)), (resnet34, (3, 4, 6, 3))])
@pytest.mark.parametrize(("reduction", "strides"), [("None", (1, 2, 2, 2)), ("Res-1", (2, 2, 2, 2))])
def test_the_encoder_equals_its_plain_definition(encoder, blocks, reduction, strides):
    network = plain.randomise(encoder(reduction))
    image = torch.randn(1, 3, 65, 97, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = plain.resnet(network.state_dict(), image, blocks, strides)
        torch.testing.assert_close(network(image), tuple(expected))


def test_the_encoder_s_convolutions_are_initialised_by_fan_out():
    torch.manual_seed(0)
    for name, layer in resnet18().named_modules():
        if isinstance(layer, torch.nn.Conv2d):
            fan_out = layer.out_channels * layer.kernel_size[0] ** 2
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.06), name


def test_the_plain_encoder_equals_torchvisions():
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed beside this torch")
    theirs = torchvision.models.resnet18().eval()
    ours = resnet18(reduction="None").eval()
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert missing == []
    assert unexpected == ["fc.weight", "fc.bias"]
    image = torch.randn(2, 3, 65, 97)
    x = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(image))))
    for layer, feature in zip((theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4), ours(image), strict=True):
        x = layer(x)
        torch.testing.assert_close(feature, x)


@pytest.mark.parametrize("reduce_by", ["stride", "average", "max"])
@pytest.mark.parametrize("reduction", PLACES)
def test_the_maps_are_halved_from_the_reduction_on(reduction, reduce_by):
    place = PLACES.index(reduction)
    features = resnet18(reduction, reduce_by).eval()(torch.rand(1, 3, 192, 256))
    for stage, (stride, channels, feature) in enumerate(
        zip((4, 8, 16, 32), (64, 128, 256, 512), features, strict=True), start=1
    ):
        total = stride * (2 if 1 <= place <= stage + 1 else 1)
        assert feature.shape == (1, channels, 192 // total, 256 // total)


@pytest.mark.parametrize("reduce_by", ["stride", "average", "max"])
@pytest.mark.parametrize("reduction", PLACES)
@pytest.mark.parametrize("size", [(32, 32), (33, 47)])
def test_sizes_that_do_not_divide_are_rounded_up(reduction, reduce_by, size):
    place = PLACES.index(reduction)
    features = resnet18(reduction, reduce_by).eval()(torch.rand(1, 3, *size))
    for stage, (stride, feature) in enumerate(zip((4, 8, 16, 32), features, strict=True), start=1):
        total = stride * (2 if 1 <= place <= stage + 1 else 1)
        assert feature.shape[2:] == tuple(math.ceil(side / total) for side in size)


def test_conv_0_by_averaging_is_the_half_sized_image():
    torch.manual_seed(0)
    whole, halved = resnet18("None").eval(), resnet18("Conv-0", "average").eval()
    halved.load_state_dict(whole.state_dict())
    image = torch.rand(1, 3, 64, 96)
    half = torch.nn.functional.interpolate(image, scale_factor=0.5, mode="bilinear")
    torch.testing.assert_close(halved(image), whole(half))


@pytest.mark.parametrize(("option", "value"), [("reduction", "Res-5"), ("reduce_by", "cubic"), ("reduction", 1)])
def test_an_unknown_reduction_lists_the_known_ones(option, value):
    with pytest.raises(ValueError, match=rf"{option} is .*choose one of: .*('Res-1'|'stride')"):
        resnet18(**{option: value})


def test_none_is_not_the_word_none():
    with pytest.raises(ValueError, match="reduction is None; choose one of: 'None', 'Conv-0'"):
        resnet18(reduction=None)


def test_the_file_of_another_depth_is_refused(tmp_path):
    save_file(torchvision_file((3, 4, 6, 3)), tmp_path / "resnet34.safetensors")
    with pytest.raises(ValueError, match=r"does not hold a ResNet-18: 'layer1\.2.*load_imagenet\(encoder, FILE\)"):
        load_imagenet(resnet18(), tmp_path / "resnet34.safetensors")


def test_a_missing_tensor_is_named(tmp_path):
    weights = torchvision_file((2, 2, 2, 2))
    del weights["layer3.1.bn2.bias"]
    save_file(weights, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"layer3\.1\.bn2\.bias"):
        load_imagenet(resnet18(), tmp_path / "weights.safetensors")


class Hostile:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return (type(self.victim).touch, (self.victim,))


def test_pickled_code_is_never_run(tmp_path):
    victim = tmp_path / "code was run"
    torch.save({"conv1.weight": Hostile(victim)}, tmp_path / "hostile.pth")
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Hostile(victim)))
    for file in ("hostile.pth", "bare.pth"):
        with pytest.raises(ValueError, match="is no torch file of plain tensors"):
            load_imagenet(resnet18(), tmp_path / file)
    assert not victim.exists()


@pytest.mark.parametrize("content", [b"", b"\x80", b"PK\x03\x04", b"not weights", b"\xff" * 100])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_file_without_weights_is_refused(content, suffix, tmp_path):
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is no (safetensors|torch) file"):
        load_imagenet(resnet18(), file)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((64, 3, 7, 7), float("inf")),
        torch.full((64, 3, 7, 7), 1e300, dtype=torch.float64),
        torch.zeros(64, 3, 7, 7, dtype=torch.complex64),
        torch.zeros(64, 3, 7, 7, dtype=torch.int64),
        torch.zeros(64, 3, 7, 7, dtype=torch.float8_e4m3fn),
    ],
)
def test_weights_that_are_not_finite_floats_are_refused_and_the_encoder_is_unchanged(tensor, tmp_path):
    torch.save({**torchvision_file((2, 2, 2, 2)), "conv1.weight": tensor}, tmp_path / "weights.pth")
    network = resnet18()
    before = network.layer4[0].conv1.weight.clone()
    with pytest.raises(ValueError, match=r"'conv1\.weight' (is no dense tensor of|holds numbers that are not finite)"):
        load_imagenet(network, tmp_path / "weights.pth")
    assert network.layer4[0].conv1.weight.equal(before)


def test_a_hostile_name_is_printed_short_and_plain(tmp_path):
    torch.save({**torchvision_file((2, 2, 2, 2)), "\x1b[2J\n" * 1000: torch.rand(3)}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="does not belong to it") as caught:
        load_imagenet(resnet18(), tmp_path / "weights.pth")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_an_encoder_of_another_depth_has_no_imagenet_weights():
    with pytest.raises(ValueError, match="depth is 10; choose one of: 18, 34"):
        load_imagenet(ResNet((1, 1, 1, 1), "None", "stride"))


def test_another_encoder_has_no_imagenet_weights():
    with pytest.raises(ValueError, match=r"The encoder is a Identity; expected a ResNet: use its load_state_dict\(\)"):
        load_imagenet(torch.nn.Identity())


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"No weights at nowhere\.pth"):
        load_imagenet(resnet18(), "nowhere.pth")


@pytest.fixture
def published(monkeypatch, tmp_path):
    """Replace torch's cache and the published file; the list records each download."""
    torch.save(torchvision_file((2, 2, 2, 2)), tmp_path / "published.pth")
    content = (tmp_path / "published.pth").read_bytes()
    digits = hashlib.sha256(content).hexdigest()[:8]
    calls = []

    def download(url, path, hash_prefix, progress):
        calls.append((url, hash_prefix))
        Path(path).write_bytes(content)

    monkeypatch.setitem(module.PUBLISHED, 18, f"resnet18-{digits}.pth")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    return calls


def test_the_published_files_are_torchvisions():
    assert module.PUBLISHED == {18: "resnet18-f37072fd.pth", 34: "resnet34-b627a593.pth"}


def test_without_a_file_the_published_one_is_downloaded_once_and_cached(published):
    load_imagenet(resnet18())
    load_imagenet(resnet18())
    name = module.PUBLISHED[18]
    assert published == [(f"https://download.pytorch.org/models/{name}", name[9:17])]


def test_a_cached_file_that_does_not_match_its_hash_is_downloaded_again(published, tmp_path):
    load_imagenet(resnet18())
    with (tmp_path / "hub" / "checkpoints" / module.PUBLISHED[18]).open("r+b") as file:
        file.write(b"damage")
    load_imagenet(resnet18())
    assert len(published) == 2


@pytest.mark.parametrize(
    "failure",
    [urllib.error.URLError("no network"), RuntimeError("invalid hash value"), http.client.IncompleteRead(b"")],
)
def test_without_a_network_or_a_matching_hash_the_option_is_named(monkeypatch, tmp_path, failure):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    def download(*_, **__):
        raise failure

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    with pytest.raises(OSError, match="Could not download ImageNet weights.*--encoder-weights FILE"):
        load_imagenet(resnet34())


def test_without_a_usable_cache_the_option_is_named(monkeypatch, tmp_path):
    (tmp_path / "hub").touch()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    with pytest.raises(OSError, match="Could not download ImageNet weights.*--encoder-weights FILE"):
        load_imagenet(resnet34())
