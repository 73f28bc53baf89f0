"""Passes of plugins run where they say, and one that fails or breaks the graph is named."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.passes.pipeline import PIPELINE, arranged
from dataflow.plugin import Pass, hookimpl, rewrite
from dataflow.plugin.registry import load
from tests.support import refusal


def names(phase, *offered):
    return [one.name for one in arranged(offered) if one.phase == phase]


def offer(name, before=(), after=(), phase="fold", plugin="p", run=lambda graph, context: graph):
    return Pass(name, phase, run, before, after, plugin)


FOLDING = ["expand_blocks", "use_integers", "channels_last", "lookups", "constant_folding", "large_biases"]


def test_the_passes_of_the_core_are_in_their_order():
    assert arranged([]) == PIPELINE
    expected = ["identities", "merged_transpose", "conv_pads", "dead_code", "padding_taps", "upcast"]
    expected += ["transposed_matmul", "transposed_concat"]
    assert names("simplify") == expected
    assert names("fold") == [*FOLDING, "fold_affine"]


def test_a_pass_runs_as_late_as_it_may():
    assert names("fold", offer("own")) == [*FOLDING, "fold_affine", "own"]
    assert names("fold", offer("own", before=["fold_affine"])) == [*FOLDING, "own", "fold_affine"]
    assert names("fold", offer("own", before=["expand_blocks"]))[0] == "own"
    assert names("fold", offer("own", after=["constant_folding"]))[-1] == "own"
    two = offer("one", after=["two"], before=["fold_affine"]), offer("two", plugin="q")
    assert names("fold", *two) == [*FOLDING, "two", "one", "fold_affine"]
    assert names("fuse", *two) == names("fuse")


def refused(*offered):
    return refusal(df.PluginError, arranged, offered)


def test_what_can_not_be_ordered_names_the_plugin():
    assert refused(offer("own", before=["nothing"])) == (
        "pass 'own' of the plugin p refers to 'nothing'; passes of the phase 'fold' are: "
        "expand_blocks, use_integers, channels_last, lookups, constant_folding, large_biases, fold_affine, own"
    )
    circle = refused(offer("one", after=["two"]), offer("two", after=["one"], plugin="q"))
    assert circle.endswith("in a circle: pass 'one' of the plugin p, pass 'two' of the plugin q")
    assert "circle: pass 'own'" in refused(offer("own", before=["constant_folding"], after=["fold_affine"]))
    assert refused(offer("own"), offer("own", plugin="q")) == (
        "pass 'own' of the phase 'fold' is offered twice: by p and by q"
    )
    assert "is offered twice: by dataflow and by p" in refused(offer("fold_affine"))
    assert refused(offer("own", phase="last")) == (
        "pass 'own' of the plugin p has the phase 'last'; there are: differentiate, simplify, fold, fuse"
    )


class Plugin:
    def __init__(self, *passes):
        self.passes = passes

    def __repr__(self):
        return "mine"

    @hookimpl
    def dataflow_passes(self):
        return self.passes


def session(*passes, **options):
    """A session on y = relu(-x + 1) with these passes."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    g.output("y", ops.relu(ops.add(ops.neg(x), 1.0)))
    return df.Session(g.build(), ["cpu"], registry=load([Plugin(*passes)]), **options)


def without_relu(graph, context):
    return rewrite(graph, lambda builder, node, inputs: inputs[:1] if node.op.name == "relu" else None)


X = {"x": np.array([0, 1, 3], np.float32)}


@pytest.mark.parametrize("phase", ["simplify", "fold", "fuse"])
def test_a_pass_of_a_plugin_changes_what_runs(phase):
    mine = offer("mine", phase=phase, run=without_relu, before=["fuse"] if phase == "fuse" else ())
    np.testing.assert_array_equal(session(mine).run(X)["y"], [1, 0, -2])
    np.testing.assert_array_equal(
        session(dataclasses.replace(mine, phase="differentiate", before=())).run(X)["y"], [1, 0, 0]
    )


def test_options_switch_phases_of_plugins_off_too():
    assert session(offer("mine", phase="fuse", run=without_relu), fuse=False).run(X)["y"][2] == 0
    assert session(offer("mine", phase="fold", run=without_relu), fold=False).run(X)["y"][2] == 0


def test_a_model_in_training_passes_through_the_phase_before_gradients():
    seen = []

    def look(graph, context):
        seen.append((sorted(context.mutable), [node.op.name for node in graph.nodes]))
        return graph

    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("B", 2))
    g.output("y", ops.matmul(x, g.parameter("w", np.ones((2, 2), np.float32))))
    mine = offer("mine", phase="differentiate", run=look)
    trainer = df.Trainer(df.Model(g.build()), "mse", devices=["cpu"], registry=load([Plugin(mine)]))
    trainer.step({"x": np.ones((4, 2), np.float32), "labels": np.zeros((4, 2), np.float32)})
    mutable, found = seen[0]
    assert "w" in mutable and found == ["matmul"]


def test_a_pass_that_fails_is_named_with_its_plugin():
    def fail(graph, context):
        raise KeyError("axis")

    with pytest.raises(df.PluginError, match="pass 'mine' of the plugin mine failed: KeyError: 'axis'"):
        session(offer("mine", run=fail)).run(X)


def lost(graph, context):
    return dataclasses.replace(graph, nodes=graph.nodes[1:])


def retyped(graph, context):
    """Says that the result of an op on 3 elements has 4."""
    *nodes, last = graph.nodes
    y = df.Value(last.outputs[0].name, df.TensorType(df.float32, (4,)))
    return dataclasses.replace(graph, nodes=(*nodes, dataclasses.replace(last, outputs=(y,))), outputs={"y": y})


def grown(graph, context):
    """Inserts a node whose result has another element type than its op gives."""
    *nodes, last = graph.nodes
    wrong = df.Value("wrong", df.TensorType(df.float64, (3,)))
    node = df.Node(ops.neg, "wrong", (graph.inputs[0],), (wrong,), {})
    return dataclasses.replace(graph, nodes=(*nodes, node, last))


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda graph, context: None, "expected a Graph, got NoneType"),
        (lost, "is not defined before it"),
        (retyped, "its outputs were"),
        (grown, "its result %wrong: float64[3] should be float32[3]"),
    ],
)
def test_a_pass_that_breaks_the_graph_is_named_with_its_plugin(run, says):
    with pytest.raises(df.PluginError, match="pass 'mine' of the plugin mine returned an invalid graph: ") as caught:
        session(offer("mine", phase="simplify", run=run, before=["dead_code"])).run(X)
    assert says in str(caught.value)
