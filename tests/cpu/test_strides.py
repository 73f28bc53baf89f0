"""Kernels whose operands repeat elements, have gaps or lie in falling order, against NumPy on plain arrays."""

from functools import partial

import numpy as np
import pytest

import dataflow as df
from dataflow.ops.fused import program
from tests import support

ops = df.ops
RANDOM = np.random.default_rng(26)


normal = partial(support.normal, RANDOM)


def run(build, *arrays, **options):
    """What a graph over inputs like ``arrays`` gives on the cpu."""
    return support.run(lambda g, *values: build(*values), *arrays, **options)


def close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


# ---- rows that lie across: transposed operands --------------------------------------------------------

ACROSS = [
    (2, 5, 7),
    (3, 33, 32),
    (1, 45, 16),
    (2, 16, 96),
    (1, 7, 129),
    (2, 19, 130),
    (1, 50, 400),
    (2, 1, 300),
    (0, 4, 5),
]


@pytest.mark.parametrize("shape", ACROSS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16", "uint8"])
def test_a_transposed_operand_is_gathered_whatever_its_elements(shape, dtype):
    count, rows, columns = shape
    x = (50 * RANDOM.random((count, columns, rows))).astype(dtype)
    kind = df.float64 if dtype == "int64" else df.int64  # a cast is a loop of any type
    g = df.GraphBuilder()
    v = g.input("x", getattr(df, dtype), x.shape)
    g.output("y", ops.cast(ops.transpose(v, perm=(0, 2, 1)), to=kind))
    found = df.Session(df.Model(g.build()), ["cpu"], threads=1).run({"x": x})["y"]
    np.testing.assert_array_equal(found, x.swapaxes(1, 2).astype("float64" if dtype == "int64" else "int64"))


@pytest.mark.parametrize("shape", ACROSS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_transposed_operand_meets_others(shape, threads):
    count, rows, columns = shape
    x, perm = normal(count, columns, rows), (0, 2, 1)
    others = [normal(*shape), normal(columns), normal(rows, 1), normal(1), normal(count, 1, columns)]
    for other in others:
        for build, expected in (
            (lambda v, w: ops.sub(ops.transpose(v, perm=perm), w), x.swapaxes(1, 2) - other),
            (lambda v, w: ops.sub(w, ops.neg(ops.transpose(v, perm=perm))), other + x.swapaxes(1, 2)),
        ):
            np.testing.assert_array_equal(run(build, x, other, threads=threads), expected)
    y, z = normal(count, columns, rows), normal(count, rows, columns)
    found = run(lambda v, w, u: ops.mul(ops.transpose(ops.sub(v, w), perm=perm), u), x, y, z, threads=threads)
    np.testing.assert_array_equal(found, (x - y).swapaxes(1, 2) * z)
    both = run(lambda v, w: ops.mul(*(ops.transpose(t, perm=perm) for t in (v, w))), x, y, threads=threads)
    np.testing.assert_array_equal(both, (x * y).swapaxes(1, 2))


@pytest.mark.parametrize("perm", [(3, 2, 1, 0), (0, 3, 2, 1), (2, 0, 3, 1), (1, 3, 0, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 17, 70), (40, 19, 2, 33), (3, 150, 4, 5), (5, 1, 40, 200)])
def test_axes_in_any_order(shape, perm):
    x = normal(*shape)
    expected = np.ascontiguousarray(x.transpose(perm))
    bias = normal(expected.shape[-1])
    found = run(lambda v, b: ops.add(ops.transpose(v, perm=perm), b), x, bias, threads=3)
    np.testing.assert_array_equal(found, expected + bias)
    np.testing.assert_array_equal(run(lambda v: ops.transpose(v, perm=perm), x), expected)


# ---- elementwise programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 40, 511, 512, 513, 1000, 100_003])
def test_a_scalar_goes_through_steps_of_its_own(n):
    x, y = normal(), normal(n)
    found = run(lambda x, y: ops.add(ops.neg(ops.broadcast_to(x, shape=(n,))), y), x, y)
    np.testing.assert_array_equal(found, y - x)
    found = run(lambda x, y: ops.maximum(ops.mul(ops.broadcast_to(x, shape=(n,)), x), y), x, y)
    np.testing.assert_array_equal(found, np.maximum(x * x, y))


@pytest.mark.parametrize("shapes", [((1,), (4, 5)), ((4, 1), (4, 500)), ((1, 500), (4, 500)), ((1, 1), (3, 1200))])
@pytest.mark.parametrize("expanded", [True, False])
def test_steps_of_few_elements_meet_one_of_many(shapes, expanded):
    x, y = (normal(*shape) for shape in shapes)

    def build(x, y):
        x = ops.broadcast_to(x, shape=y.type.shape) if expanded else x
        few = ops.exp(ops.mul(ops.neg(x), x))
        return ops.sub(ops.mul(few, y), ops.sqrt(few))

    few = np.exp(-(x.astype(np.float64) ** 2))
    close(run(build, x, y), few * y - np.sqrt(few))


@pytest.mark.parametrize("shape", [(7,), (1300,), (3, 700)])
def test_the_result_of_a_program_may_be_one_number(shape):
    """The last step reads nothing of what has many elements; a step before it does."""
    x, y = normal(), normal(*shape)
    steps = (("exp", 1), ("neg", 0), ("mul", 3, 3))

    def build(x, y, **attributes):
        return ops.fused_elementwise(ops.broadcast_to(x, shape=shape), y, **attributes)

    found = run(lambda x, y: build(x, y, program=program(*steps)), x, y)
    np.testing.assert_array_equal(found, np.broadcast_to(x * x, shape))
    found = run(lambda x, y: build(x, y, program=program(*steps, ("reduce_sum", 4)), trailing=1, keepdims=0), x, y)
    close(found, np.broadcast_to(x.astype(np.float64) ** 2, shape).sum(-1))


@pytest.mark.parametrize("fold", [True, False])
def test_a_scalar_of_a_reduction_is_expanded(fold):
    x, y = np.abs(normal(6, 50)), normal(40, 30)

    def build(x, y):
        return ops.mul(ops.sigmoid(ops.broadcast_to(ops.reduce_mean(x, axes=(0, 1), keepdims=1), shape=(40, 30))), y)

    close(run(build, x, y, fold=fold), y / (1 + np.exp(-x.astype(np.float64).mean())))


# ---- products -----------------------------------------------------------------------------------------


def views(x, m, k):
    """Forms of an operand (..., m, k): how it comes from its input, and the same of an array."""
    batch = x.shape[:-2]
    full = (*batch, m, k)
    return {
        "rows": (x[..., :1, :], lambda v: ops.broadcast_to(v, shape=full)),
        "columns": (x[..., :1], lambda v: ops.broadcast_to(v, shape=full)),
        "one": (x[..., :1, :1], lambda v: ops.broadcast_to(v, shape=full)),
        "columns transposed": (
            np.ascontiguousarray(np.swapaxes(x[..., :1], -1, -2)),
            lambda v: ops.transpose(
                ops.broadcast_to(v, shape=(*batch, k, m)), perm=(*range(len(batch)), len(batch) + 1, len(batch))
            ),
        ),
    }


def plain(name, array, m, k):
    if name == "columns transposed":
        array = np.swapaxes(array, -1, -2)
    return np.broadcast_to(array, (*array.shape[:-2], m, k)).astype(np.float64)


@pytest.mark.parametrize("form", ["rows", "columns", "one", "columns transposed"])
@pytest.mark.parametrize("sizes", [(2, 3, 5), (5, 9, 7), (17, 9, 5), (40, 33, 70), (130, 400, 31), (14, 500, 600)])
def test_a_product_of_what_repeats(sizes, form):
    m, k, n = sizes
    given, build = views(normal(m, k), m, k)[form]
    w = normal(k, n)
    close(run(lambda x, w: ops.matmul(build(x), w), given, w), plain(form, given, m, k) @ w)
    bias = normal(n)
    found = run(lambda x, w, b: ops.relu(ops.add(ops.matmul(build(x), w), b)), given, w, bias)
    close(found, np.maximum(plain(form, given, m, k) @ w + bias, 0))
    given, build = views(normal(k, n), k, n)[form]
    x = normal(m, k)
    close(run(lambda x, w: ops.matmul(x, build(w)), x, given), x @ plain(form, given, k, n))


@pytest.mark.parametrize("shape", [(2, 1, 4), (1, 3, 4), (1, 1, 4), (2, 3, 1), (1, 1, 1)])
@pytest.mark.parametrize("columns", [1, 5, 40])
def test_a_batch_of_what_repeats_meets_one_matrix(shape, columns):
    x, w = normal(*shape), normal(4, columns)
    full = np.broadcast_to(x, (2, 3, 4)).astype(np.float64)
    close(run(lambda x, w: ops.matmul(ops.broadcast_to(x, shape=(2, 3, 4)), w), x, w), full @ w)
    mirrored = full[::-1, ::-1]

    def flipped(x, w):
        both = ops.broadcast_to(x, shape=(2, 3, 4))
        both = ops.slice(both, starts=(1, 2, 0), stops=(-1, -1, 4), steps=(-1, -1, 1))
        return ops.matmul(both, w)

    close(run(flipped, x, w), mirrored @ w)


@pytest.mark.parametrize("sizes", [(8, 20, 5), (64, 32, 10), (3, 7, 2)])
def test_the_gradient_of_a_mean_over_products(sizes):
    """dy is one number per row, repeated along the columns: it is read along them, and perm, along rows."""
    m, k, n = sizes
    x, w = normal(m, k), normal(k, n)
    g = df.GraphBuilder()
    product = ops.matmul(g.input("x", df.float32, x.shape), g.parameter("w", w))
    g.output("y", ops.reduce_mean(product, axes=(-1,), keepdims=0))
    seed = normal(m)
    found = df.vjp(df.Model(g.build()), {"x": x}, {"y": seed})
    dy = np.repeat(seed[:, None] / n, n, axis=1).astype(np.float64)
    close(found["w"], x.T @ dy)
    close(found["x"], dy @ w.T)
