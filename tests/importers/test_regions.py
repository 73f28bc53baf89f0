"""Shapes that depend on data: cut into regions, each planned when its sizes are known."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow.passes.dynamic_regions import split
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

node = helper.make_node
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((5, 3)).astype(np.float32)


def proto(nodes, stored=(), out=("y",), inputs=(("x", TensorProto.FLOAT, ["rows", 5]),)):
    kinds = {name: TensorProto.INT64 if name.startswith("i") else TensorProto.FLOAT for name in out}
    return onnx_model(nodes, inputs, [(name, kind, None) for name, kind in kinds.items()], stored)


def chosen_rows():
    """A product of the rows whose sum is positive, and where they were."""
    nodes = [
        node("ReduceSum", ["x", "one"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["good"]),
        node("Compress", ["x", "good"], ["kept"], axis=0),
        node("MatMul", ["kept", "w"], ["h"]),
        node("Relu", ["h"], ["y"]),
        node("NonZero", ["good"], ["where"]),
        node("Squeeze", ["where", "nought"], ["i"]),
    ]
    stored = [("one", np.array([1])), ("zero", np.float32(0)), ("w", W), ("nought", np.array([0]))]
    return proto(nodes, stored, out=("y", "i"))


def agree(model, feeds, devices=("cpu",)):
    data = model.SerializeToString()
    expected = onnxruntime.InferenceSession(data).run(None, feeds)
    session = df.Session(load_bytes(data), devices=list(devices))
    for _ in range(2):
        found = session.run(feeds)
        for array, (name, ours) in zip(expected, found.items(), strict=True):
            assert ours.shape == array.shape, name
            assert ours.dtype == array.dtype
            np.testing.assert_allclose(ours, array, rtol=1e-5, atol=1e-5)
    return session


@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("devices", [("cpu",), ("numpy",)])
def test_rows_that_are_chosen(rows, devices):
    agree(chosen_rows(), {"x": RANDOM.standard_normal((rows, 5)).astype(np.float32)}, devices)


def test_nothing_and_everything_chosen():
    x = np.abs(RANDOM.standard_normal((6, 5))).astype(np.float32)
    session = agree(chosen_rows(), {"x": x})
    assert session.run({"x": -x})["y"].shape == (0, 3)


def test_a_device_with_its_own_memory(remote):
    x = RANDOM.standard_normal((9, 5)).astype(np.float32)
    data = chosen_rows().SerializeToString()
    session = df.Session(load_bytes(data), devices=["remote", "cpu"], registry=remote)
    (expected, _) = onnxruntime.InferenceSession(data).run(None, {"x": x})
    np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-5, atol=1e-5)


def test_what_does_not_depend_on_data_is_planned_apart_and_plans_are_kept_by_size():
    model = load_bytes(chosen_rows().SerializeToString())
    regions = split(model.graph)
    assert [len(r.reads) for r in regions] == [2, 0]
    assert {n.op.name for n in regions[1].graph.nodes} >= {"gather", "matmul", "nonzero"}
    session = df.Session(model, devices=["cpu"])
    with pytest.raises(df.ModelError, match=r"Compress '\w+', opset 18.*depends on data"):
        session.plan((4, 5))
    x = np.ones((4, 5), np.float32)
    session.run(x)
    assert len(session.plans) == 2
    session.run(x * 2)
    assert len(session.plans) == 2
    session.run(x * np.array([[1], [1], [-1], [1]], np.float32))
    assert len(session.plans) == 3  # the first region's is the same
    for _ in range(40):
        session.run(RANDOM.standard_normal((int(RANDOM.integers(1, 99)), 5)).astype(np.float32))
    assert len(session.plans) == 32  # as many per region as a model without regions keeps


def test_inner_values_and_own_arrays():
    x = RANDOM.standard_normal((7, 5)).astype(np.float32)
    session = df.Session(load_bytes(chosen_rows().SerializeToString()), devices=["cpu"])
    np.testing.assert_array_equal(session.run(x, outputs=["kept"])["kept"], x[x.sum(1) > 0])
    results = session.run(x)
    mine = np.empty_like(results["y"])
    assert session.run(x, out={"y": mine})["y"] is mine
    np.testing.assert_array_equal(mine, results["y"])
    with pytest.raises(df.InputError, match=r"out\['y'\]"):
        session.run(x, out={"y": np.empty((1, 1), np.float32)})


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (-3, 99), (2, 2), (4, 1), (-99, -1)])
def test_a_slice_between_computed_ends(start, stop):
    ends = (("a", TensorProto.INT64, [1]), ("b", TensorProto.INT64, [1]))
    nodes = [
        node("Neg", ["a"], ["na"]),
        node("Neg", ["na"], ["aa"]),  # computed, not fed
        node("Slice", ["x", "aa", "b", "axes"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    model = proto(nodes, [("axes", np.array([0])), ("w", W)], inputs=(("x", TensorProto.FLOAT, ["rows", 5]), *ends))
    agree(
        model, {"x": RANDOM.standard_normal((6, 5)).astype(np.float32), "a": np.array([start]), "b": np.array([stop])}
    )


FAR = 1 << 62
SLICES = [
    (0, 3, 1), (0, 100, 1), (1, FAR, 1), (2, 5, 1), (5, 2, 1), (-3, FAR, 1), (-5, -2, 1), (-2, -5, 1), (-4, 3, 1),
    (2, -2, 1), (0, -1, 1), (0, 7, 2), (-7, 6, 3), (FAR, -FAR, -1), (4, -FAR, -1), (-2, 1, -1), (3, -3, -2),
    (-1, -4, -1),
]  # fmt: skip


@pytest.mark.parametrize("bounds", SLICES, ids=str)
def test_a_slice_of_an_axis_whose_size_is_data_is_clamped(bounds):
    start, stop, step = bounds
    nodes = [
        node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
        node("Greater", ["m", "zero"], ["good"]),
        node("Compress", ["x", "good"], ["kept"], axis=0),
        node("Slice", ["kept", "start", "stop", "axes", "step"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
        node("Shape", ["s"], ["i"]),
    ]
    ends = [("start", np.array([start])), ("stop", np.array([stop])), ("step", np.array([step]))]
    stored = [("zero", np.float32(0)), ("axes", np.array([0])), ("w", W), *ends]
    model = proto(nodes, stored, out=("y", "i"))
    model.opset_import[0].version = 17
    data = model.SerializeToString()
    session, theirs = df.Session(load_bytes(data), devices=["cpu"]), onnxruntime.InferenceSession(data)
    for count in (0, 1, 2, 3, 4, 6, 9):
        x = -np.ones((12, 5), np.float32)
        x[2 : 2 + count] = np.abs(RANDOM.standard_normal((count, 5)))
        expected, found = theirs.run(None, {"x": x}), session.run({"x": x})
        assert found["i"].tolist() == expected[1].tolist(), count
        np.testing.assert_allclose(found["y"], expected[0], rtol=1e-5, atol=1e-5)


def test_a_run_of_many_regions_makes_no_plan_that_was_made():
    nodes, name = [], "x"
    for index in range(20):
        nodes += [
            node("ReduceMax", [name], [f"m{index}"], axes=[1], keepdims=0),
            node("Greater", [f"m{index}", "zero"], [f"g{index}"]),
            node("Compress", [name, f"g{index}"], [f"c{index}"], axis=0),
        ]
        name = f"c{index}"
    nodes.append(node("Relu", [name], ["y"]))
    model = proto(nodes, [("zero", np.float32(-1))])
    model.opset_import[0].version = 17
    session = df.Session(load_bytes(model.SerializeToString()), devices=["cpu"])
    x = RANDOM.standard_normal((40, 5)).astype(np.float32)
    session.run(x)
    made = [id(plan) for plan in session.plans]
    assert len(made) > 16
    session.run(x)
    assert sorted(id(plan) for plan in session.plans) == sorted(made)


@pytest.mark.parametrize("shape", [[5, 6], [-1, 3], [0, -1], [2, -1, 3], [30]])
def test_a_reshape_to_a_computed_shape(shape):
    inputs = (("x", TensorProto.FLOAT, ["rows", 5]), ("shape", TensorProto.INT64, [len(shape)]))
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("Exp", ["r"], ["y"])]
    x = RANDOM.standard_normal((6, 5)).astype(np.float32)
    agree(proto(nodes, inputs=inputs), {"x": x, "shape": np.array(shape)})


def test_a_range_of_computed_length_and_an_expansion():
    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Range", ["zero", "top", "step"], ["r"]),
        node("Shape", ["r"], ["n"]),
        node("Concat", ["n", "five"], ["target"], axis=0),
        node("Unsqueeze", ["r", "five1"], ["column"]),
        node("Expand", ["column", "target"], ["y"]),
    ]
    stored = [("zero", np.float32(0)), ("step", np.float32(0.25)), ("five", np.array([5])), ("five1", np.array([1]))]
    agree(proto(nodes, stored), {"x": np.array([[1, 2, 3, 0.1, 0]], np.float32)})


def test_wrong_sizes_are_named():
    inputs = (("x", TensorProto.FLOAT, ["rows", 5]), ("shape", TensorProto.INT64, [2]))
    model = proto([node("Reshape", ["x", "shape"], ["y"], name="mine")], inputs=inputs)
    session = df.Session(load_bytes(model.SerializeToString()), devices=["cpu"])
    x = np.zeros((4, 5), np.float32)
    with pytest.raises(df.InputError, match=r"Reshape 'mine'"):
        session.run({"x": x, "shape": np.array([3, 7])})
    with pytest.raises(df.InputError, match=r"Reshape 'mine'.*its size is computed, and is -2"):
        session.run({"x": x, "shape": np.array([-2, 7])})


def test_behind_the_loss_they_do_not_matter():
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("NonZero", ["y"], ["i"]),
    ]
    model = load_bytes(proto(nodes, [("w", W)], out=("y", "i")).SerializeToString())
    with df.Trainer(model, loss="mse", output="y", devices=["cpu"]) as trainer:
        losses = [
            trainer.step({"x": np.ones((4, 5), np.float32), "labels": np.ones((4, 3), np.float32)}) for _ in range(5)
        ]
    assert losses[-1] < losses[0]
