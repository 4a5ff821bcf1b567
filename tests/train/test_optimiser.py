from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from runs import TINY
from torch import nn

import streamseg
from streamseg.train.loss_module import LossModule
from streamseg.train.optimiser import float_tensors, make_optimiser, set_learning_rate, update_ema


def rates(config, share=1.0):
    optimiser = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "share": share}], lr=1)
    for step in range(config.iterations):
        set_learning_rate(optimiser, config, step)
        yield optimiser.param_groups[0]["lr"]


def test_the_learning_rate_decays_as_in_the_paper_and_ends_near_0():
    config = replace(TINY, iterations=1000, warm_up=0.0, learning_rate=0.01)
    found = list(rates(config))
    assert found[0] == 0.01
    assert found[500] == pytest.approx(0.01 * 0.5**0.9)
    assert 0 < found[-1] < 1e-4
    assert all(after < before for before, after in pairwise(found))


def test_the_learning_rate_rises_in_the_warm_up_and_is_then_the_same_as_without():
    config = replace(TINY, iterations=100, warm_up=0.09)
    found, without = list(rates(config)), list(rates(replace(config, warm_up=0.0)))
    assert found[0] == pytest.approx(without[0] / 10)
    assert all(after > before for before, after in pairwise(found[:10]))
    assert found[9:] == without[9:]


def test_the_encoder_has_its_own_learning_rate_and_only_convolutions_decay():
    config = replace(TINY, encoder_rate_factor=0.1, weight_decay=0.5)
    network = streamseg.fanet18(classes=3)
    loss_module = LossModule(network, torch.ones(3), auxiliary_loss=0.4)
    optimiser = make_optimiser(loss_module, network.encoder, config)
    set_learning_rate(optimiser, config, 3)
    group_of = {id(x): group for group in optimiser.param_groups for x in group["params"]}
    assert len(group_of) == len(list(loss_module.parameters()))
    for name, parameter in loss_module.named_parameters():
        group = group_of[id(parameter)]
        assert group["share"] == (0.1 if name.startswith("network.encoder.") else 1.0)
        assert group["weight_decay"] == (0.5 if parameter.ndim == 4 else 0)
    assert {round(group["lr"] / optimiser.param_groups[-1]["lr"], 6) for group in optimiser.param_groups} == {0.1, 1}


def test_an_ema_without_decay_is_the_weights_and_one_with_decay_follows_them(model):
    average = streamseg.fanet18(classes=11)
    start = average.encoder.conv1.weight.clone()
    update_ema(float_tensors(average), float_tensors(model), 0.75, step=1000)
    torch.testing.assert_close(average.encoder.conv1.weight, 0.75 * start + 0.25 * model.encoder.conv1.weight)
    update_ema(float_tensors(average), float_tensors(model), 0.0, step=1000)
    for ours, theirs in zip(float_tensors(average), float_tensors(model), strict=True):
        assert ours.equal(theirs)


def test_the_decay_is_lower_in_the_first_steps(model):
    average = streamseg.fanet18(classes=11)
    start = average.encoder.conv1.weight.clone()
    update_ema(float_tensors(average), float_tensors(model), 0.999, step=0)
    torch.testing.assert_close(average.encoder.conv1.weight, 0.1 * start + 0.9 * model.encoder.conv1.weight)
