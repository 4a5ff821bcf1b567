"""The steps of the fast engine: their PyTorch definitions, and the Triton kernels, which must equal them.

Without a GPU the kernels run in Triton's interpreter, if Triton is installed.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from noise import DEVICE, HALF, noise
from torch.nn import functional as F
from waiting import PATIENCE

from streamseg.engine import kernels
from streamseg.engine.folding import Folder
from streamseg.engine.kernels import backend, language
from streamseg.engine.labels import labels_and_confidence_from_scores
from streamseg.engine.stem import stem_on_squares
from streamseg.io import yuv
from streamseg.models.attention import fast_attention
from streamseg.models.fanet_plus import PyramidPooling, shrunk_size


def frames(batch, height, width):
    return torch.randint(0, 256, (batch, 3, height, width), generator=torch.Generator().manual_seed(1)).byte()


def unfold(module, frame, precision=torch.float32, size=None, mirrored=None):
    batch, (height, width) = len(frame), size or frame.shape[2:]
    out = torch.zeros(batch, (height + 1) // 2 + 3, (width + 1) // 2 + 3, 16, dtype=precision, device=frame.device)
    out = out.permute(0, 3, 1, 2)
    mean = torch.tensor([123.7, 116.3, 103.5], device=frame.device)
    module.unfold_frame(frame, mean, out, (height, width), mirrored)
    return out


# the PyTorch definitions


@pytest.mark.parametrize("size", [(32, 48), (33, 47), (64, 65)])
def test_a_convolution_over_squares_is_the_stem_s(size):
    frame, weight = frames(2, *size), noise(8, 3, 7, 7)
    pixels = frame.float() - torch.tensor([123.7, 116.3, 103.5]).view(1, 3, 1, 1)
    expected = F.conv2d(pixels, weight, stride=2, padding=3)
    found = F.conv2d(unfold(kernels, frame), stem_on_squares(weight))
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-4)


def attention(module, x, keys=32, past=None, scale=None, shares=None):
    """A fast attention module of random weights."""
    channels = x.shape[1]
    weight, out_weight = noise(channels, 2 * keys + channels), noise(channels, channels, seed=1)
    weight, out_weight = (y.to(x) / channels**0.5 for y in (weight, out_weight))
    bias, out_bias = noise(2 * keys + channels, seed=2).to(x), noise(channels, seed=3).to(x)
    past = torch.zeros(len(x), keys, channels, device=x.device) if past is None else past
    scale = torch.ones(len(x), device=x.device) if scale is None else scale
    context = torch.empty(len(x), keys, 2 * channels, device=x.device)[..., channels:]  # part of a wider tensor
    total = module.gather_context(x, weight, bias, past, scale, context, keys, shares)
    return (
        total,
        context,
        module.attend(x, total, weight, bias, out_weight, out_bias, keys),
        (weight, bias, out_weight, out_bias),
    )


def test_gather_and_attend_are_fast_attention():
    x, past, scale = noise(2, 64, 5, 7), noise(2, 32, 64, seed=5), torch.tensor([1.0, 0.25])
    total, context, found, (weight, bias, out_weight, out_bias) = attention(kernels, x, past=past, scale=scale)
    pixels = x.flatten(2).transpose(1, 2)
    q, k, v = (pixels @ weight + bias).split([32, 32, 64], dim=2)
    y, own = fast_attention(q, k, v.relu(), past, scale.view(2, 1, 1))
    expected = x + (y @ out_weight + out_bias).relu().transpose(1, 2).view_as(x)
    torch.testing.assert_close(context, own)
    torch.testing.assert_close(total, (own + past) * scale.view(2, 1, 1))
    torch.testing.assert_close(found, expected)


def test_the_context_of_a_masked_map_is_that_of_its_other_pixels_alone():
    x = noise(2, 64, 5, 7)
    shares = torch.zeros(2, 5, 7)
    shares[:, 1:4] = 1
    _, masked, *_ = attention(kernels, x, shares=shares)
    _, alone, *_ = attention(kernels, x[:, :, 1:4].contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(masked, alone)
    x[:, :, 0], x[:, :, 4] = 7, -7
    assert attention(kernels, x, shares=shares)[1].equal(masked)


def test_weights_of_one_change_no_bit_of_a_context():
    x = noise(2, 64, 5, 7)
    for found, expected in zip(
        attention(kernels, x, shares=torch.ones(2, 5, 7))[:3], attention(kernels, x)[:3], strict=True
    ):
        assert found.equal(expected)


def test_key_channels_that_tensor_cores_cannot_take_use_pytorch(monkeypatch):
    monkeypatch.setattr(backend, "use_triton", lambda x: True)
    total, context, found, _ = attention(kernels, noise(1, 64, 5, 7), keys=8)
    assert total.shape == context.shape == (1, 8, 64)
    assert found.shape == (1, 64, 5, 7)


def test_labels_and_confidence_are_those_of_the_resized_scores():
    scores = noise(2, 11, 9, 13)
    labels, confidence = torch.zeros(2, 2, 70, 101, dtype=torch.uint8)
    kernels.label(scores, (70, 101), labels, confidence)
    for i in range(2):
        ours, sure = labels_and_confidence_from_scores(scores[i], (70, 101))
        assert (labels[i] == ours).float().mean() > 0.999
        assert (confidence[i].int() - sure.int()).abs().max() <= 1


def pyramid_weights(channels):
    """The weights of PyramidPooling after its first convolution."""
    narrow = channels // 4
    level_weight, fuse_weight = noise(3, channels, narrow), noise(3, narrow, channels, seed=1)
    own_weight, bias = noise(channels, channels, seed=2), noise(channels, seed=3)
    root = channels**0.5
    return level_weight / root, noise(3, narrow, seed=4), fuse_weight / root, own_weight / root, bias


@pytest.mark.parametrize("shape", [(1, 128, 6, 12), (2, 128, 5, 17), (1, 128, 1, 1)])
def test_the_pyramid_is_the_network_s(shape):
    x, layers = noise(*shape), PyramidPooling(128, 128).eval()
    layers.narrow = torch.nn.Identity()
    with torch.no_grad():
        found = kernels.pool_pyramid(x, *Folder(torch.device("cpu"), torch.float32).fold_pyramid(layers))
        torch.testing.assert_close(found, layers(x), atol=1e-4, rtol=1e-4)


# the Triton kernels


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(32, 64), (33, 47), (66, 301)])
def test_triton_unfolds_frames(triton, plain, size):
    frame = frames(2, *size).to(DEVICE)
    assert unfold(triton, frame, HALF).equal(unfold(plain, frame, HALF))
    turned = frame.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # as cameras deliver it
    assert unfold(triton, turned, HALF).equal(unfold(plain, frame, HALF))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(32, 64), (33, 47), (66, 301)])
def test_triton_mirrors_some_frames_of_a_batch(triton, plain, size):
    frame, mirrored = frames(2, *size).to(DEVICE), torch.tensor([0.0, 1.0], device=DEVICE)
    expected = torch.stack([frame[0], frame[1].flip(2)])
    for target in (size, shrunk_size(*size)):
        found = unfold(triton, frame, HALF, target, mirrored)
        torch.testing.assert_close(found, unfold(plain, expected, HALF, target), atol=0.13, rtol=0)
        assert unfold(plain, frame, HALF, target, mirrored).equal(unfold(plain, expected, HALF, target))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(32, 64), (33, 47), (66, 301), (100, 35)])
def test_triton_shrinks_and_unfolds_frames(triton, plain, size):
    frame, small = frames(2, *size).to(DEVICE), shrunk_size(*size)
    turned = frame.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    expected = unfold(plain, frame, HALF, small)
    for given in (frame, turned):
        torch.testing.assert_close(unfold(triton, given, HALF, small), expected, atol=0.01, rtol=0.001)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 128, 12, 24), (2, 128, 5, 17), (1, 64, 1, 1), (2, 64, 30, 7)])
def test_triton_pools_pyramids(triton, plain, shape):
    x, weights = noise(*shape).relu().to(DEVICE, HALF), [y.to(DEVICE, HALF) for y in pyramid_weights(shape[1])]
    found, expected = triton.pool_pyramid(x, *weights), plain.pool_pyramid(x, *weights)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64, 9, 14), (2, 128, 5, 7), (1, 64, 3, 1)])
def test_triton_attends(triton, plain, shape):
    x = noise(*shape).to(DEVICE, HALF)
    past = 0.1 * noise(shape[0], 32, 3 * shape[1], seed=5).to(DEVICE)[..., : shape[1]]
    scale = torch.rand(shape[0], generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ours, theirs = (attention(module, x, past=past, scale=scale)[:3] for module in (triton, plain))
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64, 9, 14), (2, 128, 5, 7), (1, 64, 3, 1)])
def test_triton_attends_under_a_mask(triton, plain, shape):
    x = noise(*shape).to(DEVICE, HALF)
    shares = torch.rand(shape[0], *shape[2:], generator=torch.Generator().manual_seed(1)).to(DEVICE)
    shares[:, 0] = 0
    ours, theirs = (attention(module, x, shares=shares)[:3] for module in (triton, plain))
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)
    whole, ones = (attention(triton, x, shares=given)[:3] for given in (None, torch.ones_like(shares)))
    for found, expected in zip(ones, whole, strict=True):
        assert found.equal(expected)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(40, 70), (41, 33), (64, 300)])
def test_triton_computes_the_stem(triton, plain, size):
    frame, weight = unfold(plain, frames(2, *size).to(DEVICE), HALF), stem_on_squares(noise(64, 3, 7, 7) / 800)
    weight = weight.to(DEVICE, HALF).contiguous(memory_format=torch.channels_last)
    bias = noise(64, seed=1).to(DEVICE, HALF)
    found, expected = triton.stem_convolution(frame, weight, bias), plain.stem_convolution(frame, weight, bias)
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64, 8, 12), (2, 256, 5, 7), (1, 64, 33, 1)])
def test_triton_averages_pairs(triton, plain, shape):
    x = noise(*shape).to(DEVICE, HALF)
    torch.testing.assert_close(
        triton.average_pairs(x), plain.average_pairs(x), atol=1e-3, rtol=1e-3, check_stride=False
    )


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64, 8, 12), (2, 128, 5, 7), (1, 64, 33, 1)])
def test_triton_resizes(triton, plain, shape):
    x = noise(*shape).to(DEVICE, HALF)
    batch, channels, height, width = shape
    small = noise(batch, channels // 2, (height + 1) // 2, (width + 1) // 2, seed=1).to(DEVICE, HALF)
    part = x[:, : channels // 2].contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(triton.add_resized(part, small), plain.add_resized(part, small), atol=1e-2, rtol=1e-2)
    ours, theirs = x.clone(), x.clone()
    triton.resize_into(ours, small)
    plain.resize_into(theirs, small)
    torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("classes", "h", "w", "size"),
    [
        (11, 5, 40, (33, 300)),
        (13, 6, 9, (32, 47)),
        (5, 19, 4, (101, 21)),
        (19, 4, 9, (32, 72)),
        (3, 3, 7, (17, 50)),
        (5, 9, 9, (9, 9)),
        (150, 2, 3, (9, 20)),
    ],
)
def test_triton_labels(triton, plain, classes, h, w, size):
    scores = noise(2, classes, h, w).to(DEVICE, HALF)
    found = []
    for module in (triton, plain):
        labels, confidence = torch.zeros(2, 2, *size, dtype=torch.uint8, device=DEVICE)
        module.label(scores, size, labels, confidence)
        found.append((labels, confidence))
    (ours, sure), (theirs, as_sure) = found
    assert (ours == theirs).float().mean() > 0.995  # except where two scores are nearly equal
    assert (sure.int() - as_sure.int()).abs().max() <= 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("classes", "h", "w", "size"), [(11, 5, 40, (33, 300)), (13, 6, 9, (32, 47)), (5, 9, 9, (9, 9))]
)
def test_triton_keeps_labels_that_lose_by_less_than_the_margin(triton, plain, classes, h, w, size):
    dice = torch.Generator().manual_seed(1)
    scores, margin = noise(2, classes, h, w).to(DEVICE), torch.rand(2, 1, h, w, generator=dice).to(DEVICE)
    previous = torch.randint(0, classes, (2, *size), generator=dice).byte().to(DEVICE)
    previous[:, 0] = 255  # no class of the network
    shares = torch.rand(2, classes, generator=dice).div(10).to(DEVICE)  # some rare
    changes = torch.tensor([[3 * classes * 2**16, 2**16], [classes, 2]], device=DEVICE)  # 3 and a half on average
    found = []
    for module in (triton, plain):
        labels, confidence = torch.zeros(2, 2, *size, dtype=torch.uint8, device=DEVICE)
        module.label(scores, size, labels, confidence, (previous, margin, shares, changes))
        found.append((labels, confidence))
    (ours, sure), (theirs, as_sure) = found
    same = ours == theirs
    assert same.float().mean() > 0.995  # except where a class wins by nearly the margin
    assert (sure.int() - as_sure.int()).abs()[same].max() <= 1
    alone = torch.zeros_like(ours)
    plain.label(scores, size, alone)
    assert 0.02 < (ours != alone).float().mean() < 0.98


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(3, 5), (33, 300), (270, 481)])
def test_triton_counts_the_classes_of_the_frame_before(triton, plain, size):
    previous = torch.randint(0, 150, (3, *size), generator=torch.Generator().manual_seed(0)).byte()
    previous[:, ::7] = 255  # no class of the network
    previous = previous.to(DEVICE)[::2]  # apart from each other, as in the buffers
    ours, theirs = torch.full((2, 2, 200), -1.0, device=DEVICE)
    triton.write_class_shares(previous, ours)
    plain.write_class_shares(previous, theirs)
    torch.testing.assert_close(ours, theirs)
    assert ours[:, 150:].eq(0).all()
    assert (ours > 0).any(dim=1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(32, 64), (33, 300), (38, 51), (2, 2), (1, 1)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("bits", [8, 10])
def test_triton_makes_rgb_of_planes(triton, plain, size, full, bits):
    pixels = yuv.empty_yuv(size, bits)
    pixels.copy_(torch.randint(0, 2**bits, pixels.shape, generator=torch.Generator().manual_seed(2)))
    orientation = yuv.Orientation(transposed=True, rows=-1)
    picture = yuv.Yuv420(pixels.to(DEVICE), size, bits, yuv.BT2020, full, orientation)
    found, expected = triton.to_rgb(picture), plain.to_rgb(picture)
    assert (found.shape, found.dtype) == (expected.shape, torch.uint8)
    assert (found.int() - expected.int()).abs().max() <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(32, 64), (33, 300), (38, 51), (7, 530), (2, 2), (1, 1)])
def test_triton_makes_planes_of_rgb(triton, plain, size):
    (frame,) = frames(1, *size).to(DEVICE)
    for given in (frame, frame.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        found, expected = triton.to_yuv(given, yuv.BT709), plain.to_yuv(given, yuv.BT709)
        assert (found.size, found.matrix) == (expected.size, expected.matrix)
        assert (found.pixels.int() - expected.pixels.int()).abs().max() <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(32, 64), (17, 300), (1, 1)])
@pytest.mark.parametrize("borders", [False, True])
@pytest.mark.parametrize("hides", [False, True])
def test_triton_draws_labels(triton, plain, size, borders, hides):
    (frame,) = frames(1, *size).to(DEVICE)
    dice = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 5, size, generator=dice).repeat_interleave(3, 0)[: size[0]].byte().to(DEVICE)
    labels[0, 0] = 255
    table = torch.randint(0, 256, (3, 256, 256), generator=dice).byte().to(DEVICE)
    hidden = torch.full((256,), 255, dtype=torch.uint8, device=DEVICE)
    hidden[1:3] = 0
    for given in (frame, frame.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        arguments = (given, labels, table, hidden if hides else None, borders)
        found = triton.blend_labels(*arguments)
        assert found.equal(plain.blend_labels(*arguments))
        assert found.stride() == given.stride()


def test_a_triton_that_cannot_be_imported_counts_as_none(tmp_path):
    (tmp_path / "triton.py").write_text("raise ImportError('libtriton.so: no such file')")
    program = (
        "from streamseg.engine.kernels import backend\nassert backend.has_triton()\n"
        "from streamseg.engine.kernels import motion\nassert not backend.has_triton()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed and found first")
def test_a_folder_called_triton_beside_a_script_is_no_triton(tmp_path):
    (tmp_path / "triton" / "models").mkdir(parents=True)  # such as that of an inference server
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, streamseg\nfrom streamseg.engine.kernels import backend, language\n"
        "print(backend.has_triton(), language.VERSION)\n"
        "print(streamseg.segment(torch.zeros(3, 64, 64, dtype=torch.uint8)).shape)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["False none", "torch.Size([64, 64])"]


def test_triton_compiles_for_two_generations_of_gpus():
    """The interpreter accepts more than the compiler."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install triton")
    script = Path(__file__).parents[1] / "compile_kernels.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ended = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.count("KiB") == 66 + 14 * (language.gl is not None)
