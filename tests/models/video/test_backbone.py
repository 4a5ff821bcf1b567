import pytest
import torch
from torch import nn

from streamseg.models.baselines import BASELINES
from streamseg.models.fanet import FANet, fanet18, fanet34
from streamseg.models.fanet_plus import fanetplus18
from streamseg.models.video.backbone import split

NETWORKS = [BASELINES["swiftnet18"], fanet18, fanet34, fanetplus18]


@pytest.fixture(params=NETWORKS, ids=lambda build: build.__name__)
def network(request):
    torch.manual_seed(0)
    return request.param(5).eval()


@torch.inference_mode()
@pytest.mark.parametrize("size", [(64, 96), (33, 75)])
def test_the_parts_one_after_the_other_are_exactly_the_network(network, size):
    image = torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8)
    backbone = split(network)
    assert backbone(image).equal(network(image))


@torch.inference_mode()
def test_a_network_that_averages_frames_is_split_exactly_too():
    network = fanet18(4, averages=True).eval()
    image = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    assert split(network)(image).equal(network(image))


def test_the_channels_are_those_of_the_maps(network):
    backbone = split(network).eval()
    shallow = backbone.shallow(torch.rand(1, 3, 64, 96) * 255)
    deep = backbone.deep(shallow)
    features = backbone.merge(shallow, deep)
    assert shallow.out.shape[1] == backbone.shallow_channels
    assert deep.shape[1] == backbone.deep_channels
    assert features.shape[1] == backbone.channels
    assert features.shape[2:] == shallow.x1.shape[2:]
    assert (features < 0).any(), "features are taken before the last ReLU"
    assert backbone.head(features).shape[:2] == (1, backbone.classes)


def test_the_parts_share_the_weights_of_the_network(network):
    backbone = split(network)
    assert {id(parameter) for parameter in backbone.parameters()} == {
        id(parameter) for parameter in network.parameters()
    }


@pytest.mark.parametrize("network", [BASELINES["enet"](), nn.Identity()], ids=["enet", "identity"])
def test_another_network_is_refused_in_a_sentence(network):
    with pytest.raises(ValueError, match="expected a network that video methods can split: swiftnet18, fanet18"):
        split(network)


def test_a_fanet_with_an_encoder_of_one_s_own_is_refused():
    class Own(nn.Module):
        channels = (64, 128, 256, 512)

    with pytest.raises(ValueError, match="encoder is a Own; expected a ResNet"):
        split(FANet(Own(), 4))
