import copy
import math

import plain
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import streamseg
from streamseg import ChannelAttention, DotAttention, FastAttention, NoAttention, SelfAttention, count_macs
from streamseg.models.attention import ATTENTIONS
from streamseg.models.encoder import resnet18

FULL = (1, 3, 1024, 2048)


@pytest.fixture(params=["fanet18", "fanetplus18"])
def model(model, plus, request):
    """Both networks: what a test states of one holds for the other."""
    return model if request.param == "fanet18" else plus


FACTORIES = pytest.mark.parametrize("factory", [streamseg.fanet18, streamseg.fanetplus18])
PLAIN = {
    streamseg.fanet18: (plain.fanet, (2, 2, 2, 2)),
    streamseg.fanet34: (plain.fanet, (3, 4, 6, 3)),
    streamseg.fanetplus18: (plain.fanet_plus, (2, 2, 2, 2)),
    streamseg.fanetplus34: (plain.fanet_plus, (3, 4, 6, 3)),
}


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_parameters_are_those_of_the_paper_s_layers():
    assert parameters(streamseg.fanet18(classes=19)) == 13_080_128
    assert parameters(streamseg.fanet34(classes=19)) == 23_188_288


def test_the_parameters_of_fanet_plus():
    assert parameters(streamseg.fanetplus18(classes=19)) == 12_387_411
    assert parameters(streamseg.fanetplus34(classes=19)) == 22_495_571


@pytest.mark.parametrize("factory", [*PLAIN])
def test_the_network_equals_its_plain_definition(factory):
    define, blocks = PLAIN[factory]
    network = plain.randomise(factory(classes=5, key_channels=8))
    first, second = torch.randint(0, 256, (2, 2, 3, 65, 111), generator=torch.Generator().manual_seed(0)).byte()
    with torch.inference_mode():
        logits, context = define(network.state_dict(), first, blocks)
        # the buffers mean and std were rounded to fp32
        torch.testing.assert_close(network.step(first), (logits, tuple(context)), atol=1e-5, rtol=1e-5)
        logits, again = define(network.state_dict(), second, blocks, past=context)
        torch.testing.assert_close(network.step(second, context), (logits, tuple(again)), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(logits, network(second), atol=1e-3)


def test_convolutions_outside_the_encoder_start_as_the_authors_do():
    torch.manual_seed(0)
    for name, module in streamseg.fanet18().named_modules():
        if isinstance(module, nn.Conv2d) and not name.startswith("encoder."):
            fan_in = module.in_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx(1 / math.sqrt(fan_in), rel=0.06), name
            assert module.weight.mean().abs() < 0.06 / math.sqrt(fan_in), name
            assert module.bias is None, name


def gmacs_of(factory, **options):
    """Return the GMACs of a network for an image of Cityscapes; no weights are needed."""
    with torch.device("meta"):
        return count_macs(factory(**options), FULL) / 1e9


def test_the_cost_is_that_of_the_paper_s_layers():
    assert gmacs_of(streamseg.fanet18) == pytest.approx(47.1, rel=0.005)
    assert gmacs_of(streamseg.fanet34) == pytest.approx(66.4, rel=0.005)


def test_the_cost_of_fanet_plus():
    assert gmacs_of(streamseg.fanetplus18) == pytest.approx(43.45, abs=0.01)
    assert gmacs_of(streamseg.fanetplus34) == pytest.approx(82.86, abs=0.01)


@pytest.mark.parametrize(("key_channels", "gmacs"), [(8, 47.02), (16, 47.14), (32, 47.39), (64, 47.90), (128, 48.90)])
def test_the_cost_by_key_channels(key_channels, gmacs):
    # the authors' layers, 0.30 of which compute something that nothing uses
    assert gmacs_of(streamseg.fanet18, key_channels=key_channels) == pytest.approx(gmacs - 0.30, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "gmacs18", "gmacs34"),
    [("None", 174.2, 251.5), ("Conv-0", 43.6, 62.9), ("Res-1", 47.4, 66.7)]
    + [("Res-2", 129.1, 155.7), ("Res-3", 143.4, 184.4), ("Res-4", 159.3, 229.3)],
)
@pytest.mark.parametrize("reduce_by", ["stride", "average", "max"])
def test_the_cost_by_place_of_the_reduction(reduction, reduce_by, gmacs18, gmacs34):
    options = {"reduction": reduction, "reduce_by": reduce_by}
    assert gmacs_of(streamseg.fanet18, **options) == pytest.approx(gmacs18, rel=0.015)
    assert gmacs_of(streamseg.fanet34, **options) == pytest.approx(gmacs34, rel=0.015)


