"""Operators of Python beside arithmetic, ``.T``, and attributes as users write them, against NumPy's own."""

import operator

import numpy as np
import pytest

import dataflow as df
from tests.ops.operated import agrees, computed, refused

CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_rests_and_magnitudes_are_pythons():
    random = np.random.default_rng(2)
    x, y = (random.uniform(-3, 3, (3, 4)).astype(np.float32) for _ in range(2))
    a, b = np.array([[7, -7, 7, -7]], np.int32), np.array([3, 3, -3, -3], np.int32)
    for pair in ((x, y), (a, b)):
        agrees(operator.mod, *pair)
        agrees(lambda x: x % 2, pair[0])
        agrees(lambda x: 5 % x, pair[1])
        agrees(abs, pair[0])
    agrees(lambda x: y % x, x)
    refused(lambda x: x % 2.5, "mod of 'x', which is int32.*what int32 can hold", dtype=np.int32)
    refused(abs, "abs: expected numbers, got bool", dtype=np.bool_)


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
def test_connectives_of_bools_and_of_bits(function):
    flags = np.array([[True, True, False, False]]), np.array([[True], [False]])
    bits = np.array([0b1100, -1, 7], np.int16), np.array([[0b1010], [3]], np.int16)
    for a, b in (flags, bits):
        agrees(function, a, b)
        agrees(lambda x, b=b: function(x, b), a)
        agrees(lambda x, b=b: function(b, x), a)
        agrees(operator.invert, a)
    agrees(lambda x: function(x, True), flags[0])
    agrees(lambda x: function(6, x), bits[0])
    refused(lambda x: function(x, x), "bitwise_.*expected integers, got float32")
    refused(lambda x: function(x, 2), "what bool can hold", dtype=np.bool_)
    refused(lambda x: function(x, True), "a bool of Python is no number here", dtype=np.int64)
    refused(lambda x: function(x, 0.5), "what int64 can hold", dtype=np.int64)
    refused(operator.invert, "bitwise_not: expected integers, got float32")


def test_t_is_the_transpose():
    agrees(lambda x: x.T, CUBE)
    agrees(lambda x: x.T @ x, CUBE[0])
    agrees(lambda x: x.T, CUBE[0, 0])


# ---- attributes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(7,), (5, 6), (4, 5, 3)], ids=repr)
def test_convolutions_and_pools_have_defaults_per_axis(sizes):
    random = np.random.default_rng(4)
    axes = tuple(range(2, 2 + len(sizes)))
    x = random.standard_normal((2, 3, *sizes)).astype(np.float32)
    w = random.standard_normal((4, 3, *[2] * len(sizes))).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axes)  # (n, c, positions..., taps...)
    taps = tuple(range(windows.ndim - len(sizes), windows.ndim))
    found, _ = computed(df.ops.conv, x, w)
    expected = np.tensordot(windows, w, ((1, *taps), (1, *axes)))
    np.testing.assert_allclose(found, np.moveaxis(expected, -1, 1), rtol=1e-5, atol=1e-5)
    window = {"kernel": w.shape[2:], "strides": [1] * len(sizes)}
    for op, function in ((df.ops.max_pool, np.max), (df.ops.avg_pool, np.mean)):
        found, _ = computed(lambda x, op=op: op(x, **window), x)
        np.testing.assert_allclose(found, function(windows, taps), rtol=1e-5, atol=1e-6)


def test_what_a_pool_steps_by_is_to_be_said():
    """It is 1 in ONNX, and the kernel in PyTorch."""
    refused(lambda x: df.ops.max_pool(x, kernel=(2, 2)), "max_pool: attribute 'strides' is missing", shape=(1, 2, 8, 8))
    refused(lambda x: df.ops.conv(x, x), r"conv: the input has 2 axes; expected 3 to 5")


def test_dtypes_are_given_as_text_too():
    x = np.array([1.5, -2.5], np.float32)
    for to in ("float64", "int32", np.float64, df.int32):
        found, declared = computed(lambda x, to=to: df.ops.cast(x, to=to), x)
        expected = x.astype(to.numpy if isinstance(to, df.DType) else to)
        assert declared.dtype.numpy == expected.dtype
        np.testing.assert_array_equal(found, expected)
    found, _ = computed(lambda x: df.ops.bitcast(x, to="int32"), x)
    np.testing.assert_array_equal(found, x.view(np.int32))
    refused(lambda x: df.ops.cast(x, to="double precision"), "'double precision' is no dtype; expected one of float32")
