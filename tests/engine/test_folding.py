import pytest
import torch

from streamseg.engine.convolutions import WinogradConv
from streamseg.engine.folding import Folder
from streamseg.models.layers import conv

CPU = torch.device("cpu")


def layers(inputs, outputs, kernel, stride=1):
    torch.manual_seed(0)
    made = conv(inputs, outputs, kernel, stride=stride)
    made[1].running_mean.uniform_(-1, 1)
    made[1].running_var.uniform_(0.5, 2)
    return made.eval()


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "winograd"),
    [(128, 64, 3, 1, True), (128, 64, 3, 2, False), (64, 64, 3, 1, False), (128, 64, 1, 1, False)],
)
def test_a_folded_convolution_is_that_with_batch_norm(inputs, outputs, kernel, stride, winograd):
    given, x = layers(inputs, outputs, kernel, stride), torch.randn(1, inputs, 9, 11)
    folded = Folder(CPU, torch.float32).fold(given[0], given[1])
    assert isinstance(folded, WinogradConv) == winograd
    with torch.no_grad():
        torch.testing.assert_close(folded.relu(x), given(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_a_classifier_is_padded_to_a_multiple_of_8_classes(bias):
    given, x = torch.nn.Conv2d(16, 11, 1, bias=bias), torch.randn(1, 16, 3, 5)
    folded = Folder(CPU, torch.float32).fold_classifier(given)
    with torch.no_grad():
        scores = folded.linear(x)
        assert scores.shape == (1, 16, 3, 5)
        torch.testing.assert_close(scores[:, :11], given(x), atol=1e-5, rtol=1e-5)
    assert not scores[:, 11:].any()


def test_half_precision_has_no_winograd():
    given = layers(128, 64, 3)
    folded = Folder(CPU, torch.float16).fold(given[0], given[1])
    assert not isinstance(folded, WinogradConv)
    assert folded.weight.dtype == torch.float16
