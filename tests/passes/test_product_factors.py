"""Factors of the larger operand of a product move to the smaller one."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.product_factors import move_product_factors


def product(rows, factor, *, scaled=1, read=False, dtype="float32", bias=False):
    """A product of q (2, rows, 8) with k (2, 8, 40), of which one is scaled."""
    g = df.GraphBuilder()
    operands = [g.input("q", dtype, (2, rows, 8)), g.input("k", dtype, (2, 8, 40))]
    operands[scaled] = df.ops.mul(g.constant(np.asarray(factor, dtype)), operands[scaled])
    y = df.ops.matmul(*operands)
    if bias:
        y = df.ops.add(y, g.constant(np.arange(40).astype(dtype)))
    g.output("y", y)
    if read:
        g.output("scaled", operands[scaled])
    return g.build()


def scaled_sizes(graph):
    return [node.inputs[0].type.elements for node in graph.nodes if node.op.name == "mul"]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_the_smaller_operand_is_scaled(rows, bias):
    graph = product(rows, 0.25, bias=bias)
    assert scaled_sizes(move_product_factors(graph)) == [2 * rows * 8]
    rng = np.random.default_rng(rows)
    q, k = rng.standard_normal((2, rows, 8), np.float32), rng.standard_normal((2, 8, 40), np.float32)
    found = df.Session(df.Model(graph), ["cpu"]).run({"q": q, "k": k})["y"]
    expected = q.astype(float) @ (0.25 * k.astype(float)) + (np.arange(40) if bias else 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "graph",
    [
        product(40, 0.25),  # of one size
        product(1, 0.25, scaled=0),  # the smaller one already
        product(1, 0.25, read=True),
        product(1, 2.0),  # might overflow
        product(1, 0.0),  # of an infinity it makes no number
        product(1, np.nan),
        product(1, np.full((2, 8, 40), 0.5)),  # not one number
        product(1, 0.25, dtype="float16"),
    ],
)
def test_others_stay(graph):
    assert move_product_factors(graph) is graph


def test_a_factor_that_changes_stays():
    g = df.GraphBuilder()
    q, k = g.input("q", df.float32, (1, 8)), g.input("k", df.float32, (8, 40))
    factor = g.parameter("factor", np.full((), 0.5, np.float32))
    g.output("y", df.ops.matmul(q, df.ops.mul(k, factor)))
    graph = g.build()
    assert move_product_factors(graph, mutable=["factor"]) is graph


def test_a_weight_of_fewer_bits_is_not_scaled():
    g = df.GraphBuilder("narrow")
    x = df.ops.mul(g.input("x", df.float32, (9, 4)), g.scalar(0.5, df.float32))
    g.output("y", df.ops.matmul(x, g.constant(np.ones((4, 3), np.float16))))
    graph = g.build()
    assert move_product_factors(graph) is graph
