"""Masks and cameras that look together, on streams: both are sums over pixels, and these are their laws."""

import copy

import pytest
import torch

import streamseg
from streamseg.engine.pick import accelerate
from streamseg.io.masks import GREY, Mask
from streamseg.stream.label_frames import label_batch, label_frame, label_frames
from streamseg.stream.state import FadingInTime
from streamseg.stream.together import label_together

SIZE = (96, 128)


def noise(seed, height=SIZE[0], width=SIZE[1]):
    return torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed)).byte()


@pytest.fixture(params=["fanet18", "fanetplus18"])
def network(model, plus, request):
    return model if request.param == "fanet18" else plus


@pytest.fixture(params=["eager", "fast"])
def engine(network, request):
    return network if request.param == "eager" else accelerate(network)


@pytest.fixture
def mask():
    looked_at = torch.ones(SIZE, dtype=torch.bool)
    looked_at[64:] = False
    return Mask(looked_at)


def test_a_mask_that_hides_nothing_changes_no_bit(engine):
    white = torch.ones(SIZE, dtype=torch.bool)
    found, expected = label_frame(engine, noise(0), window=2, mask=white), label_frame(engine, noise(0), window=2)
    assert found[0].equal(expected[0])
    assert found[1].contexts.equal(expected[1].contexts)


def test_what_is_hidden_changes_neither_context_nor_label(engine, mask):
    first, second = noise(0), noise(0)
    second[:, 64:] = noise(1)[:, 64:]
    labels, state = label_frame(engine, first, window=2, mask=mask)
    others, after = label_frame(engine, second, window=2, mask=mask)
    assert labels.equal(others)
    assert state.contexts.equal(after.contexts)
    assert labels[64:].eq(255).all()
    assert labels[:64].ne(255).all()
    # and without the mask it does
    assert not label_frame(engine, second, window=2)[1].contexts.equal(label_frame(engine, first, window=2)[1].contexts)


def test_the_fast_engine_is_the_network_under_a_mask(network, mask):
    frames = [noise(seed) for seed in range(3)]
    ours = [labels for _, labels in label_frames(accelerate(network), frames, 2, mask=mask)]
    theirs = [labels for _, labels in label_frames(network, frames, 2, mask=mask)]
    assert sum((a == b).float().mean().item() for a, b in zip(ours, theirs, strict=True)) > 3 * 0.99


def test_a_mask_leaves_the_share_of_other_pixels_as_the_context(network, mask):
    """The context under a mask is the mean over the rows of the maps that it does not hide."""
    image = noise(0)[None].float()
    painted = image.clone()
    painted[:, :, 64:] = GREY
    with torch.no_grad():
        _, contexts = network.step(image, mask=mask.looked_at[None].float())
        maps = network.encode(painted)
        for context, x, attend in zip(contexts, maps[-len(network.attentions) :], network.attentions, strict=True):
            weights = torch.nn.functional.interpolate(mask.looked_at[None, None].float(), x.shape[-2:], mode="area")
            total = sum(
                weights[0, 0, i, j] * attend.compute_context(x[:, :, i : i + 1, j : j + 1])
                for i in range(x.shape[2])
                for j in range(x.shape[3])
            )
            torch.testing.assert_close(context, total / weights.sum(), atol=3e-5, rtol=1e-3)


def test_streams_of_a_batch_have_their_own_masks(engine, mask):
    frames = [noise(0), noise(1)]
    labels, states = label_batch(engine, frames, [None, None], 2, masks=[mask, None])
    for frame, own, found, state in zip(frames, (mask, None), labels, states, strict=True):
        alone, expected = label_frame(engine, frame, window=2, mask=own)
        assert (found == alone).float().mean() > 0.99
        torch.testing.assert_close(state.contexts, expected.contexts, atol=3e-5, rtol=1e-3)


def test_two_cameras_with_the_same_picture_are_one(engine):
    labels, states = label_together(engine, (noise(0), noise(0)), window=2)
    alone, state = label_frame(engine, noise(0), window=2)
    for found, after in zip(labels, states, strict=True):
        assert (found == alone).float().mean() > 0.999
        torch.testing.assert_close(after.contexts, state.contexts, atol=3e-5, rtol=1e-3)


def test_the_order_of_cameras_does_not_matter(engine, mask):
    frames, masks = [noise(0), noise(1), noise(2)], [None, mask, None]
    labels, states = label_together(engine, frames, window=2, masks=masks)
    turned, after = label_together(engine, frames[::-1], window=2, masks=masks[::-1])
    for found, expected in zip(turned[::-1], labels, strict=True):
        assert (found == expected).float().mean() > 0.999
    for state in after:
        torch.testing.assert_close(state.contexts, states[0].contexts, atol=3e-5, rtol=1e-3)


def test_the_context_together_is_the_mean_by_pixels(engine, mask):
    frames = [noise(0), noise(1)]
    own = [
        label_frame(engine, frame, window=2, mask=m)[1].contexts for frame, m in zip(frames, (mask, None), strict=True)
    ]
    _, (state, same) = label_together(engine, frames, window=2, masks=[mask, None])
    # the mask looks at 64 of 96 rows
    torch.testing.assert_close(state.contexts, (2 / 3 * own[0] + own[1]) / (5 / 3), atol=3e-5, rtol=1e-3)
    assert same.contexts.equal(state.contexts)


