"""Integer weights whose products onnxruntime computes exactly on this machine.

Without VNNI it adds pairs of products of uint8 and int8 in 16 bits, where they saturate. What its quantizers offer
against that (``reduce_range``) is done to such weights here: int8 of 7 bits, which can't saturate. Elsewhere weights
have the whole range.
"""

from functools import cache

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from tests.support import onnx_model


@cache
def saturates():
    """Whether onnxruntime's products of uint8 and int8 do so."""
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    inputs = [("a", TensorProto.UINT8, [1, 64]), ("b", TensorProto.INT8, [64, 16])]
    proto = onnx_model([node], inputs, [("y", TensorProto.INT32, None)])
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    a, b = np.full((1, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    return bool((session.run(None, {"a": a, "b": b})[0] != 255 * 127 * 64).any())


def weights(random, kind, shape):
    """Random integers of a dtype."""
    limits = np.iinfo(kind)
    low, high = (-64, 63) if kind == np.int8 and saturates() else (limits.min, limits.max)
    return random.integers(low, high, shape, kind, endpoint=True)
