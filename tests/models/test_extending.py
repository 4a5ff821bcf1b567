"""Attentions and encoders that streamseg does not have: the examples of docs/python.md, and their checkpoints."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import streamseg
from streamseg import DotAttention, FastAttention
from streamseg.engine.engine import EagerEngine

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Run the Python blocks of the page in order, and return their names."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "samples").symlink_to(ROOT / "samples")
    text = (ROOT / "docs/python.md").read_text()
    names = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if "cv2" not in block and "supervision" not in block:  # tests/test_docs.py runs these, with the packages
                exec(block, names)
    return names


@pytest.fixture(params=["attention", "encoder"])
def network(page, request):
    torch.manual_seed(0)
    if request.param == "attention":
        return streamseg.fanet18(classes=5, attention=page["MeanAttention"], averages=True).eval()
    return streamseg.FANet(page["TinyEncoder"](), classes=5).eval()


def noise(height, width, seed=0):
    return torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed)).byte()


def test_the_python_of_the_page_runs(page):
    assert type(page["model"].encoder) is page["TinyEncoder"]
    assert page["labels"].shape == page["frame"].shape[1:]
    assert page["classes"] == streamseg.CAMVID


def test_an_image_is_a_stream_of_one_frame(network):
    frame = noise(65, 97)
    (_, labels), *_ = streamseg.label_frames(network, [frame], window=2)
    assert labels.equal(streamseg.segment(frame, network))
    with torch.inference_mode():
        assert (labels == network(frame[None])[0].argmax(dim=0)).float().mean() > 0.999


def test_the_past_reaches_the_next_frame(network):
    first, second = noise(64, 96), noise(64, 96, seed=1)
    with torch.inference_mode():
        _, context = network.step(first[None])
        alone, _ = network.step(second[None])
        after, _ = network.step(second[None], context)
    assert [matrix.shape for matrix in context] == [(1, *attend.context_shape) for attend in network.attentions]
    assert not torch.allclose(alone, after)


def test_it_is_accelerated_by_running_it_as_it_is(network):
    engine = streamseg.accelerate(network)
    assert isinstance(engine, EagerEngine)
    assert engine(noise(64, 96)).equal(streamseg.segment(noise(64, 96), network))
    with pytest.raises(ValueError, match=r"int8 needs .* this one has (MeanAttention|the encoder TinyEncoder)"):
        streamseg.accelerate(network, "int8")


def test_tiles_equal_the_whole_frame(network):
    frame = noise(128, 192)
    labels, context = streamseg.label_tiled(network, frame, tile=(64, 64), margin=576)
    with torch.inference_mode():
        logits, expected = network.step(frame[None])
    assert (labels == logits[0].argmax(dim=0)).float().mean() > 0.999
    torch.testing.assert_close(context, expected, atol=1e-4, rtol=1e-3)


def test_an_attention_that_does_not_say_that_it_is_linear_is_not_tiled(page):
    other = type("Other", (page["MeanAttention"],), {"linear": False})
    with pytest.raises(ValueError, match="^Other needs all pixels at once: use a linear attention"):
        streamseg.label_tiled(streamseg.fanet18(classes=5, attention=other).eval(), noise(64, 64))


def test_gradients_reach_every_weight(network):
    network.train()
    network(255 * torch.rand(2, 3, 64, 96)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


class Mine(FastAttention):
    """An attention that streamseg does not have."""


class Custom(nn.Module):
    """An encoder that streamseg does not have."""

    channels = (8, 8, 16, 16)

    def __init__(self):
        super().__init__()
        sizes = [(3, 8, 4), (8, 8, 2), (8, 16, 2), (16, 16, 2)]
        self.stages = nn.ModuleList(nn.Conv2d(a, b, 3, stride=s, padding=1) for a, b, s in sizes)

    def forward(self, x):
        maps = []
        for stage in self.stages:
            x = stage(x).relu()
            maps.append(x)
        return tuple(maps)


@pytest.mark.parametrize("factory", [streamseg.fanet18, streamseg.fanetplus18])
def test_a_network_with_its_own_attention_is_saved_and_loaded_with_its_class(factory, tmp_path, image):
    network, path = factory(classes=11, attention=Mine, key_channels=8).eval(), tmp_path / "a.safetensors"
    streamseg.save(network, streamseg.CAMVID, path)
    assert streamseg.describe(path).variant.attention == "Mine"
    loaded, classes = streamseg.load(path, attention=Mine)
    assert classes == streamseg.CAMVID
    assert {type(attend) for attend in loaded.attentions} == {Mine}
    assert loaded(image).equal(network(image))


def test_without_its_class_such_a_network_is_refused(model, tmp_path):
    streamseg.save(streamseg.fanet18(classes=11, attention=Mine), streamseg.CAMVID, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"part of streamseg: load it with streamseg\.load\(PATH, attention=Mine\)"):
        streamseg.load(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="has the attention Mine, which is not DotAttention"):
        streamseg.load(tmp_path / "a.safetensors", attention=DotAttention)
    streamseg.save(model, streamseg.CAMVID, tmp_path / "fast.safetensors")
    with pytest.raises(ValueError, match="has the attention FastAttention, which is not Mine"):
        streamseg.load(tmp_path / "fast.safetensors", attention=Mine)


def test_a_network_with_its_own_encoder_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r"cannot describe the encoder Custom: save model\.state_dict\(\) with torch"):
        streamseg.save(streamseg.FANet(Custom(), 11), streamseg.CAMVID, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"cannot describe the encoder Custom: save model\.state_dict\(\) with torch"):
        streamseg.save(streamseg.FANetPlus(Custom(), 11), streamseg.CAMVID, tmp_path / "a.safetensors")
