"""FlowNetS, which computes the optical flow of two frames in one pass, and its slim form.

A. Dosovitskiy, P. Fischer, E. Ilg et al., "FlowNet: Learning Optical Flow with Convolutional Networks", 2015. Layers
as in its widely used PyTorch port, the form without batch norm. The slim form has 3/8 of the channels, as in DVSNet.

Flow is from the current frame to an earlier one, in pixels of its map: previous(p + flow(p)) looks like current(p).

Shapes: B batch, H height, W width of the frames that the layers see, h x w the map of the flow, at a quarter of that.

Golden, at 512 x 1024 without shrinking: 38,675,536 parameters and 42.101 GMACs; slim 5,462,296 and 6.556.
"""

from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamseg.checks import check_count
from streamseg.io.tensors import check_state_dict, read_tensors, write_tensors

FLOW_SCALE = 20
"""The layers compute the flow in units of so many pixels of their input."""

Widths = tuple[int, int, int, int, int, int]


class FlowEstimator(Protocol):
    """The interface of optical flow: FlowNetS, DISFlow, or any function of two frames."""

    def __call__(self, current: Tensor, previous: Tensor) -> Tensor:
        """Return the flow (B, 2, h, w) from the current to the previous frame, x then y, in pixels of its own map.

        Args:
            current: RGB (B, 3, H, W), bytes or floats in 0–255.
            previous: Likewise, of the same size.
        """


class FlowOutputs(NamedTuple):
    """All that methods take from a FlowNetS."""

    flow: Tensor
    """(B, 2, h, w), in pixels of this map."""
    detail: Tensor
    """(B, detail_channels, h, w), the map of which the flow is made."""
    deep: Tensor
    """(B, deep_channels, h / 16, w / 16), the deepest map of the encoder."""
    pyramid: tuple[Tensor, ...]
    """The flow at all five levels, fine to coarse, as the layers compute it: in units of 20 pixels of their input."""


class FlowNetS(nn.Module):
    """An encoder of two stacked frames, and a decoder that refines the flow from coarse to fine.

    Its flow is zero until it is trained.

    Args:
        widths: Channels of conv1 … conv6; the decoder has those of conv5 down to conv2, halved after the first.
        shrink: Average the frames over squares of so many pixels first: methods for large frames use 2.
    """

    def __init__(self, widths: Widths = (64, 128, 256, 512, 512, 1024), shrink: int = 2):
        super().__init__()
        check_count("shrink", shrink)
        self.shrink = shrink
        c1, c2, c3, c4, c5, c6 = widths
        d5, d4, d3, d2 = c5, c5 // 2, c5 // 4, c5 // 8
        self.deep_channels = c6
        self.detail_channels = c2 + d2 + 2
        self.conv1 = leaky_conv(6, c1, 7, stride=2)
        self.conv2 = leaky_conv(c1, c2, 5, stride=2)
        self.conv3 = nn.Sequential(leaky_conv(c2, c3, 5, stride=2), leaky_conv(c3, c3, 3))
        self.conv4 = nn.Sequential(leaky_conv(c3, c4, 3, stride=2), leaky_conv(c4, c4, 3))
        self.conv5 = nn.Sequential(leaky_conv(c4, c5, 3, stride=2), leaky_conv(c5, c5, 3))
        self.conv6 = nn.Sequential(leaky_conv(c5, c6, 3, stride=2), leaky_conv(c6, c6, 3))
        self.refine5 = Refine(c6, d5)
        self.refine4 = Refine(c5 + d5 + 2, d4)
        self.refine3 = Refine(c4 + d4 + 2, d3)
        self.refine2 = Refine(c3 + d3 + 2, d2)
        self.flow2 = flow_conv(self.detail_channels)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(module.weight, 0.1)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in (self.refine5.flow, self.refine4.flow, self.refine3.flow, self.refine2.flow, self.flow2):
            nn.init.zeros_(module.weight)

    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        """Return the flow (B, 2, h, w) from the current to the previous frame, in pixels of this map."""
        return self.outputs(current, previous).flow

    def outputs(self, current: Tensor, previous: Tensor) -> FlowOutputs:
        """Return the flow, and the maps that methods take from inside."""
        x1 = self.conv1(self.stack(current, previous))
        x2 = self.conv2(x1)
        x3 = self.conv3(x2)
        x4 = self.conv4(x3)
        x5 = self.conv5(x4)
        x6 = self.conv6(x5)
        x, flow6 = self.refine5(x6, x5)
        x, flow5 = self.refine4(x, x4)
        x, flow4 = self.refine3(x, x3)
        x, flow3 = self.refine2(x, x2)
        flow2 = self.flow2(x)
        # a quarter of the input's pixels
        return FlowOutputs(FLOW_SCALE / 4 * flow2, x, x6, (flow2, flow3, flow4, flow5, flow6))

    def stack(self, current: Tensor, previous: Tensor) -> Tensor:
        """Return both frames as the layers take them, (B, 6, H, W) in 0–1, less 1/2."""
        dtype = self.flow2.weight.dtype
        pair = torch.cat([current.to(dtype), previous.to(dtype)], dim=1) / 255 - 0.5
        return F.avg_pool2d(pair, self.shrink, ceil_mode=True) if self.shrink > 1 else pair


class Refine(nn.Module):
    """Computes the flow of a map, and joins both, upsampled, with the encoder's next finer map."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.flow = flow_conv(inputs)
        self.up_flow = nn.ConvTranspose2d(2, 2, 4, stride=2, padding=1, bias=False)
        self.up = nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1, bias=False)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        """Return the finer map and the flow of the coarser one."""
        flow = self.flow(x)
        height, width = skip.shape[-2:]
        up = F.leaky_relu(self.up(x), 0.1)[..., :height, :width]
        return torch.cat([skip, up, self.up_flow(flow)[..., :height, :width]], dim=1), flow


def save_flow(network: FlowNetS, path: str | Path) -> None:
    """Write the weights of a flow network to a safetensors file. The file appears whole or not at all."""
    weights = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
    write_tensors(Path(path), weights, {"format": "pt"})


def load_flow(network: FlowNetS, path: str | Path) -> None:
    """Load weights that save_flow wrote into a flow network of the same widths, in place."""
    weights = read_tensors(Path(path))
    check_state_dict(f"{path} does not hold this flow network", weights, network.state_dict())
    network.load_state_dict(weights)


def leaky_conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    """Build a convolution with a bias and a leaky ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.LeakyReLU(0.1))


def flow_conv(inputs: int) -> nn.Conv2d:
    """Build the convolution that makes a flow of a map."""
    return nn.Conv2d(inputs, 2, 3, padding=1, bias=False)


def flownet(shrink: int = 2) -> FlowNetS:
    """FlowNetS as published: 38.7 million parameters."""
    return FlowNetS(shrink=shrink)


def flownet_slim(shrink: int = 2) -> FlowNetS:
    """FlowNetS with 3/8 of the channels: 5.5 million parameters, fit for a backbone with a ResNet-18."""
    return FlowNetS((24, 48, 96, 192, 192, 384), shrink)
