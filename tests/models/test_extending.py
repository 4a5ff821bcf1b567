"""Attentions and encoders that streamseg does not have: the examples of docs/python.md."""

import re
from pathlib import Path

import pytest
import torch

import streamseg
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
