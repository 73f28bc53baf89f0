"""What is added to the gradient of a norm's operand becomes its addend, where it is there before."""

import numpy as np

import dataflow as df
from dataflow.passes.training.addends import add_to_gradients
from tests.support import targets_of

ops = df.ops
ADDING = targets_of("layer_norm_grad", "add", "neg")
RANDOM = np.random.default_rng(7)
FEEDS = {name: RANDOM.standard_normal((4, 6)).astype(np.float32) for name in ("dy", "x", "z")}
FEEDS |= {name: RANDOM.uniform(0.5, 2, 4).astype(np.float32) for name in ("mean", "inverse")}


def graph_of(addend):
    """A norm's gradient, a reader of another of its results, then the sum of ``addend(dx, dscale, z)``."""
    g = df.GraphBuilder()
    value = {name: g.input(name, df.float32, array.shape) for name, array in FEEDS.items()}
    dx, dscale, _ = g.add(
        ops.layer_norm_grad, (value["dy"], value["x"], None, value["mean"], value["inverse"]), {}
    ).outputs
    g.output("dscale", ops.neg(dscale))
    g.output("y", addend(dx, dscale, value["z"]))
    return g.build()


def joined(addend):
    """The ops after the pass, once the results were compared with those before it."""
    graph = graph_of(addend)
    made = add_to_gradients(graph, ADDING)
    after, before = (
        df.Session(df.Model(each), devices=["numpy"], fold=False, fuse=False).run(FEEDS) for each in (made, graph)
    )
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-6, atol=1e-6)
    return [node.op.name for node in made.nodes]


def test_a_sum_becomes_the_addend():
    assert joined(lambda dx, dscale, z: ops.add(z, dx)) == ["layer_norm_grad", "neg"]


def test_what_comes_later_is_broadcast_or_is_read_elsewhere_stays():
    for addend in (
        lambda dx, dscale, z: ops.add(dx, ops.neg(z)),
        lambda dx, dscale, z: ops.add(dx, dscale),
        lambda dx, dscale, z: ops.add(dx, dx),
        lambda dx, dscale, z: ops.add(ops.add(dx, z), ops.neg(dx)),
    ):
        assert "add" in joined(addend)


def test_rows_are_added_onto_what_they_are_added_to():
    g = df.GraphBuilder()
    index, rows, table = (
        g.input("i", df.int64, (3,)),
        g.input("rows", df.float32, (3, 2)),
        g.input("t", df.float32, (5, 2)),
    )
    g.output("y", ops.add(ops.index_add(index, rows, size=5), table))
    made = add_to_gradients(g.build(), targets_of("index_add", "add"))
    assert [node.op.name for node in made.nodes] == ["index_add"]
    feeds = {"i": np.array([4, 1, 4]), "rows": np.ones((3, 2), np.float32), "t": np.full((5, 2), 2, np.float32)}
    found = df.Session(df.Model(made), devices=["numpy"], fold=False, fuse=False).run(feeds)["y"]
    np.testing.assert_array_equal(found[:, 0], [2, 3, 2, 2, 4])
