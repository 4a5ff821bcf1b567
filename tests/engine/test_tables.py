"""Tensors that depend on sizes alone."""

import torch

from streamseg.engine.tables import kept_on_cpu

CPU, META = torch.device("cpu"), torch.device("meta")


@kept_on_cpu
def ramp(size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32, device=device)


def test_a_table_is_made_once_for_the_cpu_and_each_time_for_others():
    assert ramp(5, CPU) is ramp(5, CPU)
    assert ramp(5, CPU).equal(torch.arange(5.0))
    assert ramp(6, CPU).shape == (6,)
    assert ramp(5, META) is not ramp(5, META)


def test_a_table_that_was_made_for_labels_serves_training_too():
    with torch.inference_mode():
        ramp(7, CPU)
    weight = torch.ones(7, requires_grad=True)
    (weight * ramp(7, CPU)).sum().backward()
    assert weight.grad.equal(torch.arange(7.0))


def test_a_graph_that_is_made_holds_no_table_of_before():
    class Add(torch.nn.Module):
        def forward(self, x):
            return x + ramp(x.shape[0], x.device)

    x = torch.ones(9)
    expected = Add()(x)
    program = torch.export.export(Add(), (x,))
    assert not program.constants
    assert program.module()(x).equal(expected)
    assert ramp(9, CPU).equal(torch.arange(9.0))  # and leaves none behind
