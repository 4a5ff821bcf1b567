"""int8 for ONNX files: which convolutions, their weights in 7 bits, and the calibration.

ONNX Runtime rounds each weight to the nearest step. Here the weights are rounded before, with regard to their inputs
(see rounding.py), to multiples of the step that ONNX Runtime then leaves unchanged.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from streamseg.engine.rounding import InputStatistics, round_weights
from streamseg.engine.runtime import ENTRY, ExportedEngine, Manifest, open_onnx
from streamseg.io.checksums import write_checksum

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

MIN_WEIGHTS = 2**15
"""Convolutions with fewer weights stay in fp32: they take little time."""
FIRST_FP32 = 4
"""So do the first of the others, in the first two blocks: rounding there does the most harm to flat surfaces."""

OPERATORS = ("Conv", "Relu")
"""The operators that may compute in int8; sums, attention and resizes stay in fp32."""


def quantise_onnx(fp32: Path, path: Path, manifest: Manifest, frames: Sequence[Tensor]) -> None:
    """Write an int8 version of an ONNX file, calibrated with frames (3, H, W)."""
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    network, exported = onnx.load(fp32), open_onnx(fp32, torch.device("cpu"))
    round_int8_weights(network, iter(CalibrationReader(exported, frames).get_next, None))
    quantize_static(
        network,
        path,
        CalibrationReader(exported, frames),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=[*OPERATORS],
        nodes_to_quantize=int8_node_names(network),
        per_channel=True,
        reduce_range=True,  # 7-bit weights: also correct on processors without VNNI
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    written = onnx.load(path)
    onnx.helper.set_model_props(written, {ENTRY: manifest.to_json()})
    onnx.save(written, path)
    write_checksum(path)


class CalibrationReader:
    """The inputs for calibration, in the form that ONNX Runtime expects: get_next() until it returns None."""

    def __init__(self, exported: ExportedEngine, frames: Sequence[Tensor]):
        self.inputs = calibration_inputs(exported, frames)

    def get_next(self) -> dict | None:
        inputs = next(self.inputs, None)
        return inputs and {name: tensor.numpy() for name, tensor in inputs.items()}


def calibration_inputs(exported: ExportedEngine, frames: Sequence[Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs of a file for each frame; for video also with a full window of it as the past."""
    for frame in frames:
        inputs = exported.name_inputs(frame, torch.zeros(exported.context_shape), 0.0)
        yield inputs
        if exported.manifest.state:
            outputs = exported.run(inputs)
            earlier = max(1, exported.manifest.window - 1)
            yield exported.name_inputs(frame, earlier * exported.join_context(outputs)[0], float(earlier))


def int8_convolutions(network: "ModelProto") -> "list[NodeProto]":
    """Return the convolutions of a network that compute in int8, in the order of the network."""
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in network.graph.initializer}
    large = [node for node in network.graph.node if node.op_type == "Conv" and sizes[node.input[1]] >= MIN_WEIGHTS]
    return large[FIRST_FP32:]


def int8_node_names(network: "ModelProto") -> list[str]:
    """Return the names of the convolutions that compute in int8, and of the ReLUs after them."""
    convolutions = int8_convolutions(network)
    outputs = {node.output[0] for node in convolutions}
    relus = [node for node in network.graph.node if node.op_type == "Relu" and node.input[0] in outputs]
    return [node.name for node in (*convolutions, *relus)]


def round_int8_weights(network: "ModelProto", feeds: Iterable[Mapping[str, object]]) -> None:
    """Round the weights of the convolutions that compute in int8, and correct their biases, in place.

    Args:
        feeds: Inputs of the network, as arrays by name.
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
    # a copy of the network whose outputs are the inputs of these convolutions
    copy, names = onnx.ModelProto(), list(dict.fromkeys(node.input[0] for node in nodes))
    copy.CopyFrom(network)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
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
