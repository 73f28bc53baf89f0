"""Attention on the CPU: found in what exporters write, right for any sizes, views and masks, and in extremes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow.planning.verify import check_plan
from dataflow_numpy.evaluate import evaluate
from tests.support import onnx_model, ops_of

ops = df.ops
RANDOM = np.random.default_rng(11)


def operands(g, *shapes):
    return [g.input(f"x{i}", df.float32, shape) for i, shape in enumerate(shapes)]


def feeds_of(graph, deviation=1.0):
    return {v.name: (RANDOM.standard_normal(v.type.sizes) * deviation).astype(np.float32) for v in graph.inputs}


def plain(q, kt, v, mask=0.0, scale=1.0):
    """In float64."""
    q, kt, v, mask = (np.asarray(a, np.float64) for a in (q, kt, v, mask))
    scores = q @ kt * scale + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


# ---- what exporters write ----------------------------------------------------------------------------


class Exported:
    """An ONNX graph of one attention, with heads split from (batch, rows, width)."""

    def __init__(self, heads=3, rows=9, keys=11, size=8):
        self.nodes, self.stored, self.heads, self.size = [], [], heads, size
        self.shapes = {"q": (2, rows, heads * size), "k": (2, keys, heads * size), "v": (2, keys, heads * size)}
        self.rows, self.keys = rows, keys

    def __call__(self, op, *inputs, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [f"{op}{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def stored_as(self, array):
        self.stored.append(numpy_helper.from_array(np.asarray(array), f"stored{len(self.stored)}"))
        return self.stored[-1].name

    def number(self, value):
        return self.stored_as(np.asarray(value, np.float32))

    def split(self, name, perm=(0, 2, 1, 3)):
        shape = self.stored_as(np.array([0, 0, self.heads, self.size]))
        return self("Transpose", self("Reshape", name, shape), perm=perm)

    def finish(self, scores, axis=-1, weights=None):
        y = self("MatMul", weights or self("Softmax", scores, axis=axis), self.split("v"))
        joined = self.stored_as(np.array([0, 0, self.heads * self.size]))
        y = self("Reshape", self("Transpose", y, perm=(0, 2, 1, 3)), joined)
        made = [(n, TensorProto.FLOAT, s) for n, s in self.shapes.items()]
        result = (y, TensorProto.FLOAT, self.shapes["q"])
        return onnx_model(self.nodes, made, [result], self.stored, opset=17, ir_version=8)


def bert(g, heads):
    g.shapes["mask"] = (2, 1, 1, g.keys)
    scores = g("Div", g("MatMul", g.split("q"), g.split("k", (0, 2, 3, 1))), g.number(8**0.5))
    return g.finish(g("Add", scores, "mask"))


def bert_mask_first(g, heads):
    g.shapes["mask"] = (2, 1, g.rows, g.keys)
    scores = g("Mul", g.number(0.3), g("MatMul", g.split("q"), g.split("k", (0, 2, 3, 1))))
    return g.finish(g("Add", "mask", scores), axis=3)


def gpt(g, heads):
    g.shapes["mask"] = (1, 1, g.rows, g.keys)
    kt = g("Transpose", g.split("k"), perm=(0, 1, 3, 2))
    return g.finish(g("Add", g("Div", g("MatMul", g.split("q"), kt), g.number(2.5)), "mask"))


def vit(g, heads):
    kt = g("Transpose", g.split("k"), perm=(0, 1, 3, 2))
    return g.finish(g("Div", g("MatMul", g.split("q"), kt), g.number(2.5)))


def t5(g, heads):
    g.shapes["bias"] = (1, heads, g.rows, g.keys)
    return g.finish(g("Add", g("MatMul", g.split("q"), g.split("k", (0, 2, 3, 1))), "bias"))


def scaled_both(g, heads):
    """As PyTorch's exporters write scaled_dot_product_attention."""
    factor = 8**-0.25
    kt = g("Transpose", g.split("k"), perm=(0, 1, 3, 2))
    return g.finish(g("MatMul", g("Mul", g.split("q"), g.number(factor)), g("Mul", kt, g.number(factor))))


