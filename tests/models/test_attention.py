import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F

from streamseg.evaluate.benchmark import count_macs
from streamseg.models.attention import (
    ChannelAttention,
    DotAttention,
    FastAttention,
    NoAttention,
    SelfAttention,
    channel_attention,
    dot_attention,
    fast_attention,
    self_attention,
)

EVERY = [FastAttention, DotAttention, SelfAttention, ChannelAttention, NoAttention]


def random_qkv(batch=2, pixels=60, keys=8, channels=12, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, pixels, keys), (batch, pixels, keys), (batch, pixels, channels)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def cosine_attention(q, k, v):
    """Paper Eq. 2, as written: the whole affinity first."""
    affinity = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(1, 2)  # (B, N, N)
    return affinity @ v / v.shape[1]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31))
def test_fast_attention_equals_cosine_attention(batch, pixels, keys, channels, seed):
    q, k, v = random_qkv(batch, pixels, keys, channels, seed)
    torch.testing.assert_close(fast_attention(q, k, v)[0], cosine_attention(q, k, v), atol=1e-10, rtol=1e-10)


def test_its_gradients_equal_those_of_cosine_attention():
    fast, slow = random_qkv(), random_qkv()
    direction = torch.randn(2, 60, 12, dtype=torch.float64)
    fast_attention(*fast)[0].backward(direction)
    cosine_attention(*slow).backward(direction)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-10, rtol=1e-10)


def test_contexts_add_over_frames():
    """Paper Eq. 6: the past as a sum of matrices equals attention to the pixels of all frames."""
    frames = [random_qkv(seed=seed) for seed in range(4)]
    contexts = [fast_attention(*frame)[1] for frame in frames]
    q = frames[-1][0]
    streamed, own = fast_attention(*frames[-1], past=sum(contexts[:-1]))
    at_once = sum(cosine_attention(q, k, v) for _, k, v in frames)
    torch.testing.assert_close(streamed, at_once, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(own, contexts[-1])


def test_contexts_add_over_tiles():
    q, k, v = random_qkv(pixels=60)
    tiles = [slice(0, 13), slice(13, 40), slice(40, 60)]
    weighted = [fast_attention(q[:, t], k[:, t], v[:, t])[1] * (t.stop - t.start) / 60 for t in tiles]
    torch.testing.assert_close(sum(weighted), fast_attention(q, k, v)[1], atol=1e-12, rtol=1e-12)


def test_the_output_does_not_grow_with_the_image():
    q, k, v = random_qkv(pixels=50)
    once, _ = fast_attention(q, k, v)
    four_times, _ = fast_attention(q, k.repeat(1, 4, 1), v.repeat(1, 4, 1))
    torch.testing.assert_close(once, four_times)


def test_the_affinity_is_bounded_with_l2_normalisation_alone():
    q, k, v = random_qkv()
    torch.testing.assert_close(fast_attention(1000 * q, 1000 * k, v)[0], fast_attention(q, k, v)[0])
    torch.testing.assert_close(dot_attention(1000 * q, 1000 * k, v)[0], 1e6 * dot_attention(q, k, v)[0])


def test_half_precision_does_not_overflow_on_a_large_image_or_zero_keys():
    q, k, v = (torch.full((1, 128 * 256, 4), x, dtype=torch.float16) for x in (1.0, 1.0, 50.0))
    y, context = fast_attention(q, k, v)
    assert y.isfinite().all()
    torch.testing.assert_close(context, torch.full_like(context, 25.0), rtol=0.02, atol=0)
    zero, _ = fast_attention(torch.zeros_like(q), torch.zeros_like(k), v)
    assert zero.eq(0).all()
    for queries, keys in ((torch.zeros_like(q), k), (q, torch.zeros_like(k))):  # each alone as well
        assert fast_attention(queries, keys, v)[0].eq(0).all()


def test_a_past_in_fp32_serves_a_network_in_half_precision():
    q, k, v = random_qkv(dtype=torch.float32)
    past = fast_attention(q, k, v)[1]
    half, _ = fast_attention(q.half(), k.half(), v.half(), past)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), fast_attention(q, k, v, past)[0], atol=2e-3, rtol=2e-2)


def test_self_attention_equals_its_equation():
    q, k, v = random_qkv()
    torch.testing.assert_close(self_attention(q, k, v)[0], (q @ k.transpose(1, 2)).softmax(dim=-1) @ v)


def test_channel_attention_equals_danets():
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    rows = x.transpose(1, 2)  # DANet's layout: (B, C, N)
    energy = rows @ rows.transpose(1, 2)
    affinity = (energy.max(dim=-1, keepdim=True).values - energy).softmax(dim=-1)
    torch.testing.assert_close(channel_attention(x), (affinity @ rows).transpose(1, 2))


