"""Which engine runs a network."""

import copy

import pytest
import torch

import streamseg
from streamseg.engine.engine import EagerEngine, ImageEngine
from streamseg.engine.fast import FastEngine
from streamseg.engine.pick import accelerate, pick_engine
from streamseg.models import baselines

CPU = torch.device("cpu")


def test_a_network_runs_in_its_fast_form_if_it_has_one(model):
    model = copy.deepcopy(model)  # it is converted in place
    assert type(pick_engine(model, CPU)) is type(accelerate(model)) is FastEngine
    engine = accelerate(model)
    assert pick_engine(engine, CPU) is engine
    assert type(pick_engine(model, CPU, eager=True)) is EagerEngine
    assert type(pick_engine(model, CPU, "bf16")) is EagerEngine  # the fast form has fp32 and int8 on the CPU
    assert type(pick_engine(baselines.enet(5).eval(), CPU)) is ImageEngine


@pytest.mark.parametrize(
    "attention",
    [streamseg.SelfAttention, streamseg.ChannelAttention, streamseg.DotAttention, streamseg.NoAttention],
)
def test_int8_of_another_attention_is_refused(attention):
    model = streamseg.fanet18(classes=5, attention=attention).eval()
    for make in (lambda: accelerate(model, "int8"), lambda: pick_engine(model, torch.device("cpu"), "int8")):
        with pytest.raises(
            ValueError,
            match=f"int8 needs a FANet with fast attention, and this one has {attention.__name__}",
        ):
            make()


def test_int8_of_other_networks_is_refused():
    with pytest.raises(ValueError, match="int8 needs a FANet with fast attention, and this one has Conv-0 reduced"):
        accelerate(streamseg.fanet18(classes=5, reduction="Conv-0").eval(), "int8")
    with pytest.raises(ValueError, match="int8 needs a FANet with fast attention, and the network is ENet"):
        pick_engine(baselines.enet(5).eval(), torch.device("cpu"), "int8")


def test_a_precision_is_that_of_the_engine():
    model = streamseg.fanet18(classes=5, attention=streamseg.NoAttention).eval()
    assert accelerate(model, "fp32").model is model
    engine = accelerate(copy.deepcopy(model).double(), "fp32")
    assert engine.model.mean.dtype == torch.float32
    assert pick_engine(copy.deepcopy(model), torch.device("cpu"), "bf16").model.mean.dtype == torch.bfloat16