def scaled_query(g, heads):
    g.shapes["mask"] = (g.rows, g.keys)
    q = g("Mul", g.split("q"), g.number(0.4))
    return g.finish(g("Add", g("MatMul", q, g.split("k", (0, 2, 3, 1))), "mask"))


def divided_query(g, heads):
    return g.finish(g("MatMul", g("Div", g.split("q"), g.number(3.0)), g.split("k", (0, 2, 3, 1))))


@pytest.mark.parametrize(
    "write", [bert, bert_mask_first, gpt, vit, t5, scaled_both, scaled_query, divided_query], ids=lambda f: f.__name__
)
def test_what_exporters_write_is_one_kernel(write, tmp_path):
    heads = 3
    model = write(Exported(heads), heads)
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "a.onnx")
    session = df.Session(df.load(tmp_path / "a.onnx"), devices=["cpu"])
    assert ops_of(session.plan()) == ["attention"]  # and no copy: heads are views, and the result is written turned
    check_plan(session.plan())
    feeds = feeds_of(session.model.graph)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = session.run(feeds).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_safe_softmax_is_one_kernel_and_rows_without_a_key_are_0(tmp_path):
    """As PyTorch's exporters write scaled_dot_product_attention with a mask of booleans."""
    g = Exported()
    g.shapes["open"] = (2, 1, 1, g.keys)
    factor = g.number(8**-0.25)
    kt = g("Transpose", g.split("k"), perm=(0, 1, 3, 2))
    allowed = g("Cast", "open", to=TensorProto.BOOL)
    mask = g("Where", allowed, g.number(0), g.number(-np.inf))
    scores = g("Add", g("MatMul", g("Mul", g.split("q"), factor), g("Mul", kt, factor)), mask)
    weights = g("Softmax", scores, axis=-1)
    weights = g("Where", g("IsNaN", weights), g.number(0), weights)
    model = g.finish(scores, weights=weights)
    onnx.save(model, tmp_path / "a.onnx")
    session = df.Session(df.load(tmp_path / "a.onnx"), devices=["cpu"])
    assert ops_of(session.plan()).count("attention") == 1
    assert "softmax" not in ops_of(session.plan())
    feeds = feeds_of(session.model.graph)
    feeds["open"] = (feeds["open"] > 0).astype(np.float32)
    feeds["open"][1] = 0
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = session.run(feeds).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[1], 0)


@pytest.mark.parametrize("n", [11, 1100])
def test_gradients_of_rows_without_a_key_are_0(n):
    """And those of the others are as in float64, also where a row of q is NaN."""
    g = df.GraphBuilder()
    q, kt, v, mask, dy = operands(g, (2, 20, 4), (2, 4, n), (2, n, 5), (2, 20, n), (2, 20, 5))
    y, logsum = g.add(ops.attention, [q, kt, v, mask], {"safe": True}).outputs
    g.output("y", y)
    g.output("logsum", logsum)
    gradients = ops.attention_grad(dy, y, logsum, q, kt, v, mask, safe=True)
    for name, value in zip(("dq", "dk", "dv"), gradients, strict=True):
        g.output(name, value)
    graph = g.build()
    feeds = feeds_of(graph)
    feeds["x3"][0, :3] = -np.inf
    feeds["x3"][1, 7, 2] = np.nan
    exact = evaluate(graph, feeds, dtype=np.float64)
    found = df.Session(graph, devices=["cpu"], threads=2).run(feeds)
    for name, array in found.items():
        np.testing.assert_allclose(array, exact[name], rtol=1e-4, atol=2e-5, err_msg=name)
    assert np.isposinf(found["logsum"][0, :3]).all()
    for name in ("y", "dq"):
        np.testing.assert_array_equal(found[name][0, :3], 0)
        np.testing.assert_array_equal(found[name][1, 7], 0)


def test_what_else_reads_the_weights_keeps_them():
    g = df.GraphBuilder()
    q, kt, v = operands(g, (4, 5), (5, 6), (6, 3))
    weights = ops.softmax(ops.matmul(q, kt), axis=-1)
    g.output("y", ops.matmul(weights, v))
    g.output("weights", weights)
    assert "attention" not in ops_of(df.Session(g.build(), devices=["cpu"]).plan())


