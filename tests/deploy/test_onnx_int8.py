import pytest
import torch
from exports import exported as exported, moving

from streamseg.deploy.onnx_int8 import (
    MIN_WEIGHTS,
    calibration_inputs,
    int8_convolutions,
    int8_node_names,
    round_int8_weights,
)
from streamseg.engine.rounding import MAX_WEIGHT, round_weights
from streamseg.engine.runtime import open_exported


@pytest.fixture
def network(exported):
    return pytest.importorskip("onnx").load(exported("still.onnx"))


def weights(network):
    """The weights of the convolutions by the names of these."""
    onnx = pytest.importorskip("onnx")
    tensors = {tensor.name: tensor for tensor in network.graph.initializer}
    nodes = [node for node in network.graph.node if node.op_type == "Conv"]
    return {node.name: torch.tensor(onnx.numpy_helper.to_array(tensors[node.input[1]])) for node in nodes}


def test_small_convolutions_and_those_of_the_first_blocks_stay_in_fp32(network):
    found = [node.name for node in int8_convolutions(network)]
    large = [name for name, weight in weights(network).items() if weight.numel() >= MIN_WEIGHTS]
    first, second, *_ = large
    assert weights(network)[first].shape == weights(network)[second].shape == (64, 64, 3, 3)
    assert found == large[4:]
    assert [*weights(network)][-1] not in found  # the class scores: int8 would make ties
    others = [node for node in network.graph.node if node.name in {*int8_node_names(network)} - {*found}]
    assert {node.op_type for node in others} == {"Relu"}
    given = {node.output[0] for node in int8_convolutions(network)}
    assert others
    assert all(node.input[0] in given for node in others)


@pytest.mark.parametrize(("name", "stages"), [("any.onnx", 4), ("plus-any.onnx", 2)])
def test_calibration_gives_each_frame_alone_and_with_a_full_window_of_it(exported, name, stages):
    file = open_exported(exported(name))
    alone, streamed = calibration_inputs(file, moving(1, 96, 128))
    pasts = [f"past{stage}" for stage in range(1, stages + 1)]
    assert [*alone] == [*streamed] == ["frame", *pasts, "weight"]
    outputs = file.run(alone)
    for stage, past in enumerate(pasts, 1):
        assert not alone[past].any()
        torch.testing.assert_close(streamed[past], 2 * outputs[f"context{stage}"])  # of a window of 3
    assert (alone["weight"].item(), streamed["weight"].item()) == (0, 2)


def test_weights_are_rounded_to_values_that_onnx_runtime_keeps(network):
    onnxruntime = pytest.importorskip("onnxruntime")
    feeds = [{"frame": frame.permute(1, 2, 0)[None].numpy()} for frame in moving(4)]

    def labels():
        session = onnxruntime.InferenceSession(network.SerializeToString(), providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(["labels"], feeds[0])[0])

    before, expected = weights(network), labels()
    round_int8_weights(network, feeds)
    names = {node.name for node in int8_convolutions(network)}
    for name, weight in weights(network).items():
        assert weight.equal(before[name]) == (name not in names)
        if name in names:
            rounded, scales, _ = round_weights(weight)
            torch.testing.assert_close(rounded * scales.view(-1, 1, 1, 1), weight, atol=1e-7, rtol=1e-5)
            assert rounded.int().abs().max() == MAX_WEIGHT
            assert (weight - before[name]).norm() < 0.05 * before[name].norm()
    assert (labels() == expected).double().mean() > 0.95
