"""The convolutions in Triton and Gluon, which must equal their definitions in PyTorch, and where each is used.

Without a GPU those in Triton run in its interpreter, if Triton is installed; the interpreter does not know Gluon.
"""

import pytest
import torch
from noise import DEVICE, HALF, noise
from torch.nn import functional as F

from streamseg.engine.kernels import backend, boxes, convolution, patches


@pytest.mark.gpu
@pytest.mark.parametrize(
    "plan", [(64, 64, 64, 1), (64, 64, 32, 2), (64, 32, 64, 4), (128, 64, 64, 1), (64, 128, 64, 1, 8, 2)]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_triton_convolves(triton, plain, monkeypatch, plan, stride):
    monkeypatch.setattr(convolution, "plan_blocks", lambda *_: convolution.Plan(*plan))
    x, weight, bias = noise(2, 64, 9, 14), noise(128, 64, 3, 3) / 24, noise(128, seed=2)
    shortcut = noise(*F.conv2d(x, weight, stride=stride, padding=1).shape, seed=3)
    x, weight, bias, shortcut = (y.to(DEVICE, HALF) for y in (x, weight, bias, shortcut))
    counters = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    for more in ({}, {"shortcut": shortcut}):
        batch, _, tall, wide = shortcut.shape
        found = torch.zeros(2, batch, tall, wide, 192, dtype=HALF, device=DEVICE).permute(0, 1, 4, 2, 3)
        for module, out in zip((triton, plain), found, strict=True):
            module.convolve(x, weight, bias, counters, out[:, 64:], stride=stride, padding=1, **more)
        torch.testing.assert_close(*found, atol=1e-2, rtol=1e-2)
    assert not counters.any()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64, 135, 180), (2, 64, 8, 16), (3, 64, 9, 17), (1, 64, 1, 1), (1, 64, 192, 384)])
def test_gluon_convolves_patches(plain, shape):
    """The interpreter does not know Gluon."""
    if not patches.is_supported(torch.device(DEVICE)):
        pytest.skip("It takes a Hopper GPU and a version of Triton whose Gluon is known.")
    for precision in (HALF, torch.bfloat16):
        x, shortcut, weight, bias = noise(*shape), noise(*shape, seed=1), noise(64, 64, 3, 3) / 24, noise(64, seed=2)
        x, shortcut, weight, bias = (y.to(DEVICE, precision) for y in (x, shortcut, weight, bias))
        for more in ({}, {"shortcut": shortcut}, {"relu": False}):
            found = torch.zeros(2, shape[0], *shape[2:], 192, dtype=precision, device=DEVICE).permute(0, 1, 4, 2, 3)
            patches.convolve_patches(x, weight, bias, found[0, :, 64:128], **more)
            plain.convolve(x, weight, bias, bias, found[1, :, 64:128], stride=1, padding=1, **more)
            torch.testing.assert_close(*found, atol=1e-2 if precision == HALF else 6e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [128, 256])
@pytest.mark.parametrize("size", [(1, 96, 192), (1, 48, 96), (2, 8, 32), (3, 9, 33), (2, 1, 1), (1, 67, 91)])
def test_gluon_convolves_boxes(plain, channels, size):
    """The interpreter does not know Gluon."""
    if not patches.is_supported(torch.device(DEVICE)):
        pytest.skip("It takes a Hopper GPU and a version of Triton whose Gluon is known.")
    batch, height, width = size
    for precision in (HALF, torch.bfloat16):
        x, shortcut = noise(batch, channels, height, width), noise(batch, channels, height, width, seed=1)
        weight, bias = noise(channels, channels, 3, 3) / (9 * channels) ** 0.5, noise(channels, seed=2)
        x, shortcut, weight, bias = (y.to(DEVICE, precision) for y in (x, shortcut, weight, bias))
        for more in ({}, {"shortcut": shortcut}, {"relu": False}):
            found = torch.zeros(2, batch, height, width, 384, dtype=precision, device=DEVICE).permute(0, 1, 4, 2, 3)
            plain.convolve(x, weight, bias, bias, found[1, :, 64 : 64 + channels], stride=1, padding=1, **more)
            for _ in range(10):  # a race would not show each time
                boxes.convolve_boxes(x, weight, bias, found[0, :, 64 : 64 + channels], **more)
                torch.testing.assert_close(*found, atol=1e-2 if precision == HALF else 6e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [2, 13, 24, 32])
