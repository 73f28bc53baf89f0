"""Squares of what is kept are summed by one node, where a device has a kernel for many tensors."""

import numpy as np

import dataflow as df
from dataflow.passes.training.square_sums import join_square_sums
from tests.support import targets_of

ops = df.ops


JOINING = targets_of("square_sum", "square_sums")


def graph_of(kept=3, read=False):
    """Three sums of squares in a chain, of which the first tensors are outputs."""
    g = df.GraphBuilder()
    total, totals = None, []
    for index, shape in enumerate(((2, 3), (), (5,))):
        value = ops.neg(g.input(f"x{index}", df.float32, shape))
        if index < kept:
            g.output(f"y{index}", value)
        total = ops.square_sum(value, total)
        totals.append(total)
    g.output("total", ops.sqrt(total))
    if read:
        g.output("part", totals[1])
    return g.build()


def names_of(graph):
    return [node.op.name for node in graph.nodes]


def test_a_chain_is_one_node_with_the_same_result():
    joined = join_square_sums(graph_of(), JOINING)
    assert names_of(joined) == ["neg", "neg", "neg", "square_sums", "sqrt"]
    feeds = {"x0": np.full((2, 3), 2, np.float32), "x1": np.float32(3), "x2": np.arange(5, dtype=np.float32)}
    found = df.Session(df.Model(joined), devices=["numpy"], fold=False, fuse=False).run(feeds)
    assert found["total"] == np.sqrt(np.float32(24 + 9 + 30))


def test_what_would_be_held_for_it_or_is_read_between_ends_a_chain():
    for graph in (graph_of(kept=2), graph_of(read=True)):
        assert names_of(join_square_sums(graph, JOINING)) == ["neg", "neg", "square_sums", "neg", "square_sum", "sqrt"]
    assert names_of(join_square_sums(graph_of(kept=1), JOINING)) == names_of(graph_of())


def test_without_a_kernel_for_many_they_stay():
    graph = graph_of()
    assert join_square_sums(graph, targets_of("square_sum")) is graph
