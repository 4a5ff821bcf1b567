"""oneDNN's undocumented operators, which torch may not have."""

import plain
import pytest
import torch

import streamseg
from streamseg.engine import convolutions, pick
from streamseg.engine.pick import accelerate
from streamseg.models.fanet_plus import fanetplus18


@pytest.fixture(scope="module", params=[streamseg.fanet18, fanetplus18], ids=["FANet", "FANet+"])
def network(request):
    return plain.randomise(request.param(classes=7)).float()


def noise(height, width):
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator, device="cpu")


def test_another_default_device_changes_nothing(network, fresh_caches):
    frame, engine = noise(40, 64), accelerate(network)
    expected = engine(frame)
    convolutions.has_fused_convolutions.cache_clear()
    convolutions.has_int8.cache_clear()
    found = convolutions.has_int8()
    convolutions.has_int8.cache_clear()
    with torch.device("meta"):
        assert convolutions.has_int8() == found
        assert engine(frame).equal(expected)
        assert engine(noise(48, 64)).device.type == "cpu"


@pytest.fixture
def fresh_caches():
    yield
    convolutions.has_fused_convolutions.cache_clear()
    convolutions.has_int8.cache_clear()


def removed(*arguments):
    raise RuntimeError("another signature")


@pytest.mark.parametrize("absent", [None, removed])
def test_without_private_operators_floats_are_the_same_and_int8_is_refused(network, monkeypatch, fresh_caches, absent):
    frame = noise(40, 64)
    expected, context = accelerate(network).step(frame)

    class Operators:
        if absent:
            _reorder_convolution_weight = _convolution_pointwise = qconv_prepack = staticmethod(absent)

    for operators in ("mkldnn", "onednn"):
        monkeypatch.setattr(torch.ops, operators, Operators())
    convolutions.has_fused_convolutions.cache_clear()
    convolutions.has_int8.cache_clear()
    assert not convolutions.has_fused_convolutions()
    labels, found = accelerate(network).step(frame)
    assert (labels == expected).float().mean() > 0.999
    torch.testing.assert_close(found, context, atol=1e-4, rtol=1e-3)
    assert pick.fast_precisions(torch.device("cpu")) == ("fp32",)
    with pytest.raises(ValueError, match=r"int8 needs convolutions that torch \S+ does not have here: choose fp32"):
        accelerate(network, "int8")


def test_operators_with_other_results_are_not_used(monkeypatch, fresh_caches):
    class Operators:
        _reorder_convolution_weight = staticmethod(lambda weight, *rest: weight)

        class _convolution_pointwise:  # noqa: N801 # torch's name
            def __new__(cls, x, *rest):
                return x

            binary = staticmethod(lambda x, *rest: x)

    monkeypatch.setattr(torch.ops, "mkldnn", Operators())
    convolutions.has_fused_convolutions.cache_clear()
    assert not convolutions.has_fused_convolutions()
