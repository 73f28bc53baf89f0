"""Integers of every size on the cpu, by no other device, against NumPy: products, quotients, and what has no sign."""

import numpy as np
import pytest

import dataflow as df
from tests.support import again_on

ops = df.ops
SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]


def run(build, **arrays):
    g = df.GraphBuilder()
    g.output("y", build(**{name: g.input(name, a.dtype, a.shape) for name, a in arrays.items()}))
    with df.Session(df.Model(g.build()), ["cpu"], threads=1, fallback="error") as session:
        return session.run(arrays)["y"]


def everywhere(random, dtype, shape):
    """Numbers from all over the range of a dtype, its ends among them."""
    info = np.iinfo(dtype)
    x = random.integers(info.min, info.max, shape, dtype, endpoint=True)
    flat = x.reshape(-1)
    flat[: min(2, flat.size)] = [info.min, info.max][: min(2, flat.size)]
    return x


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_products_wrap_around(dtype):
    random = np.random.default_rng(0)
    shapes = [
        ((1, 1), (1, 1)), ((3, 5), (5, 7)), ((4, 16), (16, 8)), ((5, 33), (33, 17)), ((9, 130), (130, 65)),
        ((70, 3), (3, 3)), ((1, 300), (300, 600)), ((2, 7), (7, 1030)), ((130, 260), (260, 31)), ((3, 0), (0, 4)),
        ((0, 5), (5, 3)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((1, 9), (9, 63)),
        ((9, 70), (70, 1)),
    ]  # fmt: skip
    for left, right in shapes:
        a, b = everywhere(random, dtype, left), everywhere(random, dtype, right)
        expected = np.matmul(a, b)
        np.testing.assert_array_equal(run(lambda a, b: ops.matmul(a, b), a=a, b=b), expected, err_msg=f"{left} {right}")
        transposed = {"a": a, "b": np.ascontiguousarray(b.swapaxes(-1, -2))}
        swap = (*range(b.ndim - 2), b.ndim - 1, b.ndim - 2)
        found = run(lambda a, b: ops.matmul(a, ops.transpose(b, perm=swap)), **transposed)  # noqa: B023
        np.testing.assert_array_equal(found, expected, err_msg=f"{left} {right} transposed")
    a, b = everywhere(random, dtype, (6, 5, 4)), everywhere(random, dtype, (6, 3))  # rows that are strided
    found = run(lambda a, b: ops.matmul(ops.transpose(a, perm=(1, 2, 0)), b), a=a, b=b)
    np.testing.assert_array_equal(found, np.matmul(a.transpose(1, 2, 0), b))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_quotients_are_towards_zero(dtype):
    random = np.random.default_rng(1)
    info = np.iinfo(dtype)
    ends = [n for n in (info.min, info.min + 1, -1, 0, 1, 2, 3, info.max - 1, info.max) if n >= info.min]
    a, b = (x.reshape(-1) for x in np.meshgrid(*2 * [np.array(ends, dtype)]))
    a = np.concatenate([a, everywhere(random, dtype, 3000), everywhere(random, dtype, 3000)])
    b = np.concatenate([b, everywhere(random, dtype, 3000), random.integers(1, 100, 3000).astype(dtype)])
    divisors = np.where(b == 0, 1, b)
    with np.errstate(over="ignore"):
        products = (a // divisors * divisors).astype(dtype)  # multiples, and their neighbours
    for numbers in (a, products, products - np.ones(1, dtype), products + np.ones(1, dtype)):
        exact = [
            0 if q == 0 else abs(int(p)) // abs(int(q)) * (-1 if (p < 0) != (q < 0) else 1)
            for p, q in zip(numbers, b, strict=True)
        ]
        expected = np.array([n & (2**info.bits - 1) for n in exact], f"u{info.bits // 8}").view(dtype)
        np.testing.assert_array_equal(run(lambda a, b: ops.div(a, b), a=numbers, b=b), expected)
    for divisor in ends:
        one = np.full((), divisor, dtype)
        found = run(lambda a, b: ops.div(a, b), a=a, b=one)
        same = run(lambda a, b: ops.div(a, b), a=a, b=np.full_like(a, divisor))
        np.testing.assert_array_equal(found, same)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sums_and_products_wrap_around(dtype):
    """Within runs of a row, and where those of a long one are joined: no sum of two of them overflows."""
    for shape in ((3, 40), (2, 5000), (1, 200_000)):
        x = everywhere(np.random.default_rng(5), dtype, shape)
        for op, own in ((ops.reduce_sum, np.sum), (ops.reduce_prod, np.prod)):
            found = run(lambda x: op(x, axes=(1,), keepdims=0), x=x | 1)  # noqa: B023
            np.testing.assert_array_equal(found, own(x | 1, 1, dtype=dtype))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_numbers_without_sign(dtype):
    x = everywhere(np.random.default_rng(2), dtype, 100)
    x[5:9] = 0
    np.testing.assert_array_equal(run(lambda x: ops.abs(x), x=x), x)
    np.testing.assert_array_equal(run(lambda x: ops.sign(x), x=x), (x != 0).astype(dtype))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_are_added_up(dtype, stride):
    windows = (9 - 3 + 2) // stride + 1
    x = everywhere(np.random.default_rng(3), dtype, (2, 2 * 9, windows * windows))
    expected = np.zeros((2, 2, 11, 11), dtype)
    taps = x.reshape(2, 2, 3, 3, windows, windows)
    for i in range(3):
        for j in range(3):
            rows, columns = (slice(k, k + stride * (windows - 1) + 1, stride) for k in (i, j))
            expected[:, :, rows, columns] += taps[:, :, i, j]
    how = {"image": (9, 9), "kernel": (3, 3), "strides": (stride, stride), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    np.testing.assert_array_equal(run(lambda x: ops.col2im(x, **how), x=x), expected[:, :, 1:-1, 1:-1])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (5, 7), (4, 33), (2, 3, 70), (9, 1025)])
def test_scales_of_the_last_axis(dtype, shape):
    random = np.random.default_rng(4)
    info = np.iinfo(dtype)
    scale = (2.0 ** random.integers(-6, 2, shape[-1])).astype(np.float32)
    zero = random.integers(info.min, info.max, shape[-1], dtype, endpoint=True)
    x = (info.max * scale * random.standard_normal(shape)).astype(np.float32)
    x.reshape(-1)[0] = np.inf
    expected = np.clip(np.rint(x / scale) + zero, info.min, info.max).astype(dtype)
    found = run(lambda x, s, z: ops.quantize(x, s, z, axis=len(shape) - 1), x=x, s=scale, z=zero)
    np.testing.assert_array_equal(found, expected)
    back = run(lambda x, s, z: ops.dequantize(x, s, z, axis=len(shape) - 1), x=expected, s=scale, z=zero)
    np.testing.assert_array_equal(back, (expected.astype(np.float64) - zero) * scale)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_other_instruction_sets(isa):
    again_on(isa, __file__, but="other_instruction_sets")