@pytest.mark.parametrize(
    "change",
    [
        lambda q, kt, v: ops.matmul(ops.softmax(ops.matmul(q, kt), axis=-2), v),
        lambda q, kt, v: ops.matmul(v, ops.softmax(ops.matmul(q, kt), axis=-1)),
        lambda q, kt, v: ops.matmul(ops.softmax(ops.mul(ops.matmul(q, kt), v), axis=-1), v),
        lambda q, kt, v: ops.matmul(ops.log_softmax(ops.matmul(q, kt), axis=-1), v),
    ],
)
def test_what_is_no_attention_stays(change):
    g = df.GraphBuilder()
    g.output("y", change(*operands(g, (5, 5), (5, 5), (5, 5))))
    session = df.Session(g.build(), devices=["cpu"])
    assert "attention" not in ops_of(session.plan())


def test_a_mask_that_makes_the_scores_larger_is_none():
    g = df.GraphBuilder()
    q, kt, v, mask = operands(g, (1, 5), (5, 6), (6, 3), (4, 6))
    g.output("y", ops.matmul(ops.softmax(ops.add(ops.matmul(q, kt), mask), axis=-1), v))
    graph = g.build()
    session = df.Session(graph, devices=["cpu"])
    assert "attention" not in ops_of(session.plan())
    feeds = feeds_of(graph)
    np.testing.assert_allclose(session.run(feeds)["y"], plain(*feeds.values()), rtol=1e-5, atol=1e-5)


# ---- sizes, views and extremes -----------------------------------------------------------------------


def session_of(shapes, scale=1.0, threads=2):
    g = df.GraphBuilder()
    g.output("y", ops.attention(*operands(g, *shapes), scale=scale))
    return df.Session(g.build(), devices=["cpu"], threads=threads)


@given(
    m=st.integers(1, 40), n=st.integers(1, 70), d=st.integers(0, 40), e=st.integers(1, 70), batch=st.integers(1, 5),
    masked=st.sampled_from((None, "whole", "keys", "rows")), threads=st.integers(1, 2), scale=st.floats(-2, 2),
)  # fmt: skip
@settings(max_examples=80)
def test_any_sizes(m, n, d, e, batch, masked, threads, scale):
    shapes = [(batch, m, d), (batch, d, n), (batch, n, e)]
    if masked:
        shapes.append({"whole": (batch, m, n), "keys": (1, n), "rows": (m, 1)}[masked])
    session = session_of(shapes, scale, threads)
    arrays = [RANDOM.standard_normal(s).astype(np.float32) for s in shapes]
    found = session.run({f"x{i}": a for i, a in enumerate(arrays)})["y"]
    expected = plain(*arrays[:3], arrays[3] if masked else 0.0, scale)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("m", "n"), [(600, 30), (5, 2000), (700, 1300)])
