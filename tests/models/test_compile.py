"""The networks under torch.compile and torch.export."""

import shutil

import pytest
import torch
from torch import nn

import streamseg
from streamseg import FastAttention
from streamseg.models.attention import ATTENTIONS
from streamseg.models.encoder import ResNet


@pytest.fixture(params=["fanet18", "fanetplus18"])
def model(model, plus, request):
    """Both networks: what a test states of one holds for the other."""
    return model if request.param == "fanet18" else plus


def shallow(attention=FastAttention):
    """A FANet with one block of each kind: compile time grows with the number of layers."""
    torch.manual_seed(0)
    return streamseg.FANet(ResNet((2, 1, 1, 1), "Res-1", "stride"), 4, attention, key_channels=8).eval()


def shallow_plus(attention=FastAttention):
    torch.manual_seed(0)
    return streamseg.FANetPlus(ResNet((1, 1, 1, 1), "Res-4", "average"), 4, attention, key_channels=8).eval()


SHALLOW = pytest.mark.parametrize("build", [shallow, shallow_plus])


@pytest.mark.slow
@SHALLOW
@pytest.mark.parametrize("attention", ATTENTIONS.values())
def test_the_whole_network_is_one_graph(attention, image, build):
    network = build(attention)
    compiled = torch.compile(network.step, backend="eager", fullgraph=True)
    with torch.inference_mode():
        logits, context = network.step(image)
        torch.testing.assert_close(compiled(image)[0], logits)
        torch.testing.assert_close(compiled(image, context)[0], network.step(image, context)[0])


@pytest.mark.parametrize(("fullgraph", "failure"), [(False, ValueError), (True, torch._dynamo.exc.Unsupported)])
def test_a_compiled_network_checks_its_inputs_too(model, image, fullgraph, failure):
    images = image.repeat(2, 1, 1, 1)
    past = model.step(image)[1]  # of a batch of one, which would be broadcast to both
    with pytest.raises(failure, match="The past's shapes are|ValueError"):
        torch.compile(model.step, backend="eager", fullgraph=fullgraph)(images, past)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU: install g++")
@pytest.mark.slow
def test_the_network_compiles_to_kernels(image):
    network = shallow()
    compiled = torch.compile(network, fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(image), network(image), atol=1e-3, rtol=1e-3)


@pytest.mark.xfail(
    torch.__version__ < "2.13", reason="older torch treats the parity of a pooled map as a constant", strict=False
)
@pytest.mark.slow
def test_the_network_exports_with_free_batch_and_size_from_65_up():
    model, free = shallow(), torch.export.Dim.DYNAMIC
    example = torch.randint(0, 256, (2, 3, 144, 272), dtype=torch.uint8)
    past = model.step(example)[1]
    axes = ({0: free, 2: free, 3: free}, tuple({0: free} for _ in past))
    exported = torch.export.export(Step(model), (example, past), dynamic_shapes=axes).module()
    for shape in [(1, 3, 65, 65), (3, 3, 201, 333)]:
        image = torch.randint(0, 256, shape, dtype=torch.uint8)
        past = model.step(image)[1]
        with torch.inference_mode():
            torch.testing.assert_close(exported(image, past), model.step(image, past), atol=1e-4, rtol=1e-4)
    # up to 64, Res-4's map has a side of one pixel, which torch treats as a constant
    small = torch.randint(0, 256, (2, 3, 64, 272), dtype=torch.uint8)
    with pytest.raises(AssertionError, match="65"):
        exported(small, model.step(small)[1])


@pytest.mark.slow
@SHALLOW
def test_the_network_exports_at_any_fixed_size(build):
    model, image = build(), torch.randint(0, 256, (1, 3, 33, 47), dtype=torch.uint8)
    with torch.inference_mode():
        torch.testing.assert_close(torch.export.export(model, (image,)).module()(image), model(image))


class Step(nn.Module):
    """step() as a module's forward, which torch.export needs."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, image, past):
        return self.network.step(image, past)