def test_the_context_of_two_crops_is_that_of_their_features_side_by_side(network):
    crops = torch.stack([noise(0), noise(1)]).float()
    with torch.no_grad():
        maps = network.encode(crops)
        _, joint = network.attend_together(maps, torch.tensor([0.5, 0.5]))
        union = network.compute_context(tuple(torch.cat([x[:1], x[1:]], dim=3) for x in maps))
    for found, expected in zip(joint, union, strict=True):
        torch.testing.assert_close(found[:1], expected, atol=3e-5, rtol=1e-3)
        assert found[1].equal(found[0])


def test_cameras_share_the_window(engine):
    """The past of each camera is that of all, so that a stream of twins is one stream."""
    frames, states, state = [noise(seed) for seed in range(3)], (None, None), None
    for frame in frames:
        labels, states = label_together(engine, (frame, frame), states, 3)
        alone, state = label_frame(engine, frame, state, 3)
        assert (labels[1] == alone).float().mean() > 0.999
    torch.testing.assert_close(states[0].contexts, state.contexts, atol=3e-5, rtol=1e-3)


def test_cameras_of_several_sizes_are_one_pass_at_a_time(engine):
    """The two ways agree: in one pass of one size, and each frame twice."""
    frames = [noise(0), noise(1)]
    small = noise(2, 64, 64)
    labels, states = label_together(engine, (*frames, small), window=FadingInTime(1.0))
    own = [label_frame(engine, frame, window=2)[1].contexts for frame in (*frames, small)]
    pixels = [frame.shape[1] * frame.shape[2] for frame in (*frames, small)]
    expected = sum(n * x for n, x in zip(pixels, own, strict=True)) / sum(pixels)
    for state in states:
        torch.testing.assert_close(state.contexts, expected, atol=3e-5, rtol=1e-3)
    assert [tuple(x.shape) for x in labels] == [SIZE, SIZE, (64, 64)]
    again, _ = label_together(engine, (*frames, small), states, FadingInTime(1.0))
    assert len(again) == 3


def test_cameras_of_several_sizes_are_not_averaged_over_time(engine):
    frames, policy = (noise(0), noise(2, 64, 64)), streamseg.LastFrames(2, steady=streamseg.STEADY_LOW)
    with pytest.raises(ValueError, match=r"not averaged over time: give one size=\(H, W\), or steady=0.5"):
        label_together(engine, frames, window=policy)
    assert len(label_together(engine, frames, window=policy, size=(64, 64))[0]) == 2


def test_twins_of_two_sizes_attend_alike(engine):
    """A frame whose others have no share is labelled as alone, by the way of several sizes too."""
    frame, dot = noise(0), noise(3, 32, 32)
    nearly = torch.zeros(32, 32, dtype=torch.bool)
    nearly[0, 0] = True
    labels, _ = label_together(engine, (frame, dot), masks=[None, nearly])
    alone, _ = label_frame(engine, frame)
    assert (labels[0] == alone).float().mean() > 0.97


def test_a_cut_drops_the_past_of_all(network):
    _, states = label_together(network, (noise(0), noise(1)), window=3)
    black = torch.zeros(3, *SIZE, dtype=torch.uint8)
    labels, after = label_together(network, (black, black), states, 3, cut=1e-6)
    fresh, _ = label_together(network, (black, black), window=3)
    assert all(found.equal(expected) for found, expected in zip(labels, fresh, strict=True))
    assert all(len(state.weights) == 1 for state in after)


def test_networks_without_context_cannot_look_together():
    network = streamseg.fanet18(3, attention=streamseg.NoAttention).eval()
    with pytest.raises(ValueError, match="no context that cameras could share"):
        label_together(network, (noise(0), noise(1)))


def test_wrong_counts_are_refused(network):
    with pytest.raises(ValueError, match="2 frames, 1 states and 2 masks do not belong together"):
        label_together(network, (noise(0), noise(1)), (None,))
    with pytest.raises(ValueError, match="no frames to look at together"):
        label_together(network, ())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_masks_and_cameras_are_those_of_the_network(network, mask):
    network = copy.deepcopy(network).cuda()
    fast = accelerate(network)
    frames = [noise(seed).cuda() for seed in range(2)]
    before = label_frame(fast, frames[0], window=2)
    for _ in range(3):  # without a graph, when it is captured, and by the graph
        ours, states = label_together(fast, frames, window=2, masks=[mask, None])
        alone, state = label_frame(fast, frames[0], window=2, mask=mask)
    theirs, expected = label_together(network, frames, window=2, masks=[mask, None])
    for found, label in zip(ours, theirs, strict=True):
        assert (found == label).float().mean() > 0.97
    torch.testing.assert_close(states[0].contexts, expected[0].contexts, atol=1e-2, rtol=1e-1)
    assert (alone == label_frame(network, frames[0], window=2, mask=mask)[0]).float().mean() > 0.97
    hidden = frames[0].clone()
    hidden[:, 64:] = 0
    assert label_frame(fast, hidden, window=2, mask=mask)[1].contexts.equal(state.contexts)
    again = label_frame(fast, frames[0], window=2)
    assert again[0].equal(before[0])
    assert again[1].contexts.equal(before[1].contexts)
