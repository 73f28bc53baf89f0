"""Models that are quantized in several tests, and how their results are compared."""

from pathlib import Path

import numpy as np
import onnxruntime

import dataflow as df
from dataflow import ops

EXAMPLE = Path(__file__).parents[2] / "examples/digits"
DIGITS, DATA = str(EXAMPLE / "digits5.onnx"), str(EXAMPLE / "digits.npz")


def random(*shape, seed=0):
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def in_runtime(path, inputs):
    """As the nodes say, one by one: no products of bytes, which saturate on some processors."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))


def off(found, expected):
    """The error as a part of the expected values' deviation."""
    return np.sqrt(((found - expected) ** 2).mean()) / expected.std()


def linear():
    """A product of (batch, 12) and a weight (12, 5), and a bias."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 12))
    y = ops.matmul(x, g.parameter("w", random(12, 5, seed=1)))
    g.output("y", ops.add(y, g.parameter("b", random(5, seed=2))))
    return df.Model(g.build())
