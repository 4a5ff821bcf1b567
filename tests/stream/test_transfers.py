import pytest
import torch

from streamseg.engine import kernels
from streamseg.io.yuv import BT709, to_rgb, to_yuv
from streamseg.stream.transfers import download, pin, upload

CPU = torch.device("cpu")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def noise(*shape):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).byte()


def test_on_the_cpu_nothing_is_copied():
    frame = noise(3, 16, 24)
    assert upload(frame, CPU) is frame
    labels, counts = download(frame[0], frame[1])
    assert labels.data_ptr() == frame.data_ptr()
    assert counts.equal(frame[1])


def test_planes_arrive_as_rgb():
    planes = to_yuv(noise(3, 16, 24), BT709)
    assert upload(planes, CPU).equal(to_rgb(planes))


def test_planes_are_in_pinned_memory_already_and_no_one_asks_cuda(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: pytest.fail("asked"))
    planes = to_yuv(noise(3, 16, 24), BT709)
    assert pin(planes) is planes


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("size", [(48, 64), (37, 51), (720, 1280)])
def test_a_gpu_receives_and_returns_the_same_pixels(size):
    device, frame = torch.device("cuda"), noise(3, *size)
    planes = to_yuv(frame, BT709)
    assert upload(frame, device).cpu().equal(frame)
    for _ in range(2):  # by PyTorch, then by the kernel
        assert (upload(planes, device).cpu().int() - to_rgb(planes).int()).abs().max() <= 1
        kernels.wait_until_compiled()
    back, first = download(upload(frame, device), upload(frame, device)[0])
    assert back.equal(frame)
    assert first.equal(frame[0])
    assert back.is_pinned()
