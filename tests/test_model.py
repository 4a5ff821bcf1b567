import shutil

import pytest
import torch
from torch.nn import functional as F

import streamseg
from streamseg import ChannelAttention, DotAttention, FastAttention, NoAttention, SelfAttention, count_macs

FULL = (1, 3, 1024, 2048)
EVERY = [FastAttention, DotAttention, SelfAttention, ChannelAttention, NoAttention]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Networks share the code of step: what one test compiled must not count against the next one's limit."""
    torch.compiler.reset()


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_parameters_are_those_of_the_paper_s_layers():
    assert parameters(streamseg.fanet18(classes=19)) == 13_080_128
    assert parameters(streamseg.fanet34(classes=19)) == 23_188_288


def test_the_cost_is_that_of_the_paper_s_layers():
    assert count_macs(streamseg.fanet18(), FULL) / 1e9 == pytest.approx(47.1, rel=0.005)
    assert count_macs(streamseg.fanet34(), FULL) / 1e9 == pytest.approx(66.4, rel=0.005)


@pytest.mark.parametrize(("key_channels", "gmacs"), [(8, 47.02), (16, 47.14), (32, 47.39), (64, 47.90), (128, 48.90)])
def test_the_cost_by_key_channels(key_channels, gmacs):
    # the authors' layers, which compute 0.30 more that nothing uses
    assert count_macs(streamseg.fanet18(key_channels=key_channels), FULL) / 1e9 == pytest.approx(
        gmacs - 0.30, rel=0.005
    )


@pytest.mark.parametrize(
    ("reduction", "gmacs18", "gmacs34"),
    [("None", 174.2, 251.5), ("Conv-0", 43.6, 62.9), ("Res-1", 47.4, 66.7)]
    + [("Res-2", 129.1, 155.7), ("Res-3", 143.4, 184.4), ("Res-4", 159.3, 229.3)],
)
@pytest.mark.parametrize("reduce_by", ["stride", "average", "max"])
def test_the_cost_by_place_of_the_reduction(reduction, reduce_by, gmacs18, gmacs34):
    options = {"reduction": reduction, "reduce_by": reduce_by}
    assert count_macs(streamseg.fanet18(**options), FULL) / 1e9 == pytest.approx(gmacs18, rel=0.015)
    assert count_macs(streamseg.fanet34(**options), FULL) / 1e9 == pytest.approx(gmacs34, rel=0.015)


@pytest.mark.parametrize(
    ("attention", "gmacs"), [(NoAttention, 45.82), (ChannelAttention, 46.89), (SelfAttention, 162.31)]
)
def test_the_cost_by_kind_of_attention(attention, gmacs):
    assert count_macs(streamseg.fanet18(attention=attention), FULL) / 1e9 == pytest.approx(gmacs - 0.30, rel=0.005)


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (64, 32), (360, 480), (720, 1281)])
def test_any_size_gives_logits_of_that_size(model, size):
    with torch.inference_mode():
        assert model(torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)).shape == (1, 11, *size)


@pytest.mark.parametrize("reduction", ["None", "Conv-0", "Res-1", "Res-2", "Res-3", "Res-4"])
@pytest.mark.parametrize("reduce_by", ["stride", "average", "max"])
def test_every_reduction_makes_a_network(reduction, reduce_by):
    network = streamseg.fanet18(classes=3, reduction=reduction, reduce_by=reduce_by).eval()
    with torch.inference_mode():
        assert network(torch.rand(1, 3, 33, 47)).shape == (1, 3, 33, 47)


@pytest.mark.parametrize("attention", EVERY)
def test_every_attention_makes_a_network_whose_context_is_its_own_past(attention):
    network = streamseg.fanet18(classes=3, attention=attention, key_channels=8).eval()
    with torch.inference_mode():
        logits, context = network.step(torch.rand(2, 3, 40, 56))
        again, _ = network.step(torch.rand(2, 3, 40, 56), past=context)
    assert logits.shape == again.shape == (2, 3, 40, 56)


def test_bytes_and_floats_in_0_to_255_are_the_same_image(model, image):
    torch.testing.assert_close(model(image), model(image.float()))


def test_an_image_is_a_stream_of_one_frame(model, image):
    logits, context = model.step(image)
    assert model(image).equal(logits)
    assert [tuple(matrix.shape) for matrix in context] == [(1, 32, 64), (1, 32, 128), (1, 32, 256), (1, 32, 512)]
    assert sum(matrix.numel() for matrix in context) == 30_720


