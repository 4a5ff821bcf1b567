"""Which convolutions of an ONNX file compute in int8, and their weights in 7 bits.

ONNX Runtime rounds weights one by one. Here they are rounded before, as the inputs need it (see rounding.py), to
numbers that it then finds as they are.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from streamseg.engine.rounding import InputStatistics, round_weights

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

LARGE = 2**15
"""Convolutions of fewer weights stay in fp32: they cost little."""
SENSITIVE = 4
"""So do so many of the others: those of the first two blocks, which see most of what rounding does to flat surfaces."""


def int8_convolutions(network: "ModelProto") -> "list[NodeProto]":
    """The convolutions of a network that compute in int8, in the order of the network."""
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in network.graph.initializer}
    found = [node for node in network.graph.node if node.op_type == "Conv" and sizes[node.input[1]] >= LARGE]
    return found[SENSITIVE:]


def names_of_int8(network: "ModelProto") -> list[str]:
    """The names of the convolutions that compute in int8, and of the ReLUs after them."""
    nodes = int8_convolutions(network)
    given = {node.output[0] for node in nodes}
    after = [node for node in network.graph.node if node.op_type == "Relu" and node.input[0] in given]
    return [node.name for node in (*nodes, *after)]


def round_network(network: "ModelProto", feeds: Iterable[Mapping[str, object]]) -> None:
    """Round the weights of the convolutions that compute in int8, and correct their biases, in place.

    Args:
        feeds: What goes into the network, several times.
    """
    import onnx
    import onnxruntime
    from onnx import numpy_helper

    nodes = int8_convolutions(network)
    tensors = {tensor.name: tensor for tensor in network.graph.initializer}
    statistics = {}
    for node in nodes:
        options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        weight = torch.from_numpy(numpy_helper.to_array(tensors[node.input[1]]).copy())
        stride, padding = options.get("strides", [1, 1])[0], options.get("pads", [0])[0]
        statistics[node.name] = weight, InputStatistics(weight, stride, padding)
    twin, names = onnx.ModelProto(), list(dict.fromkeys(node.input[0] for node in nodes))
    twin.CopyFrom(network)
    del twin.graph.output[:]
    twin.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    session = onnxruntime.InferenceSession(twin.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        maps = dict(zip(names, session.run(names, dict(feed)), strict=True))
        for node in nodes:
            statistics[node.name][1].add(torch.from_numpy(maps[node.input[0]]))
    for node in nodes:
        weight, inputs = statistics[node.name]
        rounded, scales, correction = round_weights(weight, inputs)
        values, bias = (rounded * scales.view(-1, 1, 1, 1)).numpy(), numpy_helper.to_array(tensors[node.input[2]])
        tensors[node.input[1]].CopyFrom(numpy_helper.from_array(values, node.input[1]))
        tensors[node.input[2]].CopyFrom(numpy_helper.from_array(bias + correction.numpy(), node.input[2]))
