"""The light models of the onnx package with random weights instead of constant ones.

As shipped nearly every output is 1/1000 whatever the input is, so nothing that is compared on them can be wrong. Here
each weight that a ``ConstantOfShape`` node makes becomes a stored tensor: normal, scaled by its fan-in, seeded by the
names of model and tensor. ``weights.json`` has a digest of each model's weights, so that they are known to be those
that ``logits.npz`` was recorded with.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

HERE = Path(__file__).parent
SHIPPED = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
INPUTS = 2


def seeded(name: str, *, check: bool = True, salt: str = "") -> tuple[onnx.ModelProto, str]:
    """The model, and the name of its value before the final Softmax; with ``salt`` its weights are others."""
    model = onnx.load(SHIPPED / f"light_{name}.onnx")
    graph = model.graph
    readers = {n: (node, i) for node in graph.node for i, n in enumerate(node.input)}
    shapes = {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in graph.node if n.op_type == "Constant"}
    shapes |= {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    digest = hashlib.sha256()
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if node.op_type != "ConstantOfShape" or node.output[0] not in readers:
            continue
        reader, input_index = readers[node.output[0]]
        if reader.op_type == "Unsqueeze":
            reader, input_index = readers[reader.output[0]]
        shape = tuple(int(d) for d in shapes[node.input[0]])
        array = weights(name + salt, node.output[0], shape, reader, input_index)
        digest.update(array.tobytes())
        tensor = numpy_helper.from_array(array, node.output[0])
        del graph.node[index]
        graph.initializer.append(tensor)
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    recorded = json.loads((HERE / "weights.json").read_text()) if check else {name: digest.hexdigest()}
    assert recorded[name] == digest.hexdigest(), f"{name}: its weights are not those that were recorded"
    return model, logits_of(model)


def weights(model: str, name: str, shape: tuple[int, ...], reader: onnx.NodeProto, input_index: int) -> np.ndarray:
    """A random tensor for operand ``place`` of ``reader``."""
    random = np.random.Generator(np.random.Philox(key=zlib.crc32(f"{model}/{name}".encode())))
    if reader.op_type in ("Conv", "Gemm", "MatMul") and len(shape) > 1:
        transposed = any(a.name == "transB" and a.i for a in reader.attribute)
        dense = reader.op_type != "Conv"
        fan_in = int(np.prod(shape[1:])) if not dense else shape[1] if transposed else shape[0]
        return (random.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(np.float32)
    if reader.op_type == "BatchNormalization":
        if input_index in (1, 4):  # scale, variance
            return random.uniform(0.7, 1.3, shape).astype(np.float32)
        return (0.1 * random.standard_normal(shape)).astype(np.float32)
    if reader.op_type == "Mul":
        return random.uniform(0.7, 1.3, shape).astype(np.float32)
    return (0.1 * random.standard_normal(shape)).astype(np.float32)


def logits_of(model: onnx.ModelProto) -> str:
    """The value before the final Softmax, or the output where there is none."""
    makers = {n: node for node in model.graph.node for n in node.output}
    name = model.graph.output[0].name
    while makers[name].op_type in ("Softmax", "Reshape", "Identity"):
        node = makers[name]
        name = node.input[0]
        if node.op_type == "Softmax":
            break
    return name


def inputs_of(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    """Two images of noise for the model."""
    stored = {t.name for t in model.graph.initializer}
    (value,) = [v for v in model.graph.input if v.name not in stored]
    shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    random = np.random.Generator(np.random.Philox(key=7))
    return [{value.name: random.standard_normal(shape).astype(np.float32)} for _ in range(INPUTS)]
