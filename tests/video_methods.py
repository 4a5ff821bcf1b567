"""Helpers of the video methods' tests: small methods whose every part shows in the output, and their streams."""

import torch
from torch import nn

from streamseg.models.baselines.swiftnet import swiftnet18

FRAMES = 6


def build(method, network=swiftnet18, classes=4, **options):
    """A video method with random weights, none of them zero, on a small backbone."""
    torch.manual_seed(0)
    built = method(network(classes), **options)
    for name, parameter in built.named_parameters():
        if not name.startswith("backbone") and parameter.numel() > 1:
            nn.init.normal_(parameter, std=0.05 if "flow" not in name else 0.02)
    return built.eval()


def make_frames(count=FRAMES, size=(64, 96), seed=0):
    """Frames (T, 1, 3, H, W) of a picture that moves by two pixels a frame."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size
    small = torch.rand(1, 3, height // 8, (width + 64) // 8, generator=generator)
    wide = nn.functional.interpolate(small, size=(height, width + 64), mode="bicubic").clamp(0, 1) * 255
    return torch.stack([wide[..., 2 * i : 2 * i + width] for i in range(count)]).round().to(torch.uint8)


def run(method, frames, state=None):
    """The logits of every frame, and the last state."""
    results = []
    for frame in frames:
        logits, state = method.step(frame, state)
        results.append(logits)
    return results, state