def test_gluon_classifies_patches(plain, classes):
    if not patches.is_supported(torch.device(DEVICE)):
        pytest.skip("It takes a Hopper GPU and a version of Triton whose Gluon is known.")
    x, weight, bias = noise(2, 64, 35, 50), noise(64, 64, 3, 3) / 24, noise(64, seed=2)
    weights = (weight, bias, noise(classes, 64, 1, 1, seed=3) / 8, noise(classes, seed=4))
    x, *weights = (y.to(DEVICE, HALF) for y in (x, *weights))
    found, expected = patches.classify_patches(x, *weights), plain.convolve_and_classify(x, *weights, padding=1)
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2, check_stride=False)


def test_only_large_maps_of_64_channels_are_convolved_in_patches(monkeypatch):
    monkeypatch.setattr(patches, "is_supported", lambda device: True)
    x, weight = noise(1, 64, 128, 128).half(), noise(64, 64, 3, 3).half()
    assert patches.has_patches(x, weight, 1, 1)
    assert not patches.has_patches(x[:, :, 1:], weight, 1, 1)
    assert not patches.has_patches(x, weight, 2, 1)
    assert not patches.has_patches(x, weight, 1, 0)
    assert not patches.has_patches(x, weight[:, :, 1:2, 1:2], 1, 1)
    assert not patches.has_patches(x.float(), weight.float(), 1, 1)
    flat = torch.zeros(x.numel() + 1, dtype=HALF)
    assert not patches.has_patches(
        flat[1:].view(1, 128, 128, 64).permute(0, 3, 1, 2), weight, 1, 1
    )  # at an odd address
    monkeypatch.undo()
    assert not patches.has_patches(x, weight, 1, 1)  # on the CPU


@pytest.mark.parametrize(
    ("channels", "height", "width", "chosen"),
    [
        (128, 128, 128, True),
        (128, 127, 128, False),
        (256, 64, 64, True),
        (256, 63, 63, False),
        (256, 128, 128, False),  # 256 programs
        (128, 135, 240, False),  # 544 programs
        (64, 128, 128, False),
        (512, 64, 64, False),
    ],
)
def test_maps_of_128_and_256_channels_are_convolved_in_boxes(monkeypatch, channels, height, width, chosen):
    monkeypatch.setattr(patches, "is_supported", lambda device: True)
    monkeypatch.setattr(backend, "processors", lambda device: 132)
    x = torch.zeros(1, height, width, channels, dtype=HALF).permute(0, 3, 1, 2)
    weight = torch.zeros(channels, 3, 3, channels, dtype=HALF).permute(0, 3, 1, 2)
    assert boxes.has_boxes(x, weight, 1, 1) == chosen
    assert boxes.has_boxes(x.bfloat16(), weight, 1, 1) == chosen
    assert not boxes.has_boxes(x, weight, 2, 1)
    assert not boxes.has_boxes(x, weight, 1, 0)
    assert not boxes.has_boxes(x, weight[:, :, :1, :1], 1, 1)
    assert not boxes.has_boxes(x, weight[:, ::2], 1, 1)
    assert not boxes.has_boxes(x.float(), weight, 1, 1)
    assert not boxes.has_boxes(x.contiguous(), weight, 1, 1)  # not channels_last
    flat = torch.zeros(x.numel() + 1, dtype=HALF)
    assert not boxes.has_boxes(flat[1:].view(1, height, width, channels).permute(0, 3, 1, 2), weight, 1, 1)
    monkeypatch.undo()
    assert not boxes.has_boxes(x, weight, 1, 1)  # on the CPU


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [2, 13, 24])
def test_triton_classifies_after_a_convolution(triton, plain, classes):
    x, weight, bias = noise(2, 64, 9, 15), noise(64, 64, 3, 3) / 24, noise(64, seed=2)
    weights = (weight, bias, noise(classes, 64, 1, 1, seed=3) / 8, noise(classes, seed=4))
    x, *weights = (y.to(DEVICE, HALF) for y in (x, *weights))
    found, expected = (module.convolve_and_classify(x, *weights, padding=1) for module in (triton, plain))
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2, check_stride=False)
