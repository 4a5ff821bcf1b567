"""Quantise the weights of convolutions to 7 bits with the least change of their outputs.

Seven bits, because processors without VNNI add pairs of products of bytes and weights in 16 bits, which saturate:
2 * 255 * 64 still fits. The same weights are used on every processor, so that all of them give the same labels.

Shapes: N outputs, C inputs, k x k the kernel, K = C * k * k.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_WEIGHT = 64
"""The largest quantised weight."""

PATCHES = 1024
"""Approximate number of patches per map in the statistics."""
MAX_CORRELATED = 600
"""Maximum number of inputs of an output (K) for which correlations are used; larger layers are less sensitive."""
DAMPING = 0.01
"""Regularisation of the covariances, relative to the mean variance: a few frames do not represent all inputs."""
COLUMNS = 64
"""Number of columns that are rounded before the remaining ones are corrected for all of them at once."""


class InputStatistics:
    """Mean (K) and, for small K, second moments (K, K) of the input patches of a convolution."""

    def __init__(self, weight: Tensor, stride: int, padding: int):
        self.side, self.stride, self.padding = weight.shape[2], stride, padding
        size = weight[0].numel()
        self.count = 0
        self.sums = torch.zeros(size, dtype=torch.float64)
        self.products = torch.zeros(size, size, dtype=torch.float64) if size <= MAX_CORRELATED else None

    def add(self, x: Tensor) -> None:
        """Add evenly spaced patches of a map (B, C, H, W)."""
        available = x[:, 0].numel() / self.stride**2
        step = self.stride * max(1, round((available / PATCHES) ** 0.5))
        patches = F.unfold(x.contiguous(), self.side, padding=self.padding, stride=step).transpose(0, 1).flatten(1)
        patches = patches.double()  # keeps variances positive where inputs hardly differ
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
    """Quantise weights (N, C, k, k).

    Returns:
        The integers (N, C, k, k), the scale of each output (N), and a correction of the bias (N) that keeps the mean
        of each output.
    """
    exact = weight.double().flatten(1)
    scales = (exact.abs().amax(dim=1) / MAX_WEIGHT).clamp(min=1e-12)
    scaled = exact / scales[:, None]
    covariance = None if inputs is None else inputs.covariance
    rounded = round_each(scaled) if covariance is None else round_columns(scaled, covariance)
    error = exact - rounded * scales[:, None]
    correction = error.new_zeros(len(error)) if inputs is None else error @ inputs.mean
    return rounded.to(torch.int8).view_as(weight), scales.float(), correction.float()


def round_each(x: Tensor) -> Tensor:
    """Round each number by itself."""
    return x.round().clamp(-MAX_WEIGHT, MAX_WEIGHT)


def round_columns(weight: Tensor, covariance: Tensor) -> Tensor:
    """Round weights (N, K) column by column, correcting the remaining columns for the error so far.

    This is GPTQ (Frantar et al., 2023): neighbouring pixels are similar, so that the errors of neighbouring weights can
    cancel, where they would add up if each weight were rounded by itself.
    """
    variances = covariance.diagonal()
    order = variances.argsort(descending=True)
    damping = max(DAMPING * variances.mean().item(), 1e-12)
    damped = covariance + damping * torch.eye(len(covariance), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(damped[order][:, order])
    if failed:  # constant inputs, such as black frames, carry no information
        return round_each(weight)
    inverse = torch.cholesky_inverse(factor)
    factor = torch.linalg.cholesky(inverse, upper=True)
    left, rounded = weight[:, order], torch.empty_like(weight)
    fixed = left.abs() > MAX_WEIGHT - 1e-9  # the largest weights stay the largest, so that they determine the scale
    largest = left.sign() * MAX_WEIGHT
    for begin in range(0, len(order), COLUMNS):
        end = min(begin + COLUMNS, len(order))
        errors = torch.empty(len(left), end - begin, dtype=left.dtype)
        for i in range(begin, end):
            rounded[:, order[i]] = column = torch.where(fixed[:, i], largest[:, i], round_each(left[:, i]))
            errors[:, i - begin] = error = (left[:, i] - column) / factor[i, i]
            left[:, i:end] -= torch.outer(error, factor[i, i:end])
        left[:, end:] -= errors @ factor[begin:end, end:]
    return rounded
