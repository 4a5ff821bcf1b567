import pytest
import torch
from torch.nn import functional as F

from streamseg.models.layers import resize_to


@pytest.mark.parametrize("size", [(45, 60), (96, 128), (33, 47), (12, 16), (5, 7)])
def test_a_resize_with_a_gradient_is_bilinear_interpolation_and_so_is_its_gradient(size):
    ours = torch.randn(2, 3, 12, 16, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    resized, expected = resize_to(ours, *size), F.interpolate(theirs, size=size, mode="bilinear")
    torch.testing.assert_close(resized, expected)
    torch.testing.assert_close(resized, resize_to(ours.detach(), *size))
    direction = torch.randn_like(expected)
    resized.backward(direction)
    expected.backward(direction)
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_a_resize_with_a_gradient_keeps_its_precision(precision):
    x = torch.randn(1, 2, 6, 8).to(precision).requires_grad_()
    assert resize_to(x, 12, 20).dtype == precision