def test_many_rows_and_columns_are_split_with_the_same_bits_from_run_to_run(m, n):
    shapes = [(3, m, 16), (3, 16, n), (3, n, 24), (m, n)]
    arrays = [RANDOM.standard_normal(s).astype(np.float32) for s in shapes]
    arrays[3][: m // 2, : n // 2] = -np.inf  # whole blocks of columns are closed for some rows
    arrays[3][1, : n - 1] = -np.inf
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    expected = plain(*arrays)
    for threads in (1, 2):
        session = session_of(shapes, threads=threads)
        first = session.run(feeds)["y"]
        np.testing.assert_allclose(first, expected, rtol=1e-4, atol=2e-5)
        for _ in range(3):
            np.testing.assert_array_equal(session.run(feeds)["y"], first)


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("n", [1, 7, 64, 1500])
def test_closed_rows_infinities_and_nan_are_as_one_by_one(n, safe):
    shapes = [(9, 4), (4, n), (n, 5), (9, n)]
    g = df.GraphBuilder()
    q, kt, v, mask = operands(g, *shapes)
    weights = ops.softmax(ops.add(ops.matmul(q, kt), mask), axis=-1)
    if safe:
        weights = ops.where(ops.is_nan(weights), 0.0, weights)
    g.output("y", ops.matmul(weights, v))
    graph = g.build()
    fused, apart = (df.Session(graph, devices=["cpu"], fuse=fuse) for fuse in (True, False))
    assert ops_of(fused.plan()) == ["attention"]
    arrays = [RANDOM.standard_normal(s).astype(np.float32) for s in shapes]
    arrays[3][1] = -np.inf  # a closed row
    arrays[3][2] = np.inf
    arrays[3][3, n // 2] = np.nan
    arrays[3][4] = np.float32(-3e38)
    arrays[3][5, : n - 1] = -np.inf  # all but one
    arrays[3][6, n - 1] = 3e38
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    np.testing.assert_allclose(fused.run(feeds)["y"], apart.run(feeds)["y"], rtol=1e-4, atol=1e-5)
    feeds["x2"] = np.full((n, 5), 3e38, np.float32)  # their mean is finite
    feeds["x2"][0, 1] = np.inf  # 0 times it is NaN, in every row
    found, expected = fused.run(feeds)["y"], apart.run(feeds)["y"]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    fine = ~np.isnan(expected) & (np.abs(expected) < 3.3e38)
    np.testing.assert_allclose(found[fine], expected[fine], rtol=1e-5)


@pytest.mark.parametrize(("precision", "error"), [("float32", 4e-6), ("bf16x6", 4e-6), ("tf32", 1e-4), ("bf16", 2e-2)])
@pytest.mark.parametrize(("m", "n", "d"), [(130, 128, 64), (100, 700, 48), (33, 1300, 65)])
def test_lower_precision_is_taken_where_it_is_allowed(precision, error, m, n, d):
    """Relative to the largest; gradients too. Without AMX tiles all are float32.

    Weights are off by the rounding of the scores, which is 2.4e-7 where they are from 4 to 8.
    """
    shapes = [(2, m, d), (2, d, n), (2, n, d)]
    g = df.GraphBuilder()
    given = operands(g, *shapes, (2, m, d))
    node = g.add(ops.attention, given[:3], {"scale": d**-0.5})
    y, logsum = node.outputs
    g.output("y", y)
    for name, value in zip("qkv", ops.attention_grad(given[3], y, logsum, *given[:3], scale=d**-0.5), strict=True):
        g.output(name, value)
    graph = g.build()
    feeds = feeds_of(graph)
    exact = evaluate(graph, feeds, dtype=np.float64)
    session = df.Session(graph, devices=["cpu"], precision=precision, threads=2)
    found = session.run(feeds)
    for name, array in exact.items():
        assert np.abs(found[name] - array).max() <= error * np.abs(array).max(), name
    for name, array in session.run(feeds).items():
        np.testing.assert_array_equal(array, found[name])


def test_weights_of_large_scores_are_as_exact_in_gradients():
    """The log of the sums is rounded by 6e-5 where it is 1,000, which the weights must not be off by.

    The operands are of few bits, so that the scores have no error; keys differ little, so that many have a weight.
    """
    g = df.GraphBuilder()
    q, kt, v, dy = operands(g, (40, 16), (16, 70), (70, 32), (40, 32))
    y, logsum = g.add(ops.attention, [q, kt, v], {"scale": 2.0}).outputs
    g.output("logsum", logsum)
    for name, value in zip("qkv", ops.attention_grad(dy, y, logsum, q, kt, v, scale=2.0), strict=True):
        g.output(name, value)
    graph = g.build()
    random = np.random.default_rng(3)
    feeds = {v.name: np.round(random.standard_normal(v.type.shape) * 8).astype(np.float32) for v in graph.inputs}
    feeds["x1"][:] = feeds["x1"][:, :1]
    feeds["x1"][:, ::3] += np.arange(24, dtype=np.float32) / 64
    exact = evaluate(graph, feeds, dtype=np.float64)
    assert exact["logsum"].max() > 500
    found = df.Session(graph, devices=["cpu"], threads=1).run(feeds)
    for name in "kv":
        assert np.abs(found[name] - exact[name]).max() <= 1e-6 * np.abs(exact[name]).max(), name


@given(
    m=st.integers(1, 5), n=st.integers(1, 1500), d=st.integers(0, 70), e=st.integers(1, 70),
    transposed=st.sets(st.sampled_from(("q", "kt", "v"))), masked=st.booleans(), threads=st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=80)
def test_few_rows_read_keys_and_values_as_they_lie(m, n, d, e, transposed, masked, threads):
    """Each operand may be a view of its transpose, and the logarithm of the sum is as in a closed form."""
    g = df.GraphBuilder()
    arrays, values = [], []
    for name, shape in {"q": (3, m, d), "kt": (3, d, n), "v": (1, n, e)}.items():
        arrays.append(RANDOM.standard_normal(shape).astype(np.float32))
        stored = g.input(name, df.float32, shape if name not in transposed else (shape[0], *shape[:0:-1]))
        values.append(stored if name not in transposed else ops.transpose(stored, perm=(0, 2, 1)))
    feeds = {k: a.swapaxes(1, 2) if k in transposed else a for k, a in zip(("q", "kt", "v"), arrays, strict=True)}
    if masked:
        values.append(g.input("mask", df.float32, (m, n)))
        arrays.append(RANDOM.standard_normal((m, n)).astype(np.float32))
        feeds["mask"] = arrays[3]
    for name, value in zip(("y", "logsum"), g.add(ops.attention, values, {"scale": 0.3}).outputs, strict=True):
        g.output(name, value)
    found = df.Session(g.build(), devices=["cpu"], threads=threads).run(feeds)
    np.testing.assert_allclose(found["y"], plain(*arrays, scale=0.3), rtol=1e-4, atol=2e-5)
    q, kt, *mask = (a.astype(np.float64) for i, a in enumerate(arrays) if i != 2)
    sums = np.exp(q @ kt * 0.3 + (mask[0] if mask else 0.0)).sum(-1)
    np.testing.assert_allclose(found["logsum"].reshape(sums.shape), np.log(sums), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_transposed_mask_stays_apart_from_the_scores(precision):
    """It is copied a row at a time, beside many rows of scores where products are done in large blocks."""
    shapes = [(1, 130, 64), (1, 64, 128), (1, 128, 64), (128, 130)]
    g = df.GraphBuilder()
    q, kt, v, mask = operands(g, *shapes)
    g.output("y", ops.attention(q, kt, v, ops.transpose(mask, perm=(1, 0)), scale=0.1))
    graph = g.build()
    feeds = feeds_of(graph)
    q, kt, v, mask = feeds.values()
    expected = plain(q, kt, v, mask.T, 0.1)
    found = df.Session(graph, devices=["cpu"], precision=precision).run(feeds)["y"]
    assert np.abs(found - expected).max() <= (2e-6 if precision == "float32" else 2e-2) * np.abs(expected).max()


def test_no_columns_give_zeros():
    session = session_of([(2, 3, 4), (2, 4, 0), (2, 0, 5)])
    found = session.run({"x0": np.ones((2, 3, 4), np.float32)} | {f"x{i}": np.ones(s, np.float32)
                        for i, s in ((1, (2, 4, 0)), (2, (2, 0, 5)))})["y"]  # fmt: skip
    np.testing.assert_array_equal(found, np.zeros((2, 3, 5), np.float32))


def test_scores_take_no_memory():
    """The arena holds what lies between steps: nothing of (rows, columns)."""
    n = 512
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (n, 16))
    w = [g.parameter(f"w{i}", RANDOM.standard_normal((16, 16)).astype(np.float32)) for i in range(3)]
    q, k, v = (ops.matmul(x, p) for p in w)
    g.output("y", ops.matmul(ops.softmax(ops.matmul(q, ops.transpose(k, perm=(1, 0))), axis=-1), v))
    plan = df.Session(g.build(), devices=["cpu"], threads=1).plan()
    assert plan.peak_bytes < 4 * n * n
