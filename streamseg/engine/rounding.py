"""Weights of convolutions as 7-bit integers, rounded so that what the convolutions give changes least.

Seven bits, because processors without VNNI add the products of bytes and weights in pairs, in 16 bits that saturate:
2 * 255 * 64 still fits. The same weights are used on every processor, so that all of them give the same labels.

Shapes: N outputs, C inputs, k x k the kernel, K = C * k * k.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST = 64
"""The largest weight."""

PATCHES = 1024
"""About how many patches of a map the statistics are taken from."""
CORRELATED = 600
"""Up to how many inputs of an output (K) their correlations are used; the layers with more are less sensitive."""
DAMPING = 0.01
"""Added to the inputs' covariances, as a share of their mean variance: a few frames do not tell all that can come."""
COLUMNS = 64
"""How many columns are rounded before the others are corrected for all of them at once."""


class InputStatistics:
    """Mean (K) and, for small kernels, second moments (K, K) of the patches that a convolution multiplies."""

    def __init__(self, weight: Tensor, stride: int, padding: int):
        self.side, self.stride, self.padding = weight.shape[2], stride, padding
        size = weight[0].numel()
        self.count = 0
        self.sums = torch.zeros(size, dtype=torch.float64)
        self.products = torch.zeros(size, size, dtype=torch.float64) if size <= CORRELATED else None

    def add(self, x: Tensor) -> None:
        """Add patches of a map (B, C, H, W), evenly spaced."""
        places = x[:, 0].numel() / self.stride**2
        step = self.stride * max(1, round((places / PATCHES) ** 0.5))
        patches = F.unfold(x.contiguous(), self.side, padding=self.padding, stride=step).transpose(0, 1).flatten(1)
        patches = patches.double()  # whose variances stay above zero, where inputs hardly differ
        self.count += patches.shape[1]
        self.sums += patches.sum(dim=1)
        if self.products is not None:
            self.products += patches @ patches.T

    @property
    def mean(self) -> Tensor:
        return self.sums / max(1, self.count)

    @property
    def covariance(self) -> Tensor | None:
        if self.products is None or self.count == 0:
            return None
        return self.products / self.count - torch.outer(self.mean, self.mean)


def round_weights(weight: Tensor, inputs: InputStatistics | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Round weights (N, C, k, k).

    Returns:
        The integers (N, C, k, k), the scale of each output (N), and what to add to the bias (N), so that the mean of
        each output stays as it was.
    """
    exact = weight.double().flatten(1)
    scales = (exact.abs().amax(dim=1) / LARGEST).clamp(min=1e-12)
    scaled = exact / scales[:, None]
    covariance = None if inputs is None else inputs.covariance
    rounded = round_off(scaled) if covariance is None else round_columns(scaled, covariance)
    error = exact - rounded * scales[:, None]
    correction = error.new_zeros(len(error)) if inputs is None else error @ inputs.mean
    return rounded.to(torch.int8).view_as(weight), scales.float(), correction.float()


def round_off(x: Tensor) -> Tensor:
    return x.round().clamp(-LARGEST, LARGEST)


def round_columns(weight: Tensor, covariance: Tensor) -> Tensor:
    """Round weights (N, K) column by column; those still to come make up for the error, as far as inputs correlate.

    This is GPTQ (Frantar et al., 2023): neighbouring pixels are much alike, so that errors of neighbouring weights can
    cancel, where rounding each weight by itself would let them add up.
    """
    variances = covariance.diagonal()
    order = variances.argsort(descending=True)
    damping = max(DAMPING * variances.mean().item(), 1e-12)
    damped = covariance + damping * torch.eye(len(covariance), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(damped[order][:, order])
    if failed:  # inputs that do not differ, as of black frames, tell nothing
        return round_off(weight)
    inverse = torch.cholesky_inverse(factor)
    factor = torch.linalg.cholesky(inverse, upper=True)
    left, rounded = weight[:, order], torch.empty_like(weight)
    fixed = left.abs() > LARGEST - 1e-9  # the largest stay so, and the scale can be told from the weights
    largest = left.sign() * LARGEST
    for begin in range(0, len(order), COLUMNS):
        end = min(begin + COLUMNS, len(order))
        errors = torch.empty(len(left), end - begin, dtype=left.dtype)
        for i in range(begin, end):
            rounded[:, order[i]] = column = torch.where(fixed[:, i], largest[:, i], round_off(left[:, i]))
            errors[:, i - begin] = error = (left[:, i] - column) / factor[i, i]
            left[:, i:end] -= torch.outer(error, factor[i, i:end])
        left[:, end:] -= errors @ factor[begin:end, end:]
    return rounded
