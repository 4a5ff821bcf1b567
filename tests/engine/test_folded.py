import plain
import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.engine.convolutions import Int8Conv
from streamseg.engine.folded import fold_network, to_int8
from streamseg.models.fanet_plus import fanetplus18, fanetplus34

NETWORKS = [streamseg.fanet18, fanetplus18]


def picture(height=70, width=101, seed=0):
    small = 255 * torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(small, (height, width), mode="bilinear").byte()


def run(folded, frame, past=None, scale=1.0):
    past = torch.zeros(len(frame), folded.key_channels, folded.channels) if past is None else past
    context = torch.empty_like(past)
    with torch.no_grad():
        return folded.scores(frame, past, torch.full((len(frame),), scale), context), context


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (streamseg.fanet18, {}),
        (streamseg.fanet34, {}),
        (fanetplus18, {}),
        (fanetplus34, {}),
        (fanetplus18, {"key_channels": 8}),
        (streamseg.fanet18, {"key_channels": 8}),
        (streamseg.fanet18, {"reduction": "None"}),
        (streamseg.fanet18, {"reduction": "Res-3", "reduce_by": "max"}),
    ],
)
def test_folding_changes_no_score(factory, options):
    network = plain.randomise(factory(classes=5, **options)).float()
    frame, widths = picture(), [attend.context_shape[1] for attend in network.attentions]
    past = 0.1 * torch.randn(1, network.key_channels, sum(widths), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps, contexts = network.features(frame, past.split(widths, dim=2))
        expected = network.score(maps)
    scores, context = run(fold_network(network, torch.float32), frame, past)
    torch.testing.assert_close(context, torch.cat(contexts, dim=2), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(scores, expected, atol=1e-3 * expected.abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize("factory", NETWORKS)
def test_folding_does_not_change_the_network(factory):
    network = factory(classes=3).eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    fold_network(network, torch.float16)
    assert all(
        tensor.equal(before[name]) and tensor.dtype == before[name].dtype
        for name, tensor in network.state_dict().items()
    )


def test_int8_gives_nearly_the_same_scores():
    network, _ = streamseg.load()
    folded = fold_network(network, torch.float32)
    frame = streamseg.read_image("samples/suburb-1.jpg")[None, :, 200:456, 300:701]
    ours, theirs = run(to_int8(folded, [frame]), frame), run(folded, frame)
    assert (ours[0].argmax(dim=1) == theirs[0].argmax(dim=1)).float().mean() > 0.97
    assert (ours[1] - theirs[1]).norm() < 0.1 * theirs[1].norm()


@pytest.mark.parametrize("factory", NETWORKS)
def test_int8_changes_only_most_convolutions(factory):
    folded = fold_network(factory(classes=3).eval(), torch.float32)
    ours = to_int8(folded, [picture()])
    assert type(ours) is type(folded)
    assert ours.stages[0][0] is folded.stages[0][0]
    assert ours.classify is folded.classify
    rest = [part for blocks in ours.stages for block in blocks for part in block if part]
    kept = [part for part in folded.stages[0][0] if part]
    assert all(isinstance(part, Int8Conv) for part in (*rest[len(kept) :], *ours.smooths))
    assert not any(isinstance(part, Int8Conv) for part in folded.smooths)
