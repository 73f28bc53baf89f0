"""What a model gives in float64, to tell whose error is whose: the same graph on the NumPy device."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import dataflow as df

ERROR_GOAL = 4.0  # times the peer's


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose float32 tensors, inputs, outputs and casts are float64."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    graph = twin.graph
    for tensor in graph.initializer:
        _widen(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return twin


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def exact(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], output: str) -> np.ndarray:
    """The value ``output`` in float64."""
    wide = {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in feeds.items()}
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(in_float64(model), f"{folder}/wide.onnx")
        session = df.Session(df.load(f"{folder}/wide.onnx"), devices=["numpy"], fuse=False)
        result: np.ndarray = session.run(wide, [output])[output]
    assert result.dtype == np.float64, result.dtype
    return result