@pytest.mark.parametrize(
    ("attention", "gmacs"), [(NoAttention, 45.82), (ChannelAttention, 46.89), (SelfAttention, 162.31)]
)
def test_the_cost_by_kind_of_attention(attention, gmacs):
    assert gmacs_of(streamseg.fanet18, attention=attention) == pytest.approx(gmacs - 0.30, rel=0.005)


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (64, 32), (360, 480), (720, 1281)])
def test_any_size_gives_logits_of_that_size(model, size):
    with torch.inference_mode():
        assert model(torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)).shape == (1, 11, *size)


@pytest.mark.parametrize("reduction", ["None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4"])
@pytest.mark.parametrize("reduce_by", ["stride", "average", "max"])
def test_every_reduction_gives_logits(reduction, reduce_by):
    network = streamseg.fanet18(classes=3, reduction=reduction, reduce_by=reduce_by).eval()
    with torch.inference_mode():
        assert network(torch.rand(1, 3, 33, 47)).shape == (1, 3, 33, 47)


@pytest.mark.parametrize("attention", ATTENTIONS.values())
def test_every_attention_takes_its_context_as_past_and_only_fast_ones_use_it(attention):
    network = plain.randomise(streamseg.fanet18(classes=3, attention=attention, key_channels=8))
    image = torch.randint(0, 256, (2, 3, 40, 56), generator=torch.Generator().manual_seed(0)).byte()
    with torch.inference_mode():
        alone, context = network.step(image)
        after_itself, again = network.step(image, past=context)
    assert alone.shape == (2, 3, 40, 56)
    torch.testing.assert_close(again[0], context[0])  # of Res-1, whose input does not depend on the past
    assert torch.allclose(after_itself, alone, atol=1e-4) == (attention not in (FastAttention, DotAttention))
    keys = 8 if attention in (FastAttention, DotAttention) else 0
    assert [matrix.shape for matrix in context] == [(2, keys, channels) for channels in (64, 128, 256, 512)]


def test_bytes_and_floats_in_0_to_255_are_the_same_image(model, image):
    torch.testing.assert_close(model(image), model(image.float()))


def test_an_image_is_a_stream_of_one_frame(model, image):
    logits, context = model.step(image)
    assert model(image).equal(logits)
    stages = [(1, 32, 64), (1, 32, 128), (1, 32, 256), (1, 32, 512)]
    assert [tuple(matrix.shape) for matrix in context] == stages[-len(model.attentions) :]
    assert sum(matrix.numel() for matrix in context) == (30_720 if len(context) == 4 else 24_576)


def test_a_window_of_one_ignores_the_past(model, image):
    before = model(image)
    model.step(255 - image, model.step(image.flip(3))[1])
    assert model.step(image)[0].equal(before)


def test_step_changes_neither_the_network_nor_its_inputs(model, image):
    past = model.step(image)[1]
    things = [*model.state_dict().values(), model.mean, model.std, image, *past]
    before = [tensor.clone() for tensor in things]
    model.step(image, past)
    assert all(tensor.equal(copy) for tensor, copy in zip(things, before, strict=True))


def test_a_past_of_zeros_is_no_past_and_a_real_one_changes_the_logits(model, image):
    alone, context = model.step(image)
    after_nothing, _ = model.step(image, [torch.zeros_like(matrix) for matrix in context])
    after_itself, own = model.step(image, context)
    torch.testing.assert_close(after_nothing, alone)
    assert not torch.allclose(after_itself, alone)
    torch.testing.assert_close(own[0], context[0])


@FACTORIES
@pytest.mark.parametrize("window", [2, 4])
def test_a_streamed_frame_equals_attention_to_the_pixels_of_all_frames_at_once(window, factory):
    """Paper Eq. 6."""
    network = plain.randomise(factory(classes=5, key_channels=8))
    # in fp64 without rounding to fp32, unlike the buffers
    network.mean = 255 * torch.tensor([0.485, 0.456, 0.406]).double().view(1, 3, 1, 1)
    network.std = 255 * torch.tensor([0.229, 0.224, 0.225]).double().view(1, 3, 1, 1)
    frames = torch.randint(0, 256, (window, 1, 3, 48, 80), generator=torch.Generator().manual_seed(0)).double()
    *earlier, last = frames
    past = [sum(stage) for stage in zip(*(network.step(frame)[1] for frame in earlier), strict=True)]
    streamed, _ = network.step(last, past)
    define, blocks = PLAIN[factory]
    at_once, _ = define(network.state_dict(), last, blocks, others=earlier)
    torch.testing.assert_close(streamed, at_once, atol=1e-9, rtol=1e-9)
    assert not torch.allclose(streamed, network(last))


