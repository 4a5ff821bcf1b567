import plain
import pytest
import torch

import streamseg
from streamseg import ChannelAttention, DotAttention, NoAttention, SelfAttention
from streamseg.engine.labels import labels_from_scores
from streamseg.engine.tiles import (
    crop,
    cut_tile,
    label_tiled,
    score_tile,
    tiled_context,
    tiles,
)
from streamseg.models.encoder import ResNet


def random_frame(height, width, seed=0):
    return torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed)).byte()


def labels_at_once(model, frame, past=None):
    """Reference: the whole frame through the network, and the argmax of the logits."""
    with torch.inference_mode():
        return model.step(frame[None], past)[0][0].argmax(dim=0)


def share_of_equal(a, b):
    return (a == b).float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tile", [(128, 128), (192, 192), (1024, 1024)])
def test_with_a_wide_margin_tiles_equal_the_whole_frame(tile, turned):
    network = plain.randomise(streamseg.fanet18(classes=5, key_channels=8))
    frame = random_frame(64, 1344)
    frame, axis = (frame.mT.contiguous(), 1) if turned else (frame, 2)
    with torch.inference_mode():
        maps, context = network.features(frame[None])
        whole = network.score(maps)[0]
        spans = list(tiles(frame, tile, 576))
        gathered, _ = tiled_context(network, frame, spans)
        torch.testing.assert_close(gathered, context, atol=1e-12, rtol=1e-12)
        for rows, columns in spans[::5]:
            scores = score_tile(network, cut_tile(frame, rows, columns), gathered)
            span = columns if axis == 2 else rows
            expected = whole.narrow(axis, span.inner.start // 8, (span.inner.stop - span.inner.start) // 8)
            torch.testing.assert_close(crop(scores, rows, columns), expected, atol=1e-10, rtol=1e-10)


def test_labels_of_tiles_equal_those_of_the_whole_frame(model):
    frame = random_frame(128, 320)
    past = [0.5 * matrix for matrix in model.step(random_frame(64, 64, seed=1)[None])[1]]
    labels, context = label_tiled(model, frame, tile=(64, 128), margin=576)
    assert share_of_equal(labels, labels_at_once(model, frame)) > 0.999
    with torch.inference_mode():
        torch.testing.assert_close(context, model.step(frame[None])[1], atol=1e-5, rtol=1e-4)
    after, again = label_tiled(model, frame, past, tile=(64, 128), margin=576)
    assert share_of_equal(after, labels_at_once(model, frame, past)) > 0.999
    assert share_of_equal(after, labels) < 0.999
    assert all(a.equal(b) for a, b in zip(again, context, strict=True))


@pytest.mark.parametrize("size", [(256, 1280), (300, 700)])
def test_tiles_of_fanet_plus_equal_the_whole_frame_and_pool_all_of_it(size):
    network = plain.randomise(shallow_plus())
    frame = random_frame(*size)
    with torch.inference_mode():
        past = [0.5 * matrix for matrix in network.step(frame.flip(2)[None])[1]]
    for given in (None, past):
        # without the margin, tiles would differ at their edges
        labels, context = label_tiled(network, frame, given, tile=(256, 256), margin=512)
        assert share_of_equal(labels, labels_at_once(network, frame, given)) > (0.98 if size[1] % 256 else 0.9999)
        torch.testing.assert_close(context, network.step(frame[None])[1], atol=1e-9, rtol=1e-9)
    # each tile by itself, with the pyramid pooling of its own pixels, has other labels
    alone = labels_at_once(network, frame[:, :256, :256])
    assert share_of_equal(alone, labels_at_once(network, frame)[:256, :256]) < 0.98


@pytest.mark.parametrize(("size", "exact"), [((256, 272), True), ((40, 520), True), ((37, 530), False)])
def test_off_the_grid_fanet_plus_attends_to_and_pools_the_real_frame_only(size, exact):
    network = plain.randomise(shallow_plus())
    frame = random_frame(*size)
    seen = []
    hook = network.pool.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    with torch.inference_mode():
        expected, whole = network.step(frame[None])
        labels, context = label_tiled(network, frame, tile=(256, 256), margin=768)
    hook.remove()
    assert len(seen) == 2
    assert seen[1].shape == seen[0].shape
    assert share_of_equal(labels, expected[0].argmax(dim=0)) > 0.999
    if exact:  # the image is shrunk to exactly 3/4
        torch.testing.assert_close(context, whole, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(seen[1], seen[0], atol=1e-9, rtol=1e-9)


def shallow_plus():
    torch.manual_seed(0)
    return streamseg.FANetPlus(ResNet((1, 1, 1, 1), "Res-4", "average"), 5, key_channels=8)


def test_tiles_of_fanet_plus_are_multiples_of_256_and_its_default_margin_is_768(plus):
    assert label_tiled(plus, random_frame(64, 64))[0].shape == (64, 64)
    with pytest.raises(ValueError, match="A side of the tiles is 64; expected a multiple of 256"):
        label_tiled(plus, random_frame(64, 64), tile=(64, 64))
    with pytest.raises(ValueError, match="The margin is 576; expected a multiple of 256"):
        label_tiled(plus, random_frame(64, 64), margin=576)
    network, widths = shallow_plus().eval(), []
    network.encoder.register_forward_hook(lambda module, inputs, output: widths.append(inputs[0].shape[3]))
    label_tiled(network, random_frame(32, 2304), tile=(256, 1024))
    # the columns 0 to 1792, 256 to 2304 and 1280 to 2304, at 3/4
    assert widths == 2 * [3 * 1792 // 4, 3 * 2048 // 4, 3 * 1024 // 4]


def test_tiles_of_a_network_that_averages_equal_the_whole_frame():
    torch.manual_seed(0)
    network = plain.randomise(streamseg.fanet18(classes=5, key_channels=8, averages=True))
    frame, weight = random_frame(64, 192), 3.0
    with torch.inference_mode():
        # of other scenes, or the mean would be the context of the frame
        past = [2 * weight * torch.randn_like(matrix) for matrix in network.step(frame[None])[1]]
        expected = network.step(frame[None], past, weight)[0][0].argmax(dim=0)
    labels, _ = label_tiled(network, frame, past, weight, tile=(64, 64), margin=576)
    assert share_of_equal(labels, expected) > 0.9999
    alone, _ = label_tiled(network, frame, tile=(64, 64), margin=576)
    assert share_of_equal(alone, labels_at_once(network, frame)) > 0.9999
    assert share_of_equal(alone, labels) < 0.98


@pytest.mark.slow
def test_a_wider_margin_brings_tiles_closer_to_the_whole_frame(model):
    frame = random_frame(64, 640)
    expected = labels_at_once(model, frame)
    shares = [share_of_equal(label_tiled(model, frame, tile=(64, 64), margin=m)[0], expected) for m in (0, 128, 256)]
    assert shares[0] < shares[1] < shares[2]


@pytest.mark.parametrize("size", [(1, 1), (33, 70), (64, 129), (100, 191)])
def test_tiles_of_a_frame_of_any_size_have_its_context_and_labels(model, size):
    frame = random_frame(*size)
    labels, context = label_tiled(model, frame, tile=(64, 64), margin=576)
    assert labels.shape == size
    with torch.inference_mode():
        maps, whole = model.features(frame[None])
        expected = labels_from_scores(model.score(maps)[0], size)
    assert share_of_equal(labels, expected) > 0.999
    torch.testing.assert_close(context, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [(65, 130), (100, 190)])
def test_without_a_margin_a_frame_off_the_grid_has_labels_too(model, plus, size):
    for network in (model, plus):
        grid = network.tile_grid
        labels, _ = label_tiled(network, random_frame(*size), tile=(grid, grid), margin=0)
        assert labels.shape == size


def test_a_single_tile_is_the_whole_frame(model):
    frame = random_frame(128, 192)
    assert share_of_equal(label_tiled(model, frame)[0], labels_at_once(model, frame)) > 0.999


def test_the_network_runs_on_no_more_than_a_tile_and_its_margin(model):
    shapes = []
    hook = model.encoder.register_forward_hook(lambda module, inputs, output: shapes.append(inputs[0].shape))
    try:
        label_tiled(model, random_frame(200, 400), tile=(64, 128), margin=64)
    finally:
        hook.remove()
    assert len(shapes) == 2 * 4 * 4
    assert max(shape[2] for shape in shapes) == 64 + 2 * 64
    assert max(shape[3] for shape in shapes) == 128 + 2 * 64


def test_the_labels_belong_to_the_caller(model):
    labels, _ = label_tiled(model, random_frame(64, 64))
    labels[labels == 3] = 255


@pytest.mark.parametrize("attention", [DotAttention, NoAttention])
def test_linear_attention_can_be_tiled(attention):
    network = plain.randomise(streamseg.fanet18(classes=3, attention=attention, key_channels=8))
    frame = random_frame(64, 256)
    labels, context = label_tiled(network, frame, tile=(64, 64), margin=576)
    assert share_of_equal(labels, labels_at_once(network, frame)) > 0.999
    with torch.inference_mode():
        torch.testing.assert_close(context, network.step(frame[None])[1])


@pytest.mark.parametrize("attention", [SelfAttention, ChannelAttention])
def test_attention_that_is_not_linear_is_refused(attention):
    network = streamseg.fanet18(classes=3, attention=attention).eval()
    with pytest.raises(ValueError, match=f"{attention.__name__} needs all pixels at once"):
        label_tiled(network, random_frame(64, 64))


def test_half_precision_is_nearly_the_same(model):
    half = streamseg.fanet18(classes=11).eval()
    half.load_state_dict(model.state_dict())
    labels, context = label_tiled(half.bfloat16(), random_frame(64, 320), tile=(64, 64), margin=128)
    assert context[0].dtype == torch.float32
    assert share_of_equal(labels, label_tiled(model, random_frame(64, 320), tile=(64, 64), margin=128)[0]) > 0.9


@pytest.mark.parametrize("tile", [(0, 64), (64, 100), (64.0, 64), (-64, 64), ("64", 64)])
def test_tiles_off_the_grid_are_refused(model, tile):
    with pytest.raises(ValueError, match="A side of the tiles is .*; expected a multiple of 64"):
        label_tiled(model, random_frame(64, 64), tile=tile)


@pytest.mark.parametrize("margin", [-64, 100, 64.0, "64"])
def test_a_margin_off_the_grid_is_refused(model, margin):
    with pytest.raises(ValueError, match=f"The margin is {margin!r}; expected a multiple of 64"):
        label_tiled(model, random_frame(64, 64), margin=margin)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpu_labels_as_the_cpu_does_and_needs_the_memory_of_a_tile(model):
    gpu = streamseg.fanet18(classes=11).eval()
    gpu.load_state_dict(model.state_dict())
    gpu = gpu.cuda()
    frame = random_frame(128, 640)
    labels, _ = label_tiled(gpu, frame, tile=(64, 128), margin=128)
    assert labels.device.type == "cpu"
    assert share_of_equal(labels, label_tiled(model, frame, tile=(64, 128), margin=128)[0]) > 0.98
    peaks = []
    for width in (2048, 16384):
        torch.cuda.reset_peak_memory_stats()
        label_tiled(gpu, random_frame(512, width), tile=(256, 256), margin=128)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 1.05 * peaks[0]


@pytest.mark.parametrize(("network", "size"), [("model", (192, 256)), ("model", (150, 250)), ("plus", (256, 512))])
def test_the_context_of_masked_tiles_is_that_of_the_masked_frame(request, network, size):
    network, frame = request.getfixturevalue(network), random_frame(*size)
    looked_at = torch.ones(size, dtype=torch.bool)
    looked_at[size[0] // 2 + 7 :] = looked_at[:, :50] = False
    side = network.tile_grid if size[0] > 200 else 64
    labels, context = label_tiled(network, frame, tile=(side, side), margin=4 * side, mask=looked_at)
    with torch.inference_mode():
        _, whole = network.step(frame[None], mask=looked_at[None].float())
    for found, expected in zip(context, whole, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)
    assert labels[~looked_at].eq(255).all()
    assert labels[looked_at].ne(255).all()
    other = frame.clone()
    other[:, ~looked_at] = random_frame(*size, seed=1)[:, ~looked_at]
    again, same = label_tiled(network, other, tile=(side, side), margin=4 * side, mask=looked_at)
    assert again.equal(labels)
    assert all(a.equal(b) for a, b in zip(context, same, strict=True))
