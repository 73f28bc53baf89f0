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
import resource, sys, onnx
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)
model = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(sys.stdin.buffer.read()))
sys.stdout.buffer.write(model.SerializeToString())
"""
_SECONDS = 60.0  # of a machine that does much else
_CPU_SECONDS = 3  # and as many for each megabyte; large models take a fraction


def inferred_types(record: ModelRecord) -> dict[str, TensorType]:
    """The types of a model's outputs, by name, where a rank at least is inferred.

    A process of its own infers it, since an assertion in ``onnx`` ends the process for some files, as a slice of an
    axis of size -1 does, and others, as einsum equations without letters, never come to an end.
    """
    given = record.content.small
    command = [sys.executable, "-P", "-c", _INFER, str(_CPU_SECONDS * (1 + len(given) // 1_000_000))]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=_SECONDS, check=True)
        proto = onnx.ModelProto.FromString(done.stdout)
    except (OSError, subprocess.SubprocessError, DecodeError):  # a file that onnx can't read, or finds wrong
        return {}
    found = {value.name: declared_type(value) for value in proto.graph.output}
    return {name: inferred for name, inferred in found.items() if inferred is not None}
