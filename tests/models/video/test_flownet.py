import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from video_methods import make_frames

from streamseg.models.video.flownet import FLOW_SCALE, flownet, flownet_slim, load_flow, save_flow

# the factory, height and width, parameters, GMACs, as published
GOLDEN = [
    (flownet, (1024, 2048), 38_675_536, 168.403),
    (flownet, (512, 1024), 38_675_536, 42.101),
    (flownet, (256, 512), 38_675_536, 10.525),
    (flownet, (384, 512), 38_675_536, 15.788),
    (flownet_slim, (512, 1024), 5_462_296, 6.556),
]


@pytest.mark.parametrize(("build", "size", "parameters", "gmacs"), GOLDEN)
def test_parameters_and_cost_are_those_of_the_published_layers(build, size, parameters, gmacs):
    with torch.device("meta"):
        network = build(shrink=1)
        frame = torch.empty(1, 3, *size)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        flow = network(frame, frame)
    assert flow.shape == (1, 2, size[0] // 4, size[1] // 4)
    assert counter.get_total_flops() / 2e9 == pytest.approx(gmacs, abs=0.0006)


def test_frames_of_half_the_size_cost_a_quarter():
    with torch.device("meta"):
        network, frame = flownet_slim(), torch.empty(1, 3, 1024, 2048)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(frame, frame)
    assert counter.get_total_flops() / 2e9 == pytest.approx(6.556, abs=0.0006)


@torch.inference_mode()
@pytest.mark.parametrize("size", [(32, 32), (65, 101)])
def test_all_outputs_are_those_that_methods_take(size):
    torch.manual_seed(0)
    network = flownet_slim()
    torch.nn.init.normal_(network.flow2.weight, std=0.01)
    now, before = make_frames(2, size)
    outputs = network.outputs(now, before)
    height, width = (-(-side // 8) for side in size)
    assert outputs.flow.shape == (1, 2, height, width)
    assert outputs.detail.shape == (1, network.detail_channels, height, width)
    assert outputs.deep.shape[1] == network.deep_channels == 384
    assert len(outputs.pyramid) == 5
    assert outputs.flow.any()
    # units of 20 pixels of the input; the map has a quarter of them
    assert outputs.flow.equal(FLOW_SCALE / 4 * outputs.pyramid[0])
    assert network(now, before).equal(outputs.flow)


@torch.inference_mode()
def test_the_frames_are_not_interchangeable():
    torch.manual_seed(0)
    network = flownet_slim()
    torch.nn.init.normal_(network.flow2.weight, std=0.01)
    now, before = make_frames(2)
    assert not network(now, before).equal(network(before, now))


@torch.inference_mode()
def test_the_flow_is_zero_until_it_is_trained():
    now, before = make_frames(2)
    assert not flownet_slim()(now, before).any()


@torch.inference_mode()
def test_saved_weights_give_the_same_flow(tmp_path):
    network, other = flownet_slim(), flownet_slim()
    torch.nn.init.normal_(network.flow2.weight, std=0.01)
    save_flow(network, tmp_path / "flow.safetensors")
    load_flow(other, tmp_path / "flow.safetensors")
    now, before = make_frames(2)
    assert other(now, before).equal(network(now, before))


def test_weights_of_another_network_are_refused(tmp_path):
    save_flow(flownet_slim(), tmp_path / "flow.safetensors")
    with torch.device("meta"):
        network = flownet()
    with pytest.raises(ValueError, match="flow.safetensors does not hold this flow network"):
        load_flow(network, tmp_path / "flow.safetensors")


def test_a_shrink_of_0_is_refused():
    with pytest.raises(ValueError, match="shrink is 0; expected a whole number"):
        flownet_slim(shrink=0)
