"""What waits for backward in 16 bits is what products read, where they read it rounded."""

import dataclasses

import numpy as np

import dataflow as df
from dataflow import ops
from dataflow.passes.narrow_storage import narrow_storage
from dataflow_numpy.evaluate import evaluate


def test_a_value_that_products_read_rounded_waits_so():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (16, 16))
    w = g.parameter("w", np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16))
    hidden = ops.mul(x, w)
    rounded = ops.cast(hidden, to=df.bfloat16)
    products = ops.matmul_rounded(rounded, rounded)
    g.output("loss", ops.reduce_sum(ops.add(products, hidden), axes=(0, 1)))
    g.output("dw", ops.mul(ops.exp(hidden), ops.matmul_rounded(rounded, rounded)))
    graph = dataclasses.replace(g.build(), stages={"forward": frozenset({"loss"}), "backward": frozenset({"dw"})})
    made = narrow_storage(graph, df.bfloat16, {"w"})
    made.check()
    casts = [node.outputs[0].type.dtype for node in made.nodes if node.op is ops.cast]
    assert casts == [df.bfloat16, df.float32, df.float32]  # once for all; for the sum of forward; again in backward
    feeds = {"x": np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)}
    given = (feeds["x"] * graph.initializers[w].array).astype(df.bfloat16.numpy).astype(np.float32)
    np.testing.assert_allclose(evaluate(made, feeds)["dw"], np.exp(given) * (given @ given), rtol=1e-5, atol=1e-5)
