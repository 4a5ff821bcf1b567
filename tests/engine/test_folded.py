import plain
import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg.engine.convolutions import Int8Conv
from streamseg.engine.folded import Folded, FoldedInt8


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
        (streamseg.fanet18, {"key_channels": 8}),
        (streamseg.fanet18, {"reduction": "None"}),
        (streamseg.fanet18, {"reduction": "Res-3", "reduce_by": "max"}),
    ],
)
def test_folding_changes_no_score(factory, options):
    network = plain.randomise(factory(classes=5, **options)).float()
    frame, keys = picture(), network.key_channels
    past = 0.1 * torch.randn(1, keys, 960, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps, contexts = network.features(frame, past.split([64, 128, 256, 512], dim=2))
        expected = network.score(maps)
    scores, context = run(Folded(network, torch.float32), frame, past)
    torch.testing.assert_close(context, torch.cat(contexts, dim=2), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(scores, expected, atol=1e-3 * expected.abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize("size", [(64, 96), (65, 97), (130, 66), (131, 67), (133, 32)])
def test_the_first_map_in_strips_is_the_whole_map(size):
    folded = Folded(streamseg.fanet18(classes=3).eval(), torch.float32)
    for frame in (picture(*size), picture(*size, seed=1)):
        pixels = frame.float() - folded.mean.view(1, 3, 1, 1)
        expected = F.conv2d(pixels, folded.stem.weight, folded.stem.bias, stride=2, padding=3).relu()
        found = folded.run_stem(frame, None)
        torch.testing.assert_close(found, F.max_pool2d(expected, 3, stride=2, padding=1))
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_folding_does_not_change_the_network():
    network = streamseg.fanet18(classes=3).eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    Folded(network, torch.float16)
    assert all(
        tensor.equal(before[name]) and tensor.dtype == before[name].dtype
        for name, tensor in network.state_dict().items()
    )


@pytest.mark.parametrize("size", [(64, 96), (65, 97), (131, 67)])
def test_the_first_map_in_int8_is_nearly_that_in_fp32(size):
    folded = Folded(streamseg.load()[0], torch.float32)
    frame = streamseg.read_image("samples/suburb-1.jpg")[None, :, 300 : 300 + size[0], 300 : 300 + size[1]]
    found, expected = FoldedInt8(folded, [frame]).run_stem(frame, None), folded.run_stem(frame, None)
    assert found.shape == expected.shape
    assert (found - expected).norm() < 0.01 * expected.norm()


def test_int8_gives_nearly_the_same_scores():
    network, _ = streamseg.load()
    folded = Folded(network, torch.float32)
    frame = streamseg.read_image("samples/suburb-1.jpg")[None, :, 200:456, 300:701]
    ours, theirs = run(FoldedInt8(folded, [frame]), frame), run(folded, frame)
    assert (ours[0].argmax(dim=1) == theirs[0].argmax(dim=1)).float().mean() > 0.97
    assert (ours[1] - theirs[1]).norm() < 0.1 * theirs[1].norm()


def test_the_most_sensitive_convolutions_stay_in_fp32():
    folded = Folded(streamseg.fanet18(classes=3).eval(), torch.float32)
    ours = FoldedInt8(folded, [picture()])
    assert ours.stages[0][0] is folded.stages[0][0]
    assert ours.classify is folded.classify
    rest = [part for blocks in ours.stages for block in blocks for part in block if part][3:]
    assert all(isinstance(part, Int8Conv) for part in (*rest, ours.smooth1, ours.smooth3, ours.mix))
