"""Types of outputs that a file doesn't declare, as the package ``onnx`` infers them."""

from __future__ import annotations

import subprocess
import sys

import onnx
from google.protobuf.message import DecodeError

from dataflow import TensorType

from .records import ModelRecord
from .value_types import declared_type

_INFER = """
import sys, onnx
model = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(sys.stdin.buffer.read()))
sys.stdout.buffer.write(model.SerializeToString())
"""
_SECONDS = 60.0


def inferred_types(record: ModelRecord) -> dict[str, TensorType]:
    """The types of a model's outputs, by name, where a rank at least is inferred.

    A process of its own infers it, since an assertion in ``onnx`` ends the process for some files: a slice of an axis
    of size -1 is one.
    """
    command = [sys.executable, "-P", "-c", _INFER]
    try:
        done = subprocess.run(command, input=record.content.small, capture_output=True, timeout=_SECONDS, check=True)
        proto = onnx.ModelProto.FromString(done.stdout)
    except (OSError, subprocess.SubprocessError, DecodeError):  # a file that onnx can't read, or finds wrong
        return {}
    found = {value.name: declared_type(value) for value in proto.graph.output}
    return {name: inferred for name, inferred in found.items() if inferred is not None}