def test_a_past_of_zeros_is_no_past_and_a_real_one_changes_the_labels(model, image):
    alone, context = model.step(image)
    after_nothing, _ = model.step(image, [torch.zeros_like(matrix) for matrix in context])
    after_itself, own = model.step(image, context)
    torch.testing.assert_close(after_nothing, alone)
    assert not torch.allclose(after_itself, alone)
    torch.testing.assert_close(own[0], context[0])


def test_streams_in_a_batch_keep_their_contexts_apart(model):
    images = torch.randint(0, 256, (3, 3, 48, 64), dtype=torch.uint8)
    pasts = [model.step(torch.randint(0, 256, (1, 3, 48, 64), dtype=torch.uint8))[1] for _ in range(3)]
    together, contexts = model.step(images, [torch.cat(stage) for stage in zip(*pasts, strict=True)])
    for i in range(3):
        alone, context = model.step(images[i : i + 1], pasts[i])
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(contexts[3][i : i + 1], context[3], atol=1e-4, rtol=1e-4)


def test_the_context_does_not_grow_with_the_image(model):
    small, large = (model.step(255 * torch.rand(1, 3, size, size))[1] for size in (384, 768))
    for a, b in zip(small, large, strict=True):  # without 1/n, four times the pixels would make it four times as large
        assert 0.5 < (b.norm() / a.norm()).item() < 2


def test_two_images_can_be_overfitted():
    torch.manual_seed(0)
    network = streamseg.fanet18(classes=3)
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
    last = streamseg.fanet18(classes=11).eval()
    last.load_state_dict(model.state_dict())
    last = last.to(memory_format=torch.channels_last)
    torch.testing.assert_close(last(image.to(memory_format=torch.channels_last)), model(image), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_nearly_the_same_network(model, image, dtype):
    half = streamseg.fanet18(classes=11).eval()
    half.load_state_dict(model.state_dict())
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


def test_double_precision_works(image):
    assert streamseg.fanet18(classes=2).eval().double()(image).dtype == torch.float64


@pytest.mark.parametrize("attention", EVERY)
def test_the_whole_network_is_one_graph(attention, image):
    network = streamseg.fanet18(classes=4, attention=attention).eval()
    compiled = torch.compile(network.step, backend="eager", fullgraph=True)
    with torch.inference_mode():
        logits, context = network.step(image)
        torch.testing.assert_close(compiled(image)[0], logits)
        torch.testing.assert_close(compiled(image, context)[0], network.step(image, context)[0])


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU: install g++")
def test_the_network_compiles_to_kernels(model, image):
    compiled = torch.compile(model, fullgraph=True)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(image), model(image), atol=1e-3, rtol=1e-3)


def test_the_network_exports_with_free_size_and_batch(model):
    axes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    example = torch.randint(0, 256, (2, 3, 144, 272), dtype=torch.uint8)
    exported = torch.export.export(model, (example,), dynamic_shapes=(axes,)).module()
    for shape in [(1, 3, 129, 130), (3, 3, 201, 333)]:
        other = torch.randint(0, 256, shape, dtype=torch.uint8)
        with torch.inference_mode():
            torch.testing.assert_close(exported(other), model(other), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gpu_agrees_with_the_cpu(model, image, dtype):
    gpu = streamseg.fanet18(classes=11).eval()
    gpu.load_state_dict(model.state_dict())
    gpu = gpu.to("cuda", dtype, memory_format=torch.channels_last)
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


def test_a_wrong_past_is_refused_in_a_sentence(model, image):
    _, context = model.step(image)
    for past in (
        context[:3],
        [matrix[:, :16] for matrix in context],
        [matrix.repeat(2, 1, 1) for matrix in context],
        [],
        streamseg.fanet18(classes=2, attention=NoAttention).eval().step(image)[1],
    ):
        with pytest.raises(ValueError, match="The past's shapes are .* expected .*1, 32, 64"):
            model.step(image, past)


def test_a_network_needs_classes_and_key_channels():
    with pytest.raises(ValueError, match="classes is 0"):
        streamseg.fanet18(classes=0)
    with pytest.raises(ValueError, match="key_channels is 0"):
        streamseg.fanet34(key_channels=0)
