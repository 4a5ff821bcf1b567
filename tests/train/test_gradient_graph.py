"""Gradients by a CUDA graph are those without it."""

import copy

import pytest
import torch

import streamseg
from streamseg.train.feed import Batch
from streamseg.train.gradient_graph import WARM_UP_STEPS, GradientGraph, alike
from streamseg.train.loss_module import LossModule


def make_batch(seed, side=64, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (2, 3, side, side), generator=generator).float()
    labels = torch.randint(0, 5, (2, side, side), generator=generator)
    place = torch.randint(0, 2, (2,), generator=generator)
    return Batch(images.to(device), labels.to(device), None, None, None, place.to(device))


def test_batches_are_alike_if_they_have_the_same_parts_shapes_and_types():
    batch = make_batch(0)
    assert alike(batch, make_batch(1))
    assert not alike(batch, make_batch(0, side=32))
    assert not alike(batch, batch._replace(place=None))
    assert not alike(batch, batch._replace(labels=batch.labels.int()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_steps_by_a_graph_are_those_without_it():
    torch.manual_seed(0)
    first = LossModule(streamseg.fanetplus18(5), torch.ones(5), auxiliary_loss=0.4, iou_loss=1.0, loss_stride=2).cuda()
    modules = [first.train(), copy.deepcopy(first)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=1e-4) for module in modules]

    def add_gradients(module, batch):
        loss = module(*batch)
        loss.backward()
        module.losses += loss.detach()

    graph = GradientGraph(lambda batch: add_gradients(modules[0], batch), list(modules[0].parameters()))
    plain = lambda batch: add_gradients(modules[1], batch)  # noqa: E731
    torch.backends.cudnn.deterministic = True
    try:
        for step in range(WARM_UP_STEPS + 6):
            batch = make_batch(step, 96 if step == WARM_UP_STEPS + 3 else 64, "cuda")  # one of another size
            for compute, optimiser in zip((graph, plain), optimisers, strict=True):
                compute(batch)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
    finally:
        torch.backends.cudnn.deterministic = False
    assert graph.graph is not None
    for (name, ours), theirs in zip(modules[0].state_dict().items(), modules[1].state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
