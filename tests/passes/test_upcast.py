"""Nodes of 16 bits compute in float32 where a device has no kernel for them, and round only where they must."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.lower.placement import Pins, targets_of
from dataflow.passes.upcast import upcast
from dataflow.planning.verify import check_plan
from dataflow.plugin.registry import default_registry
from dataflow_numpy.evaluate import evaluate
from tests.support import ops_of

RANDOM = np.random.default_rng(5)
SHORTEST = df.bfloat16.numpy


def compiled(graph, **options):
    """A session, and the ops that it runs."""
    session = df.Session(graph, ["cpu"], threads=1, **options)
    plan = session.plan({v.name: v.type.shape for v in graph.inputs})
    check_plan(plan)
    return session, ops_of(plan)


def float16(*shape):
    return RANDOM.standard_normal(shape).astype(np.float16)


def test_a_value_between_two_nodes_stays_float32():
    g = df.GraphBuilder()
    x = g.input("x", df.float16, (4, 9))
    g.output("y", ops.softmax(ops.sub(x, 300.0)))
    session, found = compiled(g.build())
    assert found == ["fused_elementwise", "softmax", "cast"]  # the first casts and subtracts
    data = float16(4, 9)
    exact = np.exp(data.astype(np.float64))
    exact /= exact.sum(axis=-1, keepdims=True)
    # Of x - 300 float16 keeps two bits behind the point.
    np.testing.assert_allclose(session.run({"x": data})["y"], exact, 2.0**-10)


def test_what_leaves_the_graph_is_rounded_once_and_read_unrounded():
    g = df.GraphBuilder()
    x = g.input("x", df.bfloat16, (5,))
    g.output("inner", ops.exp(x))
    g.output("y", ops.log(ops.exp(x)))
    session, found = compiled(g.build(), fuse=False)
    assert found.count("cast") == 3
    data = np.linspace(-3, 3, 5).astype(df.bfloat16.numpy)
    results = session.run({"x": data})
    assert results["inner"].tolist() == np.exp(data.astype(np.float32)).astype(data.dtype).tolist()
    assert results["y"].tolist() == data.tolist()


def test_a_cast_of_the_model_rounds_and_no_other_does():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    rounded = ops.cast(x, to=df.float16)
    g.output("rounded", ops.cast(ops.mul(rounded, 1.0), to=df.float32))
    squared = ops.mul(ops.cast(x, to=df.float16), ops.cast(x, to=df.float16))
    g.output("exact", ops.cast(squared, to=df.float32))
    g.output("other", ops.cast(squared, to=df.bfloat16))
    g.output("whole", ops.cast(squared, to=df.int32))
    session, _ = compiled(g.build())
    data = np.array([1 + 2.0**-12, 300, 44.7167], np.float32)
    half = data.astype(np.float16).astype(np.float32)
    results = session.run({"x": data})
    assert results["rounded"].tolist() == half.tolist()
    assert results["exact"].tolist() == (half * half).tolist()  # 90000 is no number of float16
    assert results["other"].tolist() == (half * half).astype(df.bfloat16.numpy).tolist()
    assert results["whole"][2] == round(half[2] ** 2) == int(half[2] ** 2) + 1  # of the rounded value


def dtypes(graph, *devices):
    """Of the first operand of each node of the graph that a pass makes for devices, by op."""
    targets = targets_of(Pins((*devices, "numpy")), default_registry())
    made = upcast(graph, targets)
    made.check()
    assert str(upcast(made, targets)) == str(made)
    return {node.op.name: node.inputs[0].type.dtype for node in made.nodes if node.op.name != "cast"}


def test_elements_are_moved_in_the_dtype_that_most_of_them_have():
    g = df.GraphBuilder()
    table, past = g.parameter("table", float16(50, 8)), g.input("past", df.float16, (30, 8))
    new = ops.tanh(ops.gather(table, g.input("rows", df.int64, (4,))))
    g.output("present", ops.concat(past, new, axis=0))
    g.output("y", ops.relu(ops.pad(ops.transpose(new, perm=(1, 0)), pads=(0, 1, 0, 0))))
    found = dtypes(g.build(), "cpu")
    assert found == {
        **dict.fromkeys(("gather", "concat"), df.float16),
        **dict.fromkeys(("tanh", "transpose", "pad", "relu"), df.float32),
    }


@pytest.mark.parametrize("dtype", [df.float16, df.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 30])
def test_a_weight_of_a_product_stays_in_16_bits_and_its_sum_does_not(dtype, rows):
    g = df.GraphBuilder()
    data = {name: float16(*shape).astype(dtype.numpy) for name, shape in (("w", (70, 40)), ("tied", (20, 40)))}
    w, tied = (g.parameter(name, array) for name, array in data.items())
    y = ops.relu(ops.add(ops.matmul(g.input("x", dtype, (rows, 70)), w), g.parameter("bias", data["tied"][0])))
    g.output("y", ops.matmul(y, ops.transpose(tied, perm=(1, 0))))
    session, found = compiled(g.build())
    assert found == ["cast", "matmul_bias_relu", "matmul", "cast"]
    x = float16(rows, 70).astype(dtype.numpy)
    upcast = {name: array.astype(np.float64) for name, array in {**data, "x": x}.items()}
    exact = np.maximum(upcast["x"] @ upcast["w"] + upcast["tied"][0], 0) @ upcast["tied"].T
    step = 2.0**-11 if dtype == df.float16 else 2.0**-8
    np.testing.assert_allclose(session.run({"x": x})["y"].astype(np.float64), exact, 1.01 * step, 1e-4)


def test_a_transpose_of_a_product_with_a_weight_of_16_bits_keeps_its_operands():
    g = df.GraphBuilder()
    y = ops.matmul(g.input("x", df.float16, (5, 7)), g.parameter("w", float16(7, 3)))
    g.output("y", ops.relu(ops.transpose(y, perm=(1, 0))))
    graph = g.build()
    x = float16(5, 7)
    np.testing.assert_allclose(compiled(graph)[0].run({"x": x})["y"], evaluate(graph, {"x": x})["y"], 2.0**-10)


def test_a_device_with_kernels_for_16_bits_keeps_them():
    g = df.GraphBuilder()
    g.output("y", ops.relu(ops.add(g.input("x", df.float16, (3, 5)), 1.0)))
    graph = g.build()
    assert dtypes(graph) == {"add": df.float16, "relu": df.float16}
    assert dtypes(graph, "cpu") == {"add": df.float32, "relu": df.float32}


def test_names_that_the_pass_makes_up_are_free():
    g = df.GraphBuilder()
    y = ops.exp(g.input("x", df.float16, (3,)), name="y")
    g.output("a", ops.neg(y, name="y/float32"))
    g.output("b", ops.relu(y, name="x/float32"))
    g.output("c", ops.abs(y, name="y/cast"))
    assert dtypes(g.build(), "cpu") == dict.fromkeys(("exp", "neg", "relu", "abs"), df.float32)


def test_bodies_are_upcast_too():
    body = df.GraphBuilder("body")
    carry, row = body.input("carry", df.float16, (3,)), body.input("row", df.float16, (3,))
    body.output("next", ops.tanh(ops.add(carry, row)))
    body.output("out", ops.exp(row))
    g = df.GraphBuilder()
    start, rows = g.input("start", df.float16, (3,)), g.input("rows", df.float16, (4, 3))
    last, made, *_ = ops.scan(start, rows, n_carries=1, n_xs=1, reverse=False, bodies=(body.build(),))
    g.output("last", last)
    g.output("made", made)
    graph = g.build()
    session = df.Session(graph, ["cpu"], threads=1)
    feeds = {"start": float16(3), "rows": float16(4, 3)}
    assert {n.device for n in session.placement({k: v.shape for k, v in feeds.items()})} == {"cpu"}
    expected = evaluate(graph, feeds)
    for name, array in session.run(feeds).items():
        np.testing.assert_allclose(array.astype(np.float64), expected[name].astype(np.float64), 2.0**-9, 2.0**-11)


def network(dtype):
    """Convolution, normalization, a tied product and a gather, with weights that every dtype has."""
    random = np.random.default_rng(8)
    g = df.GraphBuilder()

    def weight(name, *shape):
        return g.parameter(name, (random.standard_normal(shape) / 4).astype(SHORTEST).astype(dtype.numpy))

    x = g.input("x", dtype, (2, 3, 8, 8))
    y = ops.relu(
        ops.conv(
            x,
            weight("kernel", 6, 3, 3, 3),
            weight("shift", 6),
            strides=(1, 1),
            pads=(1, 1, 1, 1),
            dilations=(1, 1),
            groups=1,
        )
    )
    y = ops.layer_norm(ops.reshape(y, shape=(2, 6, 64)), weight("scale", 64), weight("bias", 64), axis=-1)
    tied = weight("tied", 64, 64)
    y = ops.gelu(ops.matmul(ops.matmul(y, tied), ops.transpose(tied, perm=(1, 0))))
    y = ops.add(y, ops.gather(weight("table", 9, 64), g.input("rows", df.int64, (6,))))
    g.output("y", ops.softmax(y))
    return g.build()


@pytest.mark.parametrize("dtype", [df.float16, df.bfloat16], ids=str)
def test_gradients_by_16_bits_are_those_of_float64_rounded(dtype):
    random = np.random.default_rng(9)
    x = random.standard_normal((2, 3, 8, 8)).astype(SHORTEST)
    seeds = random.standard_normal((2, 6, 64)).astype(SHORTEST)
    rows = np.array([1, 5, 5, 0, 8, 2])
    exact, found = (
        df.vjp(
            df.Model(network(as_)),
            {"x": x.astype(as_.numpy), "rows": rows},
            {"y": seeds.astype(as_.numpy)},
            devices=["cpu"],
        )
        for as_ in (df.float64, dtype)
    )
    step = 2.0**-9 if dtype == df.float16 else 2.0**-6
    for name, array in exact.items():
        assert found[name].dtype == dtype.numpy
        np.testing.assert_allclose(found[name].astype(np.float64), array, step, step * np.abs(array).max())


BYTES = [df.float8e4m3fn, df.float8e4m3fnuz, df.float8e5m2, df.float8e5m2fnuz, df.float4e2m1]
MADE_OF_SMALLER = [
    ops.leaky_relu, ops.elu, ops.selu, ops.celu, ops.hard_sigmoid, ops.hard_swish, ops.mish, ops.gelu
]  # fmt: skip


@pytest.mark.parametrize("dtype", BYTES, ids=str)
@pytest.mark.parametrize("op", MADE_OF_SMALLER, ids=lambda op: op.name)
def test_an_activation_made_of_smaller_ops_rounds_once_to_floats_of_8_bits(op, dtype):
    every = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    every = every[np.isfinite(every.astype(np.float32))]
    found = {}
    for of, array in ((dtype, every), (df.float64, every.astype(np.float64))):
        g = df.GraphBuilder()
        g.output("y", op(g.input("x", of, array.shape)))
        found[of] = df.Session(g.build(), ["cpu"]).run(array)["y"]
    exact = found[df.float64]
    ends = [(exact + d * (np.abs(exact) + 1e-2)).astype(np.float32).astype(dtype.numpy) for d in (-1e-4, 1e-4)]
    fits = [(found[dtype] == end) | (np.isnan(found[dtype]) & np.isnan(end)) for end in ends]
    assert np.logical_or(*fits).all()


@pytest.mark.parametrize("op", [ops.selu, ops.relu, ops.neg, ops.exp])
def test_a_type_without_0_and_signs_is_not_computed_in(op):
    g = df.GraphBuilder()
    with pytest.raises(df.InputError, match=r"holds powers of two alone.*cast"):
        op(g.input("x", df.float8e8m0, (4,)))
