"""Every declared gradient, by random directions in double precision."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow.plugin import Op
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES, Operand, Sample
from dataflow.testing.claims import node_of
from dataflow.testing.operations import in_float64, second_problem
from dataflow_numpy.evaluate import evaluate

STEP = 1e-6
CHECKED = [s for s in SAMPLES if s.gradient]
# What has no gradient by its nature: results that are whole numbers, bools or optimizer steps.
WITHOUT = {
    "logical_not", "bitwise_not", "is_nan", "is_inf", "equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "argmax", "argmin", "one_hot", "full", "range_", "sgd_step",
    "adamw_step", "square_sum", "square_sums", "encode_blocks", "decode_blocks", "random_uniform", "random_normal",
    "read_shape", "nonzero", "non_max_suppression",
    "sizes", "deferred", "string_concat", "string_split", "string_split_count", "string_token_count", "string_tokens",
    "string_case", "regex_full_match", "murmur_hash",
    "find", "tree_ensemble", "bitcast", "image_size", "decode_image",
    "quantize", "dynamic_quantize", "matmul_integer", "conv_integer", "matmul_requantized", "conv_requantized",
    "add_requantized", "lookup",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bit_shift", "mersenne_uniform", "unique",
    # gradients of gradients: not declared, of CTC's not a third time
    "ctc_loss_product", "lstm_grad", "gru_grad", "rnn_grad",
    # of operands of 16 bits, which a pass makes of products behind their gradients
    "matmul_rounded",
    # a loss and its gradient, which a pass makes of the two
    "softmax_cross_entropy_with_grad",
    # refused with a reason, see test_control.py
    "loop",
    # whose gradient isn't its derivative, on purpose
    "stop_gradient",
}  # fmt: skip


def test_every_op_has_a_sample():
    assert {op.name for op in df.ops.ALL} - {"deferred"} == {s.op.name for s in SAMPLES}  # it has no results


def test_every_differentiable_op_is_checked():
    differentiable = {op.name for op in df.ops.ALL if op.gradient is not None or op.decompose is not None}
    assert differentiable - WITHOUT == {s.op.name for s in CHECKED}
    assert not {op.name for op in df.ops.ALL} - differentiable - WITHOUT


@pytest.mark.parametrize("sample", CHECKED, ids=lambda s: s.name)
def test_gradient(sample):
    graph = sample.build()
    plain = {n: v for n, v in graph.outputs.items() if not extra(sample, n)}
    agree(sample, dataclasses.replace(graph, outputs=plain))


def agree(sample, graph):
    """Asserts that the gradients of the float outputs are what differences in float64 say."""
    wrt = [v for v in graph.inputs if int(v.name[1:]) in sample.gradient]
    feeds = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in sample.feeds().items()}
    joint = vjp_graph(graph, wrt)
    outputs = {n: v for n, v in graph.outputs.items() if v.type.dtype.is_float}
    for trial in range(2):
        random = np.random.default_rng(trial)
        u = {n: random.standard_normal(v.type.sizes) for n, v in outputs.items()}
        v = {value.name: random.standard_normal(value.type.sizes) for value in wrt}
        found = evaluate(joint, {**feeds, **{f"grad.{n}": a for n, a in u.items()}}, dtype=np.float64)
        along = sum(float((v[n] * found[f"grad.{n}"]).sum()) for n in v)

        def moved(sign, v=v, step=STEP):
            at = {n: a + sign * step * v[n] if n in v else a for n, a in feeds.items()}
            return evaluate(graph, at, dtype=np.float64)

        up, down = moved(1), moved(-1)
        expected = sum(float((u[n] * (up[n] - down[n])).sum()) / (2 * STEP) for n in outputs)
        scale = max(abs(expected), abs(along), 1e-3)
        assert abs(along - expected) / scale < 1e-5, (along, expected)


def extra(sample, name):
    """True for an extra output: it is for backward, and has no gradient of its own."""
    (node,) = sample.build().nodes
    return node.op.output_names(node)[int(name[1:])].startswith("+") or (
        node.op.name == "scan" and int(name[1:]) >= len(node.outputs) - node.attributes["n_carries"]
    )


def test_shared_values_and_broadcasts_add_up():
    g = df.GraphBuilder()
    x, b = g.input("x", df.float32, (3, 4)), g.input("b", df.float32, (4,))
    h = df.ops.add(df.ops.mul(x, b), b)
    g.output("y", df.ops.mul(h, df.ops.add(h, x)))
    graph = g.build()
    random = np.random.default_rng(0)
    X, B = random.standard_normal((3, 4)), random.standard_normal(4)
    ones = np.ones((3, 4))
    found = evaluate(vjp_graph(graph, graph.inputs), {"x": X, "b": B, "grad.y": ones}, dtype=np.float64)
    H = X * B + B
    np.testing.assert_allclose(found["grad.x"], B * (2 * H + X) + H, rtol=1e-12)
    np.testing.assert_allclose(found["grad.b"], ((X + 1) * (2 * H + X)).sum(0), rtol=1e-12)


def test_an_op_without_gradient_on_the_path_is_named():
    g = df.GraphBuilder()
    halved = Op("halved", ("x",), lambda x: x)
    g.output("y", halved(g.input("x", df.float32, (3, 3)), name="mine"))
    graph = g.build()
    with pytest.raises(df.GradientError, match=r"halved 'mine'.*no gradient"):
        vjp_graph(graph, graph.inputs)


def test_values_off_the_path_get_no_gradient():
    g = df.GraphBuilder()
    x, z = g.input("x", df.float32, (3,)), g.input("z", df.float32, (3,))
    g.output("y", df.ops.add(df.ops.sin(x), df.ops.cos(z)))
    graph = g.build()
    joint = vjp_graph(graph, graph.inputs[:1])
    names = [n.op.name for n in joint.nodes]
    assert names.count("sin") == 1  # cos would need sin(z) for its own gradient
    assert "grad.z" not in joint.outputs


def test_vjp_of_a_model_gives_inputs_and_parameters():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 3))
    w = g.parameter("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    g.output("y", df.ops.matmul(x, w))
    model = df.Model(g.build())
    X = np.ones((4, 3), np.float32)
    U = np.arange(8, dtype=np.float32).reshape(4, 2)
    found = df.vjp(model, {"x": X}, {"y": U})
    np.testing.assert_allclose(found["x"], U @ np.arange(6).reshape(3, 2).T)
    np.testing.assert_allclose(found["w"], X.T @ U)


def test_vjp_of_a_model_with_an_output_of_integers():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    g.output("largest", df.ops.argmax(x, axis=0, keepdims=0))
    g.output("y", df.ops.exp(x))
    found = df.vjp(df.Model(g.build()), {"x": np.zeros(3, np.float32)})
    np.testing.assert_allclose(found["x"], [1, 1, 1])


def test_vjp_of_ops_whose_gradient_wants_fixed_sizes():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", "c", "h", "w"))
    g.output("y", df.ops.resize(x, sizes=(x.type.shape[0], x.type.shape[1], 6, 6), mode="linear"))
    found = df.vjp(df.Model(g.build()), {"x": np.zeros((1, 2, 3, 3), np.float32)}, devices=["cpu"])
    np.testing.assert_allclose(found["x"].sum(), 72, rtol=1e-6)


def test_vjp_stays_a_function_after_its_first_use():
    g = df.GraphBuilder()
    g.output("y", df.ops.sin(g.input("x", df.float32, (2,))))
    model = df.Model(g.build())
    for _ in range(2):
        found = df.vjp(model, np.zeros(2, np.float32))
        np.testing.assert_allclose(found["x"], [1, 1])


def test_a_fraction_beside_integers_is_refused():
    g = df.GraphBuilder()
    x = g.input("x", df.int64, (2,))
    with pytest.raises(df.InputError, match=r"0\.5 is no whole number"):
        df.ops.mul(x, 0.5)


@pytest.mark.parametrize(
    ("ranges", "joined"),
    [
        (((0, 2), (2, 5), (5, 6)), True),
        (((5, 6), (0, 2), (2, 5)), True),
        (((0, 2), (2, 5)), False),
        (((0, 3), (2, 6)), False),
        (((0, 3), (0, 3), (3, 6)), False),
    ],
)
def test_slices_that_cover_a_value_give_one_concat(ranges, joined):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 6))
    for index, (start, stop) in enumerate(ranges):
        sliced = x[:, start:stop]
        g.output(f"y{index}", df.ops.mul(sliced, sliced))
    joint = vjp_graph(g.build(), [x])
    session = df.Session(joint, devices=["cpu"])
    random = np.random.default_rng(4)
    value = random.standard_normal((3, 6)).astype(np.float32)
    seeds = {f"grad.y{i}": random.standard_normal((3, b - a)).astype(np.float32) for i, (a, b) in enumerate(ranges)}
    expected = np.zeros((3, 6))
    for index, (start, stop) in enumerate(ranges):
        expected[:, start:stop] += 2.0 * value[:, start:stop] * seeds[f"grad.y{index}"]
    found = session.run({"x": value, **seeds})["grad.x"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    ran = [s.node.op.name for p in session.plans for segment in p.segments for s in segment.steps]
    assert ("slice_grad" not in ran) == joined


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "lstm", "gru"])
def test_what_is_kept_for_backward_has_a_gradient_too(name):
    """As gradients of gradients need it."""
    for sample in (s for s in CHECKED if s.op.name == name):
        graph = sample.build()
        kept = {n: v for n, v in graph.outputs.items() if extra(sample, n)}
        agree(sample, dataclasses.replace(graph, outputs=kept))


@pytest.mark.parametrize("name", ["y1", "y2"])
def test_running_statistics_alone_have_a_gradient(name):
    sample = next(s for s in CHECKED if s.op is df.ops.batch_norm_train)
    graph = sample.build()
    graph = dataclasses.replace(graph, outputs={name: graph.outputs[name]})
    feeds = {n: a.astype(np.float64) for n, a in sample.feeds().items()}
    seed = np.random.default_rng(1).standard_normal(graph.outputs[name].type.sizes)
    found = evaluate(vjp_graph(graph, graph.inputs), {**feeds, f"grad.{name}": seed}, dtype=np.float64)
    x = feeds["x0"]
    slope = np.full(x.shape, 0.2) if name == "y1" else 0.4 * (x - x.mean((0, 2, 3), keepdims=True))
    np.testing.assert_allclose(found["grad.x0"], slope * seed[:, None, None] / (x.size / 3), rtol=1e-6)
    np.testing.assert_allclose(found["grad.x3" if name == "y1" else "grad.x4"], 0.8 * seed, rtol=1e-6)
    assert not found["grad.x1"].any() and not found["grad.x2"].any()


@pytest.mark.parametrize("name", ["elu", "celu", "gelu", "mish", "softsign"])
def test_where_branches_meet_smoothly_the_gradient_is_that_of_both(name):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    g.output("y", getattr(df.ops, name)(x))
    graph = g.build()
    seed = np.array([1.0, -2.0, 3.0])
    found = evaluate(vjp_graph(graph, [x]), {"x": np.array([0.0, -0.0, 0.0]), "grad.y": seed}, dtype=np.float64)
    slope = {"gelu": 0.5, "mish": 0.6}.get(name, 1.0)
    np.testing.assert_allclose(found["grad.x"], slope * seed, rtol=1e-12)


def few(samples, most=2):
    """The smallest samples of each op."""
    by_op = {}
    for sample in sorted(samples, key=lambda s: sum(v.type.elements for v in s.node.inputs if v is not None)):
        by_op.setdefault(sample.op.name, []).append(sample)
    return [sample for rows in by_op.values() for sample in rows[:most]]


@pytest.mark.parametrize("sample", few(s for s in CHECKED if node_of(in_float64(s))), ids=lambda s: s.name)
def test_second_gradient(sample):
    assert second_problem(sample, default_registry()) is None


def test_second_gradient_of_scattered_zeros():
    """The product of all other factors depends on the one that is 0."""
    operands = (
        Operand((4,), value=[0.0, 2.0, 0.0, 1.5]),
        Operand((5,), df.int64, value=[0, 1, 1, 2, 2]),
        Operand((5,), value=[3.0, 0.0, -2.0, 0.0, 4.0]),
    )
    sample = Sample(df.ops.scatter_elements, operands, {"reduction": "mul"}, gradient=(0, 2))
    assert second_problem(sample, default_registry()) is None


def test_the_gradient_of_a_product_with_an_infinity_and_a_zero():
    """By the infinity it is the zero, and no NaN."""
    g = df.GraphBuilder()
    d, u = g.input("d", df.float32, (2,)), g.input("u", df.float32, (2,))
    y = df.ops.scatter_elements(d, g.constant(np.array([0, 1])), u, axis=0, reduction="mul")
    g.output("y", y)
    feeds = {"d": np.float32([np.inf, 2]), "u": np.float32([0, 3])}
    found = df.vjp(df.Model(g.build()), feeds)
    np.testing.assert_array_equal(found["d"], [0, 3])
    np.testing.assert_array_equal(found["u"], [np.inf, 2])
