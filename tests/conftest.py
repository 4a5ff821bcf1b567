"""What several tests share: small random networks and pictures; nothing is downloaded."""

import pytest
import torch

import streamseg

# the test processes share the cores
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> streamseg.FANet:
    """FANet-18 for CamVid's classes: random, but with batch norm statistics of its own, as after training."""
    torch.manual_seed(0)
    network = streamseg.fanet18(classes=11)
    with torch.no_grad():
        for _ in range(20):
            network(255 * torch.rand(2, 3, 64, 96))
    return network.eval()


@pytest.fixture
def image() -> torch.Tensor:
    return torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
