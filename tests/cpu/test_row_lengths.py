"""Rows, elements and squares of every length, full vectors of them and what is left: against NumPy."""

import numpy as np
import pytest

import dataflow as df
from tests.support import again_on

ops = df.ops
LENGTHS = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 56, 63, 64, 65, 97, 1023, 1025, 3000]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def run(build, **arrays):
    """What a graph over inputs like ``arrays`` gives on the cpu, by no other device."""
    g = df.GraphBuilder()
    g.output("y", build(**{name: g.input(name, a.dtype, a.shape) for name, a in arrays.items()}))
    with df.Session(df.Model(g.build()), ["cpu"], threads=1, fallback="error") as session:
        return session.run(arrays)["y"]


@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_rows(log):
    for n in LENGTHS:
        random = np.random.default_rng(n)
        x = (4 * random.standard_normal((7, n))).astype(np.float32)
        x[1, random.integers(n)] = 300  # the others are 0, or denormal
        x[2] = random.uniform(-104, 0, n)
        x[3, random.integers(n)] = np.nan
        x[4, random.integers(n)] = np.inf
        x[5] = -np.inf
        if n > 1:
            x[6, : n // 2] = -np.inf
        with np.errstate(all="ignore"):
            shifted = (x - x.max(1, keepdims=True)).astype(np.float64)
            sums = np.exp(shifted).sum(1, keepdims=True)
            exact = shifted - np.log(sums) if log else np.exp(shifted) / sums
        found = run(lambda x: (ops.log_softmax if log else ops.softmax)(x, axis=-1), x=x)
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6 if log else 3e-45, err_msg=str(n))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_the_position_of_an_extreme(dtype, least, last):
    for n in LENGTHS:
        random = np.random.default_rng(n)
        x = random.integers(0, 7, (9, n)).astype(dtype)  # many equal ones
        for row in range(1, 4):  # one is alone, at the ends too
            x[row, (0, n - 1, random.integers(n))[row - 1]] = 100 if not least else 0
        if x.dtype.kind == "f":
            x[4:6][random.random((2, n)) < 0.1] = np.nan
            x[6] = np.nan
            x[7] = np.inf if least else -np.inf
        order = x[:, ::-1] if last else x
        expected = np.argmin(order, 1) if least else np.argmax(order, 1)  # of NumPy a NaN wins, too
        expected = n - 1 - expected if last else expected
        op = ops.argmin if least else ops.argmax
        found = run(lambda x: op(x, axis=-1, keepdims=0, select_last_index=int(last)), x=x)  # noqa: B023
        np.testing.assert_array_equal(found, expected, err_msg=str(n))


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8", "int32", "int64"])
def test_reductions_of_rows(dtype):
    for n in LENGTHS:
        random = np.random.default_rng(n)
        x = random.integers(0, 100, (5, n)).astype(dtype)
        narrow = dtype in ("int8", "uint8")
        for op, own in ((ops.reduce_sum, np.sum), (ops.reduce_max, np.max), (ops.reduce_min, np.min)):
            if op is ops.reduce_sum and narrow:
                continue
            found = run(lambda x: op(x, axes=(1,), keepdims=0), x=x)  # noqa: B023
            np.testing.assert_array_equal(found, own(x, 1).astype(dtype), err_msg=f"{own.__name__} of {n}")
        if not narrow:
            x = np.where(x % 3 == 0, -1, 1).astype(dtype)
            x[:, random.integers(n)] = 3
            found = run(lambda x: ops.reduce_prod(x, axes=(1,), keepdims=0), x=x)
            np.testing.assert_array_equal(found, np.prod(x, 1).astype(dtype), err_msg=f"product of {n}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_of_rows_with_what_is_not_finite(dtype):
    """A NaN anywhere wins; rows of a view whose first elements lie apart."""
    for n in LENGTHS:
        random = np.random.default_rng(n)
        x = random.standard_normal((6, n + 3)).astype(dtype)
        x[1, random.integers(n)] = np.nan
        x[2, [0, n - 1]] = np.nan
        x[3, random.integers(n)], x[4, random.integers(n)] = np.inf, -np.inf
        x[5] = -0.0
        for op, own in ((ops.reduce_max, np.max), (ops.reduce_min, np.min)):
            first = {"starts": (0, 0), "stops": (6, n), "steps": (1, 1)}
            found = run(lambda x: op(ops.slice(x, **first), axes=(1,), keepdims=0), x=x)  # noqa: B023
            np.testing.assert_array_equal(found, own(x[:, :n], 1), err_msg=f"{own.__name__} of {n}")


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("shapes", [((), ()), ((), (1,)), ((5, 70), ()), ((), (70,)), ((5, 1), ()), ((5, 1), (5, 70))])
@pytest.mark.parametrize("chosen_by", [(5, 70), (5, 1), (70,), (3, 5, 1)])
def test_choices_among_single_elements(dtype, shapes, chosen_by):
    random = np.random.default_rng(3)
    c = random.random(chosen_by) < 0.5
    x, y = (random.integers(0, 100, shape).astype(dtype) for shape in shapes)
    np.testing.assert_array_equal(run(lambda c, x, y: ops.where(c, x, y), c=c, x=x, y=y), np.where(c, x, y))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_transposed_squares(dtype):
    for rows, columns in ((16, 16), (16, 50), (48, 33), (9, 64), (65, 31), (128, 96)):
        x = np.random.default_rng(rows).integers(0, 250, (2, rows, columns)).astype(dtype)
        found = run(lambda x: ops.transpose(x, perm=(0, 2, 1)), x=x)
        np.testing.assert_array_equal(found, x.swapaxes(1, 2))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_short_rows_are_copied(dtype, mode):
    for n in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 56, 63, 64, 65, 70):
        x = np.random.default_rng(n).integers(0, 100, (3, n)).astype(dtype)
        found = run(lambda x: ops.pad(x, pads=(0, 1, 0, 1), mode=mode), x=x)
        np.testing.assert_array_equal(found, np.pad(x, ((0, 0), (1, 1)), mode=mode), err_msg=str(n))


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_are_joined(dtype, reduction, axis):
    """Integers wrap around."""
    random = np.random.default_rng(axis)
    x, updates = (random.integers(1, 100, shape).astype(dtype) for shape in ((6, 40), (6, 40)))
    at = random.integers(-x.shape[axis], x.shape[axis], x.shape)
    join = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    expected, positions = x.copy(), [*np.indices(at.shape)]
    positions[axis] = at
    join.at(expected, tuple(positions), updates)
    found = run(
        lambda x, at, updates: ops.scatter_elements(x, at, updates, axis=axis, reduction=reduction),
        x=x,
        at=at,
        updates=updates,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-12)
    pairs = random.integers(0, 6, (50, 2))
    for index, joined in ((pairs, updates.ravel()[:50]), (pairs[:, :1], np.resize(updates, (50, 40)))):
        expected = x.copy()
        join.at(expected, tuple(index.T), joined)
        with np.errstate(over="ignore"):
            found = run(
                lambda x, at, updates: ops.scatter_nd(x, at, updates, reduction=reduction),
                x=x,
                at=index,
                updates=joined,
            )
        np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_relu_of_integers(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, -1, 0, 1, info.max] * 20, dtype)
    np.testing.assert_array_equal(run(lambda x: ops.relu(x), x=x), np.maximum(x, 0))


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_other_instruction_sets(isa):
    again_on(isa, __file__, but="other_instruction_sets")
