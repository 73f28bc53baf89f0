"""A few nodes are replaced; what is not stays itself."""

import numpy as np

import dataflow as df
from dataflow import ops
from dataflow.ir.rewrite import replace_nodes
from dataflow.lower.placement import Pins, targets_of
from dataflow.ops.rules.subgraph import inline
from dataflow.passes.pipeline import PIPELINE, Context, run_phases
from dataflow.plugin import default_registry


def graph():
    """y = relu(x + 1) * x, and z = tanh of the sum."""
    g = df.GraphBuilder("g")
    x = g.input("x", df.float32, (3,))
    total = x + 1.0
    relu = ops.relu(total, name="relu")
    y, z = relu * x, ops.tanh(total, name="tanh")
    g.output("y", y)
    g.output("z", z)
    return g.build()


def results(graph):
    return df.Session(df.Model(graph), devices=["cpu"], fold=False, fuse=False).run({"x": np.float32([-2, 0.5, 3])})


def test_others_stay_themselves_and_read_what_is_new():
    before = graph()
    relu = next(node for node in before.nodes if node.name == "relu")

    def replace(builder, node, new):
        assert node is relu
        return (ops.maximum(new[node.inputs[0]], 0.0, name="larger"),)

    after = replace_nodes(before, {relu}, replace)
    after.check()
    kept = [node for node in before.nodes if node is not relu and relu.outputs[0] not in node.inputs]
    assert [node for node in after.nodes if node in kept] == kept
    assert after.inputs == before.inputs
    assert before.initializers.keys() < after.initializers.keys()  # with the zero, whose name is another one's
    assert len({value.name for value in after.initializers}) == len(after.initializers)
    first, second = results(before), results(after)
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)


def test_a_result_may_be_a_value_that_is_there():
    before = graph()
    at = {node for node in before.nodes if node.name in ("relu", "tanh")}
    after = replace_nodes(before, at, lambda builder, node, new: (new[node.inputs[0]],))
    after.check()
    assert after.outputs["z"] is before.nodes[0].outputs[0]
    assert len(after.nodes) == len(before.nodes) - 2
    assert after.nodes[-1].inputs == (before.nodes[0].outputs[0], before.inputs[0])


def test_what_replaces_one_node_is_read_where_another_is_replaced():
    before = graph()
    relu, product = (next(n for n in before.nodes if n.op is op) for op in (ops.relu, ops.mul))

    def replace(builder, node, new):
        if node is relu:
            return (ops.neg(new[node.inputs[0]]),)
        return (ops.sub(new[node.inputs[0]], new[node.inputs[1]]),)

    after = replace_nodes(before, {relu, product}, replace)
    after.check()
    np.testing.assert_array_equal(results(after)["y"], [3.0, -2.0, -7.0])


def test_what_is_known_of_a_graph_is_found_once():
    first = graph()
    assert first.readers() is first.readers()
    assert first.producers() is first.producers()
    assert first.has(ops.softmax, ops.relu)
    assert not first.has(ops.softmax)
    relu = next(node for node in first.nodes if node.op is ops.relu)
    second = replace_nodes(first, {relu}, lambda builder, node, new: (new[node.inputs[0]],))
    assert not second.has(ops.relu)
    assert relu not in second.producers().values()


def test_passes_without_a_match_give_the_graph_itself():
    given = graph()
    registry = default_registry()
    targets = targets_of(Pins(("cpu", "numpy")), registry)
    unfused = [p for p in PIPELINE if p.name not in ("fuse_elementwise", "fuse")]
    assert run_phases(unfused, ["simplify", "fold", "fuse"], given, Context((), {}, targets, registry.ops)) is given


def test_constants_without_a_name_are_literals_whatever_others_are_called():
    g = df.GraphBuilder()
    stored = [g.constant(np.ones(2), "constant"), g.constant(np.ones(2), "constant"), g.constant([1.0])]
    g.output("y", stored[0])
    made = g.build()
    assert [made.initializers[value].literal for value in stored] == [False, False, True]
    assert stored[0].name == "constant"
    other = df.GraphBuilder()
    copies = inline(other, made, ())
    other.output("y", copies[stored[0]])
    inlined = other.build()
    assert [inlined.initializers[copies[value]].literal for value in stored] == [False, False, True]