@pytest.mark.parametrize("attention", EVERY)
def test_every_module_keeps_the_shape_of_its_map_and_states_that_of_its_context(attention):
    module = attention(24, key_channels=5).eval()
    x = torch.randn(2, 24, 7, 9)
    y, context = module(x)
    assert y.shape == x.shape
    assert context.shape == (2, *module.context_shape)


@pytest.mark.parametrize("attention", [FastAttention, DotAttention])
def test_a_module_attends_to_the_past(attention):
    module = attention(24).eval()
    x = torch.randn(2, 24, 7, 9)
    alone, context = module(x)
    after_itself, _ = module(x, past=context)
    after_nothing, _ = module(x, past=torch.zeros_like(context))
    torch.testing.assert_close(after_nothing, alone)
    assert not torch.allclose(after_itself, alone)


def test_channel_attention_is_scaled_by_a_learned_factor():
    module = ChannelAttention(5).double()
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert module(x)[0].equal(x)  # the factor is learned from zero
    torch.nn.init.constant_(module.share, 0.7)
    rows = x.flatten(2)
    affinity = (-rows @ rows.transpose(1, 2)).softmax(dim=-1)
    torch.testing.assert_close(module(x)[0], x + 0.7 * (affinity @ rows).view(x.shape))


# one module at C x 128 x 256 with 32 key channels, in GMACs: the paper's Table I
@pytest.mark.parametrize(
    ("channels", "softmax", "fast"),
    [(32, 68.85, 0.201), (64, 103.48, 0.537), (128, 173.14, 1.611), (256, 314.07, 5.369), (512, 602.37, 19.33)]
    + [(1024, 1204.74, 73.01)],
)
def test_a_module_costs_what_the_paper_prints(channels, softmax, fast):
    shape = (1, channels, 128, 256)
    assert count_macs(SelfAttention(channels), shape) / 1e9 == pytest.approx(softmax, rel=0.002)
    assert count_macs(FastAttention(channels), shape) / 1e9 == pytest.approx(fast, rel=0.002)


# masks and cameras that look together: both are sums over pixels


ATTENDING = [FastAttention, DotAttention]


def pixel_maps(height=6, width=9, batch=2):
    return torch.randn(batch, 16, height, width, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("attention", ATTENDING)
def test_a_mask_of_ones_changes_no_bit(attention):
    module, x = attention(16, 8).eval(), pixel_maps()
    for found, expected in zip(module(x, pixels=torch.ones(2, 6, 9)), module(x), strict=True):
        assert found.equal(expected)


@pytest.mark.parametrize("attention", ATTENDING)
def test_the_context_under_a_mask_is_that_of_the_other_pixels_alone(attention):
    module, x = attention(16, 8).eval(), pixel_maps()
    looked_at = torch.rand(6, 9, generator=torch.Generator().manual_seed(4)) < 0.6
    alone = x[:, :, looked_at][:, :, None]  # (B, C, 1, N)
    pixels = looked_at.float().expand(2, -1, -1)
    torch.testing.assert_close(module.compute_context(x, pixels), module.compute_context(alone))
    attended, _ = module(x, pixels=pixels)
    torch.testing.assert_close(attended[:, :, looked_at], module(alone)[0][:, :, 0])


@pytest.mark.parametrize("attention", ATTENDING)
def test_what_is_masked_cannot_change_the_context(attention):
    module, x = attention(16, 8).eval(), pixel_maps()
    pixels = torch.ones(2, 6, 9)
    pixels[:, 4:] = 0
    before = module.compute_context(x, pixels)
    x[:, :, 4:] = 100 * torch.randn(2, 16, 2, 9)
    assert module.compute_context(x, pixels).equal(before)


def test_a_weight_of_half_counts_half():
    module, x = FastAttention(16, 8).eval(), pixel_maps(2, 1, 1)
    pixels = torch.tensor([[[1.0], [0.5]]])
    first, second = module.compute_context(x[:, :, :1]), module.compute_context(x[:, :, 1:])
    torch.testing.assert_close(module.compute_context(x, pixels), (first + 0.5 * second) / 1.5)


@pytest.mark.parametrize("attention", [SelfAttention, ChannelAttention])
def test_the_other_attentions_attend_to_the_other_pixels_alone(attention):
    module, x = attention(16, 8).eval(), pixel_maps()
    if attention is ChannelAttention:
        torch.nn.init.ones_(module.share)
    pixels = torch.ones(2, 6, 9)
    pixels[:, 4:] = 0
    attended, _ = module(x, pixels=pixels)
    torch.testing.assert_close(attended[:, :, :4], module(x[:, :, :4])[0])