def test_streams_in_a_batch_keep_their_contexts_apart(model):
    images, earlier = torch.randint(0, 256, (2, 3, 3, 48, 64), generator=torch.Generator().manual_seed(0)).byte()
    pasts = [model.step(earlier[i : i + 1])[1] for i in range(3)]
    together, contexts = model.step(images, [torch.cat(stage) for stage in zip(*pasts, strict=True)])
    for i in range(3):
        alone, context = model.step(images[i : i + 1], pasts[i])
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=1e-4)
        for ours, theirs in zip(contexts, context, strict=True):
            torch.testing.assert_close(ours[i : i + 1], theirs, atol=1e-4, rtol=1e-4)


def test_the_context_does_not_grow_with_the_image(model):
    small, large = (model.step(255 * torch.rand(1, 3, size, size))[1] for size in (384, 768))
    for a, b in zip(small, large, strict=True):  # without 1/n, four times the pixels would make it four times as large
        assert 0.5 < (b.norm() / a.norm()).item() < 2


@pytest.mark.slow
@FACTORIES
def test_two_images_can_be_overfitted(factory):
    torch.manual_seed(0)
    network = factory(classes=3)
    images = 255 * torch.rand(2, 3, 64, 64)
    labels = torch.arange(3).repeat_interleave(22)[:64].expand(2, 64, 64).clone()
    labels[1] = labels[0].T
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    for _ in range(25):
        loss = F.cross_entropy(network(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert (network(images).argmax(dim=1) == labels).float().mean() > 0.9


def test_gradients_reach_the_past(model, image):
    past = [matrix.detach().requires_grad_() for matrix in model.step(image)[1]]
    model.step(image, past)[0].sum().backward()
    assert all(matrix.grad.abs().sum() > 0 for matrix in past)


def test_channels_last_is_the_same_network(model, image):
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(image.to(memory_format=torch.channels_last)), model(image), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_nearly_the_same_network(model, image, dtype):
    half = copy.deepcopy(model)
    logits, context = half.to(dtype).step(image)
    assert logits.dtype == context[0].dtype == dtype
    again, _ = half.step(image, [matrix.float() for matrix in context])
    expected, whole = model.step(image)
    assert (logits.float() - expected).norm() < 0.1 * expected.norm()
    assert (again.float() - model.step(image, whole)[0]).norm() < 0.1 * expected.norm()


def test_autocast_is_nearly_the_same_network(model, image):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(image)
    assert (logits.float() - model(image)).norm() < 0.1 * model(image).norm()


@FACTORIES
def test_double_precision_works(image, factory):
    assert factory(classes=2).eval().double()(image).dtype == torch.float64


def test_torch_compile_takes_a_step_as_one_graph(model, image):
    _, context = model.step(image)
    compiled, _ = torch.compile(model.step, fullgraph=True, backend="eager")(image, context)
    torch.testing.assert_close(compiled, model.step(image, context)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gpu_agrees_with_the_cpu(model, image, dtype):
    gpu = copy.deepcopy(model).to("cuda", dtype, memory_format=torch.channels_last)
    with torch.inference_mode():
        logits, context = gpu.step(image.cuda())
        compiled = torch.compile(gpu.step, fullgraph=True)(image.cuda(), context)[0]
        expected, whole = model.step(image)
        after = model.step(image, whole)[0]
    tolerance = 0.01 if dtype is torch.float32 else 0.1
    assert (logits.float().cpu() - expected).norm() < tolerance * expected.norm()
    assert (compiled.float().cpu() - after).norm() < tolerance * after.norm()


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((1, 1, 64, 64), "RGB, channels first"),
        ((1, 4, 64, 64), "RGB, channels first"),
        ((1, 64, 64, 3), "RGB, channels first"),
        ((3, 64, 64), "RGB, channels first"),
        ((1, 3, 31, 64), "31 x 64 pixels; the least is 32 x 32"),
        ((1, 3, 64, 0), "64 x 0 pixels"),
    ],
)
def test_a_wrong_image_is_refused_in_a_sentence(model, shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        model(torch.zeros(shape))


@pytest.mark.parametrize(
    ("image", "kind"),
    [(torch.zeros(1, 3, 64, 64, dtype=dtype), dtype) for dtype in (torch.bool, torch.int64, torch.complex64)]
    + [(None, "NoneType"), ([[0]], "list"), (torch.zeros(1, 3, 64, 64).numpy(), "ndarray")],
)
def test_an_image_of_another_type_is_refused(model, image, kind):
    with pytest.raises(ValueError, match=f"The image is a .*{kind}; expected a tensor of bytes or floats in 0–255"):
        model(image)


def test_a_past_that_is_no_list_of_floats_is_refused(model, image):
    _, context = model.step(image)
    for past in (torch.zeros(4, 1, 32, 64), iter(context), dict(enumerate(context)), 0, ""):
        with pytest.raises(ValueError, match="The past is a .* expected a tuple or list of matrices"):
            model.step(image, past)
    *first, last = context
    for wrong in (None, last.long(), last.to(torch.complex64), last.tolist()):
        with pytest.raises(ValueError, match="The past holds a .* expected floating-point tensors"):
            model.step(image, [*first, wrong])


def test_a_wrong_past_is_refused_in_a_sentence(model, image):
    _, context = model.step(image)
    for past in (
        context[:-1],
        [matrix[:, :16] for matrix in context],
        [matrix.repeat(2, 1, 1) for matrix in context],
        [],
        streamseg.fanet18(classes=2, attention=NoAttention).eval().step(image)[1],
    ):
        with pytest.raises(ValueError, match="The past's shapes are .* expected .*1, 32, 512"):
            model.step(image, past)


@FACTORIES
@pytest.mark.parametrize("option", ["classes", "key_channels"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "19", None, True])
def test_a_network_needs_whole_numbers_of_classes_and_key_channels(option, value, factory):
    with pytest.raises(ValueError, match=f"{option} is {value!r}; expected a whole number, 1 or more"):
        factory(**{option: value})


@pytest.mark.parametrize("attention", ["FastAttention", None, nn.Identity, FastAttention(8), dict])
def test_an_attention_without_the_interface_is_refused(attention):
    sentence = "attention is .*; expected a module class with context_shape and compute_context, such as FastAttention"
    with pytest.raises(ValueError, match=sentence):
        streamseg.fanet18(attention=attention)


class Uneven(FastAttention):
    def __init__(self, channels, key_channels):
        super().__init__(channels, channels)


def test_contexts_of_different_heights_are_refused():
    with pytest.raises(ValueError, match=r"shapes \[\(64, 64\), \(128, 128\).*expected the same first number"):
        streamseg.fanet18(attention=Uneven)
    with pytest.raises(ValueError, match=r"shapes \[\(256, 256\), \(512, 512\)\].*expected the same first number"):
        streamseg.fanetplus18(attention=Uneven)


@pytest.mark.parametrize("encoder", [None, nn.Identity(), resnet18])
def test_an_encoder_without_the_interface_is_refused(encoder):
    with pytest.raises(ValueError, match="The encoder is a .*; expected a module that returns the maps of Res-1"):
        streamseg.FANet(encoder, 3)
    with pytest.raises(ValueError, match="The encoder is a .*; expected a module that returns the maps of Res-1"):
        streamseg.FANetPlus(encoder, 3)


@FACTORIES
def test_a_network_that_averages_gives_the_same_logits_while_the_scene_stands_still(image, factory):
    torch.manual_seed(0)
    model = factory(classes=4, averages=True).eval()
    with torch.inference_mode():
        alone, context = model.step(image)
        for weight in (1, 3):
            past = [weight * matrix for matrix in context]
            torch.testing.assert_close(model.step(image, past, weight)[0], alone, atol=1e-4, rtol=1e-4)
        nothing = [torch.zeros_like(matrix) for matrix in context]
        torch.testing.assert_close(model.step(image, nothing, 0.0)[0], alone, atol=1e-4, rtol=1e-4)


def test_the_context_can_be_computed_without_the_logits(model, image):
    with torch.inference_mode():
        _, context = model.step(image)
        alone = model.compute_context(model.encode(image))
    for ours, theirs in zip(alone, context, strict=True):
        torch.testing.assert_close(ours, theirs)
