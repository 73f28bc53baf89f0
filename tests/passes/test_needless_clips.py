"""What keeps a value in a range that its quantization keeps it in too is left out."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops


def model(clipped, scale, zero):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (64,))
    y = clipped(x)
    ends = g.constant(np.float32(scale), "scale"), g.constant(zero, "zero")
    g.output("q", ops.quantize(y, *ends, axis=0))
    return df.Model(g.build())


def steps(made):
    plan = df.Session(made, ["cpu"]).plan({"x": (64,)})
    return [step.node.op.name for item in plan.items for step in item.steps]


@pytest.mark.parametrize(
    ("clipped", "scale", "zero", "needless"),
    [
        (ops.relu, 0.1, np.uint8(0), True),
        (ops.relu, 0.1, np.uint8(1), False),
        (ops.relu, 0.1, np.int8(-128), True),
        (lambda x: ops.clip(x, 0.0, 6.0), 6 / 255, np.uint8(0), True),
        (lambda x: ops.clip(x, 0.0, 6.0), 5.5 / 255, np.uint8(0), True),
        (lambda x: ops.clip(x, 0.0, 6.0), 7 / 255, np.uint8(0), False),
        (lambda x: ops.clip(x, -1.0, None), 1 / 127, np.uint8(128), False),
        (lambda x: ops.clip(x, -1.0, None), 1 / 127, np.uint8(127), True),
        (lambda x: ops.relu(ops.clip(x, -9.0, 9.0)), 0.03, np.uint8(0), True),
        (lambda x: ops.clip(x, 2.0, 1.0), 0.001, np.uint8(0), False),
    ],
)
def test_results_are_those_of_all_nodes(clipped, scale, zero, needless):
    made = model(clipped, scale, zero)
    x = np.linspace(-12, 12, 64).astype(np.float32)
    expected = df.Session(made, ["numpy"], fold=False, fuse=False).run({"x": x})["q"]
    np.testing.assert_array_equal(df.Session(made, ["cpu"]).run({"x": x})["q"], expected)
    assert (steps(made) == ["quantize"]) == needless
