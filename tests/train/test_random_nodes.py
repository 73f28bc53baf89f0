"""Random nodes of files in training: without a seed they draw anew in each step."""

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow.passes.random_keys import KEY_INPUT, with_key
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
BATCH = {"x": X, "labels": np.zeros((8, 6), np.float32)}
FIXED = "sgd:lr=0,momentum=0"  # so that only what is drawn differs between steps


def noisy(operator="RandomNormalLike", dropout=False, **seed):
    """The input times a weight and noise, which dropout may follow."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(operator, ["half" if operator == "Bernoulli" else "h"], ["noise"], **seed),
        helper.make_node("Mul", ["h", "noise"], ["d" if dropout else "y"]),
    ]
    if dropout:
        nodes.append(helper.make_node("Dropout", ["d"], ["y"]))
    if operator == "Bernoulli":
        nodes.insert(1, helper.make_node("Sigmoid", ["h"], ["half"]))
    shapes = [("x", TensorProto.FLOAT, ["n", 6])], [("y", TensorProto.FLOAT, ["n", 6])]
    proto = onnx_model(nodes, *shapes, [("w", np.eye(6, dtype=np.float32))])
    return load_bytes(proto.SerializeToString())


def losses(model, steps=4, **options):
    with df.Trainer(model, "mse", FIXED, devices=["cpu"], **options) as trainer:
        return [trainer.step(BATCH) for _ in range(steps)]


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_each_step_draws_anew_by_the_seed_of_the_trainer(operator):
    found = losses(noisy(operator))
    assert len(set(found)) == 4
    assert losses(noisy(operator)) == found != losses(noisy(operator), seed=1)


def test_a_seed_of_the_file_stays():
    assert len(set(losses(noisy(seed=3.0)))) == 1


def test_runs_and_evaluations_draw_the_same():
    model = noisy()
    first, again = (df.Session(model).run(X)["y"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len({df.evaluate(model, BATCH, loss="mse")["loss"] for _ in range(2)}) == 1


def test_dropout_beside_it_draws_other_numbers():
    """Of one key, two nodes of one stream would be zero at the same elements."""
    model = noisy("Bernoulli", dropout=True)
    large = {"x": np.ones((4096, 6), np.float32), "labels": np.zeros((4096, 6), np.float32)}
    kept = losses_of(model, large, dropout=True)
    chance = 1 / (1 + np.exp(-1))  # both keep an element: half of these, doubled by dropout
    np.testing.assert_allclose(kept, chance / 2 * 4, rtol=0.05)


def losses_of(model, batch, **options):
    with df.Trainer(model, "mse", FIXED, devices=["cpu"], **options) as trainer:
        return trainer.step(batch)


def test_a_resumed_run_draws_what_the_other_would_have(tmp_path):
    data = {"x": np.tile(X, (4, 1)), "labels": np.zeros((32, 6), np.float32)}
    rate = "sgd:lr=0.01,momentum=0"
    with df.Trainer(noisy(), "mse", rate, devices=["cpu"]) as trainer:
        expected = trainer.fit(data, epochs=4, batch_size=8, progress=False)["loss"]
    with df.Trainer(noisy(), "mse", rate, devices=["cpu"]) as trainer:
        trainer.fit(data, epochs=2, batch_size=8, progress=False, checkpoint=tmp_path)
    with df.Trainer(noisy(), "mse", rate, devices=["cpu"]) as trainer:
        found = trainer.fit(data, epochs=4, batch_size=8, progress=False, checkpoint=tmp_path, resume="auto")["loss"]
    assert found[-2:] == expected[-2:]


def test_random_nodes_in_branches_draw_anew_too():
    """As those outside of bodies; a resumed run draws what the other would have."""
    body = helper.make_graph(
        [helper.make_node("RandomNormalLike", ["h"], ["noise"]), helper.make_node("Mul", ["h", "noise"], ["out"])],
        "then", [], [helper.make_tensor_value_info("out", 1, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["h"], ["same"])], "else", [], [helper.make_tensor_value_info("same", 1, None)]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["on"], ["y"], then_branch=body, else_branch=other),
    ]
    inputs = [("x", TensorProto.FLOAT, ["n", 6]), ("on", TensorProto.BOOL, [])]
    proto = onnx_model(nodes, inputs, [("y", TensorProto.FLOAT, ["n", 6])], [("w", np.eye(6, dtype=np.float32))])
    data = proto.SerializeToString()

    def found(on):
        with df.Trainer(load_bytes(data), "mse", FIXED, devices=["cpu"]) as trainer:
            return [trainer.step({**BATCH, "on": np.array(on)}) for _ in range(3)]

    assert len(set(found(True))) == 3 and found(True) == found(True)
    assert len(set(found(False))) == 1


def test_the_gradient_of_a_loop_draws_what_the_loop_drew():
    """x times u, summed: its gradient is u, of each iteration."""
    body = helper.make_graph(
        [
            helper.make_node("RandomUniformLike", ["row"], ["u"]),
            helper.make_node("Mul", ["row", "u"], ["scaled"]),
            helper.make_node("Add", ["s", "scaled"], ["s2"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, 1, [6]) for name in ("s", "row")],
        [helper.make_tensor_value_info(name, 1, [6]) for name in ("s2", "u")],
    )
    nodes = [helper.make_node("Scan", ["z", "x"], ["y", "us"], body=body, num_scan_inputs=1)]
    shapes = [("z", 1, [6]), ("x", 1, [8, 6])], [("y", 1, [6]), ("us", 1, [8, 6])]
    graph = with_key(load_bytes(onnx_model(nodes, *shapes).SerializeToString()).graph_with_data(), drops=False)
    x = next(value for value in graph.inputs if value.name == "x")
    joint = vjp_graph(dataclasses.replace(graph, outputs={"y": graph.outputs["y"]}), [x])
    feeds = {"z": np.zeros(6, np.float32), "x": X, KEY_INPUT: np.array([3, 4], np.uint64)}
    drawn = df.Session(graph, devices=["cpu"]).run(feeds)["us"]
    assert len(np.unique(drawn)) == 48
    for device in ("cpu", "numpy"):
        results = df.Session(joint, devices=[device]).run({**feeds, "grad.y": np.ones(6, np.float32)})
        np.testing.assert_allclose(results["grad.x"], drawn, atol=1e-6)
